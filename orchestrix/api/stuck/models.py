"""Stuck models: an instance that is stuck, and why."""

from __future__ import annotations

from pydantic import Field

from orchestrix.api.answers import Answer, AnswerPage, OptionalTime, Time
from orchestrix.api.traces.links import TRACE_ID


class StuckBody(Answer):
    """An instance that waits for an operator, for the broker or for workers that do not run, or is overdue."""

    saga: str = Field(examples=["app"])
    id: int
    key: str = Field(examples=["billing"])
    state: str = Field(examples=["APP_INITIATED"])
    version: int
    step: str | None = Field(
        examples=["createGitRepo"], description="The step whose command is outstanding, or that is being undone."
    )
    attempt: int = Field(description="Which try of that step this is, over all runs.")
    created_at: Time
    updated_at: Time = Field(description="When it changed last.")
    trace_id: str | None = Field(examples=[TRACE_ID], description="The trace that it began in; null without one.")
    wake_at: OptionalTime = Field(examples=["2026-01-31T12:01:00.000000Z"])
    blocker: str | None = Field(examples=["no_consumer"], description="What it waits for, for programs.")
    sentence: str | None = Field(
        examples=["cmd.createGitRepo has 31 messages and no consumer."],
        description="The same for people; null where it has gone on meanwhile.",
    )
    next_action: str | None = Field(
        examples=["Start a worker: orchestrix worker -q cmd.createGitRepo"], description="What helps."
    )
    since: OptionalTime


class StuckPage(AnswerPage[StuckBody]):
    """Some stuck instances, the newest first, and where the next ones begin."""
