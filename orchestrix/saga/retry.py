"""Retry: what follows when a try of a step, or of its compensation, has failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from orchestrix.saga import compensation
from orchestrix.saga.changes import ATTEMPT_FAILED, FAILURE_DEFERRED, STEP_FAILED, STEP_HELD, ChangeCause
from orchestrix.saga.commands import (
    MAX_REASON,
    PendingCommand,
    SagaTransition,
    TransitionInputs,
    blocked,
    pending_command,
    progressed,
    retrying,
    step_at_work,
)
from orchestrix.saga.definition import COMPENSATING, COMPENSATION_FAILED, HOLD, Saga, milliseconds
from orchestrix.saga.definition import STEP_FAILED as FAILURE_EVENT
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import DEADLINE, HELD, PAUSED, RETRY, UNDO_FAILED, Instance
from orchestrix.saga.transition import change, move, sending

MAX_RETRY_AFTER: Final = timedelta(days=30)
"""The longest delay that a worker can request."""
UNCERTAIN_FAILURE_TYPES: Final = frozenset(
    {"WorkerCrashed", "DeliveryLimit", "Timeout", "BadOutput", "Unsendable", "Undone"}
)
"""Failure types of work whose end was not seen, or that succeeded without a report: it may have taken effect, or still
be running."""
QUEUE_TIMEOUT: Final = "QueueTimeout"
"""The failure type of a command that was abandoned while it still waited in its queue."""
HOLD_TYPE: Final = "Hold"
"""The failure type by which a step asks for a person with no other type of its own."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a try ended. `answered` says that it was reported, not inferred from silence."""

    reason: str
    type: str = "Deadline"
    retryable: bool = True
    after: timedelta | None = None
    answered: bool = False
    caused_by: str | None = None
    unsure: bool = False
    hold: bool = False

    @classmethod
    def reported(cls, error: StepError, caused_by: str | None) -> Failure:
        """What a worker has reported."""
        after = None if error.retry_after_ms is None else timedelta(milliseconds=min(error.retry_after_ms, 2**40))
        plain = error.hold and error.type == HOLD_TYPE and error.message
        text = (error.message if plain else f"{error.type}: {error.message}")[:MAX_REASON]
        again = error.retryable and not error.hold
        return cls(text, error.type, again, after, True, caused_by, unsure=error.unsure, hold=error.hold)

    @property
    def leaves_nothing(self) -> bool:
        """Whether the worker reported a failure without effects, or no worker has started: then there is nothing to
        undo."""
        if not self.answered:
            return self.type == QUEUE_TIMEOUT
        return not self.unsure and self.type not in UNCERTAIN_FAILURE_TYPES

    @property
    def history_text(self) -> str:
        """The history's text for the failure that ended the run."""
        return f"{FAILURE_EVENT}: {self.reason}" if self.answered else self.reason

    def cause(self, kind: str, step: str | None, reason: str | None = None) -> ChangeCause:
        """Why an instance changes by it; `reason` where history says more than `history_text`."""
        text = self.history_text if reason is None else reason
        return ChangeCause(kind, text, step, self.caused_by, error_type=self.type, error=self.reason)

    def to_json(self) -> dict[str, Any]:
        """What is stored of it during a pause."""
        after_ms = None if self.after is None else self.after // timedelta(milliseconds=1)
        return {
            "reason": self.reason,
            "type": self.type,
            "retryable": self.retryable,
            "afterMs": after_ms,
            "causedBy": self.caused_by,
            **({"hold": True} if self.hold else {}),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Failure:
        """The reverse of `to_json`."""
        after_ms = stored["afterMs"]
        after = None if after_ms is None else timedelta(milliseconds=after_ms)
        hold = stored.get("hold") is True
        return cls(stored["reason"], stored["type"], stored["retryable"], after, True, stored["causedBy"], hold=hold)


EXPIRED: Final = Failure(DEADLINE)


def fail(saga: Saga, instance: Instance, failure: Failure, inputs: TransitionInputs) -> SagaTransition:
    """What `failure` of the current try does: another try, the compensation of all steps, or a wait for a person."""
    if instance.progress.awaited is not None:
        unsure = instance.progress.unanswered or not failure.leaves_nothing
        why = failure.cause(STEP_FAILED, instance.progress.awaited)
        return compensation.answered(saga, instance, why, inputs, current=unsure)
    here = pending_command(saga, instance)
    if here is not None and _may_retry(here, instance, failure):
        return _retry(saga, instance, here, failure, inputs)
    if instance.state == COMPENSATING:
        return _give_up(saga, instance, failure, inputs)
    sent = instance.wake_reason != RETRY
    unsure = instance.progress.unanswered or (sent and not failure.leaves_nothing)
    if here is not None and _needs_person(here, instance, failure, inputs):
        return _hold_step(saga, instance, failure, inputs, unsure=unsure)
    instance = progressed(instance, error=failure.history_text)
    why = failure.cause(STEP_FAILED, step_at_work(saga, instance))
    return compensation.begin(saga, instance, why, inputs, current=unsure)


def defer(saga: Saga, instance: Instance, failure: Failure, inputs: TransitionInputs) -> SagaTransition:
    """Stores a failure that came during a pause; it is handled at the end of it."""
    why = failure.cause(FAILURE_DEFERRED, step_at_work(saga, instance), f"held: {failure.history_text}")
    row = change(instance, instance.state, why, inputs.now)
    unsure = instance.progress.unanswered or not failure.leaves_nothing
    deferred = progressed(instance, held=failure.to_json(), error=failure.history_text, unanswered=unsure)
    return SagaTransition(move(saga, deferred, instance.state, row), (row,), None)


def _needs_person(here: PendingCommand, instance: Instance, failure: Failure, inputs: TransitionInputs) -> bool:
    """Whether a person decides. At the end of the run's own time the run fails, not its step."""
    over = instance.deadline_at is not None and instance.deadline_at <= inputs.now
    return failure.hold or (here.step.on_failure == HOLD and not over)


def _hold_step(
    saga: Saga, instance: Instance, failure: Failure, inputs: TransitionInputs, *, unsure: bool
) -> SagaTransition:
    """`instance` waiting for a person, in its state. `unsure`: a try of its step may have had effects."""
    reason = failure.reason if failure.hold else failure.history_text
    why = failure.cause(STEP_HELD, step_at_work(saga, instance), f"{HELD}: {reason}")
    row = change(instance, instance.state, why, inputs.now)
    rest = None if instance.deadline_at is None else max(0, milliseconds(instance.deadline_at - inputs.now))
    held = progressed(move(saga, instance, instance.state, row), error=reason, unanswered=unsure, run_ms=rest)
    return SagaTransition(blocked(held, HELD), (row,), None)


def _may_retry(here: PendingCommand, instance: Instance, failure: Failure) -> bool:
    policy = here.order.retry
    more = here.job is None and failure.retryable and not failure.hold and failure.type not in policy.never
    return more and instance.tries < policy.attempts


def _retry(
    saga: Saga, instance: Instance, here: PendingCommand, failure: Failure, inputs: TransitionInputs
) -> SagaTransition:
    """Assigns the next attempt and its command id at once; the command is sent when the wait is over."""
    attempt = instance.attempt + 1
    why = failure.cause(ATTEMPT_FAILED, here.step.name, f"retry {attempt}: {failure.history_text}")
    row = change(instance, instance.state, why, inputs.now)
    wait = here.order.retry.wait(instance.tries, inputs.jitter) if failure.after is None else failure.after
    former = (instance.command_id,) if instance.command_id else ()
    instance = progressed(
        move(saga, instance, instance.state, row),
        sent=(*instance.progress.sent, *former),
        unanswered=instance.progress.unanswered or not failure.leaves_nothing,
        error=failure.history_text,
        retry_of=instance.trace_head,
    )
    head = inputs.trace_head or instance.trace_head
    instance = replace(
        instance, command_id=inputs.command_id, attempt=attempt, tries=instance.tries + 1, trace_head=head
    )
    return sending(saga, retrying(instance, min(wait, MAX_RETRY_AFTER), inputs.now), [row])


def _give_up(saga: Saga, instance: Instance, failure: Failure, inputs: TransitionInputs) -> SagaTransition:
    """A compensation has failed permanently: a person has to decide."""
    why = failure.cause(STEP_FAILED, step_at_work(saga, instance))
    row = change(instance, COMPENSATION_FAILED, why, inputs.now)
    held = progressed(move(saga, instance, COMPENSATION_FAILED, row), error=failure.history_text)
    return SagaTransition(blocked(held, UNDO_FAILED), (row,), None)


def defers_failures(instance: Instance) -> bool:
    """Whether a failure that comes now waits for the end of a pause."""
    return instance.blocker == PAUSED
