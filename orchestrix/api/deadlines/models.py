"""Deadline models: when the engine acts by itself."""

from __future__ import annotations

from pydantic import Field

from orchestrix.api.answers import Answer, OptionalTime, Page, example


class WakeUpBody(Answer):
    """When the engine acts by itself on one instance."""

    model_config = example(
        saga="app",
        id=1,
        key="billing",
        state="APP_INITIATED",
        wakeAt="2026-01-31T12:01:00.000000Z",
        wakeReason="deadline",
        step="createGitRepo",
        attempt=1,
        deadlineAt=None,
    )

    saga: str
    id: int
    key: str
    state: str
    wake_at: OptionalTime
    wake_reason: str | None
    step: str | None = Field(description="The step whose command is outstanding, or that is being undone.")
    attempt: int
    limit: OptionalTime = Field(alias="deadlineAt", description="When the run times out, or a job's own time is over.")


class WakeUpPage(Page[WakeUpBody]):
    """Some wake-ups, the soonest first, and where the next ones begin."""
