"""Saga log: the lines by which a whole saga can be followed by its correlation id, and its metrics."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Protocol

from orchestrix.outbox import saga_metrics
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.changes import (
    ATTEMPT_FAILED,
    FAILURE_DEFERRED,
    STEP_FAILED,
    STEP_HELD,
    STEP_SUCCEEDED,
    STEP_UNDONE,
)
from orchestrix.saga.definition import CREATED, IMMEDIATE
from orchestrix.saga.messages import Event
from orchestrix.saga.state import Instance, StateChange
from orchestrix.telemetry import log_events
from orchestrix.telemetry.log_rate import LogRateLimit
from orchestrix.telemetry.log_throttle import LogThrottle
from orchestrix.telemetry.trace_context import TraceContext

log = logging.getLogger("orchestrix.sagas")

_EVENTS: Final = {
    CREATED: log_events.SAGA_STARTED,
    STEP_SUCCEEDED: log_events.STEP_SUCCEEDED,
    STEP_UNDONE: log_events.STEP_UNDONE,
    ATTEMPT_FAILED: log_events.ATTEMPT_FAILED,
    STEP_FAILED: log_events.STEP_FAILED,
    STEP_HELD: log_events.STEP_FAILED,
    FAILURE_DEFERRED: log_events.STEP_FAILED,
}
"""The event of a kind of change; of the others `SAGA_CHANGED`."""
_UNKNOWN_APP: Final = "unknown-app"

_rate = LogRateLimit(log)
_unknown = LogThrottle()


class CommittedChange(Protocol):
    """What has become of an instance."""

    @property
    def instance(self) -> Instance: ...

    @property
    def history(self) -> tuple[StateChange, ...]: ...


def committed(moved: Iterable[tuple[Instance | None, CommittedChange]]) -> None:
    """One line for each change that has just been committed, with the instance as it was before."""
    for before, one in moved:
        changed(before, one)


def changed(
    before: Instance | None, moved: CommittedChange, *, context: TraceContext | None = None, worker: str | None = None
) -> None:
    """The lines of one committed change: its first history row, and the end of the saga if it has ended.

    `context` is the span that has made it, `worker` who has reported it.
    """
    if not moved.history:
        return
    after = moved.instance
    saga_metrics.changed(before, after, moved.history, context)
    if not log.isEnabledFor(logging.INFO):
        return
    if _rate.passes():
        _write_change(before, after, moved.history[0], context, worker)
    if not after.live and (before is None or before.live) and _rate.passes():
        fields = _fields(after, context, log_events.SAGA_ENDED) | {
            "ms": _milliseconds(after.created_at, after.updated_at)
        }
        log.info("%s %d ended: %s", after.saga, after.id, after.state, extra=fields)


def sent(rows: Iterable[OutboxRow]) -> None:
    """One debug line for each message that the broker has confirmed."""
    if log.isEnabledFor(logging.DEBUG):
        for row in rows:
            extra = {"correlation_id": row.correlation_id}
            log.debug("%s %d: sent %s", row.saga, row.instance_id, row.type, extra=extra)


def ignored(event: Event, reason: str) -> None:
    """One debug line for an event that changed nothing; of an app that does not exist a warning, now and then."""
    saga_metrics.ignored(reason)
    if reason == _UNKNOWN_APP and (left_out := _unknown.due(reason)) is not None:
        extra = {"correlation_id": event.correlation_id, "event": log_events.EVENT_UNKNOWN_APP, "app_id": event.app_id}
        extra |= {"left_out": left_out} if left_out else {}
        log.warning("%s for %d is a dead letter: there is no such app", event.type, event.app_id, extra=extra)
    elif log.isEnabledFor(logging.DEBUG):
        extra = {"correlation_id": event.correlation_id}
        log.debug("%s for %d is ignored: %s", event.type, event.app_id, reason, extra=extra)


def _write_change(
    before: Instance | None, after: Instance, row: StateChange, context: TraceContext | None, worker: str | None
) -> None:
    event = _EVENTS.get(row.kind or "", log_events.SAGA_CHANGED)
    fields = _fields(after, context, event)
    if before is not None:
        fields |= {"from": before.state, "try": before.attempt}
    optional = {
        "step": row.step,
        "worker": worker,
        "ms": None if row.begun_at is None else _milliseconds(row.begun_at, row.at),
        "error_type": row.error_type,
        "actor": row.actor if event == log_events.SAGA_CHANGED else None,
    }
    fields |= {name: value for name, value in optional.items() if value is not None}
    verb = _verb(row)
    text = row.step if row.kind in (STEP_SUCCEEDED, STEP_UNDONE) and row.step else row.reason.removeprefix(f"{verb}: ")
    log.info("%s %d: %s: %s", after.saga, after.id, verb, text, extra=fields)


def _verb(row: StateChange) -> str:
    if row.kind == CREATED:
        return "started"
    return "changed" if row.kind is None or row.kind == IMMEDIATE else row.kind.replace("_", " ")


def _fields(instance: Instance, context: TraceContext | None, event: str) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "event": event,
        "correlation_id": instance.correlation_id,
        "saga": instance.saga,
        "app_id": instance.id,
        "state": instance.state,
    }
    if context is None:
        parent, _ = instance.trace
        context = None if parent is None else TraceContext(parent)
    if context is not None:
        fields |= context.log_fields
    return fields


def _milliseconds(begun: datetime, ended: datetime) -> int:
    return max(0, round((ended - begun).total_seconds() * 1000))
