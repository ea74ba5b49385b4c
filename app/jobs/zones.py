"""Which time zone has that name?"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from app.errors import Invalid

PSEUDO: Final = frozenset({"Factory", "localtime", "posixrules", "leapseconds"})
"""Files beside the zones: what they mean differs from one machine to the next, or is no time at all."""
_VARIANTS: Final = ("posix/", "right/")


@cache
def zone(name: str) -> ZoneInfo:
    """The time zone that the IANA database calls `name`. Raises `Invalid` with the nearest name.

    What a process has once read it keeps: new rules come with its next start.
    """
    known = _names()
    if name in known:
        return ZoneInfo(name)
    near = get_close_matches(name[:100], known, n=1)
    meant = f": did you mean {near[0]}?" if near else ""
    raise Invalid(f"timeZone {name[:100]!r} is no name of the IANA time zone database, as Europe/Berlin or UTC{meant}")


def _names() -> set[str]:
    return {name for name in available_timezones() - PSEUDO if not name.startswith(_VARIANTS)}
