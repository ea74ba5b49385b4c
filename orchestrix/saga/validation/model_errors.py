"""Model errors: lists what a model rejects in data, for a sample of it where there are too many errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pydantic import ValidationError

MAX_ERRORS: Final = 100
"""Errors that are reported."""
SAMPLE_FROM_ERRORS: Final = 500
"""Errors above which only a sample of the data is validated again: listing all of them would take a second."""
SAMPLE_VALUES: Final = 1000
"""Values in that sample."""
_OF_THE_WHOLE: Final = ("missing", "too_short", "value_error", "assertion_error")
"""Errors that a sample can have though the whole has none."""


def errors_of(refused: ValidationError, check: Callable[[Any], object], data: object) -> list[dict[str, Any]]:
    """Why `check` has rejected `data`, as pydantic reports it; of very many errors the first ones."""
    if refused.error_count() > SAMPLE_FROM_ERRORS:
        try:
            check(_part(data, [SAMPLE_VALUES]))
        except ValidationError as smaller:
            if found := [one for one in _all(smaller) if not one["type"].endswith(_OF_THE_WHOLE)]:
                return found
        except Exception:  # an author's own code, which need not expect a sample
            return _all(refused)
    return _all(refused)


def _all(refused: ValidationError) -> list[dict[str, Any]]:
    return [dict(error) for error in refused.errors(include_url=False, include_context=False, include_input=False)]


def _part(value: object, left: list[int]) -> object:
    """The beginning of `value`, with at most `left` values."""
    left[0] -= 1
    if isinstance(value, dict):
        taken: dict[Any, object] = {}
        for key, one in value.items():
            if left[0] <= 0:
                break
            taken[key] = _part(one, left)
        return taken
    if isinstance(value, list):
        items: list[object] = []
        for one in value:
            if left[0] <= 0:
                break
            items.append(_part(one, left))
        return items
    return value
