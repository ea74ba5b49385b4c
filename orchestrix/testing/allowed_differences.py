"""Allowed differences: the parts of a saga's ending that may differ after a crash."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from orchestrix.errors import ConfigError
from orchestrix.saga.definition import Saga
from orchestrix.saga.validation.arguments import ArgumentKind

PARTS: Final = ("state", "data", "undone", "blocker")
FIELD: Final = "data."
"""Prefix of the name of a single field of the data; further dots address nested fields, as in data.address.street."""
DIFFERENCES: Final = ArgumentKind(
    lambda value: isinstance(value, list | tuple | set | frozenset) and all(map(_is_part, value)),
    f"a list of {', '.join(PARTS)} or fields of the data (data.seat),",
    lambda _: '["undone"]',
)


def _is_part(name: object) -> bool:
    if not isinstance(name, str):
        return False
    return name in PARTS or (name.startswith(FIELD) and all(name.split(".")))


def fields(saga: Saga, may_differ: Collection[str]) -> list[list[str]]:
    """The paths of the single fields in `may_differ`. Raises `ConfigError` for one that the saga's model lacks."""
    paths = [name.split(".")[1:] for name in sorted(may_differ) if name.startswith(FIELD)]
    if saga.data.model_config.get("extra") != "allow":
        known = [one.alias or name for name, one in saga.data.model_fields.items()]
        for path in paths:
            if path[0] not in known:
                has = ", ".join(known)
                raise ConfigError(f"may_differ: the data of saga {saga.name!r} has no field {path[0]!r}: it has {has}")
    return paths


def without(data: Mapping[str, Any], paths: Iterable[list[str]]) -> dict[str, Any]:
    """`data` without the fields at `paths`."""
    left = dict(data)
    for first, *rest in paths:
        if not rest:
            left.pop(first, None)
        elif isinstance(inner := left.get(first), Mapping):
            left[first] = without(inner, [rest])
    return left
