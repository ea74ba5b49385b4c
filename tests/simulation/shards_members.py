"""How does a member of a shard service behave, in the simulation: one of the SDK, and a client of S1 that follows?

Both are models of what the product's SDK and a careful client do; the rules that they follow are the protocol's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import (
    Assignment,
    Event,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
    ShardRules,
)

BEAT_S, PLAIN_BEAT_S = 5.0, 5.0


@dataclass
class Interval:
    """For how long one process ran one shard. `follows_id`: one that takes the place of another of the same worker has
    what that one had, under the same epochs.
    """

    shard: int
    holder: tuple[str, str | None]
    epoch: int
    start: float
    end: float = float("inf")
    why: str = ""
    follows_id: bool = False


class World(Protocol):
    """What is around a member."""

    now: float
    rules: ShardRules
    intervals: list[Interval]

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls after that time."""

    def send(self, event: Event) -> None:
        """Sends to the coordinators, as the weather allows."""

    def complain(self, what: str) -> None:
        """Something is wrong."""

    def interrupted(self, member: SdkMember, shard: int) -> None:
        """A member stops a shard because an assignment of the newest generation that it knows lacks it."""


@dataclass
class SdkMember:
    """A process of the SDK: it stops by itself when its lease is over, and reports a shard until its task has ended."""

    world: World
    dice: Random
    worker_id: str
    instance: str
    shard_count: int
    weight: int = 1
    grace_s: float = 0.0
    seq: int = 0
    generation: int = 0
    lease_until: float = -1.0
    alive: bool = True
    asleep_until: float = -1.0
    answered: bool = False
    assigned: dict[int, int] = field(default_factory=dict)
    running: dict[int, Interval] = field(default_factory=dict)
    stopping: set[int] = field(default_factory=set)
    sent: dict[int, float] = field(default_factory=dict)

    def start(self) -> None:
        """It registers, and again until it is answered; then it sends heartbeats."""
        self.world.later(0.0, self._tick)

    def _tick(self) -> None:
        if not self.alive:
            return
        if self._is_asleep(self._tick):
            return
        self._check_lease()
        self.report() if self.answered else self.register()
        self.world.later(BEAT_S, self._tick)

    def _is_asleep(self, again: Callable[[], None]) -> bool:
        if self.world.now < self.asleep_until:
            self.world.later(self.asleep_until - self.world.now, again)
            return True
        return False

    def register(self) -> None:
        self._sending()
        self.world.send(
            MemberRegistration(
                worker_id=self.worker_id,
                instance=self.instance,
                shard_count=self.shard_count,
                seq=self.seq,
                weight=self.weight,
                grace_s=self.grace_s,
                reply_to=self.instance,
            )
        )

    def report(self) -> None:
        self._sending()
        self.world.send(
            MemberHeartbeat(
                worker_id=self.worker_id,
                instance=self.instance,
                shard_count=self.shard_count,
                shards=ShardRanges.of_numbers(self.running),
                seq=self.seq,
                generation=self.generation,
                weight=self.weight,
                grace_s=self.grace_s,
                reply_to=self.instance,
            )
        )

    def _sending(self) -> None:
        self.seq += 1
        self.sent[self.seq] = self.world.now

    def receive(self, got: Assignment) -> None:
        """An assignment has come."""
        if not self.alive or got.instance != self.instance or self._is_asleep(lambda: self.receive(got)):
            return
        self._check_lease()
        if not self.follows(got):
            return
        self.answered = True
        lease = self.sent.get(got.seq, float("-inf")) + self.world.rules.lease_s
        if lease > self.lease_until:
            self.lease_until = lease
            self.world.later(lease - self.world.now, self._check_lease)
        if self.world.now >= self.lease_until:
            return
        shards = {shard: one.epoch for one in got.grants for shard in range(one.first, one.last + 1)}
        if got.generation > self.generation:
            self.generation, self.assigned = got.generation, shards
            for shard in [shard for shard in self.running if shard not in shards]:
                if shard not in self.stopping:
                    self.world.interrupted(self, shard)
                    self._stop(shard, self.dice.uniform(0.0, 4.0), "revoked")
        else:  # within one generation a member is only given more
            for shard, epoch in shards.items():
                self.assigned[shard] = max(epoch, self.assigned.get(shard, 0))
        self._begin()

    def follows(self, got: Assignment) -> bool:
        """Whether the assignment is not older than the one that it follows."""
        return got.generation >= self.generation

    def _begin(self) -> None:
        for shard, epoch in self.assigned.items():
            if shard not in self.running:
                one = Interval(shard, (self.worker_id, self.instance), epoch, self.world.now)
                self.running[shard] = one
                self.world.intervals.append(one)

    def _stop(self, shard: int, seconds: float, why: str) -> None:
        """Its task ends after so long, and only then is it not reported any more."""
        self.stopping.add(shard)
        one = self.running[shard]
        one.end, one.why = self.world.now + seconds, why
        self.world.later(seconds, lambda: self._stopped(one))

    def _stopped(self, one: Interval) -> None:
        if not self.alive or self.running.get(one.shard) is not one or self._is_asleep(lambda: self._stopped(one)):
            return
        one.end = max(one.end, min(self.world.now, self._last_end()))  # its task may have slept in the middle
        del self.running[one.shard]
        self.stopping.discard(one.shard)
        self._check_lease()
        if self.world.now < self.lease_until:
            self._begin()
        if not self.stopping and self.answered:
            self.report()

    def _check_lease(self) -> None:
        """At the end of its lease it stops all, for which it has the rest of the time-out."""
        if not self.alive or self.world.now < max(self.lease_until, self.asleep_until):
            return
        self.assigned = {}
        for shard, one in list(self.running.items()):
            end = min(one.end, self.dice.uniform(self.lease_until, self._last_end()))
            if end <= self.world.now:  # it was asleep: nothing ran since then
                one.end = end
                del self.running[shard]
                self.stopping.discard(shard)
            elif shard not in self.stopping:
                self._stop(shard, end - self.world.now, "lease")

    def _last_end(self) -> float:
        rules = self.world.rules
        return self.lease_until + max(rules.heartbeat_timeout_s - rules.lease_s, 0.0)

    def kill(self) -> None:
        """The process is gone."""
        self.alive = False
        for one in self.running.values():
            one.end = min(one.end, self.world.now, self._last_end())

    def stop(self) -> None:
        """It stops all its tasks, then says so, then is gone."""
        if self.alive and not self._is_asleep(self.stop):
            self.kill()
            self.world.send(MemberLeave(self.worker_id, self.instance))

    def announce(self) -> None:
        """It wants no shards any more, hands over what it has, and then is gone."""
        if self.alive and not self._is_asleep(self.announce):
            self.weight = 0
            self.register()
            self.world.later(self.dice.uniform(3.0, 25.0), self.stop)

    def change_count(self, count: int) -> None:
        """It has another shard count from now on."""
        if self.alive and not self._is_asleep(lambda: self.change_count(count)):
            self.shard_count = count
            self.register() if self.dice.random() < 0.5 or not self.answered else self.report()

    def stand_still(self, seconds: float) -> None:
        """The process stands still."""
        self.asleep_until = max(self.asleep_until, self.world.now + seconds)


@dataclass
class PlainMember:
    """A client of S1 that does what it is assigned, at once, whatever came before.

    Its `address` is that of its connection. A `twin` has the worker id of another one and never registers, as a client
    that the coordinators have forgotten.
    """

    world: World
    worker_id: str
    shard_count: int
    address: str
    twin: bool = False
    instance: None = None
    process: str = ""
    born: float = 0.0
    connected_at: float = 0.0
    alive: bool = True
    answered: bool = False
    running: dict[int, Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.process = self.address  # the first one: it keeps it when it connects again
        self.born = self.connected_at = self.world.now

    def start(self) -> None:
        """It registers until it is answered; then it sends heartbeats."""
        if not self.alive:
            return
        if self.answered or self.twin:
            shards = ShardRanges.of_numbers(self.running)
            self.world.send(
                MemberHeartbeat(
                    worker_id=self.worker_id,
                    instance=None,
                    shard_count=self.shard_count,
                    shards=shards,
                    reply_to=self.address,
                )
            )
        else:
            self.world.send(
                MemberRegistration(
                    worker_id=self.worker_id, instance=None, shard_count=self.shard_count, reply_to=self.address
                )
            )
        self.world.later(PLAIN_BEAT_S, self.start)

    def receive(self, got: Assignment) -> None:
        """An assignment has come."""
        if not self.alive or got.reply_to != self.address:
            return
        self.answered = True
        shards = {shard: one.epoch for one in got.grants for shard in range(one.first, one.last + 1)}
        for shard in [shard for shard in self.running if shard not in shards]:
            self.running.pop(shard).end = self.world.now
        for shard, epoch in shards.items():
            if shard not in self.running:
                holder = self.worker_id, self.process
                self.running[shard] = Interval(shard, holder, epoch, self.world.now, follows_id=True)
                self.world.intervals.append(self.running[shard])

    def kill(self) -> None:
        """The process is gone."""
        if self.alive:
            self.alive = False
            for one in self.running.values():
                one.end = self.world.now
