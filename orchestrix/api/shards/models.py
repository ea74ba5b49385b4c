"""Shard models: services, their members and their generations, as they are shown."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, Literal, Self, TypeAlias

from pydantic import Field

from orchestrix.api.answers import Answer, AnswerPage, OptionalTime, Time
from orchestrix.api.query import Cursor, Limit, Query
from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.diagnosis import UnownedShards, UnreleasedShards, explain, unowned_in, unreleased_by
from orchestrix.domain.shards.generations import Cause, CauseKind, Generation, GenerationState
from orchestrix.domain.shards.members import AwayReason, ServiceMember
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import ShardRules, ShardService
from orchestrix.persistence.shards.generations import GenerationRecord
from orchestrix.persistence.shards.overview import ServiceOverview
from orchestrix.shards.transport import ZMQ_PREFIX

Ranges: TypeAlias = list[list[int]]
RANGES: Final = [[0, 3], [8, 8]]


class CauseBody(Answer):
    """What began a generation: the first change of its window."""

    kind: CauseKind = Field(
        examples=["joined"],
        description="`leaving`: a member has set its weight to 0. `replaced`: another process of "
        "its id has another weight. `abandoned`: the leader of the one before did not end it.",
    )
    worker_id: str | None = Field(examples=["w-1"], description="The member that made the change, if one did.")


class GenerationBody(Answer):
    """One division of the shards of a service among its members."""

    number: int = Field(examples=[7])
    state: GenerationState = Field(examples=["active"])
    cause: CauseBody
    leader_id: str | None = Field(
        alias="leader",
        examples=["node-1-5f3a9c55"],
        description="The node that activates it, or has; null while none does.",
    )
    began_at: Time
    closes_at: Time = Field(description="The end of its window: changes up to then share it.")
    activated_at: OptionalTime
    ended_at: OptionalTime = Field(description="When it was superseded.")
    shard_count: int | None = Field(examples=[1000], description="Null until it is active, as are the next two.")
    members: int | None = Field(examples=[20], description="How many members had a share.")
    moved: int | None = Field(examples=[50], description="How many shards went from one member to another.")

    @classmethod
    def made(cls, one: GenerationRecord) -> Self:
        """The generation of that row."""
        kind, known = CauseKind(one.cause), one.activated_at is not None
        return cls.of(
            one,
            cause=Cause(kind, one.cause_worker),
            shard_count=one.shard_count if known else None,
            members=one.members if known else None,
            moved=one.moved if known else None,
        )

    @classmethod
    def live(cls, one: Generation | None) -> Self | None:
        """The active or the pending generation, if there is one."""
        if one is None:
            return None
        known = one.activated_at is not None
        return cls.of(
            one,
            shard_count=one.shard_count if known else None,
            members=len(one.shares) if known else None,
            moved=one.moved if known else None,
        )


class PastGenerationBody(GenerationBody):
    """One generation of the history of a service."""

    shard_count_before: int | None = Field(
        examples=[1000],
        description="That of the active generation before; null until this one is active, and where none is kept. A "
        "generation can have another shard count whatever its `cause` is, which is the first change of its window.",
    )

    @classmethod
    def made(cls, one: GenerationRecord) -> Self:
        """The generation of that row."""
        known = one.activated_at is not None
        return cls.of(
            GenerationBody.made(one),
            shard_count_before=one.shard_count_before if known else None,
        )


class ServiceItem(Answer):
    """A service of shards as a whole."""

    name: str = Field(alias="service", examples=["orders"], description="The name that its members register with.")
    shard_count: int = Field(examples=[1000], description="As a member reported it last.")
    members: int = Field(examples=[20], description="Those that are away are among them.")
    away: int = Field(examples=[0], description="Members that are gone for now: their shares wait for their return.")
    waiting: int = Field(examples=[0], description="Second processes that run under the ids of members.")
    active: GenerationBody | None = Field(
        description="Its shares are what members run, or will; null before the first."
    )
    pending: GenerationBody | None = Field(description="The next one, while members may join it.")
    unowned: int = Field(examples=[0], description="Shards that no member has.")
    unowned_since: OptionalTime = Field(description="When the first of these had no member any more.")
    revoking: int = Field(examples=[0], description="Shards that members still have though they are another's share.")
    revoking_since: OptionalTime = Field(description="Since when the first of these is to be let go of.")
    unrevocable: int = Field(
        examples=[0], description="Of these, shards of clients that do not follow assignments (30 s and longer)."
    )

    @classmethod
    def made(cls, one: ServiceOverview) -> Self:
        """The service as it is shown in a list."""
        return cls.of(
            one,
            active=GenerationBody.made(one.active) if one.active is not None else None,
            pending=GenerationBody.made(one.pending) if one.pending is not None else None,
            unowned=one.unowned.shards.size if one.unowned is not None else 0,
            unowned_since=one.unowned.since if one.unowned is not None else None,
            revoking=sum(each.shards.size for each in one.unreleased),
            revoking_since=min((each.since for each in one.unreleased), default=None),
            unrevocable=sum(each.shards.size for each in one.unreleased if each.unrevocable),
        )


class ServicePage(AnswerPage[ServiceItem]):
    """Some services by name, and where the next ones begin."""


class UnownedBody(Answer):
    """Shards that no member has."""

    count: int = Field(examples=[4])
    shards: Ranges = Field(examples=[RANGES], description="Each range as its first and its last shard.")
    since: Time = Field(description="When the first of them had no member any more.")

    @classmethod
    def made(cls, found: UnownedShards | None) -> Self | None:
        """These shards, if there are any."""
        if found is None:
            return None
        return cls(count=found.shards.size, shards=ranges(found.shards), since=found.since)


class RevokingBody(Answer):
    """Shards that a member still has and that are another's share."""

    count: int = Field(examples=[2])
    shards: Ranges = Field(examples=[[[4, 5]]])
    since: Time = Field(description="When the generation became active that took them away.")
    unrevocable: bool = Field(
        examples=[False],
        description="Whether it is a client that does not follow assignments: only its end frees them.",
    )

    @classmethod
    def made(cls, one: UnreleasedShards) -> Self:
        """These shards."""
        return cls.of(one, count=one.shards.size, shards=ranges(one.shards))


class AwayBody(Answer):
    """A member that is gone for now: until its grace is over, a restart of it moves nothing."""

    reason: AwayReason = Field(examples=["left"])
    since: Time
    until: Time = Field(description="When its share goes to others, if it does not return.")


class MemberBody(Answer):
    """A process that takes part in a service."""

    worker_id: str = Field(examples=["w-1"])
    instance: str | None = Field(examples=["0199c2a4"], description="Its process; null for plain clients of S1.")
    state: Literal["ACTIVE", "LEAVING", "AWAY", "WAITING"] = Field(
        examples=["ACTIVE"],
        description="LEAVING: it has weight 0 and hands over what it has. AWAY: it left or fell silent, and its share "
        "waits for its return. WAITING: a second process under the id of a member, which gets nothing until that ends.",
    )
    via: Literal["rabbitmq", "zeromq"] | None = Field(
        examples=["rabbitmq"], description="How answers reach it; null where it expects none."
    )
    joined_at: Time
    last_seen: Time = Field(description="Its last sign of life that is stored.")
    weight: int = Field(examples=[1], description="Its part of the shards beside the others', with minimal allocation.")
    grace_ms: int = Field(examples=[0], description="For so long its share waits for its return.")
    shard_count: int = Field(examples=[1000], description="What it reported last.")
    generation: int = Field(examples=[7], description="The newest one that it follows; 0 for plain clients.")
    share: int = Field(examples=[4], description="How many shards the active generation has for it.")
    count: int = Field(examples=[4], description="How many it has: no other member can have these.")
    shards: Ranges = Field(
        examples=[RANGES], description="Those that it has: each range as its first and its last shard."
    )
    epochs: list[int] = Field(examples=[[3, 9]], description="Under which epoch each of these ranges was granted.")
    revoking: list[RevokingBody] = Field(description="What it has still to let go of.")
    away: AwayBody | None

    @classmethod
    def made(cls, one: ServiceMember, share: int, now: datetime, *, waits: bool = False) -> Self:
        """The member, or the process that `waits` for its end."""
        since = one.away_at or one.last_seen
        until = since + timedelta(seconds=one.grace_s)
        return cls.of(
            one,
            state="WAITING" if waits else "AWAY" if one.away else "LEAVING" if one.weight == 0 else "ACTIVE",
            via="zeromq" if (one.reply_to or "").startswith(ZMQ_PREFIX) else "rabbitmq" if one.reply_to else None,
            grace_ms=round(one.grace_s * 1000),
            share=share,
            count=one.shards.size,
            shards=[[grant.first, grant.last] for grant in one.grants],
            epochs=[grant.epoch for grant in one.grants],
            revoking=[RevokingBody.made(each) for each in unreleased_by(one.worker_id, one.plain, one.revoking, now)],
            away=AwayBody(reason=one.away, since=since, until=until) if one.away else None,
        )


class GenerationQuery(Query):
    """Which of the generations of a service."""

    limit: Limit = Field(20, description="How many generations are shown.")
    cursor: Cursor | None = Field(None, description="`nextCursor` of the answer before: older generations.")


class ServiceBody(Answer):
    """A service of shards, its members, and its last generations."""

    name: str = Field(alias="service", examples=["orders"], description="The name that its members register with.")
    shard_count: int = Field(examples=[1000], description="As a member reported it last.")
    allocation: Allocation = Field(examples=["even"], description="By which rule shards are divided.")
    active: GenerationBody | None
    shares: dict[str, Ranges] = Field(
        examples=[{"w-1": RANGES}],
        description="What the active generation has for each member, as ranges. Members get there one by one: a shard "
        "is granted when its former member has let go of it.",
    )
    pending: GenerationBody | None
    unowned: UnownedBody | None = Field(description="The shards that no member has; null where each has one.")
    members: list[MemberBody] = Field(description="By worker id, a second process behind the member.")
    why: list[str] = Field(
        examples=[[]],
        description="What keeps shards from the members whose share they are, a sentence each, and that "
        "no member sends heartbeats; none if all is well.",
    )
    history: list[PastGenerationBody] = Field(description="Its generations, the newest first.")
    next_cursor: str | None = Field(
        description="For `cursor` of the next call, which shows older ones; null at the end."
    )

    @classmethod
    def made(
        cls,
        service: ShardService,
        history: list[GenerationRecord],
        rules: ShardRules,
        now: datetime,
        cursor: str | None = None,
    ) -> Self:
        """The service as it is at that time."""
        active = service.active
        members = [(one, False) for one in service.members.values()]
        members += [(one, True) for one in service.successors.values()]
        return cls(
            name=service.name,
            shard_count=service.shard_count,
            allocation=rules.allocation,
            active=GenerationBody.live(active),
            shares={} if active is None else {worker: ranges(one) for worker, one in sorted(active.shares.items())},
            pending=GenerationBody.live(service.pending),
            unowned=UnownedBody.made(unowned_in(service)),
            members=[
                MemberBody.made(
                    one, 0 if active is None or waits else active.share(one.worker_id).size, now, waits=waits
                )
                for one, waits in sorted(members, key=lambda pair: (pair[0].worker_id, pair[1]))
            ],
            why=explain(service, now, rules),
            history=[PastGenerationBody.made(one) for one in history],
            next_cursor=cursor,
        )


def ranges(shards: ShardRanges) -> Ranges:
    """The shards as ranges, each as its first and its last one."""
    return [[first, last] for first, last in shards.ranges]
