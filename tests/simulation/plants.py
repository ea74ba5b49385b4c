"""Which mistakes are planted to see that a simulation finds them?

Each is one that a hurried change could bring in. They are put around the product from outside, at names that its parts
call each other by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import true

from orchestrix.broker.port import Delivery, Outcome, Outgoing, Published
from orchestrix.engine.event_batch import Received, Verdicts
from orchestrix.engine.event_listener import EventListener
from orchestrix.outbox.rows import message_of
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import held_events, transitions
from orchestrix.persistence.sagas.held_events import HeldEvent
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.persistence.sagas.transitions import OutboxBatch
from orchestrix.saga import advance, compensation
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Saga, Step
from orchestrix.saga.state import Instance
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.consumer import MemoryConsumer
from orchestrix.testing.simulation.virtual_time import VirtualProcess, current_process
from orchestrix.worker.commands import state_guard
from orchestrix.worker.commands.state_guard import StateVerdict

Plant = Callable[[pytest.MonkeyPatch], None]


def publish_before_commit(patch: pytest.MonkeyPatch) -> None:
    """What is owed goes out while the transaction that owes it is still open."""
    write, start = transitions.write, MemoryBroker.start
    brokers: dict[VirtualProcess | None, MemoryBroker] = {}
    sending: set[asyncio.Task[Any]] = set()

    async def known(broker: MemoryBroker) -> None:
        brokers[current_process()] = broker
        await start(broker)

    async def eager(tx: Transaction, pair: SagaTables, changed: Any, changes: Any, *owed: OutboxBatch) -> set[int]:
        moved = await write(tx, pair, changed, changes, *owed)
        messages = [message_of(row) for one in owed for row in one.rows]
        sending.add(asyncio.create_task(brokers[current_process()].publish(messages)))
        return moved

    patch.setattr(MemoryBroker, "start", known)
    patch.setattr(transitions, "write", eager)


def _ack_at_receipt(patch: pytest.MonkeyPatch, queues: str) -> None:
    receive = MemoryConsumer.receive

    async def early(consumer: MemoryConsumer, limit: int, linger: float = 0.0) -> list[Delivery]:
        deliveries = await receive(consumer, limit, linger)
        await consumer.acknowledge([one for one in deliveries if one.queue.startswith(queues)])
        return deliveries

    patch.setattr(MemoryConsumer, "receive", early)


def event_acknowledged_before_commit(patch: pytest.MonkeyPatch) -> None:
    """The listener acknowledges what it has received, then does it."""
    _ack_at_receipt(patch, "evt.")


def event_acknowledged_as_it_is_written(patch: pytest.MonkeyPatch) -> None:
    """The listener acknowledges inside the transaction that writes."""
    write = EventListener._write

    async def early(listener: EventListener, batch: Sequence[Received], tx: Transaction) -> Verdicts:
        verdicts = await write(listener, batch, tx)
        busy = {one.delivery.tag for one in verdicts.locked}
        assert listener._consumer is not None
        await listener._consumer.acknowledge([one.delivery for one in batch if one.delivery.tag not in busy])
        return verdicts

    patch.setattr(EventListener, "_write", early)


def command_acknowledged_before_event(patch: pytest.MonkeyPatch) -> None:
    """A worker acknowledges what it has received, then does it."""
    _ack_at_receipt(patch, "cmd.")


def confirms_not_awaited(patch: pytest.MonkeyPatch) -> None:
    """A message counts as sent once it is on its way."""
    publish = MemoryBroker.publish
    sending: set[asyncio.Task[Any]] = set()

    async def hasty(broker: MemoryBroker, messages: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        sending.add(asyncio.create_task(publish(broker, messages, timeout)))
        return [Published(Outcome.CONFIRMED)] * len(messages)

    patch.setattr(MemoryBroker, "publish", hasty)


def guard_does_not_look(patch: pytest.MonkeyPatch) -> None:
    """A worker takes every command for the one that is out."""
    patch.setattr(
        state_guard, "judge", lambda saga, row, command: StateVerdict.CURRENT if row else StateVerdict.MISSING
    )


def claims_without_order(patch: pytest.MonkeyPatch) -> None:
    """The scan claims rows that stand behind an older one of their saga."""
    patch.setattr(outbox, "_first", true)


def late_events_are_taken(patch: pytest.MonkeyPatch) -> None:
    """An event moves its saga, whatever step that is at."""
    patch.setattr(advance, "out_of_turn", lambda saga, instance, step, event: None)


def rows_of_the_dead_are_left(patch: pytest.MonkeyPatch) -> None:
    """A node never sends what another one has committed."""

    async def nothing(tx: Transaction, node: str, lease_s: float, limit: int) -> list[OutboxRow]:
        return []

    patch.setattr(outbox, "claim", nothing)


def only_the_last_step_is_undone(patch: pytest.MonkeyPatch) -> None:
    """What the steps before it have made is left behind."""
    whole = compensation.possible_effects

    def last(saga: Saga, instance: Instance, *, current: bool) -> list[Step]:
        return list(whole(saga, instance, current=current))[:1]

    patch.setattr(compensation, "possible_effects", last)


def the_unknown_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """An event of an instance whose version a node does not know is acknowledged, and kept nowhere."""

    async def nothing(tx: Transaction, events: Sequence[HeldEvent]) -> None:
        return

    patch.setattr(held_events, "add", nothing)


def each_node_goes_by_its_own_code(patch: pytest.MonkeyPatch) -> None:
    """Whatever version an instance has, a node judges its events by the one that it would start."""
    patch.setattr(Catalog, "of", lambda catalog, instance: catalog.saga(instance.saga))


VERSION_PLANTS: dict[Plant, str] = {
    the_unknown_is_acknowledged: "was acknowledged before its commit",
    each_node_goes_by_its_own_code: "",
}
"""Those that only a simulation of versions can find."""
PLANTS: dict[Plant, str] = {
    publish_before_commit: "is on the wire, its row is not committed",
    event_acknowledged_before_commit: "was acknowledged before its commit",
    event_acknowledged_as_it_is_written: "was acknowledged before its commit",
    command_acknowledged_before_event: "was acknowledged before its event arrived",
    confirms_not_awaited: "before",
    guard_does_not_look: "after its end",
    claims_without_order: "came after a later command",
    late_events_are_taken: "",
    rows_of_the_dead_are_left: "not quiet",
    only_the_last_step_is_undone: "has failed",
}
"""Each plant, and the words by which the witness names what is wrong."""
