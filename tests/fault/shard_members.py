"""How does a member of a shard service behave that a test runs beside real nodes: one that does what the SDK does?"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from orchestrix import clock
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import Assignment, MemberHeartbeat, MemberLeave, MemberRegistration
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.worker.shards.rabbitmq import MemberTransport

SERVICE: Final = "orders"
LOOK_S: Final = 0.05
"""Seconds between two looks at the lease."""


@dataclass
class Interval:
    """For how long a member ran a shard, by this process's clock."""

    shard: int
    worker_id: str
    epoch: int
    start: float
    end: float = float("inf")


@dataclass
class Member:
    """It runs what it was assigned, as long as its lease; one of the newest `generation` tells it to stop what is not
    its own any more. A shard that it lets go of has ended at once.
    """

    url: str
    worker_id: str
    count: int
    beat_s: float
    lease_s: float
    instance: str = "i-1"
    seq: int = 0
    answered: int = 0
    generation: int = 0
    lapses: int = 0
    """How often its lease was over while it ran something."""
    running: dict[int, Interval] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sent: dict[int, float] = {}
        self._lease_until = -float("inf")
        self._due, self._over = WakeSignal(), WakeSignal()
        self.broker = AmqpBroker(self.url, name=f"member {self.worker_id}", reconnect_max_s=0.4)  # as the SDK does
        self.transport = MemberTransport(self.broker, self.worker_id)
        self._loops = [
            Loop(f"{self.worker_id} beats", self._beat),
            Loop(f"{self.worker_id} reads", self._read),
            Loop(f"{self.worker_id} lease", self._watch),
        ]

    async def start(self) -> None:
        """Joins; it registers until it is answered."""
        await self.broker.start()
        assert await self.broker.wait_connected(20)
        await self.transport.start()
        for loop in self._loops:
            await loop.start()

    async def stop(self) -> None:
        """Its process is gone; nobody is told."""
        for loop in self._loops:
            await loop.stop()
        self._let_go(set(self.running), clock.monotonic())
        await self.transport.stop()
        await self.broker.stop()

    async def leave(self) -> None:
        """It stops all, says so, and is gone."""
        for loop in self._loops:
            await loop.stop()
        self._let_go(set(self.running), clock.monotonic())
        await self.transport.send(
            messages.LEAVE, messages.leave(SERVICE, MemberLeave(self.worker_id, self.instance)), timeout=20.0
        )
        await self.stop()

    def _next(self) -> int:
        self.seq += 1
        self._sent[self.seq] = clock.monotonic()
        return self.seq

    async def _beat(self) -> None:
        if self.answered:
            shards = ShardRanges.of_numbers(self.running)
            sent = MemberHeartbeat(
                worker_id=self.worker_id,
                instance=self.instance,
                shard_count=self.count,
                shards=shards,
                seq=self._next(),
                generation=self.generation,
            )
            await self.transport.send(messages.HEARTBEAT, messages.heartbeat(SERVICE, sent))
        else:
            asked = MemberRegistration(
                worker_id=self.worker_id, instance=self.instance, shard_count=self.count, seq=self._next()
            )
            await self.transport.send(messages.REGISTER, messages.register(SERVICE, asked))
        await self._due.wait(self.beat_s)

    async def _read(self) -> None:
        for one in await self.transport.receive():
            self._follow(messages.read_assignment(one.body, self.worker_id))

    def _follow(self, got: Assignment) -> None:
        if got.problem is not None:
            self.problems.append(got.problem)
        if got.instance != self.instance or got.generation < self.generation or got.seq not in self._sent:
            return
        self._end_lease()
        self.answered = max(self.answered, got.seq)
        self._lease_until = max(self._lease_until, self._sent[self.answered] + self.lease_s)
        now = clock.monotonic()
        if now >= self._lease_until:
            return
        given = {shard: one.epoch for one in got.grants for shard in range(one.first, one.last + 1)}
        if got.generation > self.generation:
            self.generation = got.generation
            self._let_go(self.running.keys() - given.keys(), now)
            self._due.set()
        for shard, epoch in given.items():
            if shard not in self.running:
                self.running[shard] = one = Interval(shard, self.worker_id, epoch, now)
                self.intervals.append(one)

    async def _watch(self) -> None:
        self._end_lease()
        await self._over.wait(LOOK_S)

    def _end_lease(self) -> None:
        if self.running and clock.monotonic() >= self._lease_until:
            self.lapses += 1
            self._let_go(set(self.running), self._lease_until)

    def _let_go(self, shards: set[int], at: float) -> None:
        for shard in shards:
            self.running.pop(shard).end = at


def check_intervals(members: list[Member]) -> None:
    """No shard was run by two members at a time, and its epoch rose from one to the next."""
    by_shard: dict[int, list[Interval]] = {}
    for member in members:
        for one in member.intervals:
            by_shard.setdefault(one.shard, []).append(one)
    for shard, found in by_shard.items():
        found.sort(key=lambda one: one.start)
        for former, latter in pairwise(found):
            if former.worker_id != latter.worker_id:
                assert former.end <= latter.start, f"shard {shard} has two members: {former} and {latter}"
                assert former.epoch < latter.epoch, f"the epoch of shard {shard} has not risen: {former}, {latter}"
            else:
                assert former.epoch <= latter.epoch, f"the epoch of shard {shard} falls: {former}, {latter}"
