"""``python -P -m checkmate.cli``; without ``-P``, Python itself takes code from the current folder first."""

from checkmate.cli import main

if __name__ == "__main__":
    main()
