"""Dead-letter models: dead letters as they are shown, filtered, edited and redriven."""

from __future__ import annotations

from base64 import b64encode
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, Field

from orchestrix.api.answers import Answer, Id, OptionalTime, Page, Time, example
from orchestrix.api.query import Flag, InstanceId, Paging, Query, Text
from orchestrix.api.values import RequiredReason, asked
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.saga.messages import MAX_ID, UnreadableMessage, dump, load, storable

DEAD_LETTER: Final[dict[str, Any]] = {
    "id": "0b6d5a4e-1f0c-8a7b-9d3e-2c4b6a8f0e1d",
    "queue": "evt.appRegistered",
    "routingKey": "evt.appRegistered",
    "type": "evt.appRegistered",
    "saga": "app",
    "appId": None,
    "messageId": "0199c2a4-60aa-7d10-8f00-1a2b3c4d5e6f",
    "correlationId": "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11",
    "reason": "not-json: line 1, column 2: the name of a field must stand there, in double quotes",
    "error": "line 1, column 2: the name of a field must stand there, in double quotes",
    "deliveries": 1,
    "bodySize": 9,
    "diedAt": "2026-01-31T12:00:01.250000Z",
    "recordedAt": "2026-01-31T12:00:01.300000Z",
    "redriven": 0,
    "redrivenAt": None,
    "editedAt": None,
}
_BODY: Final[dict[str, Any]] = {
    "exchange": "orchestrator.events",
    "bodyEncoding": "text",
    "body": "{not json",
    "bodySha256": "9ad6ec7f5f0b2ee0c04b9a7be4d9cf4b2b6e6f0a1c7d0b7a0d0f1b7f1a5c3e21",
    "headers": {"x-reason": DEAD_LETTER["reason"]},
}


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
    appId: Annotated[int, Field(ge=1, lt=MAX_ID)] | None = Field(
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

    model_config = example(**DEAD_LETTER)

    id: Id
    queue: str = Field(description="Where it died.")
    routing_key: str
    type: str
    saga: str | None = Field(description="As it says itself: there need be no such instance.")
    instance_id: int | None = Field(alias="appId")
    message_id: str | None
    correlation_id: str | None
    reason: str
    error: str | None = Field(description="The reason in more words, where there are any.")
    deliveries: int | None = Field(description="How often it was delivered in vain; null where that was not counted.")
    body_size: int = Field(description="In bytes.")
    died_at: Time
    recorded_at: Time
    redriven: int = Field(description="How often it was sent again.")
    redriven_at: OptionalTime = Field(description="Null while it waits for an operator.")
    edited_at: OptionalTime

    @classmethod
    def made(cls, letter: DeadLetter, **more: Any) -> Self:
        """The letter, with what `more` says of it."""
        return cls.of(letter, deliveries=letter.deliveries or None, **more)


class DeadLetterBody(DeadLetterSummary):
    """A dead letter with its body."""

    model_config = example(**DEAD_LETTER, **_BODY)

    exchange: str
    body_encoding: Literal["json", "text", "base64"] | None = Field(
        description="How `body` is written; null where it was too long to be kept."
    )
    body: dict[str, Any] | str | None
    body_sha256: str = Field(alias="bodySha256")
    headers: dict[str, Any]

    @classmethod
    def whole(cls, letter: DeadLetter) -> Self:
        """The letter with its body."""
        encoding, body = _shown(letter.body)
        return cls.made(letter, body_encoding=encoding, body=body)


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


class DeadLetterPage(Page[DeadLetterSummary]):
    """Some dead letters, the last to die first, and where the next ones begin."""


class RefusedLetter(Answer):
    """Why one is not sent again."""

    id: Id
    reason: str


class RedrivenBody(Answer):
    """What has become of many dead letters."""

    model_config = example(dryRun=False, matched=2, redriven=2, refused=[])

    dry_run: bool
    matched: int = Field(description="How many matched the filter.")
    redriven: int = Field(description="How many are sent again.")
    refused: list[RefusedLetter] = Field(description="Those that cannot be sent; a hundred at most are named.")
