"""``python -m checkmate.cli``."""

from checkmate.cli import main

if __name__ == "__main__":
    main()
