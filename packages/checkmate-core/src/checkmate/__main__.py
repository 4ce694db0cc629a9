"""``python -P -m checkmate``; without ``-P``, Python itself first takes code from the current folder."""

from checkmate.cli import main

if __name__ == "__main__":
    main()
