"""How do events move sagas, many in one commit?"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app import clock, crash
from app.broker.dead_letter import bury
from app.broker.port import Broker, Consumer, Delivery
from app.errors import Conflict, RetryLater
from app.lifecycle import Loop
from app.orchestration import journal
from app.orchestration.outgoing import rows_of
from app.orchestration.relay import OutboxRelay
from app.orchestration.watch import Watch
from app.persistence import history, instances, notes, outbox
from app.persistence.engine import Database, Transaction
from app.persistence.notes import Note
from app.persistence.pairs import APPS, Pair, pair_of
from sagas.engine.catalog import Catalog
from sagas.engine.definition import Saga
from sagas.engine.messages import Event, Unreadable
from sagas.engine.messages import event as read_event
from sagas.engine.state import Instance
from sagas.engine.transition import Ignored, Moved, advance, owner_of

log = logging.getLogger("orchestrix.events")

PATIENCE = 300.0
"""Seconds of a database outage after which what is in hand goes back to the broker."""


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
    """What a batch came to."""

    proven: list[Moved] = field(default_factory=list)
    unproven: list[Moved] = field(default_factory=list)
    ignored: list[tuple[Received, Ignored]] = field(default_factory=list)
    alone: list[Received] = field(default_factory=list)

    @property
    def moved(self) -> list[Moved]:
        """All that moved. Proven is a move whose event names the command that was out, so that it has been sent."""
        return self.proven + self.unproven


class EventListener:
    """Takes what is there, moves all sagas of a batch in one transaction, then acknowledges.

    Rows that are busy elsewhere or unknown are handled alone afterwards, as are redelivered events, so that one
    that kills its reader never takes others along.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        relay: OutboxRelay,
        watch: Watch,
        catalog: Catalog,
        *,
        node: str,
        batch: int,
        linger: float,
    ) -> None:
        self._database = database
        self._broker = broker
        self._relay = relay
        self._watch = watch
        self._catalog = catalog
        self._node = node
        self._batch = batch
        self._linger = linger
        self._consumer: Consumer | None = None
        self._loop = Loop("event listener", self._round)
        self.counts: Counter[str] = Counter()

    async def start(self) -> None:
        """Begins to listen."""
        self._consumer = await self._broker.consume(self._catalog.events, prefetch=2 * self._batch)
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not acknowledged goes back to its queue."""
        await self._loop.stop()
        if self._consumer is not None:
            await self._consumer.close()

    async def _round(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        deliveries = await consumer.receive(self._batch, self._linger)
        crash.point("events.after_receive")
        await self._finish(consumer, [one for one in deliveries if not one.redelivered])
        for one in deliveries:
            if one.redelivered:
                await self._finish(consumer, [one])

    async def _finish(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """Handles the deliveries until the database has taken them, then acknowledges them."""
        begun, failures = clock.monotonic(), 0
        left = list(deliveries)
        while left := [one for one in left if consumer.alive(one)]:
            try:
                dead = await self._handle(left)
                if dead:
                    await bury(self._broker, consumer, dead)
                    crash.point("events.after_burial")
                crash.point("events.before_ack")
                await consumer.acknowledge(left)
                return
            except RetryLater as away:
                if failures == 0:
                    log.warning("events wait: %s", away)
                failures += 1
                if clock.monotonic() - begun > PATIENCE:
                    await consumer.reopen()
                    return
                await asyncio.sleep(clock.uniform(0.05, min(5.0, 0.1 * 2 ** min(failures, 6))))

    async def _handle(self, deliveries: Sequence[Delivery]) -> list[tuple[Delivery, str]]:
        """Commits what the events do; returns those to bury, with the reason."""
        dead: list[tuple[Delivery, str]] = []
        waiting: list[Received] = []
        for delivery in deliveries:
            read = self._read(delivery)
            if isinstance(read, Received):
                waiting.append(read)
            else:
                self.counts[read.reason.split(":")[0]] += 1
                if read.dead_letter:
                    dead.append((delivery, read.reason))
        while waiting:
            first, waiting = _firsts(waiting)
            dead += await self._advance_all(first)
        return dead

    def _read(self, delivery: Delivery) -> Received | Ignored:
        try:
            event = read_event(delivery.queue, delivery.body, delivery.correlation_id, delivery.message_id)
        except Unreadable as refused:
            return Ignored(str(refused), dead_letter=True)
        owner = owner_of(self._catalog, event)
        if isinstance(owner, Ignored):
            return owner
        return Received(delivery, owner if isinstance(owner, Saga) else owner.saga, event)

    async def _advance_all(self, batch: Sequence[Received]) -> list[tuple[Delivery, str]]:
        try:
            verdicts = await self._database.run(lambda tx: self._write(tx, batch, wait=len(batch) == 1))
        except RetryLater:
            raise
        except Exception as error:
            return await self._advance_apart(batch, error)
        crash.point("events.after_commit")
        self._announce(verdicts)
        dead = [(one.delivery, ignored.reason) for one, ignored in verdicts.ignored if ignored.dead_letter]
        for one in verdicts.alone if len(batch) > 1 else ():
            dead += await self._advance_all([one])
        return dead

    async def _advance_apart(self, batch: Sequence[Received], error: Exception) -> list[tuple[Delivery, str]]:
        """Somebody else was first, or a member is poison: halves, until it is alone."""
        if len(batch) > 1:
            middle = len(batch) // 2
            return await self._advance_all(batch[:middle]) + await self._advance_all(batch[middle:])
        if isinstance(error, Conflict):
            return await self._advance_all(batch)
        log.error("event %s of %s %s cannot be handled", batch[0].event.type, *batch[0].key, exc_info=error)
        return [(batch[0].delivery, f"cannot-be-handled: {type(error).__name__}")]

    async def _write(self, tx: Transaction, batch: Sequence[Received], *, wait: bool) -> Verdicts:
        now = self._database.now()
        verdicts = Verdicts()
        for pair, group in sorted(_by_pair(batch).items(), key=lambda item: item[0] is not APPS):
            rows = await self._lock(tx, pair, [one.event.app_id for one in group], wait=wait)
            changed: list[tuple[int, Instance]] = []
            for one in sorted(group, key=lambda one: one.event.app_id):
                row = rows.get(one.event.app_id)
                if row is None or row.saga != one.saga.name:
                    self._missing(verdicts, one, wait)
                    continue
                verdict = advance(one.saga, row, one.event, clock.uuid7(), now)
                if isinstance(verdict, Ignored):
                    verdicts.ignored.append((one, verdict))
                else:
                    changed.append((row.version, verdict.instance))
                    proven = one.event.causation_id == row.command_id
                    (verdicts.proven if proven else verdicts.unproven).append(verdict)
            await self._store(tx, pair, changed, verdicts)
        await self._note(tx, verdicts)
        crash.point("events.before_commit")
        return verdicts

    @staticmethod
    async def _lock(tx: Transaction, pair: Pair, ids: list[int], *, wait: bool) -> dict[int, Instance]:
        if wait:
            found = [await instances.lock_one(tx, pair, one) for one in ids]
            return {row.id: row for row in found if row is not None}
        return {row.id: row for row in await instances.lock(tx, pair, sorted(ids))}

    @staticmethod
    def _missing(verdicts: Verdicts, one: Received, wait: bool) -> None:
        if wait:
            verdicts.ignored.append((one, Ignored("unknown-app")))
        else:
            verdicts.alone.append(one)

    async def _store(
        self, tx: Transaction, pair: Pair, changed: list[tuple[int, Instance]], verdicts: Verdicts
    ) -> None:
        if not changed:
            return
        ids = {instance.id for _, instance in changed}
        if await instances.update(tx, pair, changed) != ids:
            raise Conflict("a locked row was changed by somebody else")
        moved, proven, unproven = (_of(pair, some) for some in (verdicts.moved, verdicts.proven, verdicts.unproven))
        await history.insert(tx, pair, [(one.instance.id, change) for one in moved for change in one.history])
        # A command whose predecessor is proven to have arrived may leave at once. For the others the scan keeps the
        # order: their predecessor may still be in the outbox.
        await outbox.insert(tx, rows_of(proven), claimed_by=self._node, lease_s=self._relay.lease)
        await outbox.insert(tx, rows_of(unproven), claimed_by=None, lease_s=0.0)

    async def _note(self, tx: Transaction, verdicts: Verdicts) -> None:
        now = self._database.now()
        counted: Counter[tuple[str, int, str, str]] = Counter()
        for one, ignored in verdicts.ignored:
            self.counts[ignored.reason.split(":")[0]] += 1
            if ignored.reason != "unknown-app":
                counted[(one.saga.name, one.event.app_id, one.event.type, ignored.reason)] += 1
        rows = [
            Note(saga, app_id, "ignored", kind, reason, count, first_at=now, last_at=now)
            for (saga, app_id, kind, reason), count in counted.items()
        ]
        if rows:
            await notes.add(tx, rows)

    def _announce(self, verdicts: Verdicts) -> None:
        moved = verdicts.moved
        self.counts["moved"] += len(moved)
        self._relay.take(rows_of(verdicts.proven))
        if verdicts.unproven or any(ignored.reason == "repeated" for _, ignored in verdicts.ignored):
            self._relay.poke()
        self._watch.committed(one.instance for one in moved)
        journal.committed(one.instance for one in moved)


def _firsts(waiting: Sequence[Received]) -> tuple[list[Received], list[Received]]:
    """The first event of each instance, and the rest: one row can be updated once in a statement."""
    first: dict[tuple[str, int], Received] = {}
    rest = [one for one in waiting if first.setdefault(one.key, one) is not one]
    return list(first.values()), rest


def _of(pair: Pair, moved: Iterable[Moved]) -> list[Moved]:
    return [one for one in moved if pair_of(one.instance.saga) is pair]


def _by_pair(batch: Iterable[Received]) -> dict[Pair, list[Received]]:
    groups: dict[Pair, list[Received]] = {}
    for one in batch:
        groups.setdefault(pair_of(one.saga.name), []).append(one)
    return groups
