"""Shard messages: S1's JSON, and what members of the SDK add to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from orchestrix.domain.shards.grants import Grant, Grants, shards_of
from orchestrix.domain.shards.members import MOST_SHARDS, MOST_WEIGHT
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import Assignment, MemberHeartbeat, MemberLeave, MemberRegistration
from orchestrix.saga.messages import MAX_ID, UnreadableMessage, dump, load
from orchestrix.saga.validation.names import normal

MOST_BYTES: Final = 64 * 1024
"""Bytes of a message to a coordinator at most; an answer is written with ranges where it would be longer."""
LONGEST_GRACE_MS: Final = 3_600_000
REGISTER, HEARTBEAT, ASSIGNMENT, LEAVE = "register", "heartbeat", "assignment", "leave"


def _integral(value: object) -> object:
    """`5.0` as 5, for it is the same number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _range(value: object) -> object:
    """A shard or a range of shards as a range."""
    if isinstance(value, list):
        return [_integral(one) for one in value]
    number = _integral(value)
    return [number, number]


def _ordered(one: list[int]) -> list[int]:
    if one[0] > one[1]:
        raise ValueError("the first shard of a range must not be after its last")
    return one


Whole: TypeAlias = Annotated[int, BeforeValidator(_integral)]
Name: TypeAlias = Annotated[str, AfterValidator(normal)]
Instance: TypeAlias = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[!-~]+$")]
Shard: TypeAlias = Annotated[int, Field(ge=0, lt=MOST_SHARDS)]
ShardEntry: TypeAlias = Annotated[
    list[Shard], Field(min_length=2, max_length=2), AfterValidator(_ordered), BeforeValidator(_range)
]
"""A shard number, or a list of the first and the last of neighbouring ones."""
Count: TypeAlias = Annotated[Whole, Field(ge=1, le=MOST_SHARDS)]
MessageNumber: TypeAlias = Annotated[Whole, Field(ge=1, lt=MAX_ID)]
Number: TypeAlias = Annotated[Whole, Field(ge=0, lt=MAX_ID)]
Weight: TypeAlias = Annotated[Whole, Field(ge=0, le=MOST_WEIGHT)]
GraceMs: TypeAlias = Annotated[Whole, Field(ge=0, le=LONGEST_GRACE_MS)]


class _Wire(BaseModel):
    """Exact types; fields that are not known are ignored, for members are older and newer than this."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _FromMember(_Wire):
    serviceName: Name
    workerId: Name
    instance: Instance | None = None


class _Reporting(_FromMember):
    maxShardCount: Count
    seq: MessageNumber | None = None
    weight: Weight | None = None
    graceMs: GraceMs | None = None

    @model_validator(mode="after")
    def _numbered(self) -> Self:
        if self.instance is not None and self.seq is None:
            raise ValueError("seq is missing: a member with an instance numbers its messages from 1")
        return self

    @property
    def grace_s(self) -> float | None:
        """The grace in seconds."""
        return None if self.graceMs is None else self.graceMs / 1000


class _Register(_Reporting):
    """The data of `register`."""


class _Heartbeat(_Reporting):
    """The data of `heartbeat`: `epochs` has one for each entry of `assignedShards`."""

    assignedShards: list[ShardEntry] = Field(max_length=MOST_SHARDS)
    generation: Number | None = None
    epochs: list[Number] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.instance is not None and self.generation is None:
            raise ValueError("generation is missing: a member with an instance says which one it follows, at first 0")
        if self.epochs is not None and len(self.epochs) != len(self.assignedShards):
            raise ValueError("epochs must have one for each entry of assignedShards")
        return self


class _Leave(_FromMember):
    """The data of `leave`."""


class _AssignmentData(_Wire):
    """The data of `assignment`: S1's shards, and for a member with an instance which generation they are of, the
    number of its newest message that is stored, and an epoch for each entry of `assignedShards`; now and then also
    after how much silence it is inactive.
    """

    assignedShards: list[ShardEntry]
    generation: Number | None = None
    instance: Instance | None = None
    seq: Number | None = None
    epochs: list[Number] | None = None
    heartbeatTimeoutMs: Number | None = None
    error: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.epochs is not None and len(self.epochs) != len(self.assignedShards):
            raise ValueError("epochs must have one for each entry of assignedShards")
        return self


class _RegisterMessage(_Wire):
    type: Literal["register"]
    data: _Register


class _HeartbeatMessage(_Wire):
    type: Literal["heartbeat"]
    data: _Heartbeat


class _LeaveMessage(_Wire):
    type: Literal["leave"]
    data: _Leave


class _AssignmentMessage(_Wire):
    type: Literal["assignment"]
    data: _AssignmentData


_TO_COORDINATOR: Final[dict[str, type[_RegisterMessage] | type[_HeartbeatMessage] | type[_LeaveMessage]]] = {
    REGISTER: _RegisterMessage,
    HEARTBEAT: _HeartbeatMessage,
    LEAVE: _LeaveMessage,
}

MODELS: Final[dict[str, type[BaseModel]]] = {**_TO_COORDINATOR, ASSIGNMENT: _AssignmentMessage}
"""The models of all messages, by their types."""


@dataclass(frozen=True, slots=True)
class MemberMessage:
    """What a member says about the service of that name."""

    service: str
    event: MemberRegistration | MemberHeartbeat | MemberLeave


def read(body: bytes, reply_to: str | None, via: str | None = None) -> MemberMessage:
    """The message of a member, whose answer is for `reply_to`, by the node `via` if one is named.

    Raises `UnreadableMessage` that says what is wrong with it.
    """
    if len(body) > MOST_BYTES:
        raise UnreadableMessage(
            f"too-large: {len(body)} bytes, at most {MOST_BYTES}: send assignedShards as ranges [first, last], "
            "or run more members"
        )
    fields = load(body)
    model = _TO_COORDINATOR.get(kind) if isinstance(kind := fields.get("type"), str) else None
    if model is None:
        raise UnreadableMessage(f"type: must be one of {', '.join(_TO_COORDINATOR)}")
    data = _checked(model, fields).data
    return MemberMessage(data.serviceName, _event(data, reply_to, via))


def _checked(model: type[Any], fields: dict[str, Any]) -> Any:
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise UnreadableMessage(_sentence(error)) from None


_INSTANCE_WORDS: Final = "write 1 to 100 printable ASCII characters without blanks"
_SHARD_WORDS: Final = "write a shard, or a range as [first, last]"
_NUMBER_WORDS: Final = "write a whole number"
_WORDS: Final[dict[str, str]] = {
    "missing": "is missing",
    "string_type": "write a string",
    "string_pattern_mismatch": _INSTANCE_WORDS,
    "string_too_short": _INSTANCE_WORDS,
    "string_too_long": _INSTANCE_WORDS,
    "int_type": _NUMBER_WORDS,
    "int_from_float": _NUMBER_WORDS,
    "greater_than_equal": "write {ge} or more",
    "less_than_equal": "write {le} or less",
    "less_than": "write less than {lt}",
    "list_type": "write a list",
    "too_short": _SHARD_WORDS,
    "too_long": _SHARD_WORDS,
    "model_type": "write an object",
}
"""What is allowed, by pydantic's types of faults; "{…}" are of its context. `Instance` alone is a string
of limited length, and `ShardEntry` alone a list of which any that fits into a message is too short or too long."""


def _sentence(error: ValidationError) -> str:
    """What is wrong, and where: the first of all faults."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    words = _WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
    return f"{where}: {words.format(**first.get('ctx', {}))}"[:300]


def _event(
    data: _Register | _Heartbeat | _Leave, reply_to: str | None, via: str | None
) -> MemberRegistration | MemberHeartbeat | MemberLeave:
    if isinstance(data, _Leave):
        return MemberLeave(data.workerId, data.instance, reply_to)
    if isinstance(data, _Register):
        return MemberRegistration(
            worker_id=data.workerId,
            instance=data.instance,
            shard_count=data.maxShardCount,
            seq=data.seq or 0,
            weight=1 if data.weight is None else data.weight,
            grace_s=data.grace_s or 0.0,
            reply_to=reply_to,
            via=via,
        )
    return MemberHeartbeat(
        worker_id=data.workerId,
        instance=data.instance,
        shard_count=data.maxShardCount,
        shards=ShardRanges.of((first, last) for first, last in data.assignedShards),
        seq=data.seq or 0,
        generation=data.generation or 0,
        weight=data.weight,
        grace_s=data.grace_s,
        reply_to=reply_to,
        via=via,
    )


def register(service: str, asked: MemberRegistration) -> bytes:
    """The registration as a member sends it."""
    grace = round(asked.grace_s * 1000) or None
    weight = None if asked.weight == 1 else asked.weight
    return _message(REGISTER, {**_member(service, asked), "weight": weight, "graceMs": grace})


def heartbeat(service: str, sent: MemberHeartbeat, grants: Grants = ()) -> bytes:
    """The heartbeat as a member sends it; of one with an instance, `grants` are its shards with their epochs."""
    fields = {**_member(service, sent), "generation": sent.generation if sent.instance is not None else None}
    fields |= {"weight": sent.weight, "graceMs": None if sent.grace_s is None else round(sent.grace_s * 1000)}
    if sent.instance is None:
        return _message(HEARTBEAT, {**fields, "assignedShards": list(sent.shards.numbers())})
    return _shortest(HEARTBEAT, fields, grants)


def leave(service: str, left: MemberLeave) -> bytes:
    """The leave as a member sends it."""
    return _message(LEAVE, {"serviceName": service, "workerId": left.worker_id, "instance": left.instance})


def assignment(sent: Assignment) -> bytes:
    """The assignment for a member: S1's own where it has no instance."""
    if sent.instance is None:
        numbers = list(shards_of(sent.grants).numbers())
        return _message(ASSIGNMENT, {"assignedShards": numbers, "error": sent.problem})
    fields = {"generation": sent.generation, "instance": sent.instance, "seq": sent.seq, "error": sent.problem}
    fields |= {"heartbeatTimeoutMs": None if sent.timeout_s is None else round(sent.timeout_s * 1000)}
    return _shortest(ASSIGNMENT, fields, sent.grants)


def refusal(problem: str) -> bytes:
    """The answer to a message that cannot be read."""
    return _message(ASSIGNMENT, {"assignedShards": [], "error": problem})


def read_assignment(body: bytes, worker_id: str) -> Assignment:
    """The assignment, as the member of that id reads it. Raises `UnreadableMessage`."""
    data: _AssignmentData = _checked(_AssignmentMessage, load(body)).data
    epochs: Sequence[int] = data.epochs if data.epochs is not None else [0] * len(data.assignedShards)
    grants = sorted(Grant(first, last, epoch) for (first, last), epoch in zip(data.assignedShards, epochs, strict=True))
    if any(one.last >= other.first for one, other in pairwise(grants)):
        raise UnreadableMessage("data.assignedShards: has a shard twice")
    return Assignment(
        worker_id,
        data.instance,
        None,
        data.generation or 0,
        data.seq or 0,
        tuple(grants),
        problem=data.error,
        timeout_s=data.heartbeatTimeoutMs / 1000 if data.heartbeatTimeoutMs else None,
    )


def _member(service: str, sent: MemberRegistration | MemberHeartbeat) -> dict[str, Any]:
    return {
        "serviceName": service,
        "workerId": sent.worker_id,
        "maxShardCount": sent.shard_count,
        "instance": sent.instance,
        "seq": None if sent.instance is None else sent.seq,
    }


def _shortest(kind: str, fields: dict[str, Any], grants: Grants) -> bytes:
    """With each shard as a number, as S1 has it; with ranges where that would be too long."""
    numbers = list(_numbered(grants))
    if len(numbers) <= MOST_BYTES // 4:
        shards, epochs = [shard for shard, _ in numbers], [epoch for _, epoch in numbers]
        body = _message(kind, {**fields, "assignedShards": shards, "epochs": epochs})
        if len(body) <= MOST_BYTES:
            return body
    ranges = [[one.first, one.last] for one in grants]
    return _message(kind, {**fields, "assignedShards": ranges, "epochs": [one.epoch for one in grants]})


def _numbered(grants: Grants) -> Iterator[tuple[int, int]]:
    return ((shard, one.epoch) for one in grants for shard in range(one.first, one.last + 1))


def _message(kind: str, fields: dict[str, Any]) -> bytes:
    return dump({"type": kind, "data": {name: value for name, value in fields.items() if value is not None}})
