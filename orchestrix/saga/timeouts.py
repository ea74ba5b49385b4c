"""Timeouts: what happens to an instance whose wake-up is due."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from orchestrix.quantities import duration
from orchestrix.saga.commands import (
    SagaTransition,
    TransitionInputs,
    armed,
    command_for,
    expected,
    pending_command,
    polling,
)
from orchestrix.saga.definition import Order, Saga, milliseconds
from orchestrix.saga.messages import Command
from orchestrix.saga.retry import EXPIRED, QUEUE_TIMEOUT, Failure, fail
from orchestrix.saga.state import BACKLOG, BROKER_DOWN, DEADLINE, JOB, NO_CONSUMER, RETRY, UNSENT, Instance

SENT_ORDER_TOLERANCE: Final = timedelta(seconds=2)
"""Commands that were sent within this time may be queued in another order than that of their sending."""
PREFETCH_ALLOWANCE: Final = timedelta(seconds=10)
"""How long a worker may hold a command before it reports its start, and how old a queue count may be."""
MIN_PREFETCH_ALLOWANCE: Final = timedelta(seconds=3)
"""Lower limit of the same: a worker prefetches what it will begin within about a second, however short its step's time
is."""


@dataclass(frozen=True, slots=True)
class CommandDeliveryStatus:
    """Why a step may be late through no fault of its own.

    `unsent`: its command is still in the outbox. `served_since`: from then on its queue had a consumer; None while it
    has none. `listening_since`: from then on this node could have received an answer. `waiting_at`: when its queue was
    last seen to have messages; None if it never was. `begun_to`: when the latest command of its queue that has been
    started or answered was sent. `set_aside_at`: when a worker last noted that it republished the command at the end
    of its queue, because workers died with it; None if it does not wait there for that.
    """

    unsent: bool
    served_since: datetime | None
    listening_since: datetime
    waiting_at: datetime | None = None
    begun_to: datetime | None = None
    set_aside_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class TimerRescheduled:
    """The same instance with another wake-up, which history does not record; `command` is sent now."""

    instance: Instance
    command: Command | None = None


def wake(
    saga: Saga, instance: Instance, delivery_status: CommandDeliveryStatus, inputs: TransitionInputs
) -> SagaTransition | TimerRescheduled:
    """The transition of an instance whose wake-up is due. An outage extends the wait, it never fails a saga.

    Nor does the wait of its command behind others, except for the limits of its step and its run. A job has its own
    time, and only the run's, or a person's, can end it sooner.
    """
    over = instance.deadline_at is not None and instance.deadline_at <= inputs.now
    if instance.wake_reason == JOB and (instance.limit is None or instance.limit > inputs.now):
        return TimerRescheduled(polling(instance, inputs.now))
    if instance.progress.awaited is not None:
        return _expired(saga, instance, inputs, final=False)
    here = pending_command(saga, instance)
    assert here is not None, "what has a wake-up waits for an order"
    if instance.wake_reason == RETRY:
        if over:
            return _expired(saga, instance, inputs, final=True)
        sent = armed(instance, here.reason, here.wait, inputs.now)
        return TimerRescheduled(sent, command_for(saga, sent, inputs.now))
    reason, wait = _extension(delivery_status, here.order.timeout, inputs.now)
    if reason is not None:
        return TimerRescheduled(_later(instance, reason, wait, inputs.now))
    if over or here.job is not None:
        return _expired(saga, instance, inputs, final=over)
    return _queued(saga, instance, here.order, delivery_status, inputs)


def begin(saga: Saga, instance: Instance, ago_ms: int, now: datetime) -> Instance | None:
    """`instance` once the work on its command has begun, so long ago: its time counts from then.

    None where that changes nothing: a person holds it, or it waits for a job, or for its next try. The start is taken
    to lie between the last change and now, whatever a clock says. Extra time from a person stays.
    """
    order = expected(saga, instance)
    if order is None or order.job is not None or instance.blocker is not None or instance.wake_at is None:
        return None
    if instance.wake_reason in (RETRY, JOB):
        return None
    longest = max(0, milliseconds(now - instance.updated_at))
    begun_at = now - timedelta(milliseconds=min(ago_ms, longest))
    at = begun_at + order.timeout
    at = at if instance.deadline_at is None else min(at, instance.deadline_at)
    begun = replace(instance, begun_id=instance.command_id, begun_at=begun_at, wake_reason=DEADLINE)
    begun = replace(begun, hindered_by=None)
    if instance.wake_at > at and (instance.wake_reason == DEADLINE or not instance.wait_ms):
        return begun
    return replace(begun, wake_at=at, wait_ms=order.timeout_ms)


def _extension(
    delivery_status: CommandDeliveryStatus, timeout: timedelta, now: datetime
) -> tuple[str | None, timedelta]:
    if delivery_status.unsent:
        return UNSENT, timeout
    heard = delivery_status.listening_since + timeout
    if heard > now:
        return BROKER_DOWN, heard - now
    served = (delivery_status.served_since or now) + timeout
    return (NO_CONSUMER, served - now) if served > now else (None, timeout)


def _queued(
    saga: Saga, instance: Instance, order: Order, delivery_status: CommandDeliveryStatus, inputs: TransitionInputs
) -> SagaTransition | TimerRescheduled:
    """Extends the time of a command that still waits in its queue, up to the limit of that wait."""
    wait = _queue_delay(instance, order, delivery_status, inputs.now)
    if wait is None:
        return _expired(saga, instance, inputs, final=False)
    if order.queue_timeout is not None:
        rest = (instance.sending or inputs.now) + order.queue_timeout - inputs.now
        if rest <= timedelta(0):
            return fail(saga, instance, _not_started(order, order.queue_timeout), inputs)
        wait = min(wait, rest)
    return TimerRescheduled(_later(instance, BACKLOG, wait, inputs.now))


def _queue_delay(
    instance: Instance, order: Order, delivery_status: CommandDeliveryStatus, now: datetime
) -> timedelta | None:
    """How long to wait for a command that has not started; None if it has, or has left its queue.

    One that was set aside waits again, whatever its earlier place and though it has started before.
    """
    if delivery_status.set_aside_at is not None and delivery_status.set_aside_at > now - max(
        MIN_PREFETCH_ALLOWANCE, order.timeout
    ):
        return order.timeout
    if instance.begun or delivery_status.waiting_at is None:
        return None
    if (
        delivery_status.begun_to is not None
        and delivery_status.begun_to > (instance.sending or now) + SENT_ORDER_TOLERANCE
    ):
        return None
    if delivery_status.waiting_at >= now:
        return order.timeout
    ahead = delivery_status.waiting_at + max(MIN_PREFETCH_ALLOWANCE, min(PREFETCH_ALLOWANCE, order.timeout)) - now
    return ahead if ahead > timedelta(0) else None


def _not_started(order: Order, limit: timedelta) -> Failure:
    text = f"{QUEUE_TIMEOUT}: no worker started {order.command} within {duration(limit.total_seconds())}"
    return Failure(text, QUEUE_TIMEOUT, retryable=False)


def _later(instance: Instance, reason: str, wait: timedelta, now: datetime) -> Instance:
    """`instance` with another wake-up; the time of sending, which the old one implied, is stored."""
    if instance.deadline_at is not None and instance.deadline_at > now:
        wait = min(wait, instance.deadline_at - now)
    sent = None if reason == UNSENT else instance.sending or now
    later = replace(instance, wake_at=now + wait, wait_ms=wait // timedelta(milliseconds=1), sent_at=sent)
    return replace(later, wake_reason=reason, hindered_by=reason)


def _expired(saga: Saga, instance: Instance, inputs: TransitionInputs, *, final: bool) -> SagaTransition:
    return fail(saga, instance, replace(EXPIRED, retryable=not final), inputs)
