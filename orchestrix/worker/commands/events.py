"""Worker events: the messages by which a worker reports start, success or failure of a step or its compensation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from orchestrix import clock
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import EVENTS
from orchestrix.persistence.storable_text import cleaned
from orchestrix.saga.definition import STEP_FAILED, STEP_STARTED
from orchestrix.saga.messages import StepError, dump
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.delivery_spans import context_headers

MAX_TYPE: Final = 100
MAX_MESSAGE: Final = 2000


def succeeded(command: CommandDelivery, data: Mapping[str, Any]) -> Outgoing:
    """The success event of the step, or of its compensation.

    Raises `ValueError`, `TypeError` or `RecursionError` if `data` is not JSON.
    """
    return _event(command, command.order.event, {**({"data": data} if data else {}), **_begun(command)})


def failed(command: CommandDelivery, error: StepError) -> Outgoing:
    """The event that says why the step failed.

    A redelivered command may have taken effect already: an earlier worker may have died between its work and its event.
    The span of the command has failed too.
    """
    fields = error_fields(replace(error, unsure=error.unsure or command.redelivered))
    command.span.fail(fields["type"], fields["message"])
    return _event(command, STEP_FAILED, {"error": fields, **_begun(command)})


def started(command: CommandDelivery, ago: float) -> Outgoing:
    """The event that says that the work started `ago` seconds before now."""
    return _event(command, STEP_STARTED, {"beganMsAgo": max(0, round(ago * 1000))})


def _begun(command: CommandDelivery) -> dict[str, int]:
    """How long the work has taken, where it has begun at all."""
    return {} if command.begun is None else {"beganMsAgo": max(0, round((clock.monotonic() - command.begun) * 1000))}


def error_fields(error: StepError) -> dict[str, Any]:
    """The error as it is sent: cleaned, and truncated where it is very long."""
    fields: dict[str, Any] = {
        "type": cleaned(error.type, MAX_TYPE) or "Error",
        "message": cleaned(error.message, MAX_MESSAGE),
        "retryable": error.retryable,
    }
    if error.retry_after_ms is not None:
        fields["retryAfterMs"] = error.retry_after_ms
    if error.unsure:
        fields["unsure"] = True
    if error.hold:
        fields["hold"] = True
    return fields


def unsendable(command: CommandDelivery) -> Outgoing:
    """The minimal failure event that is reported where the broker refuses a step's own event."""
    error = StepError("Unsendable", "the broker rejected the event of this step", retryable=False)
    return failed(command, error)


def _event(command: CommandDelivery, name: str, more: Mapping[str, Any]) -> Outgoing:
    message, message_id = command.message, clock.uuid7()
    body = {
        "id": message_id,
        "type": name,
        "saga": message.saga,
        "appId": message.app_id,
        "correlationId": message.correlation_id,
        "causationId": message.id,
        **({} if command.worker_id is None else {"worker": command.worker_id}),
        **more,
    }
    return Outgoing(
        exchange=EVENTS,
        routing_key=name,
        body=dump(body),
        message_id=message_id,
        correlation_id=message.correlation_id,
        type=name,
        timestamp=clock.now(),
        headers=context_headers(command.span),
    )
