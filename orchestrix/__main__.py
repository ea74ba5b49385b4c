"""Entry point `python -m orchestrix`: the same as the command `orchestrix`."""

import sys

from orchestrix.cli import main

if __name__ == "__main__":
    sys.exit(main())
