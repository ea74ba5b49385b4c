"""Instance resource: the saga that a call is about, and how its instances are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from orchestrix.api import serializers
from orchestrix.api.problems import not_found
from orchestrix.api.routes import Call
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.saga.definition import RESERVED, Saga
from orchestrix.saga.messages import MAX_ID
from orchestrix.saga.state import Instance


@dataclass(frozen=True, slots=True)
class InstanceResource:
    """The instances of one saga, at `path`."""

    saga: Saga
    pair: SagaTables
    path: str
    view: Callable[[Instance], dict[str, Any]]
    states: frozenset[str]
    """Every state that an instance can be in, of whichever version."""
    member: str = "instance"
    """What one of them is called in a preview."""

    def link(self, instance_id: int) -> str:
        """Where the instance is."""
        return f"{self.path}/{instance_id}"


KindOf = Callable[[Call], InstanceResource]


def at(path: str, saga: str, view: Callable[[Instance], dict[str, Any]], member: str) -> KindOf:
    """The instances of `saga`, which are at `path`."""

    def of(call: Call) -> InstanceResource:
        return _kind(call, saga, path, view, member)

    return of


def named(key_names: Mapping[str, str]) -> KindOf:
    """The saga that the path names: Problem 404 if this process does not know it. `key_names` has what the names of
    some sagas' instances are called."""

    def of(call: Call) -> InstanceResource:
        name = call.path("name")
        return _kind(call, name, f"/sagas/{name}", partial(serializers.instance, key_name=key_names.get(name)))

    return of


def instance_id(call: Call, kind: InstanceResource) -> int:
    """The id in the path; raises `Problem` 404 for what no instance can have."""
    text = call.path("id")
    whole = text.isascii() and text.isdigit()
    if whole and len(text) <= 16 and text[0] != "0" and int(text) < MAX_ID:
        return int(text)
    if whole:
        raise not_found(f"{kind.saga.name} {text[:60]}")
    raise not_found(f"{kind.saga.name} {text[:60]!r}: an id is a whole number from 1 on")


def _kind(
    call: Call, name: str, path: str, view: Callable[[Instance], dict[str, Any]], member: str = "instance"
) -> InstanceResource:
    saga = call.context.catalog.saga(name)
    if saga is None:
        known = ", ".join(sorted(saga.name for saga in call.context.catalog)) or "none"
        raise not_found(f"saga {name[:60]!r}: there are {known}")
    return InstanceResource(
        saga, saga_tables_of(name), path, view, RESERVED | call.context.catalog.states(name), member
    )
