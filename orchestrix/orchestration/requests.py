"""What can be asked of the orchestrator, and what does it answer?"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrix.domain.idempotency import InFlight, Keyed, KeyReused, Repeated, Replayed
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import Start

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

IdempotencyKey = Keyed[Instance]


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


StartResult = Started | Taken | Repeated
