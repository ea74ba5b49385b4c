"""Dead-letter models: dead letters as they are shown, filtered, edited and redriven."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field

from orchestrix.api.answers import Answer, AnswerPage, Id, OptionalTime, Time
from orchestrix.api.query import Flag, InstanceId, Paging, Query, Text
from orchestrix.api.traces.links import trace_id_of
from orchestrix.api.values import INTEGRAL, RequiredReason, asked
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.saga.messages import MAX_ID, UnreadableMessage, dump, load, storable


class LetterQuery(Paging):
    """Which dead letters."""

    queue: Text | None = Field(
        None,
        description="Only those that died in this queue; `orchestrator.unrouted` has those without a queue.",
    )
    saga: Text | None = Field(None, description="Only those of this saga.")
    app_id: InstanceId | None = Field(None, description="Only those of this instance of `saga`, or of this app.")
    reason: Text | None = Field(None, description="Only where the reason begins so.")
    redriven: Flag = Field(False, description="Also those that were sent again.")


class LetterFilter(BaseModel):
    """Which dead letters; all that are open where nothing is said."""

    model_config = asked(queue="evt.appRegistered", reason="not-json")

    queue: str | None = Field(None, description="Only those that died in this queue.")
    saga: str | None = Field(None, description="Only those of this saga.")
    appId: Annotated[int, Field(ge=1, lt=MAX_ID), INTEGRAL] | None = Field(
        None, description="Only those of this instance of `saga`, or of this app."
    )
    reason: str | None = Field(None, description="Only where the reason begins so.")


class RedriveLetters(RequiredReason):
    """To send many dead letters again."""

    model_config = asked(reason="the worker is fixed", filter={"queue": "cmd.registerApp"}, dryRun=True)

    filter: LetterFilter
    dryRun: bool = Field(False, description="Only count them.")


class DryRunQuery(Query):
    """Whether anything is to change."""

    dry_run: Flag = Field(False, description="Tell what would happen, and change nothing.")


class EditLetter(RequiredReason):
    """To replace the body of a dead letter."""

    model_config = asked(reason="the number was a text", body={"appId": 1, "correlationId": "c-1"})

    body: dict[str, Any] | str = Field(description="An object, which is sent as JSON, or a text, which goes as it is.")

    def content(self) -> bytes:
        """The bytes to send."""
        return self.body.encode() if isinstance(self.body, str) else dump(self.body)


class DeadLetterSummary(Answer):
    """A message that could not be handled."""

    id: Id
    queue: str = Field(examples=["evt.appRegistered"], description="Where it died.")
    routing_key: str = Field(examples=["evt.appRegistered"])
    type: str = Field(examples=["evt.appRegistered"])
    saga: str | None = Field(examples=["app"], description="As it says itself: there need be no such instance.")
    instance_id: int | None = Field(alias="appId")
    message_id: str | None
    correlation_id: str | None
    trace_id: str | None = Field(description="The trace that it is part of, where it says so.")
    reason: str = Field(examples=["not-json: line 1, column 2: expected a property name in double quotes"])
    error: str | None = Field(description="The reason in more words, where there are any.")
    deliveries: int | None = Field(description="How often it was delivered in vain; null where that was not counted.")
    body_size: int = Field(description="In bytes.")
    died_at: Time
    recorded_at: Time
    redriven: int = Field(description="How often it was sent again.")
    redriven_at: OptionalTime = Field(description="Null while it waits for an operator.")
    edited_at: OptionalTime

    @classmethod
    def made(cls, dead_letter: DeadLetter, **more: Any) -> Self:
        """The dead letter, with what `more` says of it."""
        trace_id = trace_id_of(dead_letter.headers.get("traceparent"))
        return cls.of(dead_letter, deliveries=dead_letter.deliveries or None, trace_id=trace_id, **more)


class DeadLetterBody(DeadLetterSummary):
    """A dead letter with its body."""

    exchange: str = Field(examples=["orchestrator.events"])
    body_encoding: Literal["json", "text", "base64"] | None = Field(
        examples=["text"], description="How `body` is written; null where it was too long to be kept."
    )
    body: dict[str, Any] | str | None = Field(examples=["{not json"])
    body_sha256: str = Field(alias="bodySha256", examples=["9ad6ec7f5f0b2ee0c04b9a7be4d9cf4b2b6e6f0a1c7d0b7a"])
    headers: dict[str, Any]

    @classmethod
    def whole(cls, dead_letter: DeadLetter) -> Self:
        """The dead letter with its body."""
        encoding, body = _shown(dead_letter.body)
        return cls.made(dead_letter, body_encoding=encoding, body=body)


def _shown(body: bytes | None) -> tuple[str | None, Any]:
    """(how it is written, the body): an object where it is one, else text, else in Base64."""
    if body is None:
        return None, None
    try:
        return "json", load(body)
    except UnreadableMessage:
        pass
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = "\0"
    return ("text", text) if storable(text) else ("base64", b64encode(body).decode())


class DeadLetterPage(AnswerPage[DeadLetterSummary]):
    """Some dead letters, the last to die first, and where the next ones begin."""


class RefusedLetter(Answer):
    """Why one is not sent again."""

    id: Id
    reason: str = Field(examples=["its queue is not known"])


class RedrivenBody(Answer):
    """What has become of many dead letters."""

    dry_run: bool
    matched: int = Field(description="How many matched the filter.")
    redriven: int = Field(description="How many are sent again.")
    refused: list[RefusedLetter] = Field(description="Those that cannot be sent; a hundred at most are named.")
