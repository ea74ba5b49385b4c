"""Action rules: which actions a person may apply to a saga instance now, and what each of them changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from orchestrix.saga import compensation
from orchestrix.saga.actions import clone
from orchestrix.saga.actions.merge_patch import merged
from orchestrix.saga.actions.requests import ActionNotAllowed, ActionRequest, ActionResult, SagaAction
from orchestrix.saga.commands import (
    NEVER,
    SagaTransition,
    TransitionInputs,
    armed,
    command_for,
    doubted,
    given,
    issued,
    job_at_work,
    pending_command,
    progressed,
    step_at_work,
    unfrozen,
)
from orchestrix.saga.definition import (
    COMPENSATING,
    COMPENSATION_FAILED,
    COMPLETED,
    FAILED,
    InvalidDataError,
    Saga,
    milliseconds,
)
from orchestrix.saga.effect_keys import next_run
from orchestrix.saga.messages import MAX_DATA, dump
from orchestrix.saga.retry import Failure, fail
from orchestrix.saga.state import (
    CLONED,
    DEADLINE,
    HELD,
    JOB,
    PAUSED,
    RETRY,
    UNDO_FAILED,
    UNSENDABLE,
    UNSENT,
    Instance,
    InstanceProgress,
    StateChange,
)
from orchestrix.saga.transition import change, move, sending, succeed


class InvalidActionError(InvalidDataError):
    """The action request is invalid in itself."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__([{"loc": (field,), "msg": message}])


def apply_action(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    """What `ask` does to `instance`; without history where it is in effect already.

    Raises `ActionNotAllowed`, and `InvalidDataError` for an output, a patch or a time that cannot be.
    """
    if ask.verb not in allowed(saga, instance):
        if ask.verb in _idle(instance) and not ask.patch:
            return ActionResult(instance)
        raise ActionNotAllowed(_refusal(instance, ask.verb), allowed(saga, instance))
    return _ACTS[ask.verb](saga, instance, ask, inputs)


def allowed(saga: Saga, instance: Instance) -> tuple[SagaAction, ...]:
    """The actions that would change something now."""
    return tuple(verb for verb in SagaAction if verb in _possible(saga, instance))


def _possible(saga: Saga, instance: Instance) -> set[SagaAction]:
    if instance.state == COMPLETED:
        return set()
    if instance.state == FAILED:
        return {SagaAction.RETRY, SagaAction.EDIT}
    found = {SagaAction.TERMINATE}
    if instance.state in saga.path or instance.blocker == CLONED:
        found.add(SagaAction.CANCEL)
    if instance.state in saga.path and instance.blocker != CLONED and saga.step_in(instance.state):
        found.add(SagaAction.SKIP)
    found |= _by_wait(instance)
    return found if pending_command(saga, instance) is not None else found - {SagaAction.RETRY}


def _by_wait(instance: Instance) -> set[SagaAction]:
    match instance.blocker:
        case None:
            retry = {SagaAction.RETRY} if instance.wake_reason == RETRY else set()
            return {SagaAction.PAUSE, SagaAction.SET_DEADLINE, SagaAction.CANCEL_DEADLINE} | retry
        case "paused":
            return {SagaAction.RESUME, SagaAction.EDIT}
        case "cloned":
            return {SagaAction.RESUME, SagaAction.EDIT}
        case "held":
            return {SagaAction.RETRY, SagaAction.RESUME, SagaAction.EDIT}
        case "undo_failed":
            return {SagaAction.RETRY, SagaAction.SKIP, SagaAction.EDIT}
        case _:
            return {SagaAction.RETRY, SagaAction.EDIT}


def _idle(instance: Instance) -> set[SagaAction]:
    """The actions that are in effect already."""
    if instance.state == COMPLETED:
        return set()
    if instance.state == FAILED:
        return {SagaAction.CANCEL, SagaAction.TERMINATE}
    found = {SagaAction.CANCEL} if instance.state in (COMPENSATING, COMPENSATION_FAILED) else set()
    if instance.blocker == PAUSED:
        return found | {SagaAction.PAUSE}
    return found if instance.blocker else found | {SagaAction.RESUME, SagaAction.RETRY}


def unchanged(instance: Instance, verb: SagaAction) -> str:
    """Why `verb`, though allowed, changes nothing; and which action does."""
    match verb:
        case SagaAction.CANCEL if instance.state == COMPENSATION_FAILED:
            return "already being undone, and an undo has failed: retry or skip it, or terminate"
        case SagaAction.CANCEL if instance.state == COMPENSATING:
            held = "; resume ends the pause" if instance.blocker == PAUSED else ""
            return f"already being undone{held}"
        case SagaAction.CANCEL | SagaAction.TERMINATE:
            return "already ended: retry runs it again"
        case SagaAction.PAUSE:
            return "already paused: resume ends the pause"
        case SagaAction.RESUME:
            return "not paused"
        case SagaAction.RETRY:
            return f"nothing to retry: attempt {max(instance.tries, 1)} is still running"
        case SagaAction.EDIT:
            return "its data already has these values"
        case _:
            return "its deadline already has this value"


def _refusal(instance: Instance, verb: SagaAction) -> str:
    if verb is SagaAction.RETRY and verb in _idle(instance):
        return f"cannot retry: attempt {max(instance.tries, 1)} is running; to change its data pause, edit, then resume"
    if verb is SagaAction.EDIT and instance.live and not instance.blocker:
        return f"cannot edit while the saga is running (state {instance.state}); pause it first"
    held = f" and blocked ({instance.blocker})" if instance.blocker else ""
    return f"cannot {verb.value}: saga {instance.id} is {'' if instance.live else 'already '}{instance.state}{held}"


def _row(saga: Saga, instance: Instance, ask: ActionRequest, target: str, inputs: TransitionInputs) -> StateChange:
    return change(instance, target, ask.cause(step_at_work(saga, instance)), inputs.now)


def _acted(moved: SagaTransition, before: Instance | None = None) -> ActionResult:
    withdrawn = before.command_id if before is not None else None
    return ActionResult(moved.instance, moved.history, moved.command, withdrawn, moved.instance.progress.todo)


def _same_state(
    saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs
) -> tuple[Instance, StateChange]:
    row = _row(saga, instance, ask, instance.state, inputs)
    return move(saga, instance, instance.state, row), row


def _retry(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    if ask.patch:
        instance = replace(instance, data=_patched(saga, instance, ask.patch))
    if instance.state == FAILED:
        return _acted(_run_again(saga, instance, ask, inputs), instance)
    if instance.blocker == UNDO_FAILED:
        return _acted(_undo_again(saga, instance, ask, inputs))
    if instance.blocker == HELD:
        return _acted(_retry_held_step(saga, instance, ask, inputs))
    here = pending_command(saga, instance)
    assert here is not None, "only a pending command can be retried"
    same, row = _same_state(saga, instance, ask, inputs)
    now = armed(replace(same, blocker=None), here.reason, here.wait, inputs.now)
    return _acted(sending(saga, now, [row]))


def _retry_held_step(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> SagaTransition:
    """A new attempt of the held step, with all the tries of its policy. Whether earlier ones had effects stays
    unknown."""
    same, row = _same_state(saga, instance, ask, inputs)
    here = pending_command(saga, instance)
    assert here is not None, "only a step can be held"
    former = (instance.command_id,) if instance.command_id else ()
    fresh = unfrozen(progressed(same, sent=(*instance.progress.sent, *former)), inputs.now)
    fresh = replace(fresh, blocker=None, command_id=inputs.command_id, attempt=instance.attempt + 1, tries=1)
    return sending(saga, armed(fresh, here.reason, here.wait, inputs.now), [row])


def _run_again(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> SagaTransition:
    row = _row(saga, instance, ask, saga.initial, inputs)
    before = instance.progress
    unfinished = (*before.left, *(name for name in before.todo if name not in before.left))
    run, runs = next_run(instance, unfinished)
    kept = InstanceProgress(
        attempts=compensation.all_attempts(saga, instance),
        left=unfinished,
        undone=before.undone,
        refused=before.refused,
        run=run,
        runs=runs,
        named=before.named,
    )
    deadline = inputs.now + saga.timeout if saga.timeout is not None else None
    begun = replace(move(saga, instance, saga.initial, row), progress=kept, deadline_at=deadline)
    return sending(saga, issued(saga, begun, inputs), [row])


def _undo_again(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> SagaTransition:
    row = _row(saga, instance, ask, COMPENSATING, inputs)
    here = pending_command(saga, instance)
    assert here is not None, "a failed undo has a pending command"
    attempts = {**instance.progress.attempts, here.key: instance.attempt}
    back = progressed(move(saga, instance, COMPENSATING, row), attempts=attempts)
    return sending(saga, issued(saga, replace(back, blocker=None), inputs), [row])


def _skip(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    why = ask.cause(step_at_work(saga, instance))
    if instance.blocker == UNDO_FAILED:
        if ask.output:
            raise InvalidActionError("output", "must be left out where an undo is skipped: an undo has no output")
        return _acted(compensation.undone(saga, instance, inputs, skipped=why), instance)
    step = saga.step_in(instance.state)
    assert step is not None, "skip needs a pending step"
    try:
        moved = succeed(saga, instance, step, ask.output or {}, inputs, why)
    except InvalidDataError as refused:
        raise InvalidDataError([{**error, "loc": ("output", *error["loc"])} for error in refused.errors]) from refused
    except ValueError as refused:
        raise InvalidActionError("output", str(refused)) from refused
    return _acted(moved, instance)


def _edit(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    data = _patched(saga, instance, ask.patch or {})
    if data == instance.data:
        return ActionResult(instance)
    same, row = _same_state(saga, instance, ask, inputs)
    edited = _reissued(saga, replace(same, data=data), inputs)
    return ActionResult(edited, (replace(row, command_id=edited.command_id),))


def _patched(saga: Saga, instance: Instance, patch: Mapping[str, Any]) -> dict[str, Any]:
    """The patched data, if the model accepts them; raises `InvalidDataError`."""
    if len(dump(patch)) > MAX_DATA:
        raise InvalidActionError("data", f"must be at most {MAX_DATA} bytes")
    return saga.check(merged(instance.data, patch))


def _reissued(saga: Saga, instance: Instance, inputs: TransitionInputs) -> Instance:
    """`instance`, paused, with a new attempt if the pending one may have been sent: a message never changes."""
    if instance.blocker != PAUSED or not compensation.in_flight(instance) or command_for(saga, instance) is None:
        return instance
    former = (instance.command_id,) if instance.command_id else ()
    earlier = progressed(instance, sent=(*instance.progress.sent, *former), unanswered=True)
    return replace(earlier, command_id=inputs.command_id, attempt=instance.attempt + 1)


def _pause(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    same, row = _same_state(saga, instance, ask, inputs)
    reason = instance.wake_reason if instance.wake_reason in (RETRY, JOB) else DEADLINE
    if instance.given is not None:
        reason = DEADLINE
    rest = min(_until(instance.given or instance.wake_at, inputs) or timedelta(0), _LONGEST_REST)
    run = _until(instance.deadline_at, inputs)
    same = progressed(replace(same, blocker=PAUSED), run_ms=None if run is None else milliseconds(run), until=None)
    held = armed(same, reason, rest, inputs.now)
    withdrawn = instance.command_id if instance.progress.awaited is None else None
    return ActionResult(held, (row,), None, withdrawn, held.progress.todo)


_LONGEST_REST: Final = timedelta(days=36500)
"""What a pause stores for a deadline that was cancelled: longer than any step's time."""


def _until(at: datetime | None, inputs: TransitionInputs) -> timedelta | None:
    return None if at is None else max(timedelta(0), at - inputs.now)


def _freed(saga: Saga, instance: Instance, reason: str, inputs: TransitionInputs) -> Instance:
    """`instance` without its pause, which does not count as its time."""
    rest = timedelta(milliseconds=instance.wait_ms)
    free = unfrozen(progressed(replace(instance, blocker=None), resume=None, held=None), inputs.now)
    here = pending_command(saga, free)
    if here is not None and reason != RETRY and not rest:  # it was late before the pause: not the attempt's fault
        rest = here.wait
    if here is not None and reason == UNSENT:
        reason = here.reason
    reason = reason if reason in (RETRY, JOB) else DEADLINE
    if reason == DEADLINE and job_at_work(saga, free) is not None:
        return given(free, inputs.now + rest if rest < _LONGEST_REST else None, inputs.now)
    free = armed(free, reason, rest, inputs.now)
    return free if rest < _LONGEST_REST else replace(free, wake_at=NEVER)


def _resume(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    if instance.blocker == HELD:
        return _acted(_retry_held_step(saga, instance, ask, inputs))
    if instance.blocker == CLONED and instance.state == COMPENSATION_FAILED:
        same, row = _same_state(saga, instance, ask, inputs)
        return ActionResult(replace(same, blocker=UNDO_FAILED), (row,))
    instance = clone.resumed_clone(saga, instance) if instance.blocker == CLONED else instance
    same, row = _same_state(saga, instance, ask, inputs)
    reason, deferred = instance.progress.resume or DEADLINE, instance.progress.held
    free = _freed(saga, same, reason, inputs)
    if deferred is not None:
        judged = fail(saga, free, Failure.from_json(deferred), inputs)
        return _acted(replace(judged, history=(row, *judged.history)))
    moved = sending(saga, free if reason in (RETRY, UNSENT) else doubted(free), [row])
    return _acted(moved if reason != RETRY else replace(moved, command=None))


def _cancel(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    if instance.state not in saga.path:  # a clone that is being compensated continues with that
        return _resume(saga, instance, ask, inputs)
    flying = compensation.in_flight(instance) and command_for(saga, instance) is not None
    waits = flying and instance.blocker != UNSENDABLE
    why, unsure = ask.cause(step_at_work(saga, instance)), compensation.in_doubt(instance)
    moved = compensation.begin(saga, instance, why, inputs, current=unsure, awaited=waits)
    if (awaited := moved.instance.progress.awaited) is None:
        return _acted(moved, instance)
    coming = compensation.with_undo(saga, [awaited, *moved.instance.progress.todo])
    return replace(_acted(moved, instance), undo=coming)


def _terminate(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    current = compensation.in_doubt(instance) or compensation.in_flight(instance)
    names = [step.name for step in compensation.possible_effects(saga, instance, current=current)]
    left = compensation.with_undo(saga, [*names, instance.progress.awaited or ""])
    why = ask.cause(step_at_work(saga, instance))
    moved = compensation.end(saga, instance, why, inputs, left_behind=left, forced=True)
    return replace(_acted(moved, instance), undo=())


def _set_deadline(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    before = instance.given
    if instance.wake_reason == JOB and ask.at is None and before is None:
        raise ActionNotAllowed(
            "it has no deadline of its own (its job has a timeout): give the time with at", allowed(saga, instance)
        )
    if before is None and instance.wake_reason != JOB:  # else that is the time of the next poll, not a deadline
        before = instance.wake_at
    at = ask.at if ask.at is not None else _extended(before, ask.extend_by or timedelta(0), inputs)
    if not inputs.now <= at < NEVER:
        raise InvalidActionError("at" if ask.at is not None else "extendBy", "must be in the future and before 9999")
    if at == before:
        return ActionResult(instance)
    same, row = _same_state(saga, instance, ask, inputs)
    limit = max(at, instance.deadline_at) if instance.deadline_at is not None else None
    if job_at_work(saga, same) is not None:
        return ActionResult(given(replace(same, deadline_at=limit), at, inputs.now), (row,))
    # A deadline set by a person has no length and no time of sending; a retry waits as long as its policy says.
    wait_ms = milliseconds(at - inputs.now) if same.wake_reason == RETRY else 0
    return ActionResult(replace(same, wake_at=at, wait_ms=wait_ms, deadline_at=limit), (row,))


def _extended(at: datetime | None, by: timedelta, inputs: TransitionInputs) -> datetime:
    """A deadline that has passed, or was cancelled, is extended from now."""
    try:
        return (at if at is not None and inputs.now < at < NEVER else inputs.now) + by
    except OverflowError:
        return NEVER


def _cancel_deadline(saga: Saga, instance: Instance, ask: ActionRequest, inputs: TransitionInputs) -> ActionResult:
    if instance.wake_reason == RETRY:
        raise ActionNotAllowed(
            "it is waiting for a retry, which has no deadline: pause the saga to hold it", allowed(saga, instance)
        )
    if instance.wake_at == NEVER or (instance.wake_reason == JOB and instance.limit is None):
        return ActionResult(instance)
    same, row = _same_state(saga, instance, ask, inputs)
    free = replace(same, deadline_at=None)
    if job_at_work(saga, free) is not None:
        return ActionResult(given(free, None, inputs.now), (row,))
    return ActionResult(replace(free, wake_at=NEVER), (row,))


_ACTS: Final[Mapping[SagaAction, Callable[[Saga, Instance, ActionRequest, TransitionInputs], ActionResult]]] = {
    SagaAction.RETRY: _retry,
    SagaAction.SKIP: _skip,
    SagaAction.EDIT: _edit,
    SagaAction.PAUSE: _pause,
    SagaAction.RESUME: _resume,
    SagaAction.CANCEL: _cancel,
    SagaAction.TERMINATE: _terminate,
    SagaAction.SET_DEADLINE: _set_deadline,
    SagaAction.CANCEL_DEADLINE: _cancel_deadline,
}
