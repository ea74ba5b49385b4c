"""Start requests: what starting a saga needs, and what the orchestrator answers."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrix.domain.idempotency import InFlight, Keyed, KeyReused, Repeated, Replayed
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart

__all__ = [
    "ExistingSaga",
    "IdempotencyKey",
    "InFlight",
    "KeyReused",
    "Keyed",
    "Repeated",
    "Replayed",
    "StartRequest",
    "StartResult",
    "StartedSaga",
]

IdempotencyKey = Keyed[Instance]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Start one instance of `saga`."""

    saga: str
    start: SagaStart
    idempotency: IdempotencyKey | None = None


@dataclass(frozen=True, slots=True)
class StartedSaga:
    """The instance is committed; the relay publishes its command."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class ExistingSaga:
    """There is an instance of that name already; nothing was written."""

    existing: int | None


StartResult = StartedSaga | ExistingSaga | Repeated
