"""Storable text: text from outside, made so that every database can store it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from orchestrix.saga.messages import storable


def cleaned(text: str, limit: int | None = None) -> str:
    """`text` without what not every database takes (NUL, lone surrogates), at most `limit` code points long.

    For unchecked text from outside: a bad character in a reason must not fail the batch around it.
    """
    if not storable(text):
        text = text.replace("\0", "\ufffd").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text[:limit]


def storable_json(value: Any) -> Any:
    """`value` as every database takes it as JSON: what JSON does not have becomes text."""
    if isinstance(value, Mapping):
        return {cleaned(str(key)): storable_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable_json(item) for item in value]
    if isinstance(value, bytes):
        return cleaned(value.decode(errors="replace"))
    plain = value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value if plain else cleaned(str(value))
