"""Lets `python -m deepinfer` do what the command `deepinfer` does."""

import sys

from deepinfer.cli import main

if __name__ == "__main__":
    sys.exit(main())
