"""Held events: kept while no node can judge them, and applied in their order of arrival by one that can."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from orchestrix import clock, crash
from orchestrix.broker.port import Delivery
from orchestrix.dead_letters.parse import parse
from orchestrix.engine import saga_spans
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.job_steps import JobSteps
from orchestrix.errors import ConflictError, Contention, RetryableError
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.outbox import saga_log
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.outbox.rows import rows_of
from orchestrix.persistence import dead_letters, outbox
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import held_events, ignored_messages, instances, transitions
from orchestrix.persistence.sagas.definition_store import DefinitionStore
from orchestrix.persistence.sagas.held_events import HeldEvent
from orchestrix.persistence.sagas.ignored_messages import IgnoredMessage
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables, saga_tables_of
from orchestrix.persistence.sagas.transitions import OutboxBatch
from orchestrix.quantities import counted
from orchestrix.saga.advance import advance
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import SagaTransition, TransitionInputs
from orchestrix.saga.definition import Saga
from orchestrix.saga.messages import Event, UnreadableMessage
from orchestrix.saga.messages import event as read_event
from orchestrix.saga.state import UNSENDABLE, Instance
from orchestrix.saga.transition import IgnoredEvent
from orchestrix.telemetry import log_events
from orchestrix.telemetry.trace_context import header_text
from orchestrix.telemetry.tracing import Span

log = logging.getLogger("orchestrix.held")

LOOK_INTERVAL_S: Final = 2.0
INSTANCES_PER_LOOK: Final = 200
CONFLICT_RETRIES: Final = 3
FIRST_PAGE: Final = ("", 0)
UNKNOWN_VERSION: Final = "unknown-version"
"""No node that read the event knew the version by which its instance runs."""
BEHIND_OTHERS: Final = "behind-held-events"
"""An earlier event of the same instance is held: nothing may overtake it."""
_CONTEXT: Final = ("traceparent", "tracestate")


def held_event(delivery: Delivery, event: Event, saga: str, reason: str) -> HeldEvent:
    """The row that keeps an event. Copies of one message make one row."""
    named = delivery.message_id or event.id
    unnamed = clock.named_uuid(delivery.queue.encode(), delivery.body)
    context = {name: text for name in _CONTEXT if (text := header_text(delivery.headers.get(name))) is not None}
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


class HeldEventsPage(NamedTuple):
    """Instances with held events that this process can run, and the last one that was read."""

    runnable: list[tuple[str, int]]
    last: tuple[str, int]


class HeldEvents:
    """Applies held events as soon as this process knows the version of their instance.

    Polls every `LOOK_INTERVAL_S` seconds, and at once after `notify`. One event is applied in one transaction, which
    deletes it too; timers and later events of the instance wait meanwhile, so the order is that of arrival.
    """

    def __init__(
        self,
        database: Database,
        relay: OutboxRelay,
        watch: SagaChangeNotifier,
        catalog: Catalog,
        definitions: DefinitionStore,
        *,
        jobs: JobSteps,
        on_commit: Callable[[Iterable[Instance]], None] = lambda _moved: None,
    ) -> None:
        self._database = database
        self._relay = relay
        self._watch = watch
        self._catalog = catalog
        self._definitions = definitions
        self._jobs = jobs
        self._on_commit = on_commit
        self._after = FIRST_PAGE
        self._failures: dict[tuple[str, int], int] = {}
        self._wake = WakeSignal()
        self._loop = Loop("held events", self._round)

    async def start(self) -> None:
        """Begins to poll."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is held stays so."""
        await self._loop.stop()

    def notify(self) -> None:
        """There may be something to apply now."""
        self._wake.set()

    async def _round(self) -> None:
        """One page of the instances; after the last one it begins again with the first."""
        page = await self._page()
        applied = sum([await self._apply_all(saga, id) for saga, id in page.runnable])
        self._after = page.last
        if applied:
            log.info("applied %s", counted(applied, "held event"), extra={"event": log_events.EVENTS_APPLIED})
        elif page.last == FIRST_PAGE:
            await self._wake.wait(LOOK_INTERVAL_S)

    async def _page(self) -> HeldEventsPage:
        async with self._database.read() as connection:
            found = await held_events.waiting(connection, INSTANCES_PER_LOOK, self._after)
            rows: dict[tuple[str, int], Instance] = {}
            for pair in (APPS, INSTANCES):
                ids = [id for saga, id in found if saga_tables_of(saga) is pair]
                rows |= {(row.saga, row.id): row for row in (await instances.guard(connection, pair, ids)).values()}
            await self._definitions.read_missing(
                connection, [(row.saga, row.definition_version) for row in rows.values()]
            )
        unknown = {key for key, row in rows.items() if self._catalog.of(row) is None}
        last = found[-1] if len(found) == INSTANCES_PER_LOOK else FIRST_PAGE
        return HeldEventsPage([key for key in found if key not in unknown], last)

    async def _apply_all(self, saga: str, id: int) -> int:
        """How many events of the instance were applied. One that cannot be becomes a dead letter after some tries."""
        count = 0
        try:
            while await self._apply_next(saga, id):
                count += 1
            self._failures.pop((saga, id), None)
        except (ConflictError, Contention) as late:
            log.debug("concurrent update, retrying: %s", late)
        except RetryableError:
            raise
        except Exception as error:
            failures = self._failures[saga, id] = self._failures.get((saga, id), 0) + 1
            log.error(
                "a held event of %s %d cannot be handled",
                saga,
                id,
                exc_info=error,
                extra={"event": log_events.EVENT_UNPROCESSABLE},
            )
            if failures >= CONFLICT_RETRIES:
                del self._failures[saga, id]
                kind = type(error).__name__
                await self._database.run(lambda tx: self._dead_letter(tx, saga, id, kind))
        return count

    async def _dead_letter(self, tx: Transaction, saga: str, id: int, error: str) -> None:
        await instances.lock_one(tx, saga_tables_of(saga), id)
        held = await held_events.first(tx, saga, id)
        if held is not None:
            await self._forget(tx, held, IgnoredEvent(f"cannot-be-handled: {error}", dead_letter=True))

    async def _apply_next(self, saga: str, id: int) -> bool:
        outcome = await self._database.run(lambda tx: self._write(tx, saga, id))
        if outcome is None:
            return False
        crash.point("held.after_commit")
        if isinstance(outcome, SagaTransition):
            self._relay.notify()
            self._watch.committed([outcome.instance])
            self._on_commit([outcome.instance])
        return True

    async def _write(self, tx: Transaction, saga: str, id: int) -> SagaTransition | IgnoredEvent | None:
        pair = saga_tables_of(saga)
        row = await instances.lock_one(tx, pair, id)
        held = await held_events.first(tx, saga, id)
        if held is None:
            return None  # another node was first
        if row is None or row.saga != saga:
            return await self._forget(tx, held, IgnoredEvent("unknown-app", dead_letter=True))
        await self._definitions.read_missing(tx, [(row.saga, row.definition_version)])
        known = self._catalog.of(row)
        if known is None:
            return None
        span = saga_spans.begin_held(held.headers, held.held_at, row)
        tx.then(span.end)
        verdict = self._apply(known, row, held, span)
        if isinstance(verdict, IgnoredEvent):
            saga_spans.set_ignored(span, verdict.reason)
            return await self._forget(tx, held, verdict)
        saga_spans.describe(span, row, verdict)
        tx.then(partial(saga_log.changed, row, verdict, context=span.context))
        await self._store(tx, pair, row, verdict)
        await held_events.delete(tx, [held.id])
        crash.point("held.before_commit")
        return verdict

    def _apply(self, saga: Saga, row: Instance, held: HeldEvent, span: Span) -> SagaTransition | IgnoredEvent:
        headers = held.headers
        try:
            event = read_event(
                held.queue,
                held.body,
                headers.get("correlationId"),
                headers.get("messageId"),
                headers.get("traceparent"),
            )
        except UnreadableMessage as refused:
            return IgnoredEvent(str(refused), dead_letter=True)
        head = saga_spans.traceparent_of(span)
        inputs = TransitionInputs(self._database.now(), clock.uuid7(), clock.uniform(0, 1), head)
        return advance(saga, row, saga_spans.with_trace(event, span), inputs)

    async def _store(self, tx: Transaction, pair: SagaTables, row: Instance, moved: SagaTransition) -> None:
        history = [(row.id, change) for change in moved.history]
        if not await transitions.write(
            tx, pair, [(row.version, moved.instance)], history, OutboxBatch(rows_of([moved]))
        ):
            raise ConflictError("concurrent update of a locked row")
        await self._jobs.follow(tx, [(row, moved)])
        if row.blocker == UNSENDABLE:
            await outbox.delete(tx, [str(row.command_id)])

    async def _forget(self, tx: Transaction, held: HeldEvent, ignored: IgnoredEvent) -> IgnoredEvent:
        """Notes why the event changed nothing, and stores its body as a dead letter where that is asked for."""
        now = self._database.now()
        await ignored_messages.add(
            tx, [IgnoredMessage(held.saga, held.instance_id, "ignored", held.queue, ignored.reason, 1, now, now)]
        )
        if ignored.dead_letter:
            context = {name: held.headers[name] for name in _CONTEXT if name in held.headers}
            came = _delivery(held, {**context, "x-reason": ignored.reason})
            dead_letter = parse(came, self._catalog, now).dead_letter
            await dead_letters.record(tx, [dead_letter])
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
