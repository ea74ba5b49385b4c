"""Contracts of sagas: commands, events, and what becomes of messages that cannot be used."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from orchestrix.domain.contracts.fields import ContractModel, Count, Data, Id, Millis, Number, Text, Uuid
from orchestrix.saga.messages import MAX_WORKER


class CommandMessage(ContractModel):
    """A command to a worker: do a step of a saga, or undo it. It may come twice, and late."""

    id: Uuid = Field(description="The same over all copies of it. Events name it as their `causationId`.")
    type: Text = Field(description="The name of the command, which is that of its queue.")
    saga: Text
    appId: Number = Field(description="The id of the instance in its saga.")
    appName: Text = Field(description="The name of the instance.")
    correlationId: Text
    expectedState: Text = Field(description="The state in which the instance is while the command is of use.")
    step: Text
    attempt: Number = Field(description="Rises with every attempt of the step at this instance.")
    timeoutMs: Number = Field(description="Milliseconds for the work, from its begin.")
    idempotencyKey: Text = Field(description="The same over all attempts.")
    effectKey: Text = Field(description="What effects are keyed by: the same for a step and for its undo.")
    definitionVersion: Number | None = Field(None, description="The version of the saga's definition.")
    undoesAttempt: Number | None = Field(
        None, description="In an undo alone: no attempt up to this one may take effect any more."
    )
    data: Data


class _FromWorker(ContractModel):
    appId: Number | Annotated[str, Field(pattern="^[0-9]{1,16}$")]
    correlationId: Text | None = Field(None, description="May stand in the property `correlation_id` instead.")
    id: Id | None = None
    type: Text | None = Field(None, description="The routing key counts.")
    saga: Text | None = None
    worker: Annotated[str, Field(max_length=MAX_WORKER)] | None = Field(None, description="Who did the work.")


class SuccessEvent(_FromWorker):
    """A step is done, or undone."""

    causationId: Text | None = Field(None, description="The command's `id`: needed where the step was sent twice.")
    beganMsAgo: Millis | None = Field(None, description="For how long the work took.")
    data: Data = Field({}, description="Is merged into the instance's data.")


class StepErrorBody(ContractModel):
    """Why a step failed."""

    type: str = "Error"
    message: str = ""
    retryable: bool = True
    retryAfterMs: Count | None = None
    unsure: bool = Field(False, description="It may have had effects all the same: it will be undone.")
    hold: bool = Field(False, description="It must wait for a person.")


class StepFailedEvent(_FromWorker):
    """A step has failed, or its undo."""

    causationId: Text = Field(description="The command's `id`.")
    beganMsAgo: Millis | None = None
    error: StepErrorBody = StepErrorBody()


class StepStartedEvent(_FromWorker):
    """The work on a command has begun late, or lasts: its time counts from then."""

    causationId: Text = Field(description="The command's `id`.")
    beganMsAgo: Millis = Field(0, description="How long before the sending it began.")


class LostBody(ContractModel):
    """What is left of a dead letter that is too large to be kept."""

    size: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
