"""Audit models: who has done what, when and why."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from orchestrix.api.answers import Answer, AnswerPage, Time
from orchestrix.api.query import InstanceId, Instant, NameText, Paging, Text


class AuditQuery(Paging):
    """Which rows."""

    actor: NameText | None = Field(None, description="Only what this person did.")
    action: Text | None = Field(None, description="Only this action, such as `retry` or `drop-dead-letter`.")
    saga: Text | None = Field(None, description="Only what was done to instances of this saga.")
    saga_id: InstanceId | None = Field(None, description="Only what was done to this instance of `saga`, or this app.")
    after: Instant | None = Field(None, description="Only what was done after this time.")
    before: Instant | None = Field(None, description="Only what was done before this time.")


class AuditBody(Answer):
    """An operator action."""

    id: int
    at: Time
    actor: str = Field(examples=["ada"], description="The name of the token; `anonymous` where there are no tokens.")
    verb: str = Field(alias="action", examples=["retry"])
    reason: str = Field(examples=["the forge is back"])
    saga: str | None = Field(examples=["app"])
    instance_id: int | None = Field(alias="sagaId", examples=[1])
    from_version: int | None = Field(examples=[4])
    to_version: int | None = Field(examples=[5], description="The same as `fromVersion` where nothing changed.")
    detail: dict[str, Any] | None = Field(description="What else was asked for.")


class AuditPage(AnswerPage[AuditBody]):
    """Some rows of the audit, the newest first, and where the next ones begin."""
