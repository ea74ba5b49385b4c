"""Leadership term: what a leader knows of its term, and has for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from orchestrix.broker.port import Consumer, Delivery
from orchestrix.domain.leases import Fence, LeaderMode
from orchestrix.lifecycle import WakeSignal


@dataclass(slots=True)
class LeadershipTerm:
    """One term of leadership. `until` is on the monotonic clock; `tokens` are those that it holds by `consumer`."""

    fence: Fence
    mode: LeaderMode
    until: float
    tokens: list[Delivery]
    consumer: Consumer
    lost: asyncio.Future[str]
    publish_token_at: float = 0.0
    token_published: bool = False
    awaited_until: float | None = None
    wake: WakeSignal = field(default_factory=WakeSignal)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)

    def lose(self, reason: str) -> None:
        """It ends, for the first reason that is given."""
        if not self.lost.done():
            self.lost.set_result(reason)
