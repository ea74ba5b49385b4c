"""Attempt call: what a node knows of an attempt that it calls executors for, or follows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from orchestrix.domain.registry import executor_calls as rules
from orchestrix.domain.registry.executor_calls import CallState
from orchestrix.persistence.jobs.executor_jobs import OwnedAttempt


@dataclass(slots=True)
class AttemptCall:
    """What this process knows of one attempt under one epoch."""

    attempt: OwnedAttempt
    state: CallState
    since: float
    """When this process began to follow it, on the monotonic clock."""
    tried: list[str] = field(default_factory=list)
    moves: bool = False
    """Whether another address is to be picked."""
    busy: bool = False
    """Whether one of `tried` may take it later."""
    taken: bool = False
    next_at: float = 0.0
    denied_at: float | None = None
    """When its executor said that it does not have it, if it has not said anything else since."""
    cancelled: bool = False
    """Whether the executor was asked once to stop."""
    ended: bool = False
    """Whether this node has ended it."""
    asked_for: datetime | None = None
    """When the process registered that was asked because of that."""
    task: asyncio.Task[None] | None = None

    def follow(self, found: OwnedAttempt) -> None:
        """Takes over what was read of it now. Where another process has its address, that is asked at once."""
        self.attempt = found
        if found.registered_at != self.asked_for and rules.is_restarted(found.called_at, found.registered_at):
            self.next_at, self.asked_for = 0.0, found.registered_at
