"""What does a test need to run members of the SDK on virtual time, and to see who works for which shard?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrix import clock
from orchestrix.broker.port import Broker
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.worker.shards.connection import MemberSettings
from orchestrix.worker.shards.member import ShardMember
from tests.unit.shards.scene import SERVICE, Scene


@dataclass
class Span:
    """For how long one process worked for a shard, from the call of `on_assigned` to the end of `on_revoked`."""

    shard: int
    epoch: int
    worker: str
    start: float
    end: float = float("inf")


@dataclass
class Work:
    """An author's functions, which note when they are called. How they behave can be set."""

    worker: str
    spans: list[Span]
    cleanup_s: float = 0.0
    revoked_s: float = 0.0
    fails: list[Exception] = field(default_factory=list)
    revoked_fails: list[Exception] = field(default_factory=list)
    calls: list[tuple[str, int, int]] = field(default_factory=list)
    returns: bool = False

    async def assigned(self, shard: int, epoch: int) -> None:
        self.calls.append(("assigned", shard, epoch))
        if not any(one.end == float("inf") for one in self._of(shard)):
            self.spans.append(Span(shard, epoch, self.worker, clock.boottime()))
        if self.fails:
            raise self.fails.pop()
        if self.returns:
            return
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(self.cleanup_s)

    async def revoked(self, shard: int, epoch: int) -> None:
        self.calls.append(("revoked", shard, epoch))
        if self.revoked_fails:
            raise self.revoked_fails.pop()
        try:
            await asyncio.sleep(self.revoked_s)
        finally:
            for one in self._of(shard):
                one.end = min(one.end, clock.boottime())

    def _of(self, shard: int) -> list[Span]:
        return [one for one in self.spans if (one.worker, one.shard) == (self.worker, shard)]

    def called(self, function: str) -> list[int]:
        return [shard for name, shard, _ in self.calls if name == function]


class SdkScene(Scene):
    """That scene with members of the SDK: no shard is worked for by two of them at a time."""

    def __init__(self, folder: Path, template: Path) -> None:
        super().__init__(folder, template)
        self.spans: list[Span] = []
        self.sdk: list[ShardMember] = []

    def member(self, worker_id: str, work: Work | None = None, count: int = 10, **options: Any) -> ShardMember:
        work = work or Work(worker_id, self.spans)
        made = MemoryMember(self, worker_id, work, count, **options)
        self.sdk.append(made)
        return made

    def work(self, worker_id: str, **options: Any) -> Work:
        return Work(worker_id, self.spans, **options)

    async def enter(self, *workers: str, **options: Any) -> list[ShardMember]:
        """Members of these names that have joined."""
        made = [self.member(worker, **options) for worker in workers]
        for member in made:
            await member.__aenter__()
        for member in made:
            assert await member.wait_joined(60)
        return made

    def owned(self) -> dict[str, list[int]]:
        return {member.worker_id: sorted(member.shards) for member in self.sdk if member.shards}

    def all_owned(self, count: int = 10) -> bool:
        return sorted(shard for shards in self.owned().values() for shard in shards) == list(range(count))

    def overlaps(self) -> list[tuple[Span, Span]]:
        found = []
        for one in self.spans:
            for other in self.spans:
                is_later = one.shard == other.shard and one is not other and one.start <= other.start
                if is_later and one.end > other.start:
                    found.append((one, other))
        return found

    async def stop(self) -> None:
        for member in self.sdk:
            await member.leave()
        await super().stop()


class MemoryMember(ShardMember):
    """A member over the broker of the scene."""

    def __init__(self, scene: SdkScene, worker_id: str, work: Work, count: int, **options: Any) -> None:
        self.scene, self.work = scene, work
        super().__init__(
            SERVICE,
            worker_id,
            count,
            work.assigned,
            work.revoked,
            broker_url="amqp://memory",
            heartbeat_timeout=scene.rules.heartbeat_timeout_s,
            **options,
        )

    def _connect(self, settings: MemberSettings) -> Broker:
        self.broker = MemoryBroker(self.scene.server, reconnect_max_s=self.scene.rules.reconnect_max_s)
        return self.broker
