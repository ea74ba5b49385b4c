"""Generations: the states of a division of shards, and which transitions there are (S4)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from typing import Final

from orchestrix.domain.shards.allocation import Shares
from orchestrix.domain.shards.ranges import Range, ShardRanges
from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.saga.errors import IllegalTransition

LEADER_MARGIN_S: Final = 10.0
"""Seconds beyond the window for which a node may lead a pending generation; no node renews it."""


class GenerationState(StrEnum):
    """As stored and shown."""

    PENDING = "pending"
    """Members register; its leader waits for the end of the window."""
    ACTIVE = "active"
    """Its shares are what members converge on. A service has one at most."""
    SUPERSEDED = "superseded"
    """A newer one is active, or its leader has abandoned it."""


TRANSITIONS: Final[Mapping[GenerationState, frozenset[GenerationState]]] = {
    GenerationState.PENDING: frozenset((GenerationState.ACTIVE, GenerationState.SUPERSEDED)),
    GenerationState.ACTIVE: frozenset((GenerationState.SUPERSEDED,)),
    GenerationState.SUPERSEDED: frozenset(),
}
"""All transitions; every other one raises `IllegalTransition`."""


class CauseKind(StrEnum):
    """What began a generation."""

    JOINED = "joined"
    LEFT = "left"
    INACTIVE = "inactive"
    SHARD_COUNT = "shard count"
    WEIGHT = "weight"
    LEAVING = "leaving"
    """A member has set its weight to 0: it hands over its shards, to leave."""
    REPLACED = "replaced"
    """Another process runs under the id of a member, with another weight."""
    ABANDONED = "abandoned"
    """The leader of the one before did not activate it in time."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The first change that a generation is for, and the member that made it."""

    kind: CauseKind
    worker_id: str | None = None


@dataclass(frozen=True)
class Generation:
    """One division of the shards of a service.

    `closes_at` is the end of its window, which no later change postpones. While it is pending, `leader_id` alone may
    activate it, until `leader_until`; None until a node leads it. `revision` is that of the service whose
    members and shard count it is for, `moved` how many shards go from one member to another, both set when it becomes
    active.
    """

    number: int
    state: GenerationState
    cause: Cause
    began_at: datetime
    closes_at: datetime
    leader_id: str | None = None
    leader_until: datetime | None = None
    activated_at: datetime | None = None
    ended_at: datetime | None = None
    revision: int = 0
    shard_count: int = 0
    moved: int = 0
    shares: Shares = field(default_factory=dict)

    def share(self, worker_id: str) -> ShardRanges:
        """The shards that the member is to have."""
        return self.shares.get(worker_id, ShardRanges())

    def owners(self, wanted: Range) -> Iterator[tuple[Range, str]]:
        """Which parts of a range are in whose share."""
        starts, owned = self._owned
        first, last = wanted
        for place in range(max(0, bisect_right(starts, first) - 1), len(owned)):
            (begin, end), worker = owned[place]
            if begin > last:
                return
            if end >= first:
                yield (max(begin, first), min(end, last)), worker

    @cached_property
    def _owned(self) -> tuple[list[int], list[tuple[Range, str]]]:
        owned = sorted((one, worker) for worker, shards in self.shares.items() for one in shards.ranges)
        return [first for (first, _), _ in owned], owned

    def is_led_by(self, node_id: str, now: datetime) -> bool:
        """Whether that node may activate it."""
        return self.state is GenerationState.PENDING and self.leader_id == node_id and not self.is_abandoned(now)

    def is_abandoned(self, now: datetime) -> bool:
        """Whether its leader had its time. A time that lies further ahead than any leader is given cannot be true."""
        if self.state is not GenerationState.PENDING or self.leader_until is None:
            return False
        longest = self.closes_at - self.began_at + timedelta(seconds=LEADER_MARGIN_S)
        return not now <= self.leader_until <= now + longest + CLOCK_TOLERANCE

    def has_closed(self, now: datetime) -> bool:
        """Whether its window is over. One that lies further ahead than any window is believed to be over."""
        return not now < self.closes_at <= now + (self.closes_at - self.began_at) + CLOCK_TOLERANCE


def begun(number: int, cause: Cause, now: datetime, window_s: float) -> Generation:
    """A pending generation whose window begins now."""
    return Generation(number, GenerationState.PENDING, cause, now, now + timedelta(seconds=window_s))


def led(generation: Generation, node_id: str, now: datetime) -> Generation:
    """The pending generation with its leader. Raises `IllegalTransition` where it has one, or is not pending."""
    if generation.state is not GenerationState.PENDING or generation.leader_id is not None:
        raise IllegalTransition(
            f"generation {generation.number} is {generation.state} and led by {generation.leader_id}"
        )
    window = generation.closes_at - generation.began_at
    return replace(generation, leader_id=node_id, leader_until=now + window + timedelta(seconds=LEADER_MARGIN_S))


def activated(
    generation: Generation, now: datetime, *, revision: int, shard_count: int, shares: Shares, moved: int
) -> Generation:
    """The active generation with these shares. Raises `IllegalTransition`."""
    check_transition(generation, GenerationState.ACTIVE)
    return replace(
        generation,
        state=GenerationState.ACTIVE,
        leader_until=None,
        activated_at=now,
        revision=revision,
        shard_count=shard_count,
        shares=shares,
        moved=moved,
    )


def superseded(generation: Generation, now: datetime) -> Generation:
    """The generation at its end. Raises `IllegalTransition`."""
    check_transition(generation, GenerationState.SUPERSEDED)
    return replace(generation, state=GenerationState.SUPERSEDED, leader_until=None, ended_at=now)


def check_transition(generation: Generation, state: GenerationState) -> None:
    """Raises `IllegalTransition` if the generation cannot go from its state to that one."""
    if state not in TRANSITIONS[generation.state]:
        raise IllegalTransition(f"generation {generation.number} cannot go from {generation.state} to {state}")
