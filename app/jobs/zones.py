"""Which time zone has that name?"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from app.errors import Invalid


@cache
def zone(name: str) -> ZoneInfo:
    """The time zone that the IANA database calls `name`. Raises `Invalid` with the nearest name.

    What a process has once read it keeps: new rules come with its next start.
    """
    known = available_timezones()
    if name in known:
        return ZoneInfo(name)
    near = get_close_matches(name[:100], known, n=1)
    meant = f": did you mean {near[0]}?" if near else ""
    raise Invalid(f"timeZone {name[:100]!r} is no name of the IANA time zone database, as Europe/Berlin or UTC{meant}")
