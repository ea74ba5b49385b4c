"""Instance models: an instance of a saga, its history, its messages and what it waits for, as they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final, Literal

from pydantic import Field

from orchestrix.api.answers import Answer, AnswerPage, Id, OptionalTime, Time, moment, perhaps
from orchestrix.api.traces.links import LINKS, LINKS_ABOUT, TRACE_ID, Links, is_absent
from orchestrix.saga.state import Instance

CORRELATION_ID: Final = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"
MESSAGE_ID: Final = "0199c2a4-60aa-7d10-8f00-1a2b3c4d5e6f"
_DEADLINE: Final = "When the run times out, or before that, when the time that somebody gave its job is over."


class SagaBody(Answer):
    """One instance of a saga."""

    id: int
    saga: str = Field(examples=["order"])
    key: str = Field(examples=["order-4711"])
    created_by: str = Field(examples=["ada"])
    state: str = Field(examples=["UNPAID"])
    version: int = Field(description="Rises by one with every change; also the ETag.")
    correlation_id: str = Field(examples=[CORRELATION_ID])
    trace_id: str | None = Field(examples=[TRACE_ID], description="The trace that it began in; null without one.")
    created_at: Time
    updated_at: Time
    attempt: int = Field(description="Which try of the present step this is, over all runs.")
    wake_at: OptionalTime = Field(
        examples=["2026-01-31T12:01:00.000000Z"],
        description="When the engine acts by itself, if nothing happens before; null where it never will.",
    )
    wake_reason: str | None = Field(examples=["deadline"], description="For what it waits until then.")
    blocker: str | None = Field(description="Why an operator must act; null where the engine goes on by itself.")
    limit: OptionalTime = Field(alias="deadlineAt", description=_DEADLINE)
    data: dict[str, Any]
    links: Links | None = Field(None, exclude_if=is_absent, description=LINKS_ABOUT)


class SagaPage(AnswerPage[SagaBody]):
    """Some instances, and where the next ones begin."""


class ChangeBody(Answer):
    """One row of history."""

    version: int = Field(examples=[2])
    from_state: str | None = Field(examples=["APP_INITIATED"], description="Null in the first row.")
    to_state: str = Field(examples=["GIT_REPO_CREATED"])
    reason: str = Field(examples=["evt.gitRepoCreated"])
    actor: str = Field(examples=["orchestrator"])
    correlation_id: str = Field(examples=[CORRELATION_ID])
    caused_by: str | None = Field(examples=[MESSAGE_ID], description="The message id of the event.")
    command_id: str | None
    trace_id: str | None = Field(
        examples=[TRACE_ID], description="The trace of what caused it; null where that is not known."
    )
    at: Time
    links: Links | None = Field(None, exclude_if=is_absent, description=LINKS_ABOUT)


class StateEvent(ChangeBody):
    """The data of an event of the stream: a row of history, and the state that the instance had then."""

    state: str = Field(examples=["GIT_REPO_CREATED"])


class ChangePage(AnswerPage[ChangeBody]):
    """Some history, the oldest first."""


class MessageBody(Answer):
    """A command or event of one instance."""

    kind: Literal["command", "event"] = Field(examples=["command"])
    type: str = Field(examples=["cmd.createGitRepo"])
    id: str | None = Field(examples=[MESSAGE_ID], description="The message id, where it is known.")
    status: Literal["pending", "parked", "sent", "accepted", "ignored", "dead"] = Field(
        examples=["sent"],
        description="A pending command has not left, or not been confirmed by the broker; a parked one cannot be sent; "
        "a dead one could not be handled.",
    )
    reason: str | None = Field(
        None, description="Why it was ignored, parked or has to wait, died, or what a failure said."
    )
    count: int = Field(1, description="How often; ignored messages of one type and reason are counted together.")
    version: int | None = Field(
        None, description="The version of the instance that sent the command or took the event."
    )
    trace_id: str | None = Field(None, description="The trace that it is part of, where that is known.")
    at: Time
    last_at: Time


class DeadMessage(MessageBody):
    """A command or event of one instance that could not be handled."""

    dead_letter: Id
    error: str | None = Field(description="The reason in more words.")
    deliveries: int | None = Field(description="How often it was delivered in vain, if counted.")
    redriven: int = Field(description="How often it was sent again.")
    redriven_at: OptionalTime = Field(description="When, if it is no longer a dead letter.")


class MessagePage(AnswerPage[MessageBody | DeadMessage]):
    """All messages, the oldest first."""


class PreviewBase(Answer):
    """What every preview has."""

    dry_run: Literal[True] = Field(True, examples=[True])
    history: list[ChangeBody] = Field(description="The rows that its history would get; none if all is so already.")
    undo: list[str] = Field(
        examples=[["createGitRepo"]], description="The steps that would be undone, the first one first."
    )
    command: str | None = Field(description="The command that would be sent.")
    note: str | None = Field(description="Why nothing would change, and what would change something; else null.")


class SagaPreview(PreviewBase):
    """What an action would do to an instance; nothing has been changed."""

    instance: SagaBody = Field(description="As it would be.")


class WhyBody(Answer):
    """What an instance waits for."""

    id: int
    saga: str = Field(examples=["app"])
    blocker: str = Field(examples=["no_consumer"], description="What it is, for programs.")
    sentence: str = Field(
        examples=["cmd.createGitRepo has 31 messages and no consumer."], description="The same for people."
    )
    next_action: str = Field(
        examples=["Start a worker: orchestrix worker -q cmd.createGitRepo"], description="What helps."
    )
    since: OptionalTime
    next_at: OptionalTime = Field(description="When the engine acts by itself.")
    trace_id: str | None = Field(examples=[TRACE_ID], description="The trace that it began in; null without one.")
    links: Links | None = Field(None, exclude_if=is_absent, description=LINKS_ABOUT)


SHOWN_FIELDS: Final = {name: field for name, field in SagaBody.model_fields.items() if name != LINKS}
"""What every instance has, by the attributes that it is read from."""
_WRITERS: Final[Sequence[tuple[Any, Callable[[Any], Any]]]] = (
    (datetime, moment),
    (datetime | None, perhaps),
    (dict[str, Any], dict),
)
_SHOWN: Final = tuple(
    (str(field.alias), next((write for kind, write in _WRITERS if kind == field.annotation), None))
    for field in SHOWN_FIELDS.values()
)
_read: Final = attrgetter(*SHOWN_FIELDS)


def fields_of(instance: Instance) -> dict[str, Any]:
    """What `SagaBody` shows of an instance, as it stands in JSON; not validated, for each start takes this way."""
    return {
        name: value if write is None else write(value)
        for (name, write), value in zip(_SHOWN, _read(instance), strict=True)
    }
