"""Action models: what an operator sends to act on a saga."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, Field, model_validator

from orchestrix.api.answers import Answer
from orchestrix.api.values import INTEGRAL, Moment, OptionalReason, Reason, RequiredReason, Span, asked, either
from orchestrix.saga.messages import MAX_ID

MOST_IDS: Final = 1000
NULL: Final = {"type": "null"}


class RetryAction(RequiredReason):
    """To try again, with other data if need be."""

    model_config = asked(reason="the amount is right now", data={"amount": 120})

    data: dict[str, Any] | None = Field(
        None, description="A merge patch (RFC 7396), checked by the saga's model: what is null is removed."
    )

    def request_fields(self) -> dict[str, Any]:
        """The same for the state machine."""
        return {"patch": self.data}


class SkipAction(RequiredReason):
    """To continue as if the step had succeeded."""

    model_config = asked(reason="made by hand", output={"repository": "git@forge:billing.git"})

    output: dict[str, Any] | None = Field(
        None, description="What the step would have returned; merged into the data. Not where an undo is skipped."
    )

    def request_fields(self) -> dict[str, Any]:
        """The same for the state machine."""
        return {"output": self.output}


class EditAction(RequiredReason):
    """To change the data."""

    model_config = asked(reason="the name was misspelt", data={"team": "blue", "draft": None})

    data: dict[str, Any] = Field(description="A merge patch (RFC 7396): what is null is removed.")

    def request_fields(self) -> dict[str, Any]:
        """The same for the state machine."""
        return {"patch": self.data}


class DeadlineAction(OptionalReason):
    """To set the deadline of a run: either `at`, or `extendBy`."""

    model_config = asked(either("at", "extendBy"), reason="the forge is slow today", extendBy="30m")

    at: Moment | None = Field(None, description="When the run times out.")
    extendBy: Span | None = Field(None, description="So much longer: seconds, or a text such as `30s`, `5m`, `2h`.")

    @model_validator(mode="after")
    def _either(self) -> DeadlineAction:
        if (self.at is None) == (self.extendBy is None):
            raise ValueError("must have at or extendBy, and not both")
        return self

    def request_fields(self) -> dict[str, Any]:
        """The same for the state machine."""
        return {"at": self.at, "extend_by": self.extendBy}


class Redispatch(BaseModel):
    """To send again the commands that live sagas wait for; all of them where nothing else is said."""

    model_config = asked(
        {"anyOf": [{"properties": {"ids": NULL}}, {"required": ["saga"], "properties": {"saga": {"not": NULL}}}]},
        saga="app",
        ids=[1, 2],
        reason="the queue was deleted by hand",
    )

    saga: str | None = Field(None, description="Only this saga.")
    ids: list[Annotated[int, Field(ge=1, lt=MAX_ID), INTEGRAL]] | None = Field(
        None, description="Only these instances of `saga`.", min_length=1, max_length=MOST_IDS
    )
    reason: Reason | None = None
    dryRun: bool = Field(False, description="Only count them.")

    @model_validator(mode="after")
    def _whose(self) -> Redispatch:
        if self.ids is not None and self.saga is None:
            raise ValueError("must name the saga whose ids these are")
        return self


class RedispatchBody(Answer):
    """What is sent again."""

    redispatched: int = Field(examples=[2], description="How many commands.")


class RedispatchPreview(Answer):
    """What would be sent again. Nothing was changed."""

    dry_run: Literal[True] = Field(True, examples=[True])
    redispatched: int = Field(examples=[2], description="How many commands it would be.")
