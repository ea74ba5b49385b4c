"""What happens to an instance whose wake-up is due?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from .definition import Saga
from .failure import EXPIRED, fail
from .messages import Command
from .orders import Moved, Tick, armed, command_for, looking, out
from .state import BROKER_DOWN, JOB, NO_CONSUMER, RETRY, UNSENT, Instance


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Why a step may be late through no fault of its own.

    `unsent`: its command is still in the outbox. `served_since`: from then on its queue had a consumer; None while it
    has none. `listening_since`: from then on this node could have heard an answer.
    """

    unsent: bool
    served_since: datetime | None
    listening_since: datetime


@dataclass(frozen=True, slots=True)
class Rearmed:
    """The same instance with another wake-up, which is no change that its history tells; `command` is sent now."""

    instance: Instance
    command: Command | None = None


def wake(saga: Saga, instance: Instance, around: Surroundings, tick: Tick) -> Moved | Rearmed:
    """What to do with an instance whose wake-up is due. An outage extends the wait, it never fails a saga.

    A job has its own time, and only the run's, or a person's, ends before it.
    """
    over = instance.deadline_at is not None and instance.deadline_at <= tick.now
    if instance.wake_reason == JOB and (instance.limit is None or instance.limit > tick.now):
        return Rearmed(looking(instance, tick.now))
    if instance.progress.awaited is not None:
        return _expired(saga, instance, tick, final=False)
    here = out(saga, instance)
    assert here is not None, "what has a wake-up waits for an order"
    if instance.wake_reason == RETRY:
        if over:
            return _expired(saga, instance, tick, final=True)
        sent = armed(instance, here.reason, here.wait, tick.now)
        return Rearmed(sent, command_for(saga, sent))
    reason, wait = _excuse(around, here.order.timeout, tick.now)
    if reason is not None:
        return Rearmed(_later(instance, reason, wait, tick.now))
    return _expired(saga, instance, tick, final=over)


def _excuse(around: Surroundings, timeout: timedelta, now: datetime) -> tuple[str | None, timedelta]:
    if around.unsent:
        return UNSENT, timeout
    heard = around.listening_since + timeout
    if heard > now:
        return BROKER_DOWN, heard - now
    served = (around.served_since or now) + timeout
    return (NO_CONSUMER, served - now) if served > now else (None, timeout)


def _later(instance: Instance, reason: str, wait: timedelta, now: datetime) -> Instance:
    return replace(instance, wake_at=now + wait, wake_reason=reason, wait_ms=wait // timedelta(milliseconds=1))


def _expired(saga: Saga, instance: Instance, tick: Tick, *, final: bool) -> Moved:
    return fail(saga, instance, replace(EXPIRED, retryable=not final), tick)
