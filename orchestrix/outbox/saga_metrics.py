"""Saga metrics: counts and measures what has been committed of sagas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from orchestrix.broker.topology import EVENTS
from orchestrix.saga.changes import ATTEMPT_FAILED, ENDS_OF_TRIES, STEP_SUCCEEDED, STEP_UNDONE
from orchestrix.saga.definition import COMPLETED as COMPLETED_STATE
from orchestrix.saga.definition import CREATED
from orchestrix.saga.state import Instance, StateChange
from orchestrix.saga.steps import COMPENSATING
from orchestrix.telemetry.metrics.catalogue import (
    COMPLETED,
    EVENTS_IGNORED,
    FAILED,
    PROCESS_DURATION,
    SAGA_COMPENSATIONS,
    SAGA_COMPLETED,
    SAGA_DURATION,
    SAGA_STARTED,
    SAGA_STEP_DURATION,
    SAGA_STEP_RETRIES,
    SUCCEEDED,
)
from orchestrix.telemetry.metrics.instruments import NAME_LIMIT, OTHER, counter, histogram
from orchestrix.telemetry.trace_context import TraceContext

_started, _completed, _duration = counter(SAGA_STARTED), counter(SAGA_COMPLETED), histogram(SAGA_DURATION)
_step, _retries = histogram(SAGA_STEP_DURATION), counter(SAGA_STEP_RETRIES)
_compensations, _ignored = counter(SAGA_COMPENSATIONS), counter(EVENTS_IGNORED)
_handling = histogram(PROCESS_DURATION).at(EVENTS, "")
_GOOD: Final = (STEP_SUCCEEDED, STEP_UNDONE)


def begin(sagas: Iterable[str]) -> None:
    """Shows 0 ends of each of these sagas: a rate sees the first one only if there was a value before it.

    Where there are more names than a process keeps apart, none is taken for a saga that is perhaps never started.
    """
    names = set(sagas)
    for saga in sorted(names) if len(names) <= NAME_LIMIT else (OTHER,):
        _show_ends(saga)


def _show_ends(saga: str) -> None:
    for outcome in (COMPLETED, FAILED):
        _completed.at(saga, outcome)


def changed(
    before: Instance | None, after: Instance, history: Sequence[StateChange], context: TraceContext | None
) -> None:
    """One committed change; `context` is the span that has made it, where that is known."""
    saga, first = after.saga, history[0]
    if first.kind == CREATED:
        _started.at(saga).add()
        _show_ends(saga)  # it may be one that this process did not know at its begin
    elif before is not None and first.step is not None and first.kind in ENDS_OF_TRIES:
        sent = before.sending or before.updated_at
        outcome = SUCCEEDED if first.kind in _GOOD else FAILED
        _step.at(saga, first.step, outcome).record((first.at - sent).total_seconds(), context)
        if first.kind == ATTEMPT_FAILED:
            _retries.at(saga).add()
    if any(row.to_state == COMPENSATING != row.from_state for row in history):
        _compensations.at(saga).add()
    if not after.live and (before is None or before.live):
        _completed.at(saga, COMPLETED if after.state == COMPLETED_STATE else FAILED).add()
        _duration.at(saga).record((after.updated_at - after.created_at).total_seconds(), context)


def ignored(reason: str) -> None:
    """An event has changed nothing."""
    _ignored.at(reason.partition(":")[0]).add()


def handled(seconds: float) -> None:
    """A batch of events was handled in so many seconds."""
    _handling.record(seconds)
