"""What does the worker know of one command in its hands?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from orchestrix.broker.port import Delivery
from orchestrix.saga.catalog import MessageOwner
from orchestrix.saga.definition import Order, Saga
from orchestrix.saga.messages import Command

DEATHS_HEADER: Final = "x-deaths"
"""The header that says how many workers have died with the command in hand before this copy of it was sent."""
ALONE_HEADER: Final = "x-alone"
"""The header of a command that is to be the only work of its process."""
SUSPECT_FROM_DEATHS: Final = 3
"""From so many deaths on it may be the command that ends its workers."""
LAST_TRY_DEATHS: Final = 10
"""After so many deaths it has one more try, alone in a process."""
MAX_DEATHS: Final = 10_000
"""More deaths than that nobody has counted: a header can be forged."""


@dataclass(slots=True, eq=False)
class CommandDelivery:
    """A command from its receipt until its event is confirmed. Times are of `clock.monotonic()`.

    `deliveries` are all copies that came meanwhile: acknowledged together. `looked` is the last look at the saga's row;
    `older_since` the first look that found the row behind the command; `begun` the begin of the work, None before it.
    """

    command: Command
    owner: MessageOwner
    received: float
    deliveries: list[Delivery] = field(default_factory=list)
    looked: float | None = None
    older_since: float | None = None
    begun: float | None = None
    acknowledged: bool = False

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
    def deaths(self) -> int:
        """How many workers have ended with the command in hand, as far as anybody knows: those that are written on it,
        and how often the broker had got this copy back without an answer when it came here. What joined it later says
        nothing against it."""
        first = self.deliveries[0]
        written = first.headers.get(DEATHS_HEADER)
        return first.delivery_count + (min(written, MAX_DEATHS) if type(written) is int and written > 0 else 0)

    @property
    def alone(self) -> bool:
        """Whether it is to be the only work of its process."""
        return ALONE_HEADER in self.deliveries[0].headers

    @property
    def suspect(self) -> bool:
        """Whether it may be what ended its workers."""
        return self.deaths >= SUSPECT_FROM_DEATHS or self.alone

    @property
    def timeout(self) -> float:
        """The seconds that the step has for its work."""
        return self.command.timeout_ms / 1000

    @property
    def ends(self) -> float:
        """When the step's time is over: it counts from the begin of the work, for waiting is no work."""
        return (self.begun or self.looked or self.received) + self.timeout
