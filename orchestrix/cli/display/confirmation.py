"""Confirmation: asks on a terminal before what cannot be undone."""

from __future__ import annotations

import argparse
import sys

from orchestrix.cli.output import visible
from orchestrix.errors import PermanentError


def confirmed(arguments: argparse.Namespace, question: str) -> None:
    """Returns if the user says yes, has said so by `--yes`, or cannot be asked: scripts run as they are written.

    Raises `PermanentError` if not.
    """
    asked = sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if arguments.yes or getattr(arguments, "dry_run", False) or not asked:
        return
    print(f"{visible(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise PermanentError("not confirmed, so that nothing was changed")
