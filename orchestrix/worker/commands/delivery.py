"""Command delivery: what the worker knows of one command in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Delivery
from orchestrix.saga.catalog import MessageOwner
from orchestrix.saga.definition import Order, Saga
from orchestrix.saga.messages import Command
from orchestrix.telemetry.log_events import HANDLER_FAILED
from orchestrix.telemetry.tracing import NO_SPAN, ForwardedContext, Span
from orchestrix.worker.delivery_spans import set_ignored

DEATHS_HEADER: Final = "x-deaths"
"""The header that says how many workers have died with the command in flight before this copy of it was sent."""
ISOLATED_HEADER: Final = "x-alone"
"""The header of a command that must be the only work of its process."""
SUSPECT_FROM_DEATHS: Final = 3
"""From so many worker deaths on, the command itself may be what kills its workers."""
LAST_TRY_DEATHS: Final = 10
"""After so many worker deaths it has one more try, alone in a process."""
MAX_DEATHS: Final = 10_000
"""Upper limit of the count that is believed: a header can be forged."""


@dataclass(slots=True, eq=False)
class CommandDelivery:
    """A command from its receipt until its event is confirmed. Times are of `clock.monotonic()`.

    `deliveries` are all copies that came meanwhile: acknowledged together. `checked_at` is the last read of the saga's
    row; `older_since` the first read that found the row behind the command; `begun` the start of the work, None before
    it. `span` is that of handling it: what it sends follows from that. `worker_id` is who handles it.
    """

    message: Command
    owner: MessageOwner
    received: float
    deliveries: list[Delivery] = field(default_factory=list)
    checked_at: float | None = None
    older_since: float | None = None
    begun: float | None = None
    acknowledged: bool = False
    span: Span = NO_SPAN
    worker_id: str | None = None

    @property
    def saga(self) -> Saga:
        """The saga that owns the command."""
        return self.owner.saga

    @property
    def order(self) -> Order:
        """The step, or its compensation, that owns the command."""
        return self.owner.order

    @property
    def what(self) -> str:
        """The step, or its compensation, for people."""
        return f"the undo of {self.owner.step.name}" if self.owner.undoes else self.owner.step.name

    def log_fields(self, event: str | None = None, **more: object) -> dict[str, object]:
        """The fields of a log line of the command: of an `event` of the catalogue, or for debugging alone."""
        message, context = self.message, self.span.context
        return {
            **({} if event is None else {"event": event}),
            "correlation_id": message.correlation_id,
            "saga": message.saga,
            "app_id": message.app_id,
            "step": self.owner.step.name,
            "try": message.attempt,
            **({} if self.worker_id is None else {"worker": self.worker_id}),
            **({} if context is None else context.log_fields),
            **more,
        }

    def failure_fields(self, error_type: str) -> dict[str, object]:
        """The fields of the log line that says that the command has failed here."""
        ms = {} if self.begun is None else {"ms": max(0, round((clock.monotonic() - self.begun) * 1000))}
        return self.log_fields(HANDLER_FAILED, **ms, error_type=error_type)

    @property
    def redelivered(self) -> bool:
        """Whether an earlier copy may have killed its worker."""
        return self.deliveries[0].redelivered

    @property
    def deaths(self) -> int:
        """How many workers are known to have died with the command in flight: the count in its header, and how often
        the broker had redelivered this copy when it came here. Copies that joined it later do not count."""
        first = self.deliveries[0]
        written = first.headers.get(DEATHS_HEADER)
        return first.delivery_count + (min(written, MAX_DEATHS) if type(written) is int and written > 0 else 0)

    @property
    def isolated(self) -> bool:
        """Whether it must be the only work of its process."""
        return ISOLATED_HEADER in self.deliveries[0].headers

    @property
    def suspect(self) -> bool:
        """Whether it may be what killed its workers."""
        return self.deaths >= SUSPECT_FROM_DEATHS or self.isolated

    @property
    def timeout(self) -> float:
        """The seconds that the step has for its work."""
        return self.message.timeout_ms / 1000

    @property
    def ends(self) -> float:
        """When the step's time is over: it counts from the start of the work, not from the receipt."""
        return (self.begun or self.checked_at or self.received) + self.timeout

    def end_span(self, ignored: str | None = None) -> None:
        """Its span ends; `ignored` says why nothing comes of it here. What it still sends follows from that span."""
        if self.span.recording:
            if ignored is not None:
                set_ignored(self.span, ignored)
            self.span.end()
            self.span = ForwardedContext(self.span.context)
