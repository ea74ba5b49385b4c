"""What does `python -m app` do?  The same as `orchestrix`."""

import sys

from app.cli import main

if __name__ == "__main__":
    sys.exit(main())
