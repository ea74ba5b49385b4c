"""Outbox rows: a command becomes a row of the outbox, and the row a message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final

from orchestrix.broker import dead_letter
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import COMMANDS
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import SagaTransition, command_for
from orchestrix.saga.messages import Command
from orchestrix.saga.state import RETRY, Instance
from orchestrix.telemetry import tracing
from orchestrix.telemetry.conventions import CORRELATION_ID
from orchestrix.telemetry.messaging import begin_publish, saga_attributes
from orchestrix.telemetry.trace_context import published_context, span_id_for, trace_context
from orchestrix.telemetry.tracing import NO_SPAN, ForwardedContext, Span

REDRIVE_OWNER: Final = "(dead letters)"
"""Stands in place of the saga in rows of none. No saga has such a name, so they block none and wait for none.

Their `n` says how often the dead letter has been redriven.
"""


REPLY_TO: Final = "replyTo"
"""The field beside those of a row's topology that has the message's `reply_to`: hardly any row has one."""


def row_for(instance: Instance, command: Command) -> OutboxRow:
    """The outbox row of `command`. Its id is the message's id: every copy of the command carries the same."""
    traceparent, tracestate = instance.trace
    return OutboxRow(
        id=command.id,
        saga=instance.saga,
        instance_id=instance.id,
        version=instance.version,
        n=0,
        exchange=COMMANDS,
        routing_key=command.type,
        type=command.type,
        correlation_id=command.correlation_id,
        body=command.body(),
        traceparent=traceparent,
        tracestate=tracestate,
        timeout_ms=command.timeout_ms,
        topology=None,
        created_at=instance.updated_at,
    )


def unpublished_rows(catalog: Catalog, live: Iterable[Instance], now: datetime) -> list[OutboxRow]:
    """The rows of the commands in flight, for the instances of versions that `catalog` knows.

    What waits for a retry is not in flight yet, whatever was lost.
    """
    pairs = ((one, catalog.of(one)) for one in live if one.wake_reason != RETRY)
    commands = ((one, command_for(saga, one, now)) for one, saga in pairs if saga is not None)
    rows = [row_for(one, command) for one, command in commands if command is not None and command.job is None]
    return [_follows_its_first_copy(row) for row in rows]


def _follows_its_first_copy(row: OutboxRow) -> OutboxRow:
    """The row of a command that may have been published before: it follows from the span that did that."""
    made_by = trace_context(row.traceparent, row.tracestate)
    if made_by is None or not made_by.sampled:
        return row
    return replace(row, traceparent=published_context(made_by, row.id).traceparent)


def rows_of(moved: list[SagaTransition]) -> list[OutboxRow]:
    """The outbox rows of the commands in `moved`. A step that is a job needs none."""
    pairs = ((one.instance, one.command) for one in moved)
    return [row_for(instance, command) for instance, command in pairs if command is not None and command.job is None]


def publish_span(row: OutboxRow, *, again: bool) -> Span:
    """The span of publishing the row; `again` where it may have been published before."""
    made_by = trace_context(row.traceparent, row.tracestate)
    if made_by is None or not made_by.sampled or not tracing.enabled():
        return NO_SPAN if made_by is None else ForwardedContext(made_by)
    of_saga, first = row.timeout_ms > 0, f"{span_id_for(row.id) or 0:016x}" == made_by.span_id
    return begin_publish(
        row.exchange,
        row.routing_key,
        row.id,
        made_by,
        correlation_id=row.correlation_id,
        made_at=row.created_at,
        again=again or first or _sent_before(row),
        elsewhere=of_saga and row.n > 0,
        attributes=saga_attributes(row.saga, row.instance_id, row.correlation_id)
        if of_saga
        else {CORRELATION_ID: row.correlation_id},
    )


def _sent_before(row: OutboxRow) -> bool:
    """Whether an earlier row of the same id was sent: of a job or its result in the same trace, of a saga maybe in
    another.
    """
    return row.n > 0 and row.saga != REDRIVE_OWNER


def message_of(row: OutboxRow, span: Span | None = None) -> Outgoing:
    """The message of an outbox row. Its headers have the context of the `span` that publishes it, or the row's."""
    again = str(row.n) if row.saga == REDRIVE_OWNER and row.n else None
    parent, state = row.traceparent, row.tracestate
    if span is not None and span.context is not None:
        parent, state = span.context
    context = {"traceparent": parent, "tracestate": state, dead_letter.REDRIVEN: again}
    return Outgoing(
        exchange=row.exchange,
        routing_key=row.routing_key,
        body=row.body,
        message_id=row.id,
        correlation_id=row.correlation_id,
        type=row.type,
        timestamp=row.created_at,
        headers={name: value for name, value in context.items() if value is not None},
        reply_to=None if row.topology is None else row.topology.get(REPLY_TO),
    )
