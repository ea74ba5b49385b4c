"""Job spans: the spans of a job's attempt, and of publishing its statuses."""

from __future__ import annotations

from typing import TypeGuard

from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.broker.topology import DISPATCH_QUEUE_PREFIX
from orchestrix.saga.messages import MAX_ID
from orchestrix.telemetry import conventions as names
from orchestrix.telemetry.messaging import saga_attributes
from orchestrix.telemetry.tracing import NO_SPAN, Span, Value
from orchestrix.worker.delivery_spans import begin_delivery, is_kept, publish_span
from orchestrix.worker.jobs.dispatch import JobDispatch
from orchestrix.worker.jobs.messages import STATUS


def begin_attempt(dispatch: JobDispatch, delivery: Delivery, worker_id: str) -> Span:
    """The span of handling a dispatch: it lasts as long as the attempt."""
    span = begin_delivery(delivery)
    if span.recording:
        span.set(
            {
                **job_attributes(dispatch),
                names.JOB_ATTEMPT: dispatch.attempt,
                names.JOB_HANDLER: dispatch.handler,
                names.JOB_QUEUE: delivery.queue.removeprefix(DISPATCH_QUEUE_PREFIX),
                names.WORKER_ID: worker_id,
            }
        )
    return span


def status_span(dispatch: JobDispatch, attempt: Span, outgoing: Outgoing, again: bool) -> Span:
    """The span of publishing a report of the attempt, if that is a status: lines of its log have none."""
    if outgoing.type != STATUS or not is_kept(attempt):
        return NO_SPAN
    return publish_span(outgoing, attempt, job_attributes(dispatch), again=again, template=names.JOB_STATUS_TEMPLATE)


def job_attributes(dispatch: JobDispatch) -> dict[str, Value]:
    """What every span of the attempt has; a job that is a saga's step also has the attributes of that."""
    values: dict[str, Value] = {names.JOB_ID: dispatch.job_id, names.CORRELATION_ID: dispatch.correlation_id}
    payload = dispatch.payload
    if not isinstance(payload, dict):
        return values
    saga, id, step = (payload.get(name) for name in ("saga", "appId", "step"))
    if isinstance(saga, str) and _is_count(id) and isinstance(step, str):
        values |= {**saga_attributes(saga, id, dispatch.correlation_id), names.SAGA_STEP: step}
        if _is_count(attempt := payload.get("attempt")):
            values[names.SAGA_ATTEMPT] = attempt
        if payload.get("undoesAttempt") is not None:
            values[names.SAGA_COMPENSATING] = True
    return values


def _is_count(value: object) -> TypeGuard[int]:
    """Whether it is one of a saga: the payload of another job may have any number there."""
    return type(value) is int and 0 < value < MAX_ID
