"""What does a test need to run coordinators and members of services on virtual time?"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from random import Random

from orchestrix import clock
from orchestrix.broker.topology import shard_topology
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.grants import Grants, shards_of
from orchestrix.domain.shards.ranges import NO_SHARDS, ShardRanges
from orchestrix.domain.shards.state import MemberHeartbeat, MemberLeave, MemberRegistration, ShardRules
from orchestrix.lifecycle import Loop
from orchestrix.persistence.shards import generations, service_store
from orchestrix.persistence.shards.generations import GenerationRecord
from orchestrix.persistence.shards.service_store import StoredService
from orchestrix.shards.coordinator import ShardCoordinator
from orchestrix.shards.rabbitmq import RabbitMQTransport
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.server import MemoryServer
from orchestrix.testing.simulation.inline_sqlite import SqliteClient, SqliteFile
from orchestrix.worker.shards.rabbitmq import MemberTransport

SERVICE = "orders"
BEAT_S = 3.0


class Member:
    """A member as the SDK has it: it runs what it was assigned last, for as long as its lease, and reports that."""

    def __init__(self, scene: Scene, broker: MemoryBroker, worker_id: str, count: int, instance: str | None) -> None:
        self.scene, self.worker_id, self.count, self.instance = scene, worker_id, count, instance
        self.generation = self.seq = self.answered = 0
        self.grants: Grants = ()
        self.errors: list[str] = []
        self.answers = 0
        self.sent_at: dict[int, float] = {}
        self.follows = True
        self.transport = MemberTransport(broker, worker_id)
        self._beats, self._reader = Loop(f"{worker_id} beats", self._beat), Loop(f"{worker_id} reads", self._read)

    @property
    def shards(self) -> ShardRanges:
        """What it runs now: nothing once its lease is over."""
        lease = self.scene.rules.lease_s
        alive = clock.monotonic() < self.sent_at.get(self.answered, -lease) + lease
        return shards_of(self.grants) if alive or self.instance is None else NO_SHARDS

    async def join(self) -> None:
        await self.transport.start()
        await self._reader.start()
        await self.register()
        await self._beats.start()
        self.scene.members.append(self)

    async def register(self) -> None:
        asked = MemberRegistration(
            worker_id=self.worker_id, instance=self.instance, shard_count=self.count, seq=self.next()
        )
        await self.transport.send(messages.REGISTER, messages.register(SERVICE, asked))

    async def crash(self) -> None:
        """It runs nothing any more, and says nothing."""
        await self._beats.stop()
        await self._reader.stop()
        self.grants = ()

    async def leave(self) -> None:
        await self.crash()
        await self.transport.send(messages.LEAVE, messages.leave(SERVICE, MemberLeave(self.worker_id, self.instance)))

    def next(self) -> int:
        self.seq += 1
        self.sent_at[self.seq] = clock.monotonic()
        return self.seq

    async def beat(self) -> None:
        sent = MemberHeartbeat(
            worker_id=self.worker_id,
            instance=self.instance,
            shard_count=self.count,
            shards=self.shards,
            seq=self.next(),
            generation=self.generation,
        )
        await self.transport.send(messages.HEARTBEAT, messages.heartbeat(SERVICE, sent, self.grants))

    async def _beat(self) -> None:
        await asyncio.sleep(BEAT_S)
        await self.beat()

    async def _read(self) -> None:
        for one in await self.transport.receive():
            got = messages.read_assignment(one.body, self.worker_id)
            self.answers += 1
            if got.problem is not None:
                self.errors.append(got.problem)
            self.answered = max(self.answered, got.seq)
            if self.follows and got.generation >= self.generation:
                is_new = got.generation > self.generation
                self.generation, self.grants = got.generation, got.grants
                if is_new and self.instance is not None:
                    await self.beat()
            self.scene.judge()


class Scene:
    """Nodes and members over one database and one broker. Notes shards that two members run at a time."""

    def __init__(self, folder: Path, template: Path) -> None:
        self.file = SqliteFile(folder / "scene.db", template=template)
        self.server = MemoryServer(Random(1))
        self.rules = ShardRules()
        self.check_s = 5.0
        self.members: list[Member] = []
        self.nodes: dict[str, ShardCoordinator] = {}
        self.brokers: dict[str, MemoryBroker] = {}
        self.clients: dict[str, SqliteClient] = {}
        self.wrong: list[str] = []
        self.database = SqliteClient(self.file).database()

    async def node(self, name: str) -> ShardCoordinator:
        """A node that runs."""
        self.brokers[name] = broker = await self.broker()
        self.clients[name] = client = SqliteClient(self.file)
        made = ShardCoordinator(
            client.database(),
            broker,
            partial(RabbitMQTransport, broker),
            node_id=name,
            rules=self.rules,
            check_s=self.check_s,
        )
        self.nodes[name] = made
        await made.start()
        return made

    async def broker(self) -> MemoryBroker:
        broker = MemoryBroker(self.server, topology=shard_topology(), reconnect_max_s=self.rules.reconnect_max_s)
        await broker.start()
        assert await broker.wait_connected(10.0)
        return broker

    async def join(self, worker_id: str, count: int = 10, instance: str | None = "i-1") -> Member:
        member = Member(self, await self.broker(), worker_id, count, instance)
        await member.join()
        return member

    async def stop(self) -> None:
        for member in self.members:
            await member.crash()
        for node in self.nodes.values():
            await node.stop()
        self.file.close()

    def judge(self) -> None:
        running: dict[int, str] = {}
        for member in self.members:
            for shard in member.shards.numbers():
                other = running.setdefault(shard, member.worker_id)
                if other != member.worker_id:
                    self.wrong.append(f"{shard} is run by {other} and by {member.worker_id}")

    def held(self) -> dict[str, list[int]]:
        """Who runs what."""
        return {one.worker_id: list(one.shards.numbers()) for one in self.members if one.shards}

    def all_run(self, count: int = 10) -> bool:
        """Whether each shard is run by one member."""
        return sorted(shard for shards in self.held().values() for shard in shards) == list(range(count))

    async def stored(self) -> StoredService:
        async with self.database.read() as connection:
            found = await service_store.read(connection, SERVICE)
        assert found is not None
        return found

    async def stored_member(self, worker_id: str) -> bool:
        """Whether the member is stored, and in an active generation."""
        found = (await self.stored()).state.members.get(worker_id)
        return found is not None and found.answered

    async def history(self) -> list[GenerationRecord]:
        async with self.database.read() as connection:
            return await generations.history(connection, SERVICE)
