"""Explanation: why a saga waits, as a code, a sentence and an advice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class SagaExplanation:
    """Why a saga is where it is: a code for programs, one sentence for people, and what to do next.

    `since` is its last change; `next_at` the time at which the orchestrator acts by itself, None if it never will.
    """

    blocker: str
    sentence: str
    next_action: str
    since: datetime | None = None
    next_at: datetime | None = None
