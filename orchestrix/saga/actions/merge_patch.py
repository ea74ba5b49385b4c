"""Merge patch: changes JSON data as RFC 7396 specifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(data: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`data` after a merge patch of RFC 7396: null removes, objects are merged, all else replaces."""
    result = dict(data)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = result.get(name)
            result[name] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[name] = value
    return result
