"""Held events: kept while no node can judge them, and applied in their order of arrival by one that can."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from app import clock, crash
from app.broker.port import Delivery
from app.errors import Conflict
from app.lifecycle import Loop, Wake
from app.orchestration import journal
from app.orchestration.autopsy import examine
from app.orchestration.job_steps import JobSteps
from app.orchestration.outgoing import rows_of
from app.orchestration.relay import OutboxRelay
from app.orchestration.watch import Watch
from app.persistence import dead_letters, held_events, instances, moves, notes, outbox
from app.persistence.engine import Database, Transaction
from app.persistence.held_events import HeldEvent
from app.persistence.moves import Owed
from app.persistence.notes import Note
from app.persistence.pairs import Pair, pair_of
from app.persistence.versions import Definitions
from sagas.engine.catalog import Catalog
from sagas.engine.definition import Saga
from sagas.engine.messages import Event, Unreadable
from sagas.engine.messages import event as read_event
from sagas.engine.orders import Moved, Tick
from sagas.engine.reaction import advance
from sagas.engine.state import UNSENDABLE, Instance
from sagas.engine.transition import Ignored

log = logging.getLogger("orchestrix.held")

LOOK_INTERVAL_S: Final = 2.0
INSTANCES_PER_LOOK: Final = 200
UNKNOWN_VERSION: Final = "unknown-version"
"""No node that read the event knew the version by which its instance runs."""
BEHIND_OTHERS: Final = "behind-held-events"
"""An earlier event of the same instance is held: nothing may overtake it."""
_CONTEXT: Final = ("traceparent", "tracestate")


def held_event(delivery: Delivery, event: Event, saga: str, reason: str) -> HeldEvent:
    """The row that keeps an event. Copies of one message make one row."""
    named = delivery.message_id or event.id
    unnamed = clock.named_uuid(delivery.queue.encode(), delivery.body)
    context = {name: str(value) for name in _CONTEXT if (value := delivery.headers.get(name)) is not None}
    return HeldEvent(
        message_id=f"{saga}:{event.app_id}:{named or unnamed}"[:255],
        saga=saga,
        instance_id=event.app_id,
        queue=delivery.queue,
        body=delivery.body,
        headers={**context, "messageId": named, "correlationId": event.correlation_id},
        reason=reason,
        held_at=clock.now(),
    )


class HeldEvents:
    """Applies held events as soon as this process knows the version of their instance.

    Looks every `LOOK_INTERVAL_S` seconds, and at once after `poke`. One event is applied in one transaction, which
    forgets it too; timers and later events of the instance wait meanwhile, so the order is that of arrival.
    """

    def __init__(
        self,
        database: Database,
        relay: OutboxRelay,
        watch: Watch,
        catalog: Catalog,
        definitions: Definitions,
        *,
        jobs: JobSteps,
        alarm: Callable[[Iterable[Instance]], None] = lambda _moved: None,
    ) -> None:
        self._database = database
        self._relay = relay
        self._watch = watch
        self._catalog = catalog
        self._definitions = definitions
        self._jobs = jobs
        self._alarm = alarm
        self._wake = Wake()
        self._after = 0
        self._loop = Loop("held events", self._round)

    async def start(self) -> None:
        """Begins to look."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is held stays so."""
        await self._loop.stop()

    def poke(self) -> None:
        """There may be something to apply now."""
        self._wake.set()

    async def _round(self) -> None:
        async with self._database.read() as connection:
            waiting = await held_events.waiting(connection, INSTANCES_PER_LOOK, self._after)
        # Those that nobody here can run must not stand for ever before those that it can.
        self._after = waiting[-1][2] if len(waiting) == INSTANCES_PER_LOOK else 0
        applied = sum([await self._apply_all(saga, id) for saga, id, _ in waiting])
        if applied:
            log.info("held events applied: %d", applied)
        else:
            await self._wake.wait(LOOK_INTERVAL_S)

    async def _apply_all(self, saga: str, id: int) -> int:
        """How many events of the instance were applied."""
        count = 0
        while await self._apply_next(saga, id):
            count += 1
        return count

    async def _apply_next(self, saga: str, id: int) -> bool:
        try:
            outcome = await self._database.run(lambda tx: self._write(tx, saga, id))
        except Conflict as late:
            log.debug("concurrent update, retrying: %s", late)
            return False
        if outcome is None:
            return False
        crash.point("held.after_commit")
        if isinstance(outcome, Moved):
            self._relay.poke()
            self._watch.committed([outcome.instance])
            self._alarm([outcome.instance])
            journal.committed([outcome.instance])
        return True

    async def _write(self, tx: Transaction, saga: str, id: int) -> Moved | Ignored | None:
        pair = pair_of(saga)
        row = await instances.lock_one(tx, pair, id)
        held = (await held_events.of_instances(tx, saga, [id]))[:1]
        if not held:
            return None  # another node was first
        if row is None or row.saga != saga:
            return await self._forget(tx, held[0], Ignored("unknown-app"))
        await self._definitions.meet(tx, [(row.saga, row.definition_version)])
        known = self._catalog.of(row)
        if known is None:
            return None
        verdict = self._judge(known, row, held[0])
        if isinstance(verdict, Ignored):
            return await self._forget(tx, held[0], verdict)
        await self._store(tx, pair, row, verdict)
        await held_events.delete(tx, [held[0].id])
        crash.point("held.before_commit")
        return verdict

    def _judge(self, saga: Saga, row: Instance, held: HeldEvent) -> Moved | Ignored:
        headers = held.headers
        try:
            event = read_event(held.queue, held.body, headers.get("correlationId"), headers.get("messageId"))
        except Unreadable as refused:
            return Ignored(str(refused), dead_letter=True)
        return advance(saga, row, event, Tick(self._database.now(), clock.uuid7(), clock.uniform(0, 1)))

    async def _store(self, tx: Transaction, pair: Pair, row: Instance, moved: Moved) -> None:
        history = [(row.id, change) for change in moved.history]
        if not await moves.write(tx, pair, [(row.version, moved.instance)], history, Owed(rows_of([moved]))):
            raise Conflict("a locked row was changed by somebody else")
        await self._jobs.follow(tx, [(row, moved)])
        if row.blocker == UNSENDABLE:
            await outbox.delete(tx, [str(row.command_id)])

    async def _forget(self, tx: Transaction, held: HeldEvent, ignored: Ignored) -> Ignored:
        """Notes why the event changed nothing, and keeps its body among the dead letters where that is asked for."""
        now = self._database.now()
        await notes.add(tx, [Note(held.saga, held.instance_id, "ignored", held.queue, ignored.reason, 1, now, now)])
        if ignored.dead_letter:
            letter = examine(_delivery(held, {"x-reason": ignored.reason}), self._catalog, now).letter
            await dead_letters.record(tx, [letter])
        await held_events.delete(tx, [held.id])
        return ignored


def _delivery(held: HeldEvent, headers: Mapping[str, object]) -> Delivery:
    return Delivery(
        body=held.body,
        queue=held.queue,
        exchange="",
        routing_key=held.queue,
        message_id=held.headers.get("messageId"),
        correlation_id=held.headers.get("correlationId"),
        type=held.queue,
        headers=headers,
        redelivered=False,
        delivery_count=0,
        tag=0,
        session=0,
    )
