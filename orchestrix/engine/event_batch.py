"""Event batches: what was received, what one transaction made of it, and how a batch is divided."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from orchestrix.broker.port import Consumer, Delivery
from orchestrix.engine import saga_spans
from orchestrix.outbox import saga_log
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.ignored_messages import IgnoredMessage
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import SagaTransition
from orchestrix.saga.definition import Saga
from orchestrix.saga.messages import Event, UnreadableMessage
from orchestrix.saga.messages import event as read_event
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import IgnoredEvent, owner_of
from orchestrix.telemetry import log_events
from orchestrix.telemetry.messaging import begin_commit, saga_attributes
from orchestrix.telemetry.tracing import NO_SPAN, Span

log = logging.getLogger("orchestrix.events")

UNKNOWN_APP: Final = IgnoredEvent("unknown-app", dead_letter=True)
"""There is no such instance, and so no timeline that could show it."""
CHANNEL_LOST: Final = "channel-lost"
"""Of a message that is delivered again, because its channel ended before it was handled."""


@dataclass(slots=True, eq=False)
class Received:
    """A readable event of a saga that this node knows. `span` is that of its handling."""

    delivery: Delivery
    saga: Saga
    event: Event
    span: Span = NO_SPAN

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
    moves: list[tuple[Received, Instance, SagaTransition]] = field(default_factory=list)
    """What each event has made of which instance."""
    held: list[tuple[Received, str]] = field(default_factory=list)

    @property
    def moved(self) -> list[SagaTransition]:
        """All that moved. A move is proven if its event names the command in flight, so that this has been sent:
        the commands that follow may leave at once."""
        return self.proven + self.unproven


def read(catalog: Catalog, delivery: Delivery) -> Received | Event | IgnoredEvent:
    """What a delivery brings. A bare event is a failure that names no saga."""
    try:
        event = read_event(
            delivery.queue,
            delivery.body,
            delivery.correlation_id,
            delivery.message_id,
            delivery.headers.get("traceparent"),
        )
    except UnreadableMessage as refused:
        return IgnoredEvent(str(refused), dead_letter=True)
    match owner_of(catalog, event):
        case Saga() as saga:
            return Received(delivery, saga, event)
        case IgnoredEvent() as ignored:
            return ignored
        case None:
            return event


def alive(consumer: Consumer, batch: Sequence[Received]) -> list[Received]:
    """Those whose channel is still open: the others are delivered again, and their spans end."""
    open_ones = [one for one in batch if consumer.alive(one.delivery)]
    if len(open_ones) < len(batch):
        for one in batch:
            if not consumer.alive(one.delivery):
                saga_spans.give_up(one.span, CHANNEL_LOST)
    return open_ones


def begin_commit_of(batch: Sequence[Received]) -> Span:
    """The span of the commit for all of them; that of a single event is one of its saga."""
    span = begin_commit([one.span.context for one in batch])
    if span.recording and len(batch) == 1:
        (one,) = batch
        span.set(saga_attributes(one.saga.name, one.event.app_id, one.event.correlation_id))
    return span


def end_spans(verdicts: Verdicts) -> None:
    """Ends the spans of all that is handled, with what has become of it."""
    for one, before, moved in verdicts.moves:
        saga_spans.describe(one.span, before, moved)
        one.span.end()
    for one, ignored in verdicts.ignored:
        if ignored is UNKNOWN_APP:
            saga_spans.unknown_event(one.span, one.delivery, ignored.reason)
    for one, reason in [(one, ignored.reason) for one, ignored in verdicts.ignored] + verdicts.held:
        saga_spans.describe_ignored(one.span, one.saga.name, one.event, reason)
        one.span.end()


def of_no_app(span: Span, delivery: Delivery, event: Event) -> None:
    """The span and the log line of an event whose app does not exist."""
    saga_spans.unknown_event(span, delivery, UNKNOWN_APP.reason)
    saga_log.ignored(event, UNKNOWN_APP.reason)


def give_up_event(one: Received, error: Exception) -> None:
    """The end of the span, and the log line, of an event that cannot be handled."""
    extra = {"event": log_events.EVENT_UNPROCESSABLE, "correlation_id": one.event.correlation_id}
    log.error("event %s of %s %s cannot be handled", one.event.type, *one.key, exc_info=error, extra=extra)
    one.span.fail(type(error).__name__, str(error))
    one.span.end()


def log_verdicts(verdicts: Verdicts) -> None:
    """The log lines of what has been committed."""
    for one, before, moved in verdicts.moves:
        saga_log.changed(before, moved, context=one.span.context, worker=one.event.worker)
    for one, ignored in verdicts.ignored:
        saga_log.ignored(one.event, ignored.reason)


async def handle_absent(tx: Transaction, pair: SagaTables, absent: Sequence[Received], verdicts: Verdicts) -> None:
    """Rows that were not locked are locked by another transaction, or do not exist."""
    if not absent:
        return
    there = await instances.guard(tx, pair, sorted({one.event.app_id for one in absent}))
    for one in absent:
        row = there.get(one.event.app_id)
        if row is not None and row.saga == one.saga.name:
            verdicts.locked.append(one)
        else:
            verdicts.ignored.append((one, UNKNOWN_APP))


def ignored_rows(verdicts: Verdicts, now: datetime) -> list[IgnoredMessage]:
    """What the timelines of sagas store of events that changed nothing."""
    counted: Counter[tuple[str, int, str, str]] = Counter()
    for one, ignored in verdicts.ignored:
        if ignored is not UNKNOWN_APP:
            counted[(one.saga.name, one.event.app_id, one.event.type, ignored.reason)] += 1
    return [
        IgnoredMessage(saga, app_id, "ignored", kind, reason, count, first_at=now, last_at=now)
        for (saga, app_id, kind, reason), count in counted.items()
    ]


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
