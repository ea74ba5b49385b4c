"""What does a person's request do to a saga instance?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from . import clone, undo
from .asks import Acted, Ask, RefusedVerb, Verb
from .definition import COMPENSATING, COMPENSATION_FAILED, COMPLETED, FAILED, BadData, Saga, milliseconds
from .effects import next_run
from .failure import Failure, fail
from .messages import MAX_DATA, dump
from .orders import (
    NEVER,
    Moved,
    Tick,
    armed,
    command_for,
    doubted,
    given,
    issued,
    job_at_work,
    out,
    progressed,
    unfrozen,
)
from .state import (
    CLONED,
    DEADLINE,
    HELD,
    JOB,
    PAUSED,
    RETRY,
    UNDO_FAILED,
    UNSENDABLE,
    UNSENT,
    Change,
    Instance,
    Progress,
)
from .transition import change, move, sending, succeed


class BadAsk(BadData):
    """What was asked makes no sense in itself."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__([{"loc": (field,), "msg": message}])


def act(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    """What `ask` does to `instance`; without history where its effect is there already.

    Raises `RefusedVerb`, and `BadData` for an output, a patch or a time that cannot be.
    """
    if ask.verb not in allowed(saga, instance):
        if ask.verb in _idle(instance) and not ask.patch:
            return Acted(instance)
        raise RefusedVerb(_refusal(instance, ask.verb), allowed(saga, instance))
    return _ACTS[ask.verb](saga, instance, ask, tick)


def allowed(saga: Saga, instance: Instance) -> tuple[Verb, ...]:
    """The verbs that would change something now."""
    return tuple(verb for verb in Verb if verb in _possible(saga, instance))


def _possible(saga: Saga, instance: Instance) -> set[Verb]:
    if instance.state == COMPLETED:
        return set()
    if instance.state == FAILED:
        return {Verb.RETRY, Verb.EDIT}
    found = {Verb.TERMINATE}
    if instance.state in saga.path or instance.blocker == CLONED:
        found.add(Verb.CANCEL)
    if instance.state in saga.path and instance.blocker != CLONED and saga.step_in(instance.state):
        found.add(Verb.SKIP)
    found |= _by_wait(instance)
    return found if out(saga, instance) is not None else found - {Verb.RETRY}


def _by_wait(instance: Instance) -> set[Verb]:
    match instance.blocker:
        case None:
            retry = {Verb.RETRY} if instance.wake_reason == RETRY else set()
            return {Verb.PAUSE, Verb.SET_DEADLINE, Verb.CANCEL_DEADLINE} | retry
        case "paused":
            return {Verb.RESUME, Verb.EDIT}
        case "cloned":
            return {Verb.RESUME, Verb.EDIT}
        case "held":
            return {Verb.RETRY, Verb.RESUME, Verb.EDIT}
        case "undo_failed":
            return {Verb.RETRY, Verb.SKIP, Verb.EDIT}
        case _:
            return {Verb.RETRY, Verb.EDIT}


def _idle(instance: Instance) -> set[Verb]:
    """The verbs whose effect is there already."""
    if instance.state == COMPLETED:
        return set()
    if instance.state == FAILED:
        return {Verb.CANCEL, Verb.TERMINATE}
    found = {Verb.CANCEL} if instance.state in (COMPENSATING, COMPENSATION_FAILED) else set()
    if instance.blocker == PAUSED:
        return found | {Verb.PAUSE}
    return found if instance.blocker else found | {Verb.RESUME, Verb.RETRY}


def unchanged(instance: Instance, verb: Verb) -> str:
    """Why `verb` has nothing to do, where it fits and changes nothing; and what does something."""
    match verb:
        case Verb.CANCEL if instance.state == COMPENSATION_FAILED:
            return "it is given up already, and an undo has failed: retry or skip that one, or terminate"
        case Verb.CANCEL if instance.state == COMPENSATING:
            held = "; resume ends its pause" if instance.blocker == PAUSED else ""
            return f"it is given up already, and is being undone{held}"
        case Verb.CANCEL | Verb.TERMINATE:
            return "it has ended already: retry begins it again"
        case Verb.PAUSE:
            return "it is paused already: resume ends that"
        case Verb.RESUME:
            return "it is not paused"
        case Verb.RETRY:
            return "its present try is out: nothing is to be tried again yet"
        case Verb.EDIT:
            return "its data is so already"
        case _:
            return "its deadline is so already"


def _refusal(instance: Instance, verb: Verb) -> str:
    if verb is Verb.RETRY and verb in _idle(instance):
        return "its present try is out, and has the data that it was sent with: pause it, edit, then resume"
    held = f" and held ({instance.blocker})" if instance.blocker else ""
    return f"{verb.value} does not fit a saga that is {instance.state}{held}"


def _row(instance: Instance, ask: Ask, target: str, tick: Tick) -> Change:
    return change(instance, target, f"{ask.verb.value}: {ask.reason}", tick.now, actor=ask.actor)


def _acted(moved: Moved, before: Instance | None = None) -> Acted:
    withdrawn = before.command_id if before is not None else None
    return Acted(moved.instance, moved.history, moved.command, withdrawn, moved.instance.progress.todo)


def _stay(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> tuple[Instance, Change]:
    row = _row(instance, ask, instance.state, tick)
    return move(saga, instance, instance.state, row), row


def _retry(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    if ask.patch:
        instance = replace(instance, data=_patched(saga, instance, ask.patch))
    if instance.state == FAILED:
        return _acted(_run_again(saga, instance, ask, tick), instance)
    if instance.blocker == UNDO_FAILED:
        return _acted(_undo_again(saga, instance, ask, tick))
    if instance.blocker == HELD:
        return _acted(_held_again(saga, instance, ask, tick))
    here = out(saga, instance)
    assert here is not None, "only an order that is out can be tried again"
    same, row = _stay(saga, instance, ask, tick)
    now = armed(replace(same, blocker=None), here.reason, here.wait, tick.now)
    return _acted(sending(saga, now, [row]))


def _held_again(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Moved:
    """A new try of the step that was held, with all the tries of its policy. What the earlier ones left is not known
    any better than before."""
    same, row = _stay(saga, instance, ask, tick)
    here = out(saga, instance)
    assert here is not None, "what is held is a step"
    former = (instance.command_id,) if instance.command_id else ()
    fresh = unfrozen(progressed(same, sent=(*instance.progress.sent, *former)), tick.now)
    fresh = replace(fresh, blocker=None, command_id=tick.command_id, attempt=instance.attempt + 1, tries=1)
    return sending(saga, armed(fresh, here.reason, here.wait, tick.now), [row])


def _run_again(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Moved:
    row = _row(instance, ask, saga.initial, tick)
    before = instance.progress
    unfinished = (*before.left, *(name for name in before.todo if name not in before.left))
    run, runs = next_run(instance, unfinished)
    kept = Progress(
        attempts=undo.all_attempts(saga, instance),
        left=unfinished,
        undone=before.undone,
        refused=before.refused,
        run=run,
        runs=runs,
        named=before.named,
    )
    deadline = tick.now + saga.timeout if saga.timeout is not None else None
    begun = replace(move(saga, instance, saga.initial, row), progress=kept, deadline_at=deadline)
    return sending(saga, issued(saga, begun, tick), [row])


def _undo_again(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Moved:
    row = _row(instance, ask, COMPENSATING, tick)
    here = out(saga, instance)
    assert here is not None, "a failed undo is out"
    attempts = {**instance.progress.attempts, here.key: instance.attempt}
    back = progressed(move(saga, instance, COMPENSATING, row), attempts=attempts)
    return sending(saga, issued(saga, replace(back, blocker=None), tick), [row])


def _skip(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    reason = f"{ask.verb.value}: {ask.reason}"
    if instance.blocker == UNDO_FAILED:
        if ask.output:
            raise BadAsk("output", "must be left out where an undo is skipped: that leaves nothing to go on with")
        return _acted(undo.undone(saga, instance, tick, skipped=(reason, ask.actor)), instance)
    step = saga.step_in(instance.state)
    assert step is not None, "skip is allowed where a step is out"
    try:
        moved = succeed(saga, instance, step, ask.output or {}, tick, reason=reason, actor=ask.actor)
    except BadData as refused:
        raise BadData([{**error, "loc": ("output", *error["loc"])} for error in refused.errors]) from refused
    except ValueError as refused:
        raise BadAsk("output", str(refused)) from refused
    return _acted(moved, instance)


def _edit(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    data = _patched(saga, instance, ask.patch or {})
    if data == instance.data:
        return Acted(instance)
    same, row = _stay(saga, instance, ask, tick)
    edited = _reissued(saga, replace(same, data=data), tick)
    return Acted(edited, (replace(row, command_id=edited.command_id),))


def _patched(saga: Saga, instance: Instance, patch: Mapping[str, Any]) -> dict[str, Any]:
    """The data with the patch, if the model takes them; raises `BadData`."""
    if len(dump(patch)) > MAX_DATA:
        raise BadAsk("data", f"must be at most {MAX_DATA} bytes")
    return saga.check(merged(instance.data, patch))


def _reissued(saga: Saga, instance: Instance, tick: Tick) -> Instance:
    """`instance`, paused, with another attempt if the one that is out may have left: a message never changes."""
    if instance.blocker != PAUSED or not undo.in_flight(instance) or command_for(saga, instance) is None:
        return instance
    former = (instance.command_id,) if instance.command_id else ()
    earlier = progressed(instance, sent=(*instance.progress.sent, *former), unanswered=True)
    return replace(earlier, command_id=tick.command_id, attempt=instance.attempt + 1)


def merged(data: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """`data` after a merge patch of RFC 7396: null removes, objects are merged, all else replaces."""
    result = dict(data)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = result.get(name)
            result[name] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[name] = value
    return result


def _pause(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    same, row = _stay(saga, instance, ask, tick)
    reason = instance.wake_reason if instance.wake_reason in (RETRY, JOB) else DEADLINE
    if instance.given is not None:
        reason = DEADLINE
    rest = min(_until(instance.given or instance.wake_at, tick) or timedelta(0), _LONGEST_REST)
    run = _until(instance.deadline_at, tick)
    same = progressed(replace(same, blocker=PAUSED), run_ms=None if run is None else milliseconds(run), until=None)
    held = armed(same, reason, rest, tick.now)
    withdrawn = instance.command_id if instance.progress.awaited is None else None
    return Acted(held, (row,), None, withdrawn, held.progress.todo)


_LONGEST_REST: Final = timedelta(days=36500)
"""What a pause remembers of a deadline that was cancelled: no step has that much time."""


def _until(at: datetime | None, tick: Tick) -> timedelta | None:
    return None if at is None else max(timedelta(0), at - tick.now)


def _freed(saga: Saga, instance: Instance, reason: str, tick: Tick) -> Instance:
    """`instance` without its pause, which has cost it no time."""
    rest = timedelta(milliseconds=instance.wait_ms)
    free = unfrozen(progressed(replace(instance, blocker=None), resume=None, held=None), tick.now)
    here = out(saga, free)
    if here is not None and reason != RETRY and not rest:  # it was late before the pause, which is no try's fault
        rest = here.wait
    if here is not None and reason == UNSENT:
        reason = here.reason
    reason = reason if reason in (RETRY, JOB) else DEADLINE
    if reason == DEADLINE and job_at_work(saga, free) is not None:
        return given(free, tick.now + rest if rest < _LONGEST_REST else None, tick.now)
    free = armed(free, reason, rest, tick.now)
    return free if rest < _LONGEST_REST else replace(free, wake_at=NEVER)


def _resume(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    if instance.blocker == HELD:
        return _acted(_held_again(saga, instance, ask, tick))
    if instance.blocker == CLONED and instance.state == COMPENSATION_FAILED:
        same, row = _stay(saga, instance, ask, tick)
        return Acted(replace(same, blocker=UNDO_FAILED), (row,))
    instance = clone.woken(saga, instance) if instance.blocker == CLONED else instance
    same, row = _stay(saga, instance, ask, tick)
    reason, held = instance.progress.resume or DEADLINE, instance.progress.held
    free = _freed(saga, same, reason, tick)
    if held is not None:
        judged = fail(saga, free, Failure.from_json(held), tick)
        return _acted(replace(judged, history=(row, *judged.history)))
    moved = sending(saga, free if reason in (RETRY, UNSENT) else doubted(free), [row])
    return _acted(moved if reason != RETRY else replace(moved, command=None))


def _cancel(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    if instance.state not in saga.path:  # a copy that is being undone goes on with that
        return _resume(saga, instance, ask, tick)
    flying = undo.in_flight(instance) and command_for(saga, instance) is not None
    reason = f"{ask.verb.value}: {ask.reason}"
    waits = flying and instance.blocker != UNSENDABLE
    moved = undo.begin(saga, instance, reason, tick, current=undo.in_doubt(instance), awaited=waits, actor=ask.actor)
    if (awaited := moved.instance.progress.awaited) is None:
        return _acted(moved, instance)
    coming = undo.with_undo(saga, [awaited, *moved.instance.progress.todo])
    return replace(_acted(moved, instance), undo=coming)


def _terminate(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    current = undo.in_doubt(instance) or undo.in_flight(instance)
    names = [step.name for step in undo.possible_effects(saga, instance, current=current)]
    left = undo.with_undo(saga, [*names, instance.progress.awaited or ""])
    reason = f"{ask.verb.value}: {ask.reason}"
    moved = undo.end(saga, instance, reason, tick, actor=ask.actor, left_behind=left, forced=True)
    return replace(_acted(moved, instance), undo=())


def _set_deadline(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    before = instance.given
    if instance.wake_reason == JOB and ask.at is None and before is None:
        raise RefusedVerb(
            "the time of its job counts, and it has no deadline: say at what time", allowed(saga, instance)
        )
    if before is None and instance.wake_reason != JOB:  # else that is the time of the next look, and no deadline
        before = instance.wake_at
    at = ask.at if ask.at is not None else _extended(before, ask.extend_by or timedelta(0), tick)
    if not tick.now <= at < NEVER:
        raise BadAsk("at" if ask.at is not None else "extendBy", "must lie ahead, and before the year 9999")
    if at == before:
        return Acted(instance)
    same, row = _stay(saga, instance, ask, tick)
    limit = max(at, instance.deadline_at) if instance.deadline_at is not None else None
    if job_at_work(saga, same) is not None:
        return Acted(given(replace(same, deadline_at=limit), at, tick.now), (row,))
    # A deadline begins at no sending and has no length; a retry waits for as long as was said.
    wait_ms = milliseconds(at - tick.now) if same.wake_reason == RETRY else 0
    return Acted(replace(same, wake_at=at, wait_ms=wait_ms, deadline_at=limit), (row,))


def _extended(at: datetime | None, by: timedelta, tick: Tick) -> datetime:
    """Of a deadline that is overdue, or was cancelled, nothing is left: it is extended from now."""
    try:
        return (at if at is not None and tick.now < at < NEVER else tick.now) + by
    except OverflowError:
        return NEVER


def _cancel_deadline(saga: Saga, instance: Instance, ask: Ask, tick: Tick) -> Acted:
    if instance.wake_reason == RETRY:
        raise RefusedVerb("this wake-up is a retry and no deadline: pause the saga to hold it", allowed(saga, instance))
    if instance.wake_at == NEVER or (instance.wake_reason == JOB and instance.limit is None):
        return Acted(instance)
    same, row = _stay(saga, instance, ask, tick)
    free = replace(same, deadline_at=None)
    if job_at_work(saga, free) is not None:
        return Acted(given(free, None, tick.now), (row,))
    return Acted(replace(free, wake_at=NEVER), (row,))


_ACTS: Final[Mapping[Verb, Callable[[Saga, Instance, Ask, Tick], Acted]]] = {
    Verb.RETRY: _retry,
    Verb.SKIP: _skip,
    Verb.EDIT: _edit,
    Verb.PAUSE: _pause,
    Verb.RESUME: _resume,
    Verb.CANCEL: _cancel,
    Verb.TERMINATE: _terminate,
    Verb.SET_DEADLINE: _set_deadline,
    Verb.CANCEL_DEADLINE: _cancel_deadline,
}
