"""Time zones: finds the time zone of a name."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

from orchestrix.errors import Invalid

_PSEUDO: Final = frozenset({"Factory", "localtime", "posixrules", "leapseconds"})
"""Files beside the zones: their meaning differs between machines, or they are no time zone at all."""


@cache
def zone(name: str) -> ZoneInfo:
    """The time zone that the IANA database calls `name`. Raises `Invalid` with the nearest name.

    A process keeps what it has once read: new rules come with its next start.
    """
    known = available_timezones()
    if name not in known:
        raise _unknown(name, known)
    return ZoneInfo(name)


def new_zone(name: str) -> ZoneInfo:
    """`zone` for what is written now: no file beside the zones, as earlier versions have accepted."""
    if name in _PSEUDO:
        raise _unknown(name, available_timezones())
    return zone(name)


def _unknown(name: str, known: set[str]) -> Invalid:
    folded = {one.casefold(): one for one in sorted(known - _PSEUDO)}
    near = get_close_matches(name[:100].casefold(), folded, n=1)
    meant = f": did you mean {folded[near[0]]}?" if near else ""
    return Invalid(f"timeZone {name[:100]!r} is not in the IANA time zone database (e.g. Europe/Berlin, UTC){meant}")
