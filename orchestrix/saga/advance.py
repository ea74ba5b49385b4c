"""Advance: applies an event from a worker to a saga instance."""

from __future__ import annotations

from orchestrix.saga.changes import STEP_SUCCEEDED, ChangeCause
from orchestrix.saga.commands import MAX_REASON, SagaTransition, TransitionInputs, pending_command
from orchestrix.saga.compensation import again, answered, undone
from orchestrix.saga.definition import (
    COMPENSATING,
    COMPENSATION_FAILED,
    FAILED,
    Compensation,
    InvalidDataError,
    Saga,
    Step,
)
from orchestrix.saga.messages import Event, StepError
from orchestrix.saga.retry import Failure, defer, defers_failures, fail
from orchestrix.saga.state import CLONED, HELD, Instance
from orchestrix.saga.transition import IgnoredEvent, consumed, out_of_turn, succeed, unrelated

UNDOING = frozenset({COMPENSATING, COMPENSATION_FAILED})


def advance(saga: Saga, instance: Instance, event: Event, inputs: TransitionInputs) -> SagaTransition | IgnoredEvent:
    """What `event` does to `instance`; changes nothing by itself."""
    verdict = _judged(saga, instance, event, inputs)
    return consumed(instance, verdict, event) if isinstance(verdict, SagaTransition) else verdict


def _judged(saga: Saga, instance: Instance, event: Event, inputs: TransitionInputs) -> SagaTransition | IgnoredEvent:
    if event.correlation_id != instance.correlation_id:
        return IgnoredEvent("wrong-correlation")
    if instance.blocker == CLONED:  # the event answers the installation that this one is a copy of
        return IgnoredEvent("cloned")
    if event.error is not None:
        return _failed(saga, instance, event, inputs)
    for step in saga.steps:
        if step.event == event.type:
            return _done(saga, instance, step, event, inputs)
        if isinstance(step.undo, Compensation) and step.undo.event == event.type:
            return _undone(saga, instance, step, event, inputs)
    return IgnoredEvent("unknown-event", dead_letter=True)


def _done(
    saga: Saga, instance: Instance, step: Step, event: Event, inputs: TransitionInputs
) -> SagaTransition | IgnoredEvent:
    if instance.state in UNDOING and instance.progress.awaited == step.name:
        refused = unrelated(instance, event)
        return refused or answered(saga, instance, _success(step, event), inputs, current=True)
    gone = {*instance.progress.undone, *instance.progress.refused}
    if instance.state in UNDOING or (instance.state == FAILED and step.name in gone):
        return again(saga, instance, step, _success(step, event), inputs)
    refused = out_of_turn(saga, instance, step, event)
    if refused is not None:
        return refused
    try:
        return succeed(saga, instance, step, event.data, inputs, _success(step, event))
    except (InvalidDataError, ValueError) as bad:
        if step.job is not None:  # it would not be repeated, and no deadline ends it
            error = StepError("BadOutput", f"the job's result does not fit: {bad}", retryable=False)
            return _fail(saga, instance, Failure.reported(error, event.id), inputs)
        return IgnoredEvent(f"bad-output: {bad}"[:MAX_REASON], dead_letter=True)


def _success(step: Step, event: Event) -> ChangeCause:
    return ChangeCause(STEP_SUCCEEDED, event.type, step.name, event.id)


def _undone(
    saga: Saga, instance: Instance, step: Step, event: Event, inputs: TransitionInputs
) -> SagaTransition | IgnoredEvent:
    if instance.state not in (*UNDOING, FAILED):
        return IgnoredEvent("repeated" if not instance.live else "not-undoing")
    here = pending_command(saga, instance)
    if here is None or here.step is not step:
        return IgnoredEvent("future" if step.name in instance.progress.todo else "repeated")
    return unrelated(instance, event) or undone(saga, instance, inputs, caused_by=event.id)


def _failed(saga: Saga, instance: Instance, event: Event, inputs: TransitionInputs) -> SagaTransition | IgnoredEvent:
    assert event.error is not None
    if event.causation_id is None:
        return IgnoredEvent("ended" if not instance.live else "failure-without-causation")
    if not instance.live:
        late = event.causation_id == instance.command_id
        return IgnoredEvent("late-undo-failed", dead_letter=True) if late else IgnoredEvent("ended")
    if event.causation_id != instance.command_id or instance.state == COMPENSATION_FAILED:
        return IgnoredEvent("failure-of-another-attempt")
    if instance.blocker == HELD:
        return IgnoredEvent("repeated")
    return _fail(saga, instance, Failure.reported(event.error, event.id), inputs)


def _fail(saga: Saga, instance: Instance, failure: Failure, inputs: TransitionInputs) -> SagaTransition | IgnoredEvent:
    if not defers_failures(instance):
        return fail(saga, instance, failure, inputs)
    return IgnoredEvent("repeated") if instance.progress.held else defer(saga, instance, failure, inputs)
