"""How is a coordinator brought to one of its crash points while members of a shard service talk to it?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from tests import tally
from tests.acceptance.system import System
from tests.fault.crashing import At, died
from tests.fault.crashing_jobs import Ground
from tests.fault.shard_members import SERVICE, Member, check_intervals
from tests.processes import Process, Processes
from tests.support import eventually

COUNT: Final = 12
OF_SHARDS: Final = ("shard_assignments", "generations", "shard_workers", "shard_services", "nodes")


@dataclass
class ShardRig(System):
    """Coordinators, and members that run in the test. Times in seconds: of silence until a member is inactive, between
    its heartbeats, and between two checks for silent ones.
    """

    ground: Ground
    spawn: Callable[[Path], Processes]
    home: Path
    timeout_s: float = 4.0
    beat_s: float = 0.5
    check_s: float = 0.5
    rounds: int = 0
    members: list[Member] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.spawn(self.home), self.home, self.ground.database_url, self.ground.broker_url)

    async def next_round(self) -> None:
        """Nothing runs any more, and nothing is left of the last round."""
        self.rounds += 1
        self.folder = self.home / f"{self.ground.name}-{self.rounds}"
        self.folder.mkdir()
        self.processes = self.spawn(self.folder)
        self.members = []
        await self.sql(*(f"DELETE FROM {table}" for table in OF_SHARDS))

    def env(self, **more: str) -> dict[str, str]:
        quick = {
            "ORCHESTRIX_SHARDS__WINDOW": "0.5",
            "ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT": str(self.timeout_s),
            "ORCHESTRIX_SHARDS__CHECK": str(self.check_s),
            "ORCHESTRIX_GIT__PROVIDER": "none",
        }
        return super().env(**quick, **more)

    def coordinator(self, at: At | None = None) -> Process:
        """A node that does nothing but coordinate, armed or not."""
        return self.processes.spawn("serve", "--roles", "coordinator", env=self.env(**(at.env if at else {})))

    async def ready_coordinator(self, at: At | None = None) -> Process:
        """The same, once it is ready."""
        node = self.coordinator(at)
        await node.wait_for_line('"message": "ready"')
        return node

    async def join(self, *workers: str) -> list[Member]:
        """Members of that many ids, which join together."""
        made = [Member(self.broker_url, one, COUNT, self.beat_s, self.timeout_s * 2 / 3) for one in workers]
        self.members += made
        await asyncio.gather(*(one.start() for one in made))
        return made

    async def close(self) -> None:
        """Ends all that runs."""
        await asyncio.gather(*(one.stop() for one in self.members))
        self.processes.close()

    async def sql(self, *statements: str) -> list[Any]:
        """Runs the statements; the rows of the last one, if it has any."""
        engine = create_async_engine(self.database_url, poolclass=NullPool)
        try:
            async with engine.begin() as connection:
                for statement in statements:
                    result = await connection.execute(text(statement))
                return list(result.all()) if result.returns_rows else []
        finally:
            await engine.dispose()

    # The end.

    def held(self, members: list[Member]) -> list[int]:
        """The shards that these members run."""
        return sorted(shard for one in members for shard in one.running)

    async def shared(self, *workers: str, deadline: float = 60.0) -> None:
        """Waits until these members run all shards, each about as many."""
        mine = [one for one in self.members if one.worker_id in workers]

        async def are_shared() -> bool:
            assert self.held(self.members) == list(range(COUNT)), {one.worker_id: one.running for one in self.members}
            sizes = [len(one.running) for one in mine]
            return sum(sizes) == COUNT and max(sizes) - min(sizes) <= 1

        await eventually(are_shared, deadline=deadline, every=0.05, message=f"{workers} share the shards")

    async def all_well(self) -> None:
        """Every member runs its share, none was left without an answer, and no shard had two members."""
        asked = {one.worker_id: one.seq for one in self.members}
        await self.shared(*asked)
        await eventually(
            lambda: all(one.answered > asked[one.worker_id] for one in self.members),
            deadline=20,
            message="each member is answered again",
        )
        first, *others = self.members
        await first.leave()
        self.members.remove(first)
        await self.shared(*(one.worker_id for one in others))
        check_intervals([first, *others])
        await self._legal_generations()
        tally.saw("shards", COUNT, part=self.database_url)

    async def _legal_generations(self) -> None:
        numbers = await self.sql(
            f"SELECT number, state, activated_at FROM generations WHERE service = '{SERVICE}' ORDER BY number"
        )
        assert [row.number for row in numbers] == list(range(1, len(numbers) + 1)), numbers
        assert [row.state for row in numbers if row.state == "active"] == ["active"], numbers
        ((granted,),) = await self.sql("SELECT sum(last_shard - first_shard + 1) FROM shard_assignments")
        assert int(granted) == COUNT, granted


async def lonely_coordinator_dies(rig: ShardRig, at: At) -> None:
    """While members join; the next one finds what it has left."""
    node = await rig.ready_coordinator(at)
    await rig.join("w-1", "w-2", "w-3")
    await died(node, at)
    await rig.ready_coordinator()


async def one_of_two_dies(rig: ShardRig, at: At) -> None:
    """While another node answers as well."""
    node, _ = await asyncio.gather(rig.ready_coordinator(at), rig.ready_coordinator())
    await rig.join("w-1", "w-2", "w-3")
    if node.returncode is None:
        await rig.shared("w-1", "w-2", "w-3")
    while node.returncode is None and len(rig.members) < COUNT:
        await rig.join(f"w-{len(rig.members) + 1}")
    await died(node, at)


async def leave_comes_to_a_dying_node(rig: ShardRig, at: At) -> None:
    """While it handles what no member says twice."""
    node = await rig.ready_coordinator()
    first, *_ = await rig.join("w-1", "w-2", "w-3")
    await rig.shared("w-1", "w-2", "w-3")
    node.terminate()
    assert await node.exited(deadline=20) == 0
    await first.leave()
    rig.members.remove(first)
    await died(rig.coordinator(at), at)
    await rig.ready_coordinator()
    await rig.shared("w-2", "w-3")
    causes = "SELECT cause FROM generations WHERE cause_worker = 'w-1' AND cause <> 'joined'"
    assert await rig.sql(causes) == [("left",)], "its leave is not lost"
