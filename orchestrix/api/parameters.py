"""Query parameters: which ones a call takes, and whether those of this request are right."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

from orchestrix.api.problems import bad_parameter
from orchestrix.saga.messages import MAX_ID

MAX_FIELDS: Final = 100
MAX_LIMIT: Final = 200
_NUMBER = re.compile(r"[0-9]{1,19}")
_DURATION = re.compile(r"([0-9]{1,9})(ms|s|)")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One query parameter, as the OpenAPI document shows it. `many` may stand several times."""

    name: str
    about: str
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string"})
    many: bool = False


class Query:
    """The parameters of one request. Raises `Problem` 400 for one that is unknown, doubled or unreadable."""

    def __init__(self, raw: bytes, known: Sequence[Parameter]) -> None:
        self._values: dict[str, list[str]] = {}
        if raw:
            self._read(raw, {parameter.name: parameter for parameter in known})

    def _read(self, raw: bytes, known: Mapping[str, Parameter]) -> None:
        for name, value in _pairs(raw):
            if name not in known:
                allowed = ", ".join(known) or "none"
                raise bad_parameter(name[:100], f"is not known here; allowed are: {allowed}.")
            if any(unicodedata.category(letter) == "Cc" for letter in value):
                raise bad_parameter(name, "has control characters.")
            held = self._values.setdefault(name, [])
            if held and not known[name].many:
                raise bad_parameter(name, "was given more than once.")
            held.append(value)

    def text(self, name: str, *, blank: bool = False) -> str | None:
        """The value as it came, but in NFC as all stored names are; None where it is absent.

        An empty one is refused, because it could mean everything or nothing, unless `blank` says that it is as good as
        absent.
        """
        values = self._values.get(name)
        if values and not values[0] and not blank:
            raise bad_parameter(name, "is empty; give it a value or leave it out.")
        return unicodedata.normalize("NFC", values[0]) or None if values else None

    def choices(self, name: str, allowed: Collection[str]) -> tuple[str, ...]:
        """All values of a repeatable parameter, each once."""
        values = tuple(dict.fromkeys(self._values.get(name, ())))
        for value in values:
            if value not in allowed:
                raise bad_parameter(name, f"{value[:60]!r} is none of {', '.join(sorted(allowed))}.")
        return values

    def number(self, name: str, low: int = 0, high: int = MAX_ID - 1, *, default: int | None = None) -> int | None:
        """A whole number from `low` to `high`."""
        text = self.text(name)
        if text is None:
            return default
        if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
            raise bad_parameter(name, f"must be a whole number from {low} to {high}.")
        return int(text)

    def limit(self, default: int) -> int:
        """How many items a page may have."""
        return self.number("limit", 1, MAX_LIMIT) or default

    def duration(self, name: str, longest: float) -> float | None:
        """Seconds, from `20s`, `500ms` or `20`, at most `longest`."""
        text = self.text(name)
        if text is None:
            return None
        match = _DURATION.fullmatch(text)
        seconds = int(match[1]) / (1000 if match[2] == "ms" else 1) if match else longest + 1
        if seconds > longest:
            raise bad_parameter(name, f"must be a duration such as 20s, 500ms or 20, at most {longest:g}s.")
        return seconds

    def moment(self, name: str) -> datetime | None:
        """A time of RFC 3339 with its zone, in UTC."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return read_moment(text)
        except ValueError:
            raise bad_parameter(
                name, "must be a time with its zone such as 2026-01-31T12:00:00Z or 2026-01-31T12:00:00%2B01:00."
            ) from None

    def flag(self, name: str) -> bool | None:
        """Yes or no; None where it is absent."""
        text = self.text(name)
        if text not in (None, "true", "false"):
            raise bad_parameter(name, "must be true or false.")
        return None if text is None else text == "true"


def read_moment(value: object) -> datetime:
    """A time of RFC 3339 with its zone, in UTC. Raises `ValueError` that says what is allowed."""
    try:
        if isinstance(value, str) and _MOMENT.fullmatch(value):
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise ValueError("must be a time with its zone such as 2026-01-31T12:00:00Z or 2026-01-31T12:00:00+01:00")


def _pairs(raw: bytes) -> list[tuple[str, str]]:
    try:
        return parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except UnicodeError:
        raise bad_parameter("query", "is not UTF-8 in percent-encoding.") from None
    except ValueError:
        raise bad_parameter("query", f"has more than {MAX_FIELDS} parameters.") from None
