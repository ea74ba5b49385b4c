"""Deadline models: when the engine acts by itself."""

from __future__ import annotations

from pydantic import Field

from orchestrix.api.answers import Answer, AnswerPage, OptionalTime


class WakeUpBody(Answer):
    """When the engine acts by itself on one instance."""

    saga: str = Field(examples=["app"])
    id: int
    key: str = Field(examples=["billing"])
    state: str = Field(examples=["APP_INITIATED"])
    wake_at: OptionalTime = Field(examples=["2026-01-31T12:01:00.000000Z"])
    wake_reason: str | None = Field(examples=["deadline"])
    step: str | None = Field(
        examples=["createGitRepo"], description="The step whose command is outstanding, or that is being undone."
    )
    attempt: int
    limit: OptionalTime = Field(alias="deadlineAt", description="When the run times out, or a job's own time is over.")


class WakeUpPage(AnswerPage[WakeUpBody]):
    """Some wake-up times, the soonest first, and where the next ones begin."""
