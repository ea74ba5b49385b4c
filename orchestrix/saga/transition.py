"""Transition: applies a start or an event to a saga instance; the only place where state changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from orchestrix.saga.commands import (
    MAX_REASON,
    PendingCommand,
    SagaTransition,
    TransitionInputs,
    blocked,
    cleared,
    command_for,
    issued,
    left,
    pending_command,
    progressed,
    to_send,
    unfrozen,
)
from orchestrix.saga.trace_context import trace_id

from .catalog import Catalog
from .changes import ENDS_OF_TRIES, ChangeCause
from .definition import (
    CREATED,
    FAILED,
    IMMEDIATE,
    STEP_FAILED,
    Saga,
    Step,
    milliseconds,
)
from .errors import IllegalTransition
from .messages import MAX_DATA, Event, dump
from .state import HELD, UNSENDABLE, Instance, StateChange, with_changes


@dataclass(frozen=True, slots=True)
class IgnoredEvent:
    """The event changes nothing, and why. `dead_letter` asks to store its body for a person."""

    reason: str
    dead_letter: bool = False


@dataclass(frozen=True, slots=True)
class SagaStart:
    """A client's request to start. `data` has passed the saga's model; `actor` is the requester, where that is
    known."""

    key: str
    created_by: str
    correlation_id: str
    data: Mapping[str, Any]
    traceparent: str | None = None
    tracestate: str | None = None
    actor: str | None = None


def start(saga: Saga, asked: SagaStart, command_id: str, now: datetime, installation: str = "") -> SagaTransition:
    """A new instance in its first state. Its id is 0 until the database assigns one: see `numbered`.

    `installation` is the id that its effect keys begin with.
    """
    first = saga.steps[0]
    deadline = now + saga.timeout if saga.timeout is not None else None
    here = PendingCommand(first, False)
    wait = min(here.wait, saga.timeout) if saga.timeout is not None else here.wait
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
        wake_at=now + wait,
        wake_reason=here.reason,
        wait_ms=milliseconds(wait),
        blocker=None,
        data=dict(asked.data),
        definition_version=saga.version,
        created_at=now,
        updated_at=now,
        traceparent=asked.traceparent,
        tracestate=asked.tracestate,
        trace_head=asked.traceparent,
        deadline_at=deadline,
        installation=installation,
    )
    created = StateChange(
        version=1,
        from_state=None,
        to_state=first.state,
        reason=CREATED,
        actor=asked.actor or asked.created_by,
        correlation_id=asked.correlation_id,
        caused_by=None,
        command_id=command_id,
        at=now,
        kind=CREATED,
        trace_id=trace_id(asked.traceparent),
    )
    return SagaTransition(instance, (created,), command_for(saga, instance))


def numbered(saga: Saga, started: SagaTransition, instance_id: int) -> SagaTransition:
    """`started` with the id that the database assigned."""
    instance = with_changes(started.instance, id=instance_id)
    return SagaTransition(instance, started.history, command_for(saga, instance))


def owner_of(catalog: Catalog, event: Event) -> Saga | IgnoredEvent | None:
    """The saga that an event belongs to. The type of a success says it; a failure that names none gives None.

    A success that names another saga than its type does belongs to none: its sender is faulty.

    The owner of a failure follows from the command that it names: see `cause_of`.
    """
    if event.type == STEP_FAILED:
        if event.saga is None:
            return None
        return catalog.saga(event.saga) or IgnoredEvent("unknown-saga", dead_letter=True)
    owner = catalog.event(event.type)
    if owner is None:
        return IgnoredEvent("unknown-event", dead_letter=True)
    if event.saga not in (None, owner.saga.name):
        reason = f"wrong-saga: it names saga {event.saga!r}, but {event.type} belongs to saga {owner.saga.name!r}"
        return IgnoredEvent(reason[:MAX_REASON], dead_letter=True)
    return owner.saga


def cause_of(event: Event, candidates: Sequence[Instance]) -> Instance | None:
    """Of the instances with the event's id, one a saga, the one whose command it names, or else its correlation id."""
    caused = [one for one in candidates if event.causation_id and one.command_id == event.causation_id]
    related = [one for one in candidates if one.correlation_id == event.correlation_id]
    return next(iter([*caused, *related, *candidates]), None)


def change(instance: Instance, target: str, reason: ChangeCause, now: datetime) -> StateChange:
    """The history row of the next version. It names the command that is pending now; see `sending`."""
    return StateChange(
        version=instance.version + 1,
        from_state=instance.state,
        to_state=target,
        reason=reason.reason[:MAX_REASON],
        actor=reason.actor,
        correlation_id=instance.correlation_id,
        caused_by=reason.caused_by,
        command_id=instance.command_id,
        at=now,
        kind=reason.kind,
        step=reason.step,
        error_type=reason.error_type,
        error=reason.error,
        begun_at=instance.begun_at if instance.begun and reason.kind in ENDS_OF_TRIES else None,
    )


def consumed(before: Instance, moved: SagaTransition, event: Event) -> SagaTransition:
    """`moved`, which `event` has made of `before`: the first history row names the message, and all name its trace."""
    first, *others = moved.history
    begun_at = _begun_at(before, first, event)
    first = with_changes(
        first, message_type=event.type, message_id=event.id, trace_id=event.trace_id, begun_at=begun_at
    )
    if event.trace_id is not None:
        others = [with_changes(row, trace_id=event.trace_id) for row in others]
    return SagaTransition(moved.instance, (first, *others), moved.command)


def _begun_at(before: Instance, row: StateChange, event: Event) -> datetime | None:
    """When the work of the try began that `event` ends: as it says, or as its worker has reported before.

    It is taken to lie between the last change before the command and now, whatever a clock says.
    """
    pending = event.causation_id in (None, before.command_id)
    if event.began_ms_ago is None:
        return row.begun_at if pending else None
    longest = milliseconds(row.at - (before.updated_at if pending else before.created_at))
    return row.at - timedelta(milliseconds=max(0, min(event.began_ms_ago, longest)))


def move(saga: Saga, instance: Instance, target: str, reason: StateChange, *, forced: bool = False) -> Instance:
    """`instance` in `target`, one version later; raises `IllegalTransition` for an edge that the saga does not have.

    `forced`: by a person, who can end a saga even in a state that only another version of it has.
    """
    if not forced and instance.state != target and (instance.state, target) not in saga.moves:
        raise IllegalTransition(f"saga {saga.name!r} has no transition from {instance.state} to {target}")
    return with_changes(instance, state=target, version=reason.version, updated_at=reason.at)


def sending(saga: Saga, instance: Instance, history: Sequence[StateChange]) -> SagaTransition:
    """What `instance` has to write and send now: the last history row names the command that is pending from now on."""
    last = with_changes(history[-1], command_id=instance.command_id) if instance.command_id else history[-1]
    return SagaTransition(instance, (*history[:-1], last), to_send(saga, instance))


def out_of_turn(saga: Saga, instance: Instance, step: Step, event: Event) -> IgnoredEvent | None:
    """Why the success of a step does not count now, if it does not."""
    if not instance.live:
        return IgnoredEvent("ended" if instance.state == FAILED else "repeated")
    here, there = saga.position(instance.state), saga.position(step.state)
    if here != there:
        return IgnoredEvent("repeated" if there < here else "future")
    return unrelated(instance, event)


def unrelated(instance: Instance, event: Event) -> IgnoredEvent | None:
    """Why the success of the pending command does not belong to a try of this run, if it does not."""
    if event.causation_id is None:
        return IgnoredEvent("ambiguous") if instance.tries > 1 or instance.progress.sent else None
    if event.causation_id not in (instance.command_id, *instance.progress.sent):
        return IgnoredEvent("unknown-causation")
    return None


def succeed(
    saga: Saga,
    instance: Instance,
    step: Step,
    output: Mapping[str, Any],
    inputs: TransitionInputs,
    reason: ChangeCause,
) -> SagaTransition:
    """`instance` after its step, which returned `output`. Raises `InvalidDataError` or `ValueError` for what the saga
    rejects."""
    data = _merged(saga, instance, output)
    instance = unfrozen(instance, inputs.now) if instance.blocker == HELD else instance
    here = pending_command(saga, instance)
    if here is not None and (attempts := left(instance, here.key)) is not instance.progress.attempts:
        instance = progressed(instance, attempts=attempts)
    history: list[StateChange] = []
    target: str | None = step.then
    while target is not None:
        row = change(instance, target, reason, inputs.now)
        instance = move(saga, instance, target, row)
        history.append(row)
        target, reason = saga.immediate.get(target), ChangeCause(IMMEDIATE, IMMEDIATE, caused_by=reason.caused_by)
    held = None if instance.blocker in (UNSENDABLE, HELD) else instance.blocker
    instance = issued(saga, with_changes(instance, data=data, blocker=held, progress=cleared(instance)), inputs)
    return sending(saga, instance, history)


def _merged(saga: Saga, instance: Instance, output: Mapping[str, Any]) -> Mapping[str, Any]:
    if not output:
        return instance.data
    if len(dump(output)) > MAX_DATA:
        raise ValueError(f"data exceeds {MAX_DATA} bytes")
    return saga.check({**instance.data, **output}, before=instance.data)


def block(instance: Instance, blocker: str, reason: str, now: datetime) -> SagaTransition:
    """`instance` waiting for a person, in its state; its wake-up is off. Raises `IllegalTransition` once it ended."""
    if not instance.live:
        raise IllegalTransition(f"saga {instance.saga!r} is {instance.state}: it waits for nothing")
    row = change(instance, instance.state, ChangeCause(blocker, reason), now)
    held = blocked(with_changes(instance, version=row.version, updated_at=now), blocker)
    return SagaTransition(held, (row,), None)
