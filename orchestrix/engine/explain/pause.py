"""Pause explanation: what is said of a saga that waits for an operator."""

from __future__ import annotations

from orchestrix.saga.commands import pending_command
from orchestrix.saga.compensation import in_flight
from orchestrix.saga.definition import COMPLETED, Saga, Step
from orchestrix.saga.state import Instance


def by_blocker(instance: Instance, work: str) -> tuple[str, str, str] | None:
    """(code, sentence, action) of one that is held by its step, or is a copy; `work` is what it waits for."""
    match instance.blocker:
        case "held":
            action = "`retry` it (with `--data` on changed data), `skip` the step, or `cancel` to undo what was done"
            what = f"{work[0].upper()}{work[1:]}"
            return "held", f"{what} waits for an operator: {instance.progress.error}.", f"Check it, then {action}."
        case "cloned":
            sentence = f"Copied from another installation while waiting for {work}: nothing is done for it here."
            return "cloned", sentence, "`resume` it to continue here, or `cancel` it to undo what was done."
        case _:
            return None


def in_flight_note(saga: Saga, instance: Instance) -> str:
    """A sentence about what is in flight: a pause holds back what would follow, and not the answer of what is done.

    Empty where nothing may be in flight.
    """
    here = pending_command(saga, instance)
    if here is None or not in_flight(instance):
        return ""
    what = "The undo" if here.undoes else "The step" if here.job is None else "Its job"
    then = f"{what} may be running: a success counts at once"
    if here.undoes and len(instance.progress.todo) == 1:
        return f" {then} and ends the undo; the saga is then FAILED."
    if not here.undoes and _state_after(saga, here.step) == COMPLETED:
        return f" {then} and completes the saga (this is its last step)."
    return f" {then}; the next step waits for `resume`."


def _state_after(saga: Saga, step: Step) -> str:
    """The state that a success of `step` leads to, with the immediate transitions after it."""
    state = step.then
    while (following := saga.immediate.get(state)) is not None:
        state = following
    return state
