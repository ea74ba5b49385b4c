"""What does `python -m app` do?  The same as `orchestrix`, with the service's own file of settings."""

import sys

from orchestrix import main

if __name__ == "__main__":
    sys.exit(main())
