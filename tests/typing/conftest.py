"""Files for type checkers only: pytest, which imports every file for its doctests, ignores them."""

collect_ignore = ["surface.py"]
