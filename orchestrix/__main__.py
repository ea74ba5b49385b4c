"""What does `python -m orchestrix` do?  The same as `orchestrix`."""

import sys

from orchestrix.cli import main

if __name__ == "__main__":
    sys.exit(main())
