"""Kinds: the saga that a call is about, and how its instances are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestrix.api.instances.models import fields_of
from orchestrix.api.operations import Call
from orchestrix.api.problems import Problem, not_found
from orchestrix.api.traces.links import NO_LINKS, LinkTemplates
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.saga.definition import RESERVED, Saga
from orchestrix.saga.messages import MAX_ID
from orchestrix.saga.state import Instance

View = Callable[[Instance], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class InstanceKind:
    """The instances of one saga, at `path`."""

    saga: Saga
    pair: SagaTables
    path: str
    view: View
    states: frozenset[str]
    """Every state that an instance can be in, of whichever version."""
    member: str = "instance"
    """What one of them is called in a preview."""
    links: LinkTemplates = NO_LINKS

    def link(self, instance_id: int) -> str:
        """Where the instance is."""
        return f"{self.path}/{instance_id}"


class InstanceRef(NamedTuple):
    """One instance by its id; there need be none."""

    kind: InstanceKind
    id: int


KindOf = Callable[[Call], InstanceKind]


def at(path: str, saga: str, view: View, member: str) -> KindOf:
    """The instances of `saga`, which are at `path`."""
    return lambda call: _kind(call, saga, path, view, member)


def named(key_names: Mapping[str, str]) -> KindOf:
    """The saga that the path names: Problem 404 if this process does not know it. `key_names` has what the names of
    some sagas' instances are called: they have them twice.
    """

    def of(call: Call) -> InstanceKind:
        name = call.path("name")
        return _kind(call, name, f"/sagas/{name}", _twice_named(key_names.get(name)))

    return of


def one_of(kind_of: KindOf) -> Callable[[Call], InstanceRef]:
    """The instance that the path names; raises `Problem` 404 for an id that none can have."""

    def of(call: Call) -> InstanceRef:
        kind = kind_of(call)
        return InstanceRef(kind, _id(call, kind))

    return of


def _twice_named(key_name: str | None) -> View:
    if key_name is None:
        return fields_of

    def view(instance: Instance) -> dict[str, Any]:
        fields = fields_of(instance)
        head = {name: fields[name] for name in ("id", "saga", "key")}
        return {**head, key_name: instance.key, **fields}

    return view


def _id(call: Call, kind: InstanceKind) -> int:
    text = call.path("id")
    whole = text.isascii() and text.isdigit()
    if whole and len(text) <= 16 and text[0] != "0" and int(text) < MAX_ID:
        return int(text)
    if whole:
        raise not_found(f"{kind.saga.name} {text[:60]}")
    raise not_found(f"{kind.saga.name} {text[:60]!r}: an id is a whole number from 1")


def _kind(call: Call, name: str, path: str, view: View, member: str = "instance") -> InstanceKind:
    saga = call.context.catalog.saga(name)
    if saga is None:
        known = ", ".join(sorted(saga.name for saga in call.context.catalog)) or "none"
        raise Problem("not_found", f"Unknown saga {name[:60]!r}. Known sagas: {known}.")
    states = RESERVED | call.context.catalog.states(name)
    return InstanceKind(saga, saga_tables_of(name), path, view, states, member, call.context.links)
