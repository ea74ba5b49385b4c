"""How does a test drive a service of shards: one event after another, on a clock of its own?"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.service import apply, new_service
from orchestrix.domain.shards.state import (
    Assignment,
    Effect,
    Event,
    GenerationChange,
    LeadTaken,
    MemberChange,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
    ServiceCheck,
    ShardRules,
    ShardService,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NODE = "node-1"


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


@dataclass
class Driver:
    """A service of 10 shards and one node that has listened for ever."""

    rules: ShardRules = field(default_factory=ShardRules)
    state: ShardService = field(default_factory=lambda: new_service("orders", 10))
    now: datetime = NOON
    listening_since: datetime = NOON - timedelta(days=1)
    effects: list[Effect] = field(default_factory=list)
    seq: int = 0

    def do(self, *events: Event) -> list[Effect]:
        """What follows from these events."""
        self.state, self.effects = apply(self.state, events, self.now, self.rules)
        return self.effects

    def wait(self, count: float) -> None:
        """Time passes."""
        self.now += seconds(count)

    def register(self, worker: str, instance: str | None = "i-1", **more: Any) -> list[Effect]:
        self.seq += 1
        values = {"shard_count": self.state.shard_count, "seq": self.seq, "reply_to": f"to {worker}", **more}
        return self.do(MemberRegistration(worker_id=worker, instance=instance, **values))

    def report(
        self, worker: str, shards: list[int] | None = None, instance: str | None = "i-1", **more: Any
    ) -> list[Effect]:
        """A heartbeat that follows the active generation; by default with the shards that the member has."""
        self.seq += 1
        own = self.state.members[worker].shards if worker in self.state.members else ShardRanges()
        reported = own if shards is None else ShardRanges.of_numbers(shards)
        number = self.state.active.number if self.state.active is not None and instance is not None else 0
        values = {"shard_count": self.state.shard_count, "seq": self.seq, "generation": number, **more}
        return self.do(MemberHeartbeat(worker_id=worker, instance=instance, shards=reported, **values))

    def leave(self, worker: str, instance: str | None = "i-1") -> list[Effect]:
        return self.do(MemberLeave(worker, instance))

    def lead(self, node: str = NODE) -> list[Effect]:
        return self.do(LeadTaken(node))

    def check(self, node: str = NODE) -> list[Effect]:
        return self.do(ServiceCheck(node, self.listening_since))

    def activate(self) -> list[Effect]:
        """The pending generation becomes active, at the end of its window."""
        self.lead()
        self.wait(self.rules.window_s)
        return self.check()

    def start(self, *workers: str) -> Driver:
        """These members, in an active generation."""
        for worker in workers:
            self.register(worker)
        self.activate()
        return self

    def shards(self, worker: str) -> list[int]:
        """What the member has."""
        return list(self.state.members[worker].shards.numbers())

    @property
    def answers(self) -> dict[str, Assignment]:
        """The assignments of the last events, by worker id."""
        return {one.worker_id: one for one in self.effects if isinstance(one, Assignment)}

    def given(self, worker: str) -> list[int] | None:
        """The shards of the assignment for it; None where it was sent none."""
        one = self.answers.get(worker)
        return None if one is None else [n for grant in one.grants for n in range(grant.first, grant.last + 1)]

    @property
    def generations(self) -> list[tuple[int, str]]:
        """The generations that entered a state by the last events."""
        return [(one.number, str(one.state)) for one in self.effects if isinstance(one, GenerationChange)]

    @property
    def changes(self) -> list[tuple[str, str]]:
        """What became of members by the last events."""
        return [(one.worker_id, str(one.kind)) for one in self.effects if isinstance(one, MemberChange)]

    def epochs(self, worker: str) -> set[int]:
        """The epochs of its grants."""
        return {grant.epoch for grant in self.state.members[worker].grants}
