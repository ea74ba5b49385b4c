"""Which sagas, instances and events do these tests start from?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict

from orchestrix import COMPLETED, Command, Event, NothingToUndo, Saga, Step
from orchestrix.saga.advance import advance
from orchestrix.saga.commands import SagaTransition, TransitionInputs
from orchestrix.saga.messages import StepError
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import IgnoredEvent, SagaStart, numbered, start
from sagas.app_provisioning import APP_PROVISIONING

NOW = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
LATER = NOW + timedelta(seconds=5)
CORRELATION = "corr-1"
FIRST, SECOND, THIRD = "command-1", "command-2", "command-3"
LEAVES_NOTHING = NothingToUndo("nothing is left behind")


def step(name: str = "one", state: str = "A", then: str = COMPLETED, **more: Any) -> Step:
    """A step whose messages are named after it."""
    given: dict[str, Any] = {"command": f"cmd.{name}", "event": f"evt.{name}Done", "undo": LEAVES_NOTHING} | more
    return Step(name=name, state=state, then=then, **given)


class OrderData(BaseModel):
    """Data that a saga can refuse."""

    model_config = ConfigDict(extra="allow")

    amount: int = 0
    address: dict[str, Any] | None = None


ORDER = Saga(
    name="order",
    data=OrderData,
    version=3,
    steps=(
        step("reserve", "ORDERED", "RESERVED", timeout=timedelta(seconds=7)),
        step("pay", "PAYING", "PAID", timeout=timedelta(milliseconds=1500)),
        step("ship", "SHIPPING", "SHIPPED", timeout=timedelta(minutes=3)),
    ),
    immediate={"RESERVED": "CHECKED", "CHECKED": "PAYING", "PAID": "SHIPPING", "SHIPPED": COMPLETED},
)
"""Two immediate moves in a row, and one that ends the saga."""


def began(saga: Saga = APP_PROVISIONING, data: Mapping[str, Any] | None = None, instance_id: int = 7) -> SagaTransition:
    """A new instance, as it is once the database has given its id."""
    asked = SagaStart(key="billing", created_by="ada", correlation_id=CORRELATION, data=data or {})
    return numbered(saga, start(saga, asked, FIRST, NOW), instance_id)


def success(kind: str, **more: Any) -> Event:
    """A success event that fits the instance of `began`."""
    given: dict[str, Any] = {
        "app_id": 7,
        "correlation_id": CORRELATION,
        "saga": None,
        "id": "event-1",
        "causation_id": None,
        "data": {},
    }
    return Event(type=kind, **(given | more))


FOR_GOOD = StepError("OutOfDisk", "no space left", retryable=False)


def failure(causation_id: str | None, error: StepError | None = None, **more: Any) -> Event:
    """An `evt.stepFailed` for the command `causation_id`, worth another try unless `error` says otherwise."""
    why = error or StepError("OutOfDisk", "no space left", retryable=True)
    return success("evt.stepFailed", causation_id=causation_id, error=why, **more)


def tick(command_id: str = SECOND, now: datetime = LATER, chance: float = 0.5) -> TransitionInputs:
    """What rules cannot find out themselves."""
    return TransitionInputs(now, command_id, chance)


def moved(
    saga: Saga, instance: Instance, event: Event, command_id: str = SECOND, now: datetime = LATER
) -> SagaTransition:
    """What `advance` gives, which must be a move."""
    result = advance(saga, instance, event, tick(command_id, now))
    assert isinstance(result, SagaTransition), result
    return result


def ignored(saga: Saga, instance: Instance, event: Event) -> str:
    """Why `advance` does not take the event, which it must not."""
    result = advance(saga, instance, event, tick("never-used"))
    assert isinstance(result, IgnoredEvent), result
    return result.reason


def along(saga: Saga, steps: int, data: Mapping[str, Any] | None = None) -> Instance:
    """The instance after the success of the first `steps` steps; the command that is out is `command-{steps + 1}`."""
    instance = began(saga, data).instance
    for done in range(steps):
        waiting = saga.step_in(instance.state)
        assert waiting is not None
        instance = moved(saga, instance, success(waiting.event), f"command-{done + 2}").instance
    return instance


def body(**changes: Any) -> bytes:
    """A readable event body with `changes`; `...` takes a field away."""
    fields: dict[str, Any] = {"appId": 7, "correlationId": CORRELATION} | changes
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


def sent(command: Command | None) -> Command:
    """The command, which must be there."""
    assert command is not None
    return command
