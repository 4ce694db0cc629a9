"""What type checkers read is not run: pytest, which imports every file for its doctests, leaves it out."""

collect_ignore = ["surface.py"]
