"""What does the worker know of one command in its hands?"""

from __future__ import annotations

from dataclasses import dataclass, field

from app.broker.port import Delivery
from sagas.engine.catalog import Owner
from sagas.engine.definition import Order, Saga
from sagas.engine.messages import Command


@dataclass(slots=True, eq=False)
class Job:
    """A command from its receipt until its event is confirmed. Times are of `clock.monotonic()`.

    `deliveries` are all copies that came meanwhile: acknowledged together. `looked` is the last look at the saga's row;
    `older_since` the first look that found the row behind the command.
    """

    command: Command
    owner: Owner
    received: float
    deliveries: list[Delivery] = field(default_factory=list)
    looked: float | None = None
    older_since: float | None = None

    @property
    def saga(self) -> Saga:
        """The saga that owns the command."""
        return self.owner.saga

    @property
    def order(self) -> Order:
        """The step, or its undo, that owns the command."""
        return self.owner.order

    @property
    def what(self) -> str:
        """The step, or its undo, for people."""
        return f"the undo of {self.owner.step.name}" if self.owner.undoes else self.owner.step.name

    @property
    def told(self) -> dict[str, object]:
        """What a log line about the job carries."""
        return {"correlation_id": self.command.correlation_id, "saga": self.command.saga, "app_id": self.command.app_id}

    @property
    def redelivered(self) -> bool:
        """Whether an earlier copy may have ended its reader."""
        return self.deliveries[0].redelivered

    @property
    def delivery_count(self) -> int:
        """How often the broker had got the command back without an answer when it came here: what joined it later
        says nothing against it."""
        return self.deliveries[0].delivery_count

    @property
    def ends(self) -> float:
        """When the step's time is over: it begins anew with a look, for that says that the saga still waits."""
        return (self.looked or self.received) + self.command.timeout_ms / 1000
