"""Cron expressions: the due times of an expression, in a time zone whose clocks are put forward and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from cronsim import CronSim, CronSimError

from orchestrix.errors import Invalid

ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
EXPRESSION_LIMIT: Final = 200
"""Characters of an expression."""

_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_SECOND: Final = timedelta(seconds=1)
_DAY: Final = timedelta(days=1)
_LARGEST_STEP: Final = 999
_EVERY_HOUR: Final = ("*", "*/1", "0-23")
_EXAMPLE: Final = "'30 9 * * MON-FRI' is 9:30 from Monday to Friday"


@dataclass(frozen=True, slots=True)
class _Field:
    """One of the five fields: its name, and which numbers and names are allowed."""

    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()
    first: int = 0
    """The number of the first name."""

    def check(self, text: str) -> None:
        """Raises `Invalid` that names the field and the part that cannot be read."""
        for part in text.split(","):
            self._check_step(part, _LARGEST_STEP)
            if not self._readable(part.upper()):
                found = f"cron has the {self.name} {part[:40]!r}"
                if (parts := self._turned(part.upper())) is not None:
                    raise Invalid(f"{found}, whose range goes from high to low: write {parts}")
                raise Invalid(f"{found}, which cannot be read: write {self._allowed()}")

    def check_new(self, text: str) -> None:
        """Raises `Invalid` for a step beyond the values that there are."""
        for part in text.split(","):
            self._check_step(part, self._values)

    def _check_step(self, part: str, largest: int) -> None:
        _, slash, step = part.partition("/")
        if slash and step.isascii() and step.isdigit() and not 0 < int(step[:9]) <= largest:
            raise Invalid(
                f"cron has the {self.name} {part[:40]!r}, whose step does not fit: write one from 1 to {self._values}"
            )

    @property
    def _values(self) -> int:
        """How many there are: Sunday is one, though it has two numbers."""
        return len(self.words) or self.high - self.low + 1

    def _readable(self, part: str) -> bool:
        values, slash, step = part.partition("/")
        if slash and not (_whole(step) and int(step) > 0):
            return False
        if values == "*":
            return True
        low, dash, high = values.partition("-")
        first, last = self._number(low), self._number(high if dash else low)
        return first is not None and last is not None and first <= last

    def _turned(self, part: str) -> str | None:
        """How a range that wraps around the end of the field, as FRI-MON, is to be written; None for any other."""
        values, slash, _ = part.partition("/")
        low, _, high = values.partition("-")
        first, last = self._number(low), self._number(high)
        if first is None or last is None or first <= last:
            return None
        if slash:
            return "two ranges from low to high, or the values separated by commas"
        top = self.low + self._values - 1
        begin = self.low if first > top else first  # Sunday, as the end of a week
        spelt = bool(self.words) and not low.isdigit()
        parts = [(begin, top), (self.low, last)] if begin > last else [(begin, last)]
        ranges = ",".join(self._range(*part, spelt=spelt) for part in parts)
        return f"* or {ranges}" if begin == last + 1 else ranges

    def _range(self, first: int, last: int, *, spelt: bool) -> str:
        ends = [self.words[one - self.first] if spelt else str(one) for one in dict.fromkeys((first, last))]
        return "-".join(ends)

    def _number(self, text: str) -> int | None:
        if text in self.words:
            return self.words.index(text) + self.first
        return int(text) if _whole(text) and self.low <= int(text) <= self.high else None

    def _allowed(self) -> str:
        words = f" or {self.words[0]} to {self.words[-1]}" if self.words else ""
        sunday = " (Sunday is 0, 7 or SUN)" if self.words == _DAYS else ""
        return (
            f"* or {self.low} to {self.high}{words}{sunday}, a range from low to high (1-5), steps (*/2, 1-5/2), "
            "or several of these with commas between"
        )


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS, 1),
    _Field("day of week", 0, 7, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression of five fields, read by the clocks of a time zone.

    Due at certain hours means: at that local time. A time that the clocks leave out is due at the first moment after
    the gap, and one that they show twice is due the first time. Due in every hour means: whenever the clocks show such
    a minute, so that the time between two of them does not jump. Raises `Invalid` for what cannot be read or never
    comes.
    """

    expression: str
    zone: tzinfo
    _plain: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_plain", _checked(self.expression))

    def check_new(self) -> None:
        """Raises `Invalid` for what is accepted in old schedules only."""
        for one, text in zip(_FIELDS, self._plain.split(), strict=True):
            one.check_new(text)

    def after(self, moment: datetime) -> datetime | None:
        """The first due time later than `moment`, in UTC and to the minute; None if none comes within fifty years."""
        hours = self._plain.split()[1]
        return self._running(moment) if hours in _EVERY_HOUR else self._at_hours(moment)

    def _at_hours(self, moment: datetime) -> datetime | None:
        wall = CronSim(self._plain, _local_time(moment, self.zone))
        while (shown := next(wall, None)) is not None:
            if (due := _first_shown(shown, self.zone)) > moment:
                return due
        return None

    def _running(self, moment: datetime) -> datetime | None:
        # Between two changes of the clocks local time is UTC plus an offset: nothing is left out, nothing comes twice.
        behind = since = moment
        while True:
            offset = _offset(since, self.zone)
            shown = next(CronSim(self._plain, (behind + offset).replace(tzinfo=None)), None)
            if shown is None:
                return None
            due = shown.replace(tzinfo=UTC) - offset
            changed = _first_change(since, due, self.zone)
            if changed is None:
                return due
            behind, since = changed - _SECOND, changed


def _checked(expression: str) -> str:
    """The expression in five fields; raises `Invalid`."""
    text = expression.strip()
    if len(text) > EXPRESSION_LIMIT:
        raise Invalid(f"cron has {len(text)} characters; at most {EXPRESSION_LIMIT} are allowed")
    if text.startswith("@"):
        if text.lower() not in ALIASES:
            raise Invalid(f"cron {text[:40]!r} is unknown: write one of {', '.join(ALIASES)}, or five fields")
        return ALIASES[text.lower()]
    fields = text.split()
    if len(fields) != len(_FIELDS):
        names = ", ".join(one.name for one in _FIELDS)
        raise Invalid(f"cron must have five fields ({names}), not {len(fields)}; {_EXAMPLE}")
    for one, part in zip(_FIELDS, fields, strict=True):
        one.check(part)
    return _coming(" ".join(fields))


def _coming(plain: str) -> str:
    """`plain`, unless there is no such day."""
    try:
        came = next(CronSim(plain, datetime(2000, 1, 1)), None)
    except CronSimError:
        came = None
    if came is None:
        raise Invalid(f"cron {plain!r} is never due: no such month has such a day; change the day or the month")
    return plain


def _local_time(moment: datetime, zone: tzinfo) -> datetime:
    """The local time of the zone."""
    return moment.astimezone(zone).replace(tzinfo=None)


def _first_shown(wall: datetime, zone: tzinfo) -> datetime:
    """When clocks show `wall` for the first time; if they leave it out, the first moment after the gap."""
    before, after = (wall.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
    early, late = (wall.replace(tzinfo=UTC) - offset for offset in (after, before))
    if after <= before:
        return late
    return _first_change(early, late, zone) or late


def _first_change(start: datetime, end: datetime, zone: tzinfo) -> datetime | None:
    """The first moment in (start, end] with another offset than at `start`, to the second; None if there is none."""
    offset, low = _offset(start, zone), start.replace(microsecond=0)
    high = min(low + _DAY, end)
    while _offset(high, zone) == offset:
        if high == end:
            return None
        low, high = high, min(high + _DAY, end)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        low, high = (middle, high) if _offset(middle, zone) == offset else (low, middle)
    return high


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _whole(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 4
