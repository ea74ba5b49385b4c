"""What becomes of one instance, when a test tells step by step what happens to it?"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from orchestrix import COMPLETED, Command, Compensation, Event, RetryPolicy, Saga
from orchestrix.saga.actions.apply import apply_action
from orchestrix.saga.actions.requests import ActionNotAllowed, ActionRequest, ActionResult, SagaAction
from orchestrix.saga.advance import advance
from orchestrix.saga.commands import SagaTransition, TransitionInputs
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import UNSENDABLE, StateChange
from orchestrix.saga.timeouts import CommandDeliveryStatus, TimerRescheduled, wake
from orchestrix.saga.transition import IgnoredEvent, block
from tests.unit.sagas.builders import FOR_GOOD, NOW, ORDER, began, failure, sent, step, success

AGAIN = StepError("Busy", "come back later", retryable=True)
SECOND_LONG = timedelta(seconds=1)
AGO = NOW - timedelta(days=1)


def _undo(name: str) -> Compensation:
    return Compensation(f"cmd.drop-{name}", f"evt.{name}Dropped", timeout=timedelta(seconds=20), retry=RetryPolicy(2))


RETRY = RetryPolicy(3, base=timedelta(seconds=2), cap=timedelta(seconds=3), never=("SoldOut",))
TRIP = Saga(
    name="trip",
    data=ORDER.data,
    steps=(
        step("flight", "FLYING", "BOOKED", undo=_undo("flight"), retry=RETRY, timeout=timedelta(seconds=10)),
        step("notice", "NOTICING", "SLEEPING", retry=RETRY),
        step("hotel", "SLEEPING", "DRIVING", undo=_undo("hotel"), retry=RETRY, timeout=timedelta(seconds=10)),
        step("car", "DRIVING", COMPLETED, undo=_undo("car"), retry=RETRY, timeout=timedelta(seconds=10)),
    ),
    immediate={"BOOKED": "NOTICING"},
)
"""Of four steps the second leaves nothing to undo. A step is tried three times, an undo twice."""


class Run:
    """One instance, its history, and the commands that left. Every call happens one second after the one before."""

    def __init__(self, saga: Saga = TRIP, *done: str, data: dict[str, Any] | None = None) -> None:
        self.saga = saga
        start = began(saga, data)
        self.now = NOW
        self.instance = start.instance
        self.history: list[StateChange] = list(start.history)
        self.sent: list[Command] = [sent(start.command)]
        self._ids = 1
        for name in done:
            self.done(name)

    # What happens.

    def done(self, name: str, **more: Any) -> str | None:
        """The step succeeds; why that is ignored, if it is. It names the command that is out, unless told otherwise."""
        step = self.saga.step(name)
        assert step is not None
        return self.hears(success(step.event, **({"causation_id": self.instance.command_id} | more)))

    def undone(self, name: str, **more: Any) -> str | None:
        """The step's undo succeeds."""
        step = self.saga.step(name)
        assert step is not None
        assert isinstance(step.undo, Compensation)
        return self.hears(success(step.undo.event, **({"causation_id": self.instance.command_id} | more)))

    def fails(self, error: StepError = FOR_GOOD, **more: Any) -> str | None:
        """A worker reports that what is out has failed."""
        return self.hears(failure(**({"causation_id": self.instance.command_id, "error": error} | more)))

    def hears(self, event: Event) -> str | None:
        """The event comes."""
        result = advance(self.saga, self.instance, event, self._tick(0.5))
        if isinstance(result, IgnoredEvent):
            return result.reason
        self._keep(result)
        return None

    def expires(
        self,
        *,
        unsent: bool = False,
        unheard: bool = False,
        served: datetime = AGO,
        since: datetime = AGO,
        chance: float = 0.5,
        waiting: datetime | None = None,
        begun: datetime | None = None,
        aside: datetime | None = None,
    ) -> TimerRescheduled | SagaTransition:
        """The wake-up is due, and its time has come."""
        assert self.instance.wake_at is not None, "it has no wake-up"
        self.now = max(self.now, self.instance.wake_at - SECOND_LONG)
        around = CommandDeliveryStatus(unsent, None if unheard else served, since, waiting, begun, aside)
        result = wake(self.saga, self.instance, around, self._tick(chance))
        if isinstance(result, SagaTransition):
            self._keep(result)
        else:
            self.instance = result.instance
            self.sent += [result.command] if result.command else []
        return result

    def asks(self, verb: SagaAction, **more: Any) -> ActionResult:
        """Ada asks for it. Raises what `apply_action` raises."""
        given: dict[str, Any] = {"actor": "ada", "reason": "because"}
        acted = apply_action(self.saga, self.instance, ActionRequest(verb, **(given | more)), self._tick(0.5))
        self._keep(acted)
        return acted

    def refused(self, verb: SagaAction, **more: Any) -> tuple[SagaAction, ...]:
        """What is allowed instead of the verb, which must be refused."""
        try:
            self.asks(verb, **more)
        except ActionNotAllowed as refused:
            return refused.allowed
        raise AssertionError(f"{verb.value} was not refused")

    def cannot_be_sent(self) -> None:
        """The broker refuses the command that is out."""
        self._tick(0.5)
        self._keep(block(self.instance, UNSENDABLE, "too large", self.now))

    def passes(self, seconds: float) -> None:
        """Time goes by."""
        self.now += timedelta(seconds=seconds)

    # What came of it.

    @property
    def state(self) -> str:
        """Where it is."""
        return self.instance.state

    @property
    def rows(self) -> list[tuple[str | None, str, str]]:
        """(from, to, reason) of every row of history."""
        return [(row.from_state, row.to_state, row.reason) for row in self.history]

    def rows_since(self, version: int) -> list[tuple[str | None, str, str]]:
        """Those of later versions."""
        return self.rows[version:]

    @property
    def types(self) -> list[str]:
        """The types of the commands that left, without their first four letters."""
        return [command.type.removeprefix("cmd.") for command in self.sent]

    @property
    def wait(self) -> float | None:
        """Seconds until it is woken."""
        return None if self.instance.wake_at is None else (self.instance.wake_at - self.now).total_seconds()

    def _tick(self, chance: float) -> TransitionInputs:
        self.now += SECOND_LONG
        return TransitionInputs(self.now, f"command-{self._ids + 1}", chance)

    def _keep(self, result: SagaTransition | ActionResult) -> None:
        versions = range(self.instance.version + 1, result.instance.version + 1)
        assert [row.version for row in result.history] == list(versions), "versions without a gap"
        self.instance = result.instance
        self.history += result.history
        if result.instance.command_id == f"command-{self._ids + 1}":
            self._ids += 1
        if result.command is not None:
            self.sent.append(result.command)
