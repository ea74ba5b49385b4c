"""Entry point `python -m app`: the same as `orchestrix`, with the service's own file of settings."""

import os
import sys
from pathlib import Path

from orchestrix import main

if __name__ == "__main__":
    if not os.environ.get("ORCHESTRIX_CONFIG"):  # empty is not set, as everywhere
        os.environ["ORCHESTRIX_CONFIG"] = str(Path(__file__).parents[1] / "orchestrix.toml")
    sys.exit(main())
