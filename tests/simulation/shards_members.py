"""How does a member of a shard service behave, in the simulation: one of the SDK, and a client of S1 that follows?

That of the SDK has the product's own session; its work, and the client, are models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from orchestrix.domain.shards.member_session import MemberSession, ShardRun, StopReason
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
    """A process of the SDK: the product's own rules of what it may run, and work that takes a while to end."""

    world: World
    dice: Random
    worker_id: str
    instance: str
    shard_count: int
    grace_s: float = 0.0
    alive: bool = True
    asleep_until: float = -1.0
    running: dict[int, Interval] = field(default_factory=dict)
    _runs: dict[ShardRun, Interval] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.session = MemberSession(
            self.worker_id,
            self.instance,
            self.shard_count,
            self.world.rules,
            grace_s=self.grace_s,
            reply_to=self.instance,
        )

    @property
    def generation(self) -> int:
        return self.session.generation

    def start(self) -> None:
        """It registers, and again until it is answered; then it sends heartbeats."""
        self.world.later(0.0, self._tick)

    def _tick(self) -> None:
        if not self.alive:
            return
        if self._is_asleep(self._tick):
            return
        self._check_lease()
        self.send()
        self.world.later(BEAT_S, self._tick)

    def _is_asleep(self, again: Callable[[], None]) -> bool:
        if self.world.now < self.asleep_until:
            self.world.later(self.asleep_until - self.world.now, again)
            return True
        return False

    def send(self) -> None:
        """A heartbeat, or a registration as long as there was no answer."""
        now = self.world.now
        self.world.send(self.session.heartbeat(now) if self.session.answered else self.session.register(now))

    def receive(self, got: Assignment) -> None:
        """An assignment has come."""
        if not self.alive or self._is_asleep(lambda: self.receive(got)):
            return
        before = self.session.lease_until
        self.session.receive(got, self.world.now)
        if self.session.lease_until > before:
            self.world.later(self.session.lease_until - self.world.now, self._check_lease)
        self._apply()

    def _apply(self) -> None:
        changes = self.session.changes(self.world.now)
        assert not self.session.has_changes, "so few shards begin at once"
        for run in changes.stop:
            if run.stopping is StopReason.EXPIRED:
                self._expire(run)
                continue
            if run.stopping is StopReason.REVOKED:
                self.world.interrupted(self, run.shard)
            self._stop(run, self.world.now + self.dice.uniform(0.0, 4.0), str(run.stopping))
        for run in changes.start:
            one = Interval(run.shard, (self.worker_id, self.instance), run.epoch, self.world.now)
            self._runs[run] = self.running[run.shard] = one
            self.world.intervals.append(one)
        if any(run.stopping is StopReason.EXPIRED for run in changes.stop):
            self._shorten()

    def _stop(self, run: ShardRun, end: float, why: str) -> None:
        """Its work ends then, and only then is it not reported any more."""
        one = self._runs[run]
        one.end, one.why = end, why
        self.world.later(end - self.world.now, lambda: self._stopped(run))

    def _expire(self, run: ShardRun) -> None:
        """At the end of its lease it stops all, for which it has the rest of the time-out."""
        end = self.dice.uniform(self.session.lease_until, self.session.stop_until)
        self._stop(run, end, "lease")

    def _shorten(self) -> None:
        """What was stopping already must have ended by then, too."""
        for one in self._runs.values():
            one.end = min(one.end, self.session.stop_until)

    def _stopped(self, run: ShardRun) -> None:
        if not self.alive or run not in self._runs or self._is_asleep(lambda: self._stopped(run)):
            return
        one = self._runs.pop(run)
        one.end = max(one.end, min(self.world.now, self.session.stop_until))  # it may have slept in the middle
        if self.running.get(run.shard) is one:
            del self.running[run.shard]
        self.session.ended(run)
        self._check_lease()
        self._apply()
        if not self.session.stopping and self.session.answered:
            self.send()

    def _check_lease(self) -> None:
        if self.alive and self.world.now >= self.asleep_until:
            self.session.check_lease(self.world.now)
            self._apply()

    def kill(self) -> None:
        """The process is gone."""
        self.alive = False
        for one in self.running.values():
            one.end = min(one.end, self.world.now, self.session.stop_until)

    def stop(self) -> None:
        """It stops all its work, then says so, then is gone."""
        if self.alive and not self._is_asleep(self.stop):
            self.kill()
            self.world.send(MemberLeave(self.worker_id, self.instance))

    def announce(self) -> None:
        """It wants no shards any more, hands over what it has, and then is gone."""
        if self.alive and not self._is_asleep(self.announce):
            self.session.weight = 0
            self.send()
            self.world.later(self.dice.uniform(3.0, 25.0), self.stop)

    def change_count(self, count: int) -> None:
        """It has another shard count from now on."""
        if self.alive and not self._is_asleep(lambda: self.change_count(count)):
            self.shard_count = self.session.shard_count = count
            now = self.world.now
            if self.dice.random() < 0.5 or not self.session.answered:
                self.world.send(self.session.register(now))
            else:
                self.world.send(self.session.heartbeat(now))

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
