"""How do `make services` and people ask for the servers?  `python -m tests.servers ensure`."""

from __future__ import annotations

import sys

from tests.servers.ensure import CannotInstall, ensure
from tests.servers.lookup import Missing


def main(arguments: list[str]) -> int:
    """0 when every server is at hand, 1 when one is not, 2 for wrong usage."""
    if arguments != ["ensure"]:
        print("usage: python -m tests.servers ensure", file=sys.stderr)
        return 2
    try:
        ensure()
    except (CannotInstall, Missing) as error:
        print(f"make services: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
