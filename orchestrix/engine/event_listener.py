"""Event listener: moves sagas by the events of workers, many in one commit."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from orchestrix import clock, crash
from orchestrix.broker.dead_letter import publish_dead_letter
from orchestrix.broker.port import Broker, Consumer, Delivery
from orchestrix.engine import saga_spans
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.event_batch import (
    CHANNEL_LOST,
    UNKNOWN_APP,
    Received,
    Verdicts,
    alive,
    begin_commit_of,
    by_pair,
    end_spans,
    firsts,
    give_up_event,
    handle_absent,
    ignored_rows,
    log_verdicts,
    of_no_app,
    of_pair,
    read,
)
from orchestrix.engine.held_events import BEHIND_OTHERS, UNKNOWN_VERSION, held_event
from orchestrix.engine.job_steps import JobSteps
from orchestrix.engine.step_starts import QueueProgress, begun_by
from orchestrix.errors import ConflictError, RetryableError, SchemaMismatch
from orchestrix.lifecycle import Loop, WakeSignal, backoff
from orchestrix.outbox import saga_metrics
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.outbox.rows import rows_of
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import held_events, ignored_messages, instances, transitions
from orchestrix.persistence.sagas.definition_store import DefinitionReader, NullDefinitionReader
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.persistence.sagas.transitions import OutboxBatch
from orchestrix.saga.advance import advance
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import SagaTransition, TransitionInputs, sent_exactly
from orchestrix.saga.messages import Event
from orchestrix.saga.state import UNSENDABLE, Instance
from orchestrix.saga.transition import IgnoredEvent, cause_of
from orchestrix.telemetry import log_events
from orchestrix.telemetry.tracing import Span

log = logging.getLogger("orchestrix.events")

DATABASE_ERRORS = (RetryableError, SchemaMismatch)
"""This process's database is unavailable, slow or in the middle of an upgrade: no event's fault."""
UNKNOWN_OWNER = ("unknown-saga", "unknown-event")
CONFLICT_RETRIES = 3
BUSY_RETRY_LIMIT_S = 1.0
OUTAGE_TIMEOUT_S = 300.0
"""Seconds of a database outage after which unacknowledged events are requeued."""
OUTAGE_NOTICE_DELAY_S = 5.0
"""Seconds after which a listener that cannot store an answer reports it: no step is late by that."""


class EventListener:
    """Takes what is there, moves all sagas of a batch in one transaction, then acknowledges.

    Events whose row is locked by another transaction wait beside the others and are tried again. Redelivered events
    are handled alone, so that one that crashes its reader never takes others along. `on_commit` is notified of what has
    moved, for some of it is to be woken soon. An event of an instance whose version not even `reader` finds is held,
    and so is every later one of that instance; `on_held` is called.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        relay: OutboxRelay,
        watch: SagaChangeNotifier,
        catalog: Catalog,
        *,
        node: str,
        batch: int,
        on_commit: Callable[[Iterable[Instance]], None] = lambda _moved: None,
        extend_deadlines: Callable[[], None] = lambda: None,
        jobs: JobSteps | None = None,
        progress: QueueProgress | None = None,
        reader: DefinitionReader | None = None,
        on_held: Callable[[], None] = lambda: None,
    ) -> None:
        self._progress = progress or QueueProgress(database)
        self._reader = reader or NullDefinitionReader()
        self._on_held = on_held
        self._database = database
        self._broker = broker
        self._relay = relay
        self._watch = watch
        self._on_commit = on_commit
        self._extend_deadlines = extend_deadlines
        self._jobs = jobs or JobSteps(catalog)
        self._catalog = catalog
        self._node = node
        self._batch = batch
        self._consumer: Consumer | None = None
        self._busy: list[Received] = []
        self._busy_wake = WakeSignal()
        self._busy_checks = 0
        self._loops = [Loop("event listener", self._round), Loop("event listener (busy sagas)", self._try_busy)]
        self.counts: Counter[str] = Counter()

    def catalog_changed(self) -> None:
        """The catalog has grown: there may be more queues to read."""
        if self._consumer is not None:
            self._consumer.also_read(self._catalog.events)

    async def start(self) -> None:
        """Begins to listen."""
        self._consumer = await self._broker.consume(self._catalog.events, prefetch=2 * self._batch)
        for loop in self._loops:
            await loop.start()

    async def stop(self) -> None:
        """Stops; what is not acknowledged goes back to its queue."""
        for loop in self._loops:
            await loop.stop()
        self._busy.clear()
        if self._consumer is not None:
            await self._consumer.close()

    async def _round(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        deliveries = await consumer.receive(self._batch)
        begun = clock.monotonic()
        crash.point("events.after_receive")
        await self._finish(consumer, [one for one in deliveries if not one.redelivered])
        for one in deliveries:
            if one.redelivered:
                await self._finish(consumer, [one])
        saga_metrics.handled(clock.monotonic() - begun)

    async def _try_busy(self) -> None:
        """Tries the locked rows again. Nothing waits for a lock, so nothing else waits for them."""
        consumer = self._consumer
        assert consumer is not None
        if not self._busy:
            self._busy_checks = 0
            await self._busy_wake.wait(None)
        self._busy_checks += 1
        await asyncio.sleep(min(backoff(self._busy_checks), BUSY_RETRY_LIMIT_S))
        waiting, self._busy = self._busy, []
        await self._take_all(consumer, waiting)

    async def _finish(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> None:
        """Handles the deliveries and acknowledges them, but for those whose row is locked."""
        waiting: list[Received] = []
        nameless: list[tuple[Delivery, Event, Span]] = []
        others: list[Delivery] = []
        dead: list[tuple[Delivery, str]] = []
        for delivery in deliveries:
            span = saga_spans.begin_event(delivery)
            match await self._known(consumer, delivery):
                case Received() as received:
                    received.span = span
                    waiting.append(received)
                case Event() as failure:
                    nameless.append((delivery, failure, span))
                case IgnoredEvent() as ignored:
                    saga_spans.unknown_event(span, delivery, ignored.reason)
                    self.counts[ignored.reason.split(":")[0]] += 1
                    saga_metrics.ignored(ignored.reason)
                    others.append(delivery)
                    dead += [(delivery, ignored.reason)] if ignored.dead_letter else []
                case None:
                    saga_spans.give_up(span, CHANNEL_LOST)
        await self._settle(consumer, others, dead)
        await self._take_all(consumer, waiting)
        for delivery, failure, span in nameless:
            await self._name(consumer, delivery, failure, span)

    async def _name(self, consumer: Consumer, delivery: Delivery, failure: Event, span: Span) -> None:
        """Finds the saga of a failure that does not name one; without any it becomes a dead letter."""
        failures, begun = 0, clock.monotonic()
        while consumer.alive(delivery):
            try:
                cause = cause_of(failure, await self._candidates(failure.app_id))
                break
            except DATABASE_ERRORS as error:
                failures += 1
                await self._wait_for_database(consumer, error, failures, clock.monotonic() - begun)
        else:
            return saga_spans.give_up(span, CHANNEL_LOST)
        saga = self._catalog.saga(cause.saga) if cause else None
        if saga is None and cause is not None and await self._read_definitions(consumer, delivery):
            saga = self._catalog.saga(cause.saga)
        if saga is None:
            self.counts[UNKNOWN_APP.reason] += 1
            of_no_app(span, delivery, failure)
            await self._settle(consumer, [delivery], [(delivery, UNKNOWN_APP.reason)])
        else:
            await self._take(consumer, [Received(delivery, saga, failure, span)])
        return None

    async def _candidates(self, app_id: int) -> list[Instance]:
        async with self._database.read() as connection:
            found = [await instances.guard(connection, pair, [app_id]) for pair in (APPS, INSTANCES)]
        return [row for rows in found for row in rows.values()]

    async def _take_all(self, consumer: Consumer, waiting: Sequence[Received]) -> None:
        while waiting:
            first, waiting = firsts(waiting)
            await self._take(consumer, first)

    async def _take(self, consumer: Consumer, batch: Sequence[Received]) -> None:
        """Commits what one event of each saga does, however long the database is unavailable, and settles the batch."""
        begun, failures = clock.monotonic(), 0
        while batch := alive(consumer, batch):
            try:
                verdicts = await self._commit(batch)
            except DATABASE_ERRORS as away:
                failures += 1
                await self._wait_for_database(consumer, away, failures, clock.monotonic() - begun)
            except Exception as error:
                failures += 1
                await self._split(consumer, batch, error, failures)
                if len(batch) > 1 or failures >= CONFLICT_RETRIES or not isinstance(error, ConflictError):
                    return
            else:
                crash.point("events.after_commit")
                await self._settle_committed(consumer, batch, verdicts)
                return

    async def _commit(self, batch: Sequence[Received]) -> Verdicts:
        span = begin_commit_of(batch)
        try:
            return await self._database.run(partial(self._write, batch))
        except Exception as error:
            span.fail(type(error).__name__)
            raise
        finally:
            span.end()

    async def _wait_for_database(self, consumer: Consumer, error: Exception, failures: int, seconds: float) -> None:
        if failures == 1:
            log.warning("event handling paused: %s", error, extra={"event": log_events.EVENTS_PAUSED})
        if seconds > OUTAGE_NOTICE_DELAY_S:
            self._extend_deadlines()
        if seconds > OUTAGE_TIMEOUT_S:
            await consumer.reopen()
        else:
            await asyncio.sleep(backoff(failures))

    async def _split(self, consumer: Consumer, batch: Sequence[Received], error: Exception, failures: int) -> None:
        """A concurrent update, or a poison event: halves the batch, until it is alone; poison becomes a dead letter."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._take(consumer, batch[:middle])
            await self._take(consumer, batch[middle:])
        elif failures >= CONFLICT_RETRIES or not isinstance(error, ConflictError):
            (one,) = batch
            reason = f"cannot-be-handled: {type(error).__name__}"
            give_up_event(one, error)
            await self._settle(consumer, [one.delivery], [(one.delivery, reason)])

    async def _settle_committed(self, consumer: Consumer, batch: Sequence[Received], verdicts: Verdicts) -> None:
        self._announce(verdicts)
        end_spans(verdicts)
        busy = {one.delivery.tag for one in verdicts.locked}
        dead = [(one.delivery, ignored.reason) for one, ignored in verdicts.ignored if ignored.dead_letter]
        await self._settle(consumer, [one.delivery for one in batch if one.delivery.tag not in busy], dead)
        self._busy += verdicts.locked
        if verdicts.locked:
            self._busy_wake.set()

    async def _settle(
        self, consumer: Consumer, deliveries: Sequence[Delivery], dead: Sequence[tuple[Delivery, str]]
    ) -> None:
        """Dead-letters what must be kept, then acknowledges all."""
        if dead:
            await publish_dead_letter(self._broker, consumer, dead)
            crash.point("events.after_dead_letter")
        if deliveries:
            crash.point("events.before_ack")
            await consumer.acknowledge(deliveries)

    async def _known(self, consumer: Consumer, delivery: Delivery) -> Received | Event | IgnoredEvent | None:
        """As `read`, once what other nodes have is read too, if it must be; None if its channel is lost meanwhile."""
        found = read(self._catalog, delivery)
        if not isinstance(found, IgnoredEvent) or found.reason not in UNKNOWN_OWNER:
            return found
        return read(self._catalog, delivery) if await self._read_definitions(consumer, delivery) else None

    async def _read_definitions(self, consumer: Consumer, delivery: Delivery) -> bool:
        """Reads what other nodes have, however long the database is unavailable; False if the channel is lost."""
        failures, begun = 0, clock.monotonic()
        while consumer.alive(delivery):
            try:
                await self._reader.read_all()
            except DATABASE_ERRORS as error:
                failures += 1
                await self._wait_for_database(consumer, error, failures, clock.monotonic() - begun)
            else:
                return True
        return False

    async def _write(self, batch: Sequence[Received], tx: Transaction) -> Verdicts:
        now = self._database.now()
        verdicts = Verdicts()
        for pair, group in sorted(by_pair(batch).items(), key=lambda item: item[0] is not APPS):
            locked, holding = await instances.lock_with_held(tx, pair, sorted(one.event.app_id for one in group))
            rows = {row.id: row for row in locked}
            await self._reader.read_missing(tx, [(row.saga, row.definition_version) for row in locked])
            changed: list[tuple[Instance, SagaTransition]] = []
            absent: list[Received] = []
            for one in sorted(group, key=lambda one: one.event.app_id):
                row = rows.get(one.event.app_id)
                if row is None or row.saga != one.saga.name:
                    absent.append(one)
                    continue
                saga = self._catalog.of(row)
                if saga is None or row.id in holding:
                    verdicts.held.append((one, UNKNOWN_VERSION if saga is None else BEHIND_OTHERS))
                    continue
                one.span = saga_spans.at_instance(one.span, one.delivery, row)
                head = saga_spans.traceparent_of(one.span)
                inputs = TransitionInputs(now, clock.uuid7(), clock.uniform(0, 1), head)
                verdict = advance(saga, row, saga_spans.with_trace(one.event, one.span), inputs)
                if isinstance(verdict, IgnoredEvent):
                    verdicts.ignored.append((one, verdict))
                else:
                    changed.append((row, verdict))
                    verdicts.moves.append((one, row, verdict))
                    proven = one.event.causation_id == row.command_id
                    (verdicts.proven if proven else verdicts.unproven).append(verdict)
                    verdicts.answered += [(saga, row)] if proven else []
            await handle_absent(tx, pair, absent, verdicts)
            await self._store(tx, pair, changed, verdicts)
        await self._record_ignored(tx, verdicts)
        await held_events.add(
            tx, [held_event(one.delivery, one.event, one.saga.name, why) for one, why in verdicts.held]
        )
        crash.point("events.before_commit")
        return verdicts

    async def _store(
        self, tx: Transaction, pair: SagaTables, changed: list[tuple[Instance, SagaTransition]], verdicts: Verdicts
    ) -> None:
        if not changed:
            return
        # A command whose predecessor is proven to have arrived may leave at once. For the others the outbox scan keeps
        # the order: their predecessor may still be in the outbox.
        moved, proven, unproven = (of_pair(pair, some) for some in (verdicts.moved, verdicts.proven, verdicts.unproven))
        outbox_rows = rows_of(proven)
        verdicts.outbox_rows += outbox_rows
        updated = await transitions.write(
            tx,
            pair,
            [(before.version, one.instance) for before, one in changed],
            [(one.instance.id, change) for one in moved for change in one.history],
            OutboxBatch(outbox_rows, self._node, self._relay.lease),
            OutboxBatch(rows_of(unproven)),
        )
        if updated != {before.id for before, _ in changed}:
            raise ConflictError("concurrent update of a locked row")
        await self._jobs.follow(tx, changed)
        parked = [str(before.command_id) for before, _ in changed if before.blocker == UNSENDABLE]
        await outbox.delete(tx, parked)  # the event says that its step is over: that command is not needed any more

    async def _record_ignored(self, tx: Transaction, verdicts: Verdicts) -> None:
        for _, ignored in verdicts.ignored:
            self.counts[ignored.reason.split(":")[0]] += 1
        if rows := ignored_rows(verdicts, self._database.now()):
            await ignored_messages.add(tx, rows)

    def _announce(self, verdicts: Verdicts) -> None:
        self.counts["moved"] += len(moved := verdicts.moved)
        self._progress.note(begun_by(sent_exactly(saga, row) for saga, row in verdicts.answered))
        if verdicts.held:
            self.counts["held"] += len(verdicts.held)
            self._on_held()
        self._relay.take(verdicts.outbox_rows)
        if verdicts.unproven or any(ignored.reason == "repeated" for _, ignored in verdicts.ignored):
            self._relay.notify()
        self._watch.committed(one.instance for one in moved)
        self._on_commit(one.instance for one in moved)
        log_verdicts(verdicts)
