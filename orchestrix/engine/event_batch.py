"""Event batches: what was received, what one transaction made of it, and how a batch is divided."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orchestrix.broker.port import Delivery
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.saga.commands import SagaTransition
from orchestrix.saga.definition import Saga
from orchestrix.saga.messages import Event
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import IgnoredEvent


@dataclass(frozen=True, slots=True)
class Received:
    """A readable event of a saga that this node knows."""

    delivery: Delivery
    saga: Saga
    event: Event

    @property
    def key(self) -> tuple[str, int]:
        """Which instance it is for."""
        return self.saga.name, self.event.app_id


@dataclass(slots=True)
class Verdicts:
    """The results of a batch."""

    proven: list[SagaTransition] = field(default_factory=list)
    unproven: list[SagaTransition] = field(default_factory=list)
    outbox_rows: list[OutboxRow] = field(default_factory=list)
    ignored: list[tuple[Received, IgnoredEvent]] = field(default_factory=list)
    locked: list[Received] = field(default_factory=list)
    answered: list[tuple[Saga, Instance]] = field(default_factory=list)
    """Those whose command in flight has been answered, as they were before."""
    held: list[tuple[Received, str]] = field(default_factory=list)

    @property
    def moved(self) -> list[SagaTransition]:
        """All that moved. A move is proven if its event names the command in flight, so that this has been sent:
        the commands that follow may leave at once."""
        return self.proven + self.unproven


def firsts(waiting: Sequence[Received]) -> tuple[list[Received], list[Received]]:
    """The first event of each instance, and the rest: one row can be updated once in a statement."""
    first: dict[tuple[str, int], Received] = {}
    rest = [one for one in waiting if first.setdefault(one.key, one) is not one]
    return list(first.values()), rest


def of_pair(pair: SagaTables, moved: Iterable[SagaTransition]) -> list[SagaTransition]:
    return [one for one in moved if saga_tables_of(one.instance.saga) is pair]


def by_pair(batch: Iterable[Received]) -> dict[SagaTables, list[Received]]:
    groups: dict[SagaTables, list[Received]] = {}
    for one in batch:
        groups.setdefault(saga_tables_of(one.saga.name), []).append(one)
    return groups
