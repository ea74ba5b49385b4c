"""Dead letter spans: a redrive begins a trace, which links back to that of the dead letter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.telemetry import conventions as names
from orchestrix.telemetry import messaging, tracing
from orchestrix.telemetry.trace_context import context_in
from orchestrix.telemetry.tracing import Span, SpanKind, Value

REDRIVE: Final = "redrive"


def redrive(tx: Transaction, found: Sequence[tuple[DeadLetter, OutboxRow]]) -> list[OutboxRow]:
    """The rows of these dead letters: each follows from the root of a new trace.

    Where none is made, it carries what the dead letter had, byte for byte.
    """
    if not tracing.enabled():
        return [row for _, row in found]
    made = [_begin(dead_letter) for dead_letter, _ in found]
    messaging.end_with_commit(tx.then, made)
    return [_following(row, span) for (_, row), span in zip(found, made, strict=True)]


def _begin(dead_letter: DeadLetter) -> Span:
    span = tracing.begin_root(REDRIVE, SpanKind.INTERNAL, context_in(dead_letter.headers), names.LINK_REDRIVE)
    if span.recording:
        span.set(_attributes(dead_letter))
    return span


def _attributes(dead_letter: DeadLetter) -> dict[str, Value]:
    optional: dict[str, Value | None] = {
        names.DEAD_LETTER_ID: dead_letter.id,
        names.DEAD_LETTER_QUEUE: dead_letter.queue,
        names.MESSAGING_MESSAGE_ID: dead_letter.message_id,
        names.CORRELATION_ID: dead_letter.correlation_id,
        names.SAGA_NAME: dead_letter.saga,
        names.SAGA_ID: dead_letter.instance_id,
    }
    return {name: value for name, value in optional.items() if value is not None}


def _following(row: OutboxRow, span: Span) -> OutboxRow:
    context = span.context
    if context is None or (not span.recording and row.traceparent is not None):
        return row
    return replace(row, traceparent=context.traceparent, tracestate=context.tracestate)
