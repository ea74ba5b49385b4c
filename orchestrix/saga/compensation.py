"""Compensation: how a saga that has failed, or was cancelled, is undone step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import timedelta

from orchestrix.saga.changes import COMPENSATED, STEP_UNDONE, ChangeCause
from orchestrix.saga.commands import (
    PendingCommand,
    SagaTransition,
    TransitionInputs,
    issued,
    pending_command,
    progressed,
    without_timer,
)
from orchestrix.saga.definition import COMPENSATING, FAILED, Compensation, Saga, Step
from orchestrix.saga.effect_keys import all_runs, runs_to_undo, without
from orchestrix.saga.state import (
    CLONED,
    HELD,
    PAUSED,
    RETRY,
    UNDO_FAILED,
    UNSENT,
    Instance,
    InstanceProgress,
    StateChange,
)
from orchestrix.saga.transition import IgnoredEvent, change, move, sending


def possible_effects(saga: Saga, instance: Instance, *, current: bool) -> list[Step]:
    """The steps that may have had effects, the latest first; `current` says whether the pending one may.

    A skipped step is among them, because an earlier try of it may have done its work.
    """
    here = saga.position(instance.state)
    names = set(instance.progress.left) | set(instance.progress.todo)
    return [
        step
        for step in sorted(saga.steps, key=lambda step: saga.position(step.state), reverse=True)
        if isinstance(step.undo, Compensation)
        and (step.name in names or _is_behind(saga, instance, step, here, current))
    ]


def _is_behind(saga: Saga, instance: Instance, step: Step, here: int, current: bool) -> bool:
    passed_over = step.name in instance.progress.passed_over
    return step.state in saga.path and not passed_over and _before(saga, step, here, current)


def _before(saga: Saga, step: Step, here: int, current: bool) -> bool:
    there = saga.position(step.state)
    return here < len(saga.path) and (there < here or (current and there == here))


def _done_now(saga: Saga, instance: Instance, current: bool) -> set[str]:
    """The steps that the present run may have done."""
    here = saga.position(instance.state)
    return {step.name for step in saga.steps if _is_behind(saga, instance, step, here, current)}


def with_undo(saga: Saga, names: Iterable[str]) -> tuple[str, ...]:
    """Which of these steps have a compensation, each of them once, in the order in which they are undone."""
    wanted = set(names)
    steps = sorted(saga.steps, key=lambda step: saga.position(step.state), reverse=True)
    return tuple(step.name for step in steps if step.name in wanted and isinstance(step.undo, Compensation))


def all_attempts(saga: Saga, instance: Instance) -> Mapping[str, int]:
    """The last attempt of each step that was sent, by step, the pending one too; 1 where none is stored."""
    here, now = saga.position(instance.state), pending_command(saga, instance)
    passed = {step.name: 1 for step in saga.steps if saga.position(step.state) < here < len(saga.path)}
    present = {now.key: instance.attempt} if now is not None else {}
    return {**passed, **instance.progress.attempts, **present}


def begin(
    saga: Saga,
    instance: Instance,
    reason: ChangeCause,
    inputs: TransitionInputs,
    *,
    current: bool,
    awaited: bool = False,
) -> SagaTransition:
    """`instance` with its compensation begun. `current`: whether the pending step may have had effects.

    `awaited`: its answer is still waited for, until its deadline; only then the first compensation is sent.
    """
    here = saga.step_in(instance.state)
    if here is not None and not current and not awaited:
        instance = _refused(instance, here)
    todo = tuple(step.name for step in possible_effects(saga, instance, current=current))
    if not todo and not (awaited and here is not None and isinstance(here.undo, Compensation)):
        return end(saga, instance, reason, inputs)
    row = change(instance, COMPENSATING, reason, inputs.now)
    progress = InstanceProgress(
        attempts=all_attempts(saga, instance),
        todo=todo,
        undone=tuple(name for name in instance.progress.undone if name not in todo),
        refused=tuple(name for name in instance.progress.refused if name not in todo),
        error=reason.reason,
        cause=reason.reason,
        unanswered=instance.progress.unanswered,
        sent=instance.progress.sent,
        awaited=here.name if awaited and here is not None else None,
        run=instance.progress.run,
        runs=runs_to_undo(instance, (*todo, here.name if here else ""), _done_now(saga, instance, current)),
        named=instance.progress.named,
        passed_over=instance.progress.passed_over,
        migration=instance.progress.migration,
    )
    moved = replace(move(saga, instance, COMPENSATING, row), progress=progress, deadline_at=None)
    if progress.awaited is None:
        return sending(saga, issued(saga, replace(moved, blocker=None), inputs), [row])
    return SagaTransition(_waiting(saga, moved, inputs), (row,), None)


def _refused(instance: Instance, step: Step) -> Instance:
    """`instance` with the step noted as without effects. If a success of it arrives all the same, it is undone then."""
    if not isinstance(step.undo, Compensation):
        return instance
    others = tuple(name for name in instance.progress.refused if name != step.name)
    return progressed(instance, refused=(*others, step.name))


def _waiting(saga: Saga, instance: Instance, inputs: TransitionInputs) -> Instance:
    """`instance`, paused or not, with the rest of its step's time to wait, whatever deadline a person had set."""
    step = saga.step(instance.progress.awaited or "")
    assert step is not None, "it waits for a step of its own"
    rest = timedelta(milliseconds=instance.wait_ms) if instance.wake_at is None else instance.wake_at - inputs.now
    here = PendingCommand(step, False)
    wait = min(max(rest, timedelta(0)), here.wait)
    wait_ms = wait // timedelta(milliseconds=1)
    return replace(instance, blocker=None, wake_at=inputs.now + wait, wake_reason=here.reason, wait_ms=wait_ms)


def in_flight(instance: Instance) -> bool:
    """Whether a command may be in flight now."""
    if instance.blocker in (HELD, CLONED):  # it was answered; or its worker answers another installation
        return False
    reason = instance.progress.resume if instance.blocker == PAUSED else instance.wake_reason
    never_sent = instance.blocker == PAUSED and reason == UNSENT
    return instance.progress.held is None and reason != RETRY and not never_sent


def in_doubt(instance: Instance) -> bool:
    """Whether the pending step may have had effects that were not, or will not be, reported."""
    copied = instance.blocker == CLONED and instance.progress.resume not in (RETRY, UNSENT)
    return instance.progress.unanswered or copied


def end(
    saga: Saga,
    instance: Instance,
    reason: ChangeCause,
    inputs: TransitionInputs,
    *,
    left_behind: tuple[str, ...] = (),
    forced: bool = False,
) -> SagaTransition:
    """`instance` FAILED. `left_behind` are steps that are not undone: another run's compensation will include them.

    `forced`: also without a transition of its saga.
    """
    row = change(instance, FAILED, reason, inputs.now)
    progress = InstanceProgress(
        attempts=all_attempts(saga, instance),
        error=instance.progress.cause or instance.progress.error or reason.reason,
        undone=tuple(name for name in instance.progress.undone if name not in left_behind),
        refused=tuple(name for name in instance.progress.refused if name not in left_behind),
        left=left_behind,
        run=instance.progress.run,
        runs=_runs_left(saga, instance, left_behind),
        named=instance.progress.named,
    )
    ended = move(saga, instance, FAILED, row, forced=forced)
    failed = without_timer(replace(ended, progress=progress, deadline_at=None))
    return SagaTransition(failed, (row,), None)


def _runs_left(saga: Saga, instance: Instance, names: tuple[str, ...]) -> Mapping[str, tuple[int, ...]]:
    if instance.state not in saga.path:
        return runs_to_undo(instance, names, {instance.progress.awaited or ""})
    return runs_to_undo(instance, names, _done_now(saga, instance, current=True))


def answered(
    saga: Saga, instance: Instance, reason: ChangeCause, inputs: TransitionInputs, *, current: bool
) -> SagaTransition:
    """The step that a cancelled saga waited for has ended: `current` says whether it may have had effects."""
    progress = instance.progress
    step = saga.step(progress.awaited or "")
    assert step is not None
    attempts = {**progress.attempts, step.name: instance.attempt}
    todo = with_undo(saga, [*progress.todo, *([step.name] if current else [])])
    if current:
        instance = progressed(instance, runs={**progress.runs, **runs_to_undo(instance, [step.name], {step.name})})
    instance = progressed(instance, awaited=None, todo=todo, attempts=attempts)
    instance = instance if current else _refused(instance, step)
    if not todo:
        return end(saga, instance, reason, inputs)
    return _on(saga, instance, reason, inputs)


def undone(
    saga: Saga,
    instance: Instance,
    inputs: TransitionInputs,
    *,
    caused_by: str | None = None,
    skipped: ChangeCause | None = None,
) -> SagaTransition:
    """The first of the steps to undo is undone, or was `skipped` by an operator.

    It stays the first where an earlier run's effects must be undone too; a skip applies to all runs.
    """
    progress = instance.progress
    done, *rest = progress.todo
    why = skipped or ChangeCause(STEP_UNDONE, f"undone {done}", done, caused_by)
    runs = without(instance, done)
    if skipped:
        runs = {name: owed for name, owed in runs.items() if name != done}
    rest = [done, *rest] if done in runs else rest
    others = tuple(name for name in progress.undone if name != done)
    gone = others if skipped or done in runs else (*others, done)
    after = progressed(instance, todo=tuple(rest), undone=gone, attempts=all_attempts(saga, instance), runs=runs)
    if instance.state == FAILED:
        row = change(instance, FAILED, why, inputs.now)
        return sending(saga, _without_timer(issued(saga, move(saga, after, FAILED, row), inputs)), [row])
    if rest:
        return _on(saga, after, why, inputs)
    if skipped:
        return end(saga, after, why, inputs)
    row = change(instance, COMPENSATING, why, inputs.now)
    all_done = ChangeCause(COMPENSATED, f"undone: {progress.cause or progress.error}", caused_by=caused_by)
    ended = end(saga, move(saga, after, COMPENSATING, row), all_done, inputs)
    return SagaTransition(ended.instance, (row, *ended.history), None)


def again(
    saga: Saga, instance: Instance, step: Step, reason: ChangeCause, inputs: TransitionInputs
) -> SagaTransition | IgnoredEvent:
    """A step succeeded during, or after, the compensation of its saga: it is undone, perhaps once more.

    Whatever its worker reported before, the effect exists now. A step that a person has skipped is not among these.
    """
    if instance.state == FAILED:
        return _resume_ended(saga, instance, step, reason, inputs)
    progress = instance.progress
    sent = 0 if _undo_is_to_be_sent(instance) else 1
    if step.name in progress.todo[sent:]:
        return IgnoredEvent("will-be-undone")
    if not isinstance(step.undo, Compensation) or step.name not in progress.attempts:
        return IgnoredEvent("nothing-to-undo")
    row = change(instance, instance.state, reason, inputs.now)
    out_now = 0 if progress.awaited is not None else 1
    todo = (*progress.todo[:out_now], *with_undo(saga, [step.name, *progress.todo[out_now:]]))
    late = progressed(instance, todo=todo, runs=all_runs(instance, step.name))
    return SagaTransition(move(saga, late, instance.state, row), (row,), None)


def _resume_ended(
    saga: Saga, instance: Instance, step: Step, reason: ChangeCause, inputs: TransitionInputs
) -> SagaTransition | IgnoredEvent:
    """The pending compensation, if any, is of another step, or was sent too early: only one is pending at a time."""
    if not isinstance(step.undo, Compensation):
        return IgnoredEvent("nothing-to-undo")
    todo = instance.progress.todo
    if step.name in todo[1:]:
        return IgnoredEvent("will-be-undone")
    row = change(instance, FAILED, reason, inputs.now)
    runs = all_runs(instance, step.name)
    if todo and todo[0] != step.name:
        behind = progressed(instance, todo=(*todo, step.name), runs=runs)
        return SagaTransition(move(saga, behind, FAILED, row), (row,), None)
    attempts = all_attempts(saga, instance)
    late = progressed(instance, todo=(step.name, *todo[1:]), attempts=attempts, runs=runs)
    return sending(saga, _without_timer(issued(saga, move(saga, late, FAILED, row), inputs)), [row])


def _undo_is_to_be_sent(instance: Instance) -> bool:
    """Whether the first compensation is still to be sent: then it undoes what is known now too."""
    progress = instance.progress
    unsent = instance.blocker == PAUSED and progress.resume in (RETRY, UNSENT)  # else it may be published by now
    waits = unsent or instance.wake_reason == RETRY
    return progress.awaited is not None or instance.blocker == UNDO_FAILED or waits


def _without_timer(instance: Instance) -> Instance:
    """An ended instance has no wake-up: the broker alone redelivers its last command."""
    return replace(instance, wake_at=None, wake_reason=None, wait_ms=0, hindered_by=None)


def _on(saga: Saga, instance: Instance, reason: ChangeCause, inputs: TransitionInputs) -> SagaTransition:
    """`instance` with the compensation of the first step to undo sent."""
    row: StateChange = change(instance, COMPENSATING, reason, inputs.now)
    moved = move(saga, instance, COMPENSATING, row)
    held = moved.blocker if moved.blocker == PAUSED else None
    return sending(saga, issued(saga, replace(moved, blocker=held), inputs), [row])
