"""Service members: who takes part in a shard service, and since when it is silent (S1: workerRegistry)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias

from orchestrix.domain.shards.grants import Grants, shards_of
from orchestrix.domain.shards.ranges import NO_SHARDS, ShardRanges
from orchestrix.domain.stored_times import CLOCK_TOLERANCE

MOST_MEMBERS: Final = 1_000
"""Members of one service at most."""
MOST_SHARDS: Final = 100_000
"""Shards of one service at most."""
MOST_SERVICES: Final = 1_000
"""Services with members at most."""
MOST_WEIGHT: Final = 1_000

Process: TypeAlias = tuple[str, str | None]
"""A worker id, and the instance that runs under it."""


@dataclass(frozen=True, slots=True)
class Revocation:
    """Shards that a member has and must let go of, since the activation of the generation that took them away."""

    shards: ShardRanges
    since: datetime


class AwayReason(StrEnum):
    """Why a member with grace has no shards for now."""

    LEFT = "left"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceMember:
    """A member of a service.

    `instance` is the id of its process, None for S1's own clients, which are called plain: they know neither
    generations nor epochs, and two with one id differ by their `reply_to`. `via` is the node that alone can
    reach that address, or None where any can. `seq` is that of its newest message, `shard_count` what it reported last.
    `weight` 0 is how a member announces that it leaves: it gets no shards, and lets go of what it has. `version` rises
    with each change of what it may run: an answer from memory counts only while the stored version is the same.

    For `grace_s` seconds after it left or fell silent, the shards of a member stay its own, without being granted, so
    that a restart moves nothing; meanwhile it is `away`, since `away_at`. `answered` is False from its registration
    until the first generation with it is active. `revoking` is what it must let go of, and `absent` are those of these
    shards that the last heartbeat of a plain member since then did not have.
    """

    worker_id: str
    instance: str | None
    joined_at: datetime
    last_seen: datetime
    shard_count: int
    reply_to: str | None = None
    via: str | None = None
    seq: int = 0
    weight: int = 1
    grace_s: float = 0.0
    version: int = 0
    generation: int = 0
    answered: bool = False
    away: AwayReason | None = None
    away_at: datetime | None = None
    revoking: tuple[Revocation, ...] = ()
    absent: ShardRanges = NO_SHARDS
    grants: Grants = ()

    @property
    def plain(self) -> bool:
        """Whether it is one of S1's own clients."""
        return self.instance is None

    @property
    def shards(self) -> ShardRanges:
        """The shards that no other member can have."""
        return shards_of(self.grants)

    def is_silent(self, now: datetime, listening_since: datetime, timeout_s: float) -> bool:
        """Whether there was no sign of life for the time-out, all of which this node has listened.

        A sign of life that lies ahead of the clock was noted before the clock was set back: it counts as none that is
        missing, and is to be corrected with `believed_seen`.
        """
        since = max(believed_seen(self.last_seen, now), listening_since)
        return now - since >= timedelta(seconds=timeout_s)

    def grace_is_over(self, now: datetime, listening_since: datetime) -> bool:
        """Whether a member that is away has used up its grace, all of which this node has listened."""
        if self.away_at is None:
            return False
        since = max(believed_seen(self.away_at, now), listening_since)
        return now - since >= timedelta(seconds=self.grace_s)


class DepartureReason(StrEnum):
    """Why one is no member any more."""

    LEFT = "left"
    INACTIVE = "inactive"


@dataclass(frozen=True, slots=True)
class Departure:
    """A former member: late messages of one that left must not make it a member again."""

    worker_id: str
    instance: str | None
    reason: DepartureReason
    at: datetime


def believed_seen(seen: datetime, now: datetime) -> datetime:
    """`seen`, or `now` where it lies so far ahead that the clock must have been set back since."""
    return seen if seen <= now + CLOCK_TOLERANCE else now
