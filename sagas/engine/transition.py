"""What does an event do to a saga instance?  The only place where state changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from .catalog import Catalog
from .definition import CREATED, FAILED, IMMEDIATE, STEP_FAILED, BadData, Saga, Step
from .errors import IllegalTransition
from .messages import MAX_DATA, Command, Event, dump
from .state import DEADLINE, ORCHESTRATOR, Change, Instance

MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class Moved:
    """The instance as it is from now on, the history that it owes, and the command to send, if any."""

    instance: Instance
    history: tuple[Change, ...]
    command: Command | None


@dataclass(frozen=True, slots=True)
class Ignored:
    """The event changes nothing, and why. `dead_letter` asks to keep its body for a person."""

    reason: str
    dead_letter: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """What a client asks for. `data` has passed the saga's model."""

    key: str
    created_by: str
    correlation_id: str
    data: Mapping[str, Any]
    traceparent: str | None = None
    tracestate: str | None = None


def start(saga: Saga, asked: Start, command_id: str, now: datetime) -> Moved:
    """A new instance in its first state. Its id is 0 until the database gives one: see `numbered`."""
    first = saga.steps[0]
    instance = Instance(
        id=0,
        saga=saga.name,
        key=asked.key,
        created_by=asked.created_by,
        state=first.state,
        version=1,
        correlation_id=asked.correlation_id,
        command_id=command_id,
        attempt=1,
        wake_at=now + first.timeout,
        wake_reason=DEADLINE,
        wait_ms=first.timeout_ms,
        blocker=None,
        data=dict(asked.data),
        definition_version=saga.version,
        created_at=now,
        updated_at=now,
        traceparent=asked.traceparent,
        tracestate=asked.tracestate,
    )
    created = Change(1, None, first.state, CREATED, asked.created_by, asked.correlation_id, None, command_id, now)
    return Moved(instance, (created,), command_for(saga, instance))


def numbered(saga: Saga, started: Moved, instance_id: int) -> Moved:
    """`started` with the id that the database gave."""
    instance = replace(started.instance, id=instance_id)
    return Moved(instance, started.history, command_for(saga, instance))


def command_for(saga: Saga, instance: Instance) -> Command | None:
    """The command that is out while the instance is in its state; None where it waits for none."""
    step = saga.step_in(instance.state)
    if step is None or instance.command_id is None:
        return None
    return Command(
        id=instance.command_id,
        type=step.command,
        saga=saga.name,
        app_id=instance.id,
        app_name=instance.key,
        correlation_id=instance.correlation_id,
        expected_state=instance.state,
        step=step.name,
        attempt=instance.attempt,
        timeout_ms=step.timeout_ms,
        idempotency_key=f"{saga.name}:{instance.id}:{step.name}:do",
        data=instance.data,
    )


def owner_of(catalog: Catalog, event: Event) -> Saga | Ignored | None:
    """To which saga an event belongs. The type of a success says it; a failure that names none gives None.

    Whose failure that is, is told by the command that it names: see `cause_of`.
    """
    if event.type == STEP_FAILED:
        if event.saga is None:
            return None
        return catalog.saga(event.saga) or Ignored("unknown-saga", dead_letter=True)
    owner = catalog.event(event.type)
    return owner.saga if owner else Ignored("unknown-event", dead_letter=True)


def cause_of(event: Event, candidates: Sequence[Instance]) -> Instance | None:
    """Of the instances with the event's id, one a saga, the one whose command it names, or else its correlation id."""
    caused = [one for one in candidates if event.causation_id and one.command_id == event.causation_id]
    related = [one for one in candidates if one.correlation_id == event.correlation_id]
    return next(iter([*caused, *related, *candidates]), None)


def advance(saga: Saga, instance: Instance, event: Event, command_id: str, now: datetime) -> Moved | Ignored:
    """What `event` does to `instance`. `command_id` is used if a command follows. Changes nothing by itself."""
    if event.correlation_id != instance.correlation_id:
        return Ignored("wrong-correlation")
    if event.error is not None:
        return _fail(saga, instance, event, now)
    step = next((step for step in saga.steps if step.event == event.type), None)
    if step is None:
        return Ignored("unknown-event", dead_letter=True)
    refused = _untimely(saga, instance, step, event)
    return refused if refused else _succeed(saga, instance, step, event, command_id, now)


def move(saga: Saga, instance: Instance, target: str, why: Change) -> Instance:
    """`instance` in `target`, one version later; raises `IllegalTransition` for an edge that the saga does not have."""
    if (instance.state, target) not in saga.moves:
        raise IllegalTransition(f"saga {saga.name!r} has no move from {instance.state} to {target}")
    return replace(instance, state=target, version=why.version, updated_at=why.at)


def _untimely(saga: Saga, instance: Instance, step: Step, event: Event) -> Ignored | None:
    if not instance.live:
        return Ignored("ended" if instance.state == FAILED else "repeated")
    here, there = saga.position(instance.state), saga.position(step.state)
    if here != there:
        return Ignored("repeated" if there < here else "future")
    if event.causation_id is None and instance.attempt > 1:
        return Ignored("ambiguous")
    if event.causation_id is not None and instance.attempt == 1 and event.causation_id != instance.command_id:
        return Ignored("unknown-causation")
    return None


def _succeed(
    saga: Saga, instance: Instance, step: Step, event: Event, command_id: str, now: datetime
) -> Moved | Ignored:
    try:
        data = _merged(saga, instance, event)
    except (BadData, ValueError) as bad:
        return Ignored(f"bad-output: {bad}"[:MAX_REASON], dead_letter=True)
    history: list[Change] = []
    target: str | None = step.then
    reason = event.type
    while target is not None:
        change = _change(instance, target, reason, event.id, now)
        instance = move(saga, instance, target, change)
        history.append(change)
        target, reason = saga.immediate.get(target), IMMEDIATE
    instance = _armed(saga, replace(instance, data=data), command_id, now)
    if instance.live:
        history[-1] = replace(history[-1], command_id=command_id)
    return Moved(instance, tuple(history), command_for(saga, instance))


def _merged(saga: Saga, instance: Instance, event: Event) -> Mapping[str, Any]:
    if not event.data:
        return instance.data
    if len(dump(event.data)) > MAX_DATA:
        raise ValueError(f"data is over {MAX_DATA} bytes")
    return saga.check({**instance.data, **event.data})


def _armed(saga: Saga, instance: Instance, command_id: str, now: datetime) -> Instance:
    step = saga.step_in(instance.state)
    if step is None:
        return replace(instance, command_id=None, wake_at=None, wake_reason=None, wait_ms=0, blocker=None)
    return replace(
        instance,
        command_id=command_id,
        attempt=1,
        wake_at=now + step.timeout,
        wake_reason=DEADLINE,
        wait_ms=step.timeout_ms,
        blocker=None,
    )


def _fail(saga: Saga, instance: Instance, event: Event, now: datetime) -> Moved | Ignored:
    assert event.error is not None
    if not instance.live:
        return Ignored("ended")
    if event.causation_id is None:
        return Ignored("failure-without-causation")
    if event.causation_id != instance.command_id:
        return Ignored("failure-of-another-attempt")
    reason = f"{STEP_FAILED}: {event.error.type}: {event.error.message}"[:MAX_REASON]
    change = _change(instance, FAILED, reason, event.id, now)
    failed = move(saga, instance, FAILED, change)
    ended = replace(failed, command_id=None, wake_at=None, wake_reason=None, wait_ms=0, blocker=None)
    return Moved(ended, (change,), None)


def _change(instance: Instance, target: str, reason: str, caused_by: str | None, now: datetime) -> Change:
    return Change(
        version=instance.version + 1,
        from_state=instance.state,
        to_state=target,
        reason=reason,
        actor=ORCHESTRATOR,
        correlation_id=instance.correlation_id,
        caused_by=caused_by,
        command_id=instance.command_id,
        at=now,
    )


def later(wait: timedelta, cap: timedelta) -> timedelta:
    """Twice `wait`, but at most `cap`."""
    return min(wait * 2, max(cap, wait))


def block(instance: Instance, blocker: str, reason: str, now: datetime) -> Moved:
    """`instance` waiting for a person, in its state; its wake-up is off. Raises `IllegalTransition` once it ended."""
    if not instance.live:
        raise IllegalTransition(f"saga {instance.saga!r} is {instance.state}: there is nothing to wait for")
    change = _change(instance, instance.state, reason[:MAX_REASON], None, now)
    held = replace(
        instance, version=change.version, updated_at=now, blocker=blocker, wake_at=None, wake_reason=None, wait_ms=0
    )
    return Moved(held, (change,), None)
