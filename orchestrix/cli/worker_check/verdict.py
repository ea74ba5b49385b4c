"""Verdict: what came of a rule of a check, and how all of them are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from orchestrix.cli import exit_codes, output

PASSED, FAILED, SKIPPED = "ok", "fail", "skip"
HEADS: Final = ("RULE", "STATUS", "DETAIL")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a rule: `ok`, `fail` or `skip`, and a sentence."""

    rule: str
    status: str
    detail: str


def printed(found: Sequence[Verdict], form: str) -> int:
    """Prints them, and returns the exit code: 1 if a rule is broken."""
    if form == "json":
        output.print_json({"items": [{"rule": one.rule, "status": one.status, "detail": one.detail} for one in found]})
    else:
        print(output.table(HEADS, [(one.rule, one.status, one.detail) for one in found]))
    return exit_codes.FAILED if any(one.status == FAILED for one in found) else exit_codes.OK
