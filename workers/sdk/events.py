"""What does a worker send: the event of success, that of failure, and a dead letter?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from app import clock
from app.broker.port import Delivery, Outgoing
from app.broker.topology import DEAD, EVENTS
from sagas.engine.definition import STEP_FAILED
from sagas.engine.messages import StepError, dump

from .job import Job

MAX_TYPE: Final = 100
MAX_MESSAGE: Final = 2000
MAX_TRACE: Final = 512
MAX_LETTER: Final = 64 * 1024


def succeeded(job: Job, data: Mapping[str, Any]) -> Outgoing:
    """The success event of the step. Raises `ValueError`, `TypeError` or `RecursionError` if `data` is no JSON."""
    return _event(job, job.step.event, {"data": data} if data else {})


def failed(job: Job, error: StepError) -> Outgoing:
    """The event that says why the step failed."""
    fields: dict[str, Any] = {
        "type": _clean(error.type)[:MAX_TYPE] or "Error",
        "message": _clean(error.message)[:MAX_MESSAGE],
        "retryable": error.retryable,
    }
    if error.retry_after_ms is not None:
        fields["retryAfterMs"] = error.retry_after_ms
    return _event(job, STEP_FAILED, {"error": fields})


def unsendable(job: Job) -> Outgoing:
    """The failure that is reported where the broker refuses a step's own event: as plain as can be."""
    error = StepError("Unsendable", "the broker refuses the event of this step", retryable=False)
    return replace(failed(job, error), headers={})


def dead(delivery: Delivery, reason: str) -> Outgoing:
    """The message as it came, for the dead letters of its queue."""
    return Outgoing(
        exchange=DEAD,
        routing_key=delivery.queue,
        body=delivery.body,
        message_id=delivery.message_id or clock.uuid7(),
        correlation_id=delivery.correlation_id,
        type=delivery.type,
        timestamp=clock.now(),
        headers={"x-reason": reason} | _trace(delivery),
    )


def plain_dead(delivery: Delivery, reason: str) -> Outgoing:
    """A dead letter that every broker takes: the first 64 KiB of the body, and nothing else that the sender chose."""
    return Outgoing(
        exchange=DEAD,
        routing_key=delivery.queue,
        body=delivery.body[:MAX_LETTER],
        message_id=clock.uuid7(),
        timestamp=clock.now(),
        headers={"x-reason": reason},
    )


def _event(job: Job, name: str, more: Mapping[str, Any]) -> Outgoing:
    command, message_id = job.command, clock.uuid7()
    body = {
        "id": message_id,
        "type": name,
        "saga": command.saga,
        "appId": command.app_id,
        "correlationId": command.correlation_id,
        "causationId": command.id,
        **more,
    }
    return Outgoing(
        exchange=EVENTS,
        routing_key=name,
        body=dump(body),
        message_id=message_id,
        correlation_id=command.correlation_id,
        type=name,
        timestamp=clock.now(),
        headers=_trace(job.deliveries[0]),
    )


def _trace(delivery: Delivery) -> dict[str, str]:
    """The trace context of the message, so that what follows from it joins the same trace."""
    found = {name: delivery.headers.get(name) for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if isinstance(value, str) and 0 < len(value) <= MAX_TRACE}


def _clean(text: str) -> str:
    """`text` without what no database stores: NUL and lone surrogates."""
    return text.replace("\0", "�").encode(errors="replace").decode()
