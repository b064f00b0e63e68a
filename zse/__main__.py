"""``python -m zse`` is the command line."""

from zse.cli import main

if __name__ == "__main__":
    main()
