"""Of which saga is this call, and how are its instances shown?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.api import views
from orchestrix.api.problems import not_found
from orchestrix.api.routes import Call
from orchestrix.persistence.pairs import Pair, pair_of
from orchestrix.saga.definition import RESERVED, Saga
from orchestrix.saga.messages import MAX_ID
from orchestrix.saga.state import Instance

APPS: Final = "/apps"


@dataclass(frozen=True, slots=True)
class Kind:
    """The instances of one saga, at `path`."""

    saga: Saga
    pair: Pair
    path: str
    view: Callable[[Instance], dict[str, Any]]
    states: frozenset[str]
    """Every state that an instance can be in, of whichever version."""

    @property
    def noun(self) -> str:
        """What one of them is called there."""
        return "app" if self.path == APPS else "instance"

    def link(self, instance_id: int) -> str:
        """Where the instance is."""
        return f"{self.path}/{instance_id}"


KindOf = Callable[[Call], Kind]


def apps(call: Call) -> Kind:
    """The apps."""
    return _kind(call, views.APP, APPS, views.app)


def named(call: Call) -> Kind:
    """The saga that the path names; raises `Problem` 404 if this process does not know it."""
    name = call.path("name")
    return _kind(call, name, f"/sagas/{name}", views.instance)


def instance_id(call: Call, kind: Kind) -> int:
    """The id in the path; raises `Problem` 404 for what no instance can have."""
    text = call.path("id")
    whole = text.isascii() and text.isdigit()
    if whole and len(text) <= 16 and text[0] != "0" and int(text) < MAX_ID:
        return int(text)
    if whole:
        raise not_found(f"{kind.saga.name} {text[:60]}")
    raise not_found(f"{kind.saga.name} {text[:60]!r}: an id is a whole number from 1 on")


def _kind(call: Call, name: str, path: str, view: Callable[[Instance], dict[str, Any]]) -> Kind:
    saga = call.context.catalog.saga(name)
    if saga is None:
        raise not_found(
            f"saga {name[:60]!r}: there are {', '.join(sorted(saga.name for saga in call.context.catalog))}"
        )
    return Kind(saga, pair_of(name), path, view, RESERVED | call.context.catalog.states(name))
