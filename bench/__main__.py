"""``python -m bench``: the command line, as the console script starts it."""

from .start import entry

if __name__ == "__main__":
    entry()
