"""What is remembered of one saga instance?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from .definition import TERMINAL

DEADLINE: Final = "deadline"
UNSENT: Final = "unsent"
RETRY: Final = "retry"
UNSENDABLE: Final = "unsendable"
ORCHESTRATOR: Final = "orchestrator"


@dataclass(frozen=True, slots=True)
class Instance:
    """One row of `apps` or `saga_instances`.

    `wait_ms` is the wait that ends at `wake_at`; `command_id` is the id of the command that is out, the same over all
    its copies. A live instance has either `wake_at` and `wake_reason`, or a `blocker`; an ended one has neither.
    """

    id: int
    saga: str
    key: str
    created_by: str
    state: str
    version: int
    correlation_id: str
    command_id: str | None
    attempt: int
    wake_at: datetime | None
    wake_reason: str | None
    wait_ms: int
    blocker: str | None
    data: Mapping[str, Any]
    definition_version: int
    created_at: datetime
    updated_at: datetime
    traceparent: str | None = None
    tracestate: str | None = None

    @property
    def live(self) -> bool:
        """Whether the saga has not ended."""
        return self.state not in TERMINAL


@dataclass(frozen=True, slots=True)
class Change:
    """One row of history: the instance became `version` by going from `from_state` to `to_state`."""

    version: int
    from_state: str | None
    to_state: str
    reason: str
    actor: str
    correlation_id: str
    caused_by: str | None
    command_id: str | None
    at: datetime
