"""Does a cluster know who leads and who lives, over one seed's worth of bad days?

    .venv/bin/python -m tests.simulation.cluster --seed 123 --trace

runs that seed again, exactly as it was, and shows what happened: with the product's own SQL, and its own times.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

from sqlalchemy import text

from orchestrix import clock
from orchestrix.broker.topology import cluster_topology
from orchestrix.cluster.member import ClusterMember
from orchestrix.cluster.membership import Identity
from orchestrix.cluster.rejoining_member import RejoiningMember
from orchestrix.config.settings import ClusterSettings
from orchestrix.domain.leases import NOBODY, Fence, LeaderMode
from orchestrix.domain.nodes import LIVE
from orchestrix.lifecycle import Loop
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.schema import migrator
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.simulation.inline_sqlite import SqliteClient, SqliteFile
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop, VirtualProcess, elapse
from tests.simulation.ears import heard
from tests.simulation.realm import Member, Realm, Witness
from tests.simulation.replay import replay
from tests.simulation.unrest import KINDS, Nemesis, Outcome, days

SETTINGS = ClusterSettings()
DURATION = 40.0
LONGEST = 35.0
SETTLE = 75.0
"""Seconds after the last fault in which somebody leads, and all the dead are known: two leases and a silence."""
REST = 12.0
ACTS = """
CREATE TABLE acts (n INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT, term INTEGER, node TEXT);
CREATE TRIGGER term_began AFTER UPDATE OF term ON leases WHEN NEW.term <> OLD.term
BEGIN INSERT INTO acts (kind, term, node) VALUES ('term ' || NEW.mode, NEW.term, NEW.holder); END;
CREATE TRIGGER node_died AFTER UPDATE OF state ON nodes WHEN NEW.state = 'DEAD' AND OLD.state <> 'DEAD'
BEGIN INSERT INTO acts (kind, term, node) SELECT 'dead', term, NEW.id FROM leases; END;
"""
"""One writer at a time: the order in this table is that of the commits."""


class Lives(Witness):
    """Reads the acts as they are committed."""

    def __init__(self) -> None:
        super().__init__()
        self.died: list[str] = []
        self._read = 0

    def look(self, realm: Cluster) -> None:
        """What has come since."""
        if self.is_over:
            return
        for n, kind, term, node in realm.file.query("SELECT * FROM acts WHERE n > ? ORDER BY n", (self._read,)):
            self._read = n
            if kind.startswith("term"):
                self.began(Fence(term, node), LeaderMode(kind.split()[1]))
            elif kind == "write":
                self.written(Fence(term, node))
            else:
                self._dead(realm, node)

    def _dead(self, realm: Cluster, node: str) -> None:
        self.note(f"dead {node}")
        self.died.append(node)
        now = realm.loop.time()
        for member in realm.members:
            if member.process.alive and not member.process.frozen and member.node_id == node:
                good = now - member.blameless_since
                if good > 0:
                    self.complain(f"{node} was declared dead, though nothing had been wrong with it for {good:.1f} s")


class Scribe:
    """A leader's duty: writes, and knows nothing of any election."""

    def __init__(self, database: Database, fence: Fence) -> None:
        self._database, self._fence = database, fence
        self._loop = Loop("scribe", self._round)

    async def start(self) -> None:
        """Begins."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def _round(self) -> None:
        await self._database.run(self._write)
        await elapse(3.0)

    async def _write(self, tx: Transaction) -> None:
        values = {"term": self._fence.term, "node": self._fence.holder}
        await tx.execute(text("INSERT INTO acts (kind, term, node) VALUES ('write', :term, :node)"), values)
        await leases.check_fence(tx, self._fence)


class Nothing:
    """The work of a node that has none; `count` is its load all the same."""

    def __init__(self) -> None:
        self.count = 0
        self.abandoned = False

    async def start(self) -> None:
        """Nothing."""

    async def stop(self) -> None:
        """Nothing."""

    async def abandon(self) -> None:
        self.abandoned = True


class NodeMember(Member):
    """A coordinator."""

    realm: Cluster
    coordinator: RejoiningMember | None = None
    work: Nothing | None = None

    @property
    def fence(self) -> Fence | None:
        return self.coordinator.fence if self.coordinator is not None else None

    @property
    def node_id(self) -> str:
        """Its id now."""
        return self.coordinator.node_id if self.coordinator is not None else ""

    async def live(self, process: VirtualProcess) -> None:
        client = SqliteClient(self.realm.file)
        process.on_death.append(client.disconnect)
        database, ids = client.database(), _ids(process.name)
        self.coordinator = RejoiningMember(lambda: self._life(next(ids), database))
        await self.coordinator.start()
        await self.stopping.wait()
        await self.coordinator.stop()
        await database.close()

    def _life(self, node_id: str, database: Database) -> ClusterMember:
        self.disturbed(0.0)
        self.work = Nothing()
        broker, duties = self.link(node_id), [partial(Scribe, database)]
        who = Identity(node_id, self.name, ())
        return ClusterMember(who, database, broker, SETTINGS, workload=self.work, duties=duties)


def _ids(first: str) -> Iterator[str]:
    yield first
    life = 1
    while True:
        life += 1
        yield f"{first}-{life}"


class Cluster(Realm):
    """Three nodes and a database."""

    witness: Lives
    members: list[NodeMember]  # type: ignore[assignment]

    def __init__(self, seed: int, loop: VirtualLoop, folder: Path, template: Path) -> None:
        super().__init__(seed, loop, Lives())
        disk = self.dice("disk")
        self.file = SqliteFile(folder / f"{seed}.db", template=template, delay=lambda: disk.uniform(0.0, 0.005))
        self.file.committed = lambda: self.witness.look(self)
        self.members += [NodeMember(self, f"n{place}") for place in range(3)]

    def broker(self, name: str) -> MemoryBroker:
        return MemoryBroker(self.server, topology=cluster_topology(name))

    def row(self) -> tuple[Fence, LeaderMode] | None:
        found = self.file.query("SELECT term, holder, mode FROM leases")
        return (Fence(found[0][0], found[0][1]), LeaderMode(found[0][2])) if found and found[0][1] != NOBODY else None

    def states(self) -> dict[str, str]:
        """The state of each node, by its row."""
        return dict(self.file.query("SELECT id, state FROM nodes ORDER BY id"))

    def database_fails(self) -> None:
        self.file.fail()

    def database_recovers(self) -> None:
        self.file.recover()

    def lose_commits(self, fate: Callable[[], bool | None]) -> None:
        self.file.commit_lost = fate

    def is_settled(self) -> bool:
        """Also whether the rows say who lives."""
        living = {node_id for node_id, state in self.states().items() if state in LIVE}
        return super().is_settled() and living == {one.node_id for one in self.members if one.process.alive}


class Simulation:
    """Runs seeds, each in a world of its own, from one migrated database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.template = folder / "template.db"
        asyncio.run(migrator.upgrade(f"sqlite+aiosqlite:///{self.template}"))
        raw = sqlite3.connect(self.template)
        raw.executescript(ACTS)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()

    def run(self, seed: int) -> Outcome:
        """One seed."""
        with self.realm(seed) as realm:
            nemesis = Nemesis(realm, KINDS, duration=DURATION, longest=LONGEST)
            realm.loop.run_until_complete(days(realm, nemesis, settle=SETTLE, rest=REST))
        plan = [str(one) for one in realm.plan]
        return Outcome(seed, realm.witness.wrong, realm.witness.trace, plan, "tests.simulation.cluster")

    @contextmanager
    def realm(self, seed: int) -> Iterator[Cluster]:
        """A cluster of which nothing runs yet; it ends with the block."""
        loop = VirtualLoop()
        with clock.use(VirtualClock(loop, Random(f"{seed}:clock"))):
            realm = loop.run_until_complete(self._realm(seed, loop))
            with heard(realm.witness, loop):
                try:
                    yield realm
                finally:
                    realm.witness.is_over = True
                    loop.discard()
                    loop.close()
                    realm.file.close()
                    for path in self.folder.glob(f"{seed}.db*"):
                        path.unlink()

    async def _realm(self, seed: int, loop: VirtualLoop) -> Cluster:
        return Cluster(seed, loop, self.folder, self.template)


@contextmanager
def simulation() -> Iterator[Simulation]:
    """A simulation with a folder of its own, in memory where the machine has such."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="simulation-") as folder:
        yield Simulation(Path(folder))


def main() -> int:
    """The command line."""
    with simulation() as runs:
        return replay("Simulates a cluster over bad days.", runs.run)


if __name__ == "__main__":
    sys.exit(main())
