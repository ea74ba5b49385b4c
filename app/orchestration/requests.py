"""What can be asked of the orchestrator, and what does it answer?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from app.persistence.idempotency import StoredAnswer
from sagas.engine.state import Instance
from sagas.engine.transition import Start

__all__ = [
    "IdempotencyKey",
    "InFlight",
    "KeyReused",
    "Keyed",
    "Repeated",
    "Replayed",
    "StartRequest",
    "StartResult",
    "Started",
    "Taken",
]


R = TypeVar("R")


@dataclass(frozen=True)  # without slots: with them Python 3.11 cannot call it by an alias that says which R
class Keyed(Generic[R]):
    """A client's key. `render` makes the answer that is stored in the transaction which does what was asked."""

    scope: str
    key: str
    fingerprint: str
    render: Callable[[R], StoredAnswer]


IdempotencyKey = Keyed[Instance]
AnyKey = Keyed[Any]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Start one instance of `saga`."""

    saga: str
    start: Start
    idempotency: IdempotencyKey | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """The instance is committed; its command leaves by itself."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Taken:
    """There is an instance of that name already; nothing was written."""

    existing: int | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """The key was used before with the same request: its stored answer."""

    answer: StoredAnswer


@dataclass(frozen=True, slots=True)
class KeyReused:
    """The key was used before with another request."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """A request with this key has not ended yet."""


Repeated = Replayed | KeyReused | InFlight
"""What is answered to a key that came before, or that somebody else has just now."""
StartResult = Started | Taken | Repeated
