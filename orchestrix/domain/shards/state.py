"""Shard service state: all that is stored of one service, the events that change it, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias

from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.generations import Cause, Generation, GenerationState
from orchestrix.domain.shards.grants import Grants
from orchestrix.domain.shards.members import Departure, Process, ServiceMember
from orchestrix.domain.shards.ranges import NO_SHARDS, ShardRanges, union

PLAIN_RELEASE_S: Final = 10.0
"""Seconds after the push of an assignment from which the second heartbeat without a shard proves that it was let go."""
DEPARTURES_KEPT_S: Final = 3600.0
"""Seconds for which it is known who left or became inactive …"""
MOST_DEPARTURES: Final = 2_000
"""… of which the latest are kept."""


class PlainMode(StrEnum):
    """How S1's own clients are trusted to follow a pushed assignment."""

    PROTECT = "protect"
    """Shards that one still reports are not given to another."""
    PUSH = "push"
    """As S1 has it: the pushed assignment counts at once, and two clients can have a shard for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRules:
    """The settings that decide; times in seconds."""

    window_s: float = 2.0
    heartbeat_timeout_s: float = 15.0
    plain: PlainMode = PlainMode.PROTECT
    allocation: Allocation = Allocation.EVEN

    @property
    def lease_s(self) -> float:
        """For how long a member of the SDK may work after sending a heartbeat that is answered."""
        return self.heartbeat_timeout_s * 2 / 3

    @property
    def reconnect_max_s(self) -> float:
        """The longest wait of members, and of nodes that answer them, between two tries to connect to the broker: an
        outage that is shorter than what is left of a lease is to interrupt no member."""
        return self.heartbeat_timeout_s / 10

    @property
    def plain_silence_s(self) -> float:
        """For how long a plain member is silent before a heartbeat from another address takes its place.

        Of two clients with the same id that both send heartbeats within the time-out, the second can never do so for
        long: of any two gaps between their heartbeats in turn, one is shorter than this.
        """
        return self.heartbeat_timeout_s / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardService:
    """All that is stored of a service.

    `revision` counts the changes of its members and its shard count; `counter` gives out epochs and versions, which
    never come twice. `successors` are processes that registered under the id of a member that has not yet left or
    fallen silent. `number` is that of the newest generation. `free` are the shards that no member has.
    """

    name: str
    shard_count: int
    revision: int = 0
    counter: int = 0
    number: int = 0
    members: Mapping[str, ServiceMember] = field(default_factory=dict)
    successors: Mapping[str, ServiceMember] = field(default_factory=dict)
    departures: Mapping[Process, Departure] = field(default_factory=dict)
    active: Generation | None = None
    pending: Generation | None = None
    free: ShardRanges = NO_SHARDS

    @property
    def is_outdated(self) -> bool:
        """Whether something has changed that the active generation does not know of."""
        return self.revision > (self.active.revision if self.active else 0)


def free_shards(active: Generation | None, members: Mapping[str, ServiceMember]) -> ShardRanges:
    """The shards of the active generation that no member has."""
    everything = ShardRanges.up_to(active.shard_count if active else 0)
    return everything - union(member.shards for member in members.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRegistration:
    """A member registers."""

    worker_id: str
    instance: str | None
    shard_count: int
    seq: int = 0
    weight: int = 1
    grace_s: float = 0.0
    reply_to: str | None = None
    via: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHeartbeat:
    """A heartbeat: `shards` are those that the member runs, `generation` the newest one that it follows.

    `weight` and `grace_s` are as in its registration; None if it does not repeat them.
    """

    worker_id: str
    instance: str | None
    shard_count: int
    shards: ShardRanges
    seq: int = 0
    generation: int = 0
    weight: int | None = None
    grace_s: float | None = None
    reply_to: str | None = None
    via: str | None = None


@dataclass(frozen=True, slots=True)
class MemberLeave:
    """A member has stopped all its shards and is gone."""

    worker_id: str
    instance: str | None
    reply_to: str | None = None


@dataclass(frozen=True, slots=True)
class ServiceCheck:
    """The periodic check by a node, which has listened to heartbeats since then without interruption."""

    node_id: str
    listening_since: datetime


@dataclass(frozen=True, slots=True)
class LeadTaken:
    """The node leads the pending generation from now on, if no other does."""

    node_id: str


Event: TypeAlias = MemberRegistration | MemberHeartbeat | MemberLeave | ServiceCheck | LeadTaken


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member is to run now, for its `reply_to`, which only the node `via` can reach if one is named.

    `seq` is the newest of its messages that is stored: its lease counts from the sending of that. `problem` says why it
    gets nothing, where that is not just because nothing is free. `timeout_s` is the heartbeat time-out of the node; a
    refusal leaves it out.
    """

    worker_id: str
    instance: str | None
    reply_to: str | None
    generation: int
    seq: int
    grants: Grants
    problem: str | None = None
    via: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationChange:
    """A generation has entered a state; `shard_count` and `members` are those of its shares."""

    number: int
    state: GenerationState
    cause: Cause
    moved: int = 0
    shard_count: int = 0
    members: int = 0


class MemberChangeKind(StrEnum):
    """What became of a member."""

    JOINED = "joined"
    LEFT = "left"
    INACTIVE = "inactive"
    AWAY = "away"
    RETURNED = "returned"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """Something became of a member; `instance` is that of its process from now on, or of the one that is gone."""

    worker_id: str
    instance: str | None
    kind: MemberChangeKind


Effect: TypeAlias = Assignment | GenerationChange | MemberChange
"""What is to be sent or logged once the new state is stored, not before."""
