"""promtool: Prometheus' own checker of rules and metrics, in Debian's package of that name."""

from __future__ import annotations

import shutil
import subprocess
from typing import Final

PROGRAM: Final = "promtool"
PACKAGE: Final = "prometheus"


class PromtoolMissing(Exception):
    """promtool is not there. A test that needs it fails with this sentence; it is never skipped."""


def find() -> str | None:
    """Where the program is."""
    return shutil.which(PROGRAM)


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs it with these arguments and `text` as its input. Raises `PromtoolMissing`."""
    program = find()
    if program is None:
        raise PromtoolMissing(f"{PROGRAM} is missing: run `make services`, or install the package {PACKAGE}")
    return subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=60)
