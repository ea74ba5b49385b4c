"""Action requests: what a person sends to act on a saga, and its validation."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from orchestrix.api.parameters import read_moment
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.messages import MAX_ID, dump

LONGEST_REASON: Final = 500
NO_REASON: Final = "no reason was given"
"""The reason of what somebody has asked for without one."""
SHORTEST_SPAN: Final = timedelta(milliseconds=1)
LONGEST_SPAN: Final = timedelta(days=3650)
MOST_IDS: Final = 1000
_SPAN: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d|)")
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def sentence(text: str) -> str:
    """A reason in NFC. Raises `ValueError` that says what is wrong with it."""
    reason = unicodedata.normalize("NFC", text)
    if not 1 <= len(reason) <= LONGEST_REASON:
        raise ValueError(f"must have 1 to {LONGEST_REASON} code points, not {len(reason)}")
    if any(unicodedata.category(letter) in ("Cc", "Cs") for letter in reason):
        raise ValueError("must not have control characters or lone surrogates")
    if not reason.strip():
        raise ValueError("must say something")
    return reason


def read_span(value: object) -> timedelta:
    """A length of time: seconds, or a text such as `30s` or `5m`. Raises `ValueError` that says what is allowed."""
    seconds = _seconds(value)
    if not SHORTEST_SPAN.total_seconds() <= seconds <= LONGEST_SPAN.total_seconds():
        raise ValueError("must be seconds, or a text such as 500ms, 30s, 5m, 2h or 1d: from 1ms to 3650d")
    return timedelta(seconds=seconds)


def _seconds(value: object) -> float:
    if isinstance(value, str) and (match := _SPAN.fullmatch(value)):
        return float(match[1]) * _UNITS[match[2]]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(str(value))  # infinite, and no error, where it is too much
    return 0.0


Reason = Annotated[
    str,
    AfterValidator(sentence),
    Field(
        description="Why; it stands in the history.",
        json_schema_extra={"minLength": 1, "maxLength": LONGEST_REASON},
    ),
]
Moment = Annotated[datetime, BeforeValidator(read_moment), WithJsonSchema({"type": "string", "format": "date-time"})]
SPAN: Final[dict[str, Any]] = {"anyOf": [{"type": "string"}, {"type": "number"}]}
"""What a length of time is in JSON."""
Span = Annotated[timedelta, BeforeValidator(read_span), WithJsonSchema(SPAN)]


def _asked(**example: Any) -> ConfigDict:
    return ConfigDict(extra="forbid", json_schema_extra={"examples": [example]})


class Demand(BaseModel):
    """What every verb takes."""

    model_config = _asked(reason="the forge is back")

    reason: Reason

    def ask(self, verb: SagaAction, actor: str) -> ActionRequest:
        """The same for the state machine."""
        return ActionRequest(verb, actor, self.reason)


class Remark(Demand):
    """What takes a reason, and does without one."""

    model_config = _asked(reason="the worker is mended")

    reason: Reason = NO_REASON


class RetryDemand(Demand):
    """To try again, with other data if need be."""

    model_config = _asked(reason="the amount is right now", data={"amount": 120})

    data: dict[str, Any] | None = Field(
        None, description="A merge patch (RFC 7396), checked by the saga's model: what is null is taken away."
    )

    def ask(self, verb: SagaAction, actor: str) -> ActionRequest:
        """The same for the state machine."""
        return ActionRequest(verb, actor, self.reason, patch=self.data)


class SkipDemand(Demand):
    """To go on as if the step had succeeded."""

    model_config = _asked(reason="made by hand", output={"repository": "git@forge:billing.git"})

    output: dict[str, Any] | None = Field(
        None, description="What the step would have answered; merged into the data. Not where an undo is skipped."
    )

    def ask(self, verb: SagaAction, actor: str) -> ActionRequest:
        """The same for the state machine."""
        return ActionRequest(verb, actor, self.reason, output=self.output)


class EditDemand(Demand):
    """To change the data."""

    model_config = _asked(reason="the name was misspelt", data={"team": "blue", "draft": None})

    data: dict[str, Any] = Field(description="A merge patch (RFC 7396): what is null is taken away.")

    def ask(self, verb: SagaAction, actor: str) -> ActionRequest:
        """The same for the state machine."""
        return ActionRequest(verb, actor, self.reason, patch=self.data)


class DeadlineDemand(Remark):
    """To set the deadline of a run: either `at`, or `extendBy`."""

    model_config = _asked(reason="the forge is slow today", extendBy="30m")

    at: Moment | None = Field(None, description="When the run's time is over.")
    extendBy: Span | None = Field(None, description="So much longer: seconds, or a text such as `30s`, `5m`, `2h`.")

    @model_validator(mode="after")
    def _either(self) -> DeadlineDemand:
        if (self.at is None) == (self.extendBy is None):
            raise ValueError("must have at or extendBy, and not both")
        return self

    def ask(self, verb: SagaAction, actor: str) -> ActionRequest:
        """The same for the state machine."""
        return ActionRequest(verb, actor, self.reason, at=self.at, extend_by=self.extendBy)


class Withdrawal(BaseModel):
    """To take the deadline of a run away."""

    model_config = _asked(reason="it may take as long as it takes")

    reason: Reason | None = None


class RedispatchDemand(BaseModel):
    """To send again what live sagas have out; all of them where nothing else is said."""

    model_config = _asked(saga="app", ids=[1, 2], reason="the queue was deleted by hand")

    saga: str | None = Field(None, description="Only this saga.")
    ids: list[Annotated[int, Field(ge=1, lt=MAX_ID)]] | None = Field(
        None, description="Only these instances of `saga`.", min_length=1, max_length=MOST_IDS
    )
    reason: Reason = NO_REASON

    @model_validator(mode="after")
    def _whose(self) -> RedispatchDemand:
        if self.ids is not None and self.saga is None:
            raise ValueError("must name the saga whose ids these are")
        return self


class BodyDemand(Demand):
    """To put another body in the place of a dead letter's."""

    model_config = _asked(reason="the number was a text", body={"appId": 1, "correlationId": "c-1"})

    body: dict[str, Any] | str = Field(description="An object, which is sent as JSON, or a text, which goes as it is.")

    def content(self) -> bytes:
        """The bytes to send."""
        return self.body.encode() if isinstance(self.body, str) else dump(self.body)


class LetterFilter(BaseModel):
    """Which dead letters; all that are open where nothing is said."""

    model_config = _asked(queue="evt.appRegistered", reason="not-json")

    queue: str | None = Field(None, description="Only those that died in this queue.")
    saga: str | None = Field(None, description="Only those of this saga.")
    appId: Annotated[int, Field(ge=1, lt=MAX_ID)] | None = Field(
        None, description="Only those of this instance of `saga`, or of this app."
    )
    reason: str | None = Field(None, description="Only where the reason begins so.")


class RedriveDemand(Demand):
    """To send many dead letters again."""

    model_config = _asked(reason="the worker is mended", filter={"queue": "cmd.registerApp"}, dryRun=True)

    filter: LetterFilter
    dryRun: bool = Field(False, description="Only count them.")


DEMANDS: tuple[type[BaseModel], ...] = (
    Demand,
    Remark,
    RetryDemand,
    SkipDemand,
    EditDemand,
    DeadlineDemand,
    Withdrawal,
    RedispatchDemand,
    BodyDemand,
    LetterFilter,
    RedriveDemand,
)
