"""Schemas: the answers in the OpenAPI document."""

# The handlers write these by hand, for speed; a test compares what they write with these models.

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from orchestrix.api.examples import APP, CHANGE, DEAD_LETTER

_LIMIT: Final = "When the time of the whole run is over, or before that the time that a person gave its job."


def _shown(example: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class InstanceBase(BaseModel):
    """What every instance has."""

    createdBy: str
    state: str
    version: int = Field(description="Rises by one with every change; also the ETag.")
    correlationId: str
    createdAt: datetime
    updatedAt: datetime
    attempt: int = Field(description="Which try of the present step this is, over all runs.")
    wakeAt: datetime | None = Field(
        description="When the machine acts by itself, if nothing happens before; null where it never will."
    )
    wakeReason: str | None = Field(description="For what it waits until then.")
    blocker: str | None = Field(description="Why a person must act; null where the machine does.")
    deadlineAt: datetime | None = Field(description=_LIMIT)
    data: dict[str, Any]


class SagaBody(InstanceBase):
    """One instance of a saga."""

    model_config = _shown({**APP, "saga": "app", "key": "billing"})

    id: int
    saga: str
    key: str


class PageBase(BaseModel):
    """What every page has."""

    model_config = ConfigDict(extra="forbid")

    nextCursor: str | None = Field(description="For `cursor` of the next call; null at the end.")


class SagaPage(PageBase):
    """Some instances, and where the next ones begin."""

    items: list[SagaBody]


class ChangeBody(BaseModel):
    """One row of history."""

    model_config = _shown(CHANGE)

    version: int
    fromState: str | None = Field(description="Null in the first row.")
    toState: str
    reason: str
    actor: str
    correlationId: str
    causedBy: str | None = Field(description="The message id of the event.")
    commandId: str | None
    at: datetime


class StateEvent(ChangeBody):
    """The data of an event of the stream: a row of history, and the state that the instance had then."""

    model_config = _shown({**CHANGE, "state": CHANGE["toState"]})

    state: str


class ChangePage(PageBase):
    """Some history, the oldest first."""

    items: list[ChangeBody]


class MessageBody(BaseModel):
    """A command or event of one instance."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["command", "event"]
    type: str
    id: str | None = Field(description="The message id, where it is known.")
    status: Literal["pending", "parked", "sent", "accepted", "ignored", "dead"] = Field(
        description="A pending command has not left, or not been confirmed by the broker; a parked one cannot be sent; "
        "a dead one could not be handled."
    )
    reason: str | None = Field(description="Why it was ignored, parked or has to wait, died, or what a failure said.")
    count: int = Field(description="How often; ignored messages of one type and reason are counted together.")
    version: int | None = Field(description="The version of the instance that sent the command or took the event.")
    at: datetime
    lastAt: datetime
    deadLetter: UUID | None = Field(None, description="Of a dead one: its letter. The other fields are absent, too.")
    error: str | None = Field(None, description="Of a dead one: the reason in more words.")
    deliveries: int | None = Field(None, description="Of a dead one: how often it was delivered in vain, if counted.")
    redriven: int | None = Field(None, description="Of a dead one: how often it was sent again.")
    redrivenAt: datetime | None = Field(None, description="Of a dead one: when, if it is not here any more.")


class MessagePage(PageBase):
    """All messages, the oldest first."""

    items: list[MessageBody]


class PreviewBase(BaseModel):
    """What every preview has."""

    model_config = ConfigDict(extra="forbid")

    dryRun: Literal[True]
    history: list[ChangeBody] = Field(description="The rows that its history would get; none if all is so already.")
    undo: list[str] = Field(description="The steps that would be undone, the first one first.")
    command: str | None = Field(description="The command that would be sent.")
    note: str | None = Field(description="Why nothing would change, and what would change something; else null.")


class SagaPreview(PreviewBase):
    """What a verb would do to an instance; nothing has been changed."""

    instance: SagaBody = Field(description="As it would be.")


class WhyBody(BaseModel):
    """What an instance waits for."""

    model_config = _shown(
        {
            "id": 1,
            "saga": "app",
            "blocker": "no_consumer",
            "sentence": "cmd.createGitRepo has 31 messages and no consumer.",
            "nextAction": "Start a worker: orchestrix worker -q cmd.createGitRepo",
            "since": "2026-01-31T12:00:00.000000Z",
            "nextAt": "2026-01-31T12:01:00.000000Z",
        }
    )

    id: int
    saga: str
    blocker: str = Field(description="What it is, for programs.")
    sentence: str = Field(description="The same for people.")
    nextAction: str = Field(description="What helps.")
    since: datetime | None
    nextAt: datetime | None = Field(description="When the machine acts by itself.")


class WakeUpBody(BaseModel):
    """When the machine acts by itself on one instance."""

    model_config = _shown(
        {
            "saga": "app",
            "id": 1,
            "key": "billing",
            "state": "APP_INITIATED",
            "wakeAt": "2026-01-31T12:01:00.000000Z",
            "wakeReason": "deadline",
            "step": "createGitRepo",
            "attempt": 1,
            "deadlineAt": None,
        }
    )

    saga: str
    id: int
    key: str
    state: str
    wakeAt: datetime
    wakeReason: str
    step: str | None = Field(description="The step that is out, or that is being undone.")
    attempt: int
    deadlineAt: datetime | None = Field(description=_LIMIT)


class WakeUpPage(PageBase):
    """Some wake-ups, the soonest first, and where the next ones begin."""

    items: list[WakeUpBody]


class RedispatchBody(BaseModel):
    """What is sent again."""

    model_config = _shown({"redispatched": 2})

    redispatched: int = Field(description="How many commands.")


class DeadLetterSummary(BaseModel):
    """A message that could not be handled."""

    model_config = _shown(DEAD_LETTER)

    id: UUID
    queue: str = Field(description="Where it died.")
    routingKey: str
    type: str
    saga: str | None = Field(description="As it says itself: there need be no such instance.")
    appId: int | None
    messageId: str | None
    correlationId: str | None
    reason: str
    error: str | None = Field(description="The reason in more words, where there are any.")
    deliveries: int | None = Field(description="How often it was delivered in vain; null where nobody has counted.")
    bodySize: int = Field(description="In bytes.")
    diedAt: datetime
    recordedAt: datetime
    redriven: int = Field(description="How often it was sent again.")
    redrivenAt: datetime | None = Field(description="Null while it is here and waits for a person.")
    editedAt: datetime | None


class DeadLetterBody(DeadLetterSummary):
    """The same with its body."""

    model_config = _shown(
        {
            **DEAD_LETTER,
            "exchange": "orchestrator.events",
            "bodyEncoding": "text",
            "body": "{not json",
            "bodySha256": "9ad6ec7f5f0b2ee0c04b9a7be4d9cf4b2b6e6f0a1c7d0b7a0d0f1b7f1a5c3e21",
            "headers": {"x-reason": DEAD_LETTER["reason"]},
        }
    )

    exchange: str
    bodyEncoding: Literal["json", "text", "base64"] | None = Field(
        description="How `body` is written; null where it was too long to be kept."
    )
    body: dict[str, Any] | str | None
    bodySha256: str
    headers: dict[str, Any]


class DeadLetterPage(PageBase):
    """Some dead letters, and where the next ones begin."""

    items: list[DeadLetterSummary]


class RefusedLetter(BaseModel):
    """Why one is not sent again."""

    model_config = ConfigDict(extra="forbid")

    id: UUID
    reason: str


class RedrivenBody(BaseModel):
    """What has become of many dead letters."""

    model_config = _shown({"dryRun": False, "matched": 2, "redriven": 2, "refused": []})

    dryRun: bool
    matched: int = Field(description="How many fitted.")
    redriven: int = Field(description="How many are sent again.")
    refused: list[RefusedLetter] = Field(description="Those that cannot be sent; a hundred at most are named.")


class CheckBody(BaseModel):
    """How one component is."""

    model_config = ConfigDict(extra="forbid")

    component: str
    isHealthy: bool
    reason: str | None = Field(None, description="What is wrong with it; absent while it is healthy.")


class HealthBody(BaseModel):
    """How the process is."""

    model_config = _shown({"status": "healthy", "checks": [{"component": "Database", "isHealthy": True}]})

    status: str
    checks: list[CheckBody]


class FieldError(BaseModel):
    """What is wrong with one field."""

    pointer: str = Field(description="JSON pointer (RFC 6901) into the body.")
    detail: str


class ProblemBody(BaseModel):
    """An error as of RFC 9457."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(description="Which error this is, for programs. The list is at `/docs`.")
    errors: list[FieldError] | None = Field(None, description="For status 422: every wrong field.")
    existing: str | None = Field(None, description="For `already_exists`: where the one of that name is.")
    allowed: list[str] | None = Field(None, description="For `illegal_transition`: the verbs that fit the state.")
    current: int | None = Field(None, description="For `version_mismatch`: the version that it has now.")


MODELS: tuple[type[BaseModel], ...] = (
    ChangePage,
    DeadLetterBody,
    DeadLetterPage,
    HealthBody,
    MessagePage,
    ProblemBody,
    RedispatchBody,
    RedrivenBody,
    StateEvent,
    WakeUpPage,
    WhyBody,
)
