"""Idempotency: what is answered to a request whose key was used before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer to give again. `fingerprint` shows whether the request was the same."""

    fingerprint: str
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)  # without slots: with them Python 3.11 cannot call it by an alias that says which R
class Keyed(Generic[R]):
    """A client's key. `render` makes the answer that is stored in the transaction which does what was asked."""

    scope: str
    key: str
    fingerprint: str
    render: Callable[[R], StoredAnswer]

    def before(self, stored: StoredAnswer | None) -> Replayed | KeyReused | None:
        """The result of the answer that is stored for this key; None where none is."""
        if stored is None:
            return None
        return Replayed(stored) if stored.fingerprint == self.fingerprint else KeyReused()


AnyKey = Keyed[Any]


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
"""What is answered to a key that was used before, or that another request uses just now."""
