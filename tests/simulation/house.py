"""House: the nodes, the workers and the database of a simulation of jobs.

Whole nodes are simulated, over real SQL, and whole workers: membership, leadership, dispatch, ownership, hand-off,
drain.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from orchestrix import clock
from orchestrix.bootstrap.cluster import ClusterLinks
from orchestrix.bootstrap.health_checks import DatabaseWatch
from orchestrix.broker.port import WantedTopology
from orchestrix.broker.topology import STOPS, saga_topology
from orchestrix.config.settings import Settings
from orchestrix.domain.jobs import FINAL
from orchestrix.domain.leases import Fence, LeaderMode
from orchestrix.jobs.job_coordinator import JobCoordinator
from orchestrix.node import Node, build_node
from orchestrix.saga.catalog import Catalog
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.simulation.inline_sqlite import SqliteClient, SqliteFile
from orchestrix.testing.simulation.virtual_time import VirtualLoop, VirtualProcess
from sagas.app_provisioning import APP_PROVISIONING
from tests.simulation import fences
from tests.simulation.hands import WorkerMember
from tests.simulation.notary import Notary
from tests.simulation.realm import Member, Realm
from tests.simulation.slowness import SlowDatabase, Slowness

CATALOG = Catalog([APP_PROVISIONING])
TIMES = {
    "cluster": {
        "heartbeat": 2.0,
        "dead": 6.0,
        "lease": 6.0,
        "renew": 2.0,
        "presence": 1.5,
        "handoff_ack": 1.0,
        "handoff_hard": 8.0,
        "orphan_check": 4.0,
        "reconcile": 4.0,
    },
    "orchestrator": {"claim": 5.0, "batch": 100},
    "jobs": {"beat": 2.0, "silent": 6.0, "max_live": 50},
}
STEERED: Final = (
    "dispatch",
    "schedules",
    "time-outs",
    "lost workers",
    "orphans",
    "deaths",
    "back and forth",
    "drained alone",
)
"""What is brought about beside the bad days: one in each seed, in turns. See `steering`."""
TRIGGERS = (
    "CREATE TABLE sim_heard (n INTEGER PRIMARY KEY, job, history, seq, owner, epoch, writer, read)",
    "CREATE TABLE sim_owned (n INTEGER PRIMARY KEY, job, owner, epoch, writer, former, offered)",
    "CREATE TABLE sim_sent (n INTEGER PRIMARY KEY, job, history, term, holder, writer)",
    "CREATE TRIGGER sim_heard_of AFTER UPDATE OF seq ON jobs WHEN NEW.seq <> OLD.seq AND NEW.seq <> 0 BEGIN"
    " INSERT INTO sim_heard (job, history, seq, owner, epoch, writer, read)"
    " VALUES (NEW.id, NEW.history_id, NEW.seq, NEW.owner, NEW.owner_epoch, writer(), read_epoch(NEW.id)); END",
    "CREATE TRIGGER sim_taken AFTER UPDATE OF owner_epoch ON jobs WHEN NEW.owner_epoch <> OLD.owner_epoch BEGIN"
    " INSERT INTO sim_owned (job, owner, epoch, writer, former, offered)"
    " VALUES (NEW.id, NEW.owner, NEW.owner_epoch, writer(), OLD.owner, OLD.handoff_at); END",
    "CREATE TRIGGER sim_dispatched AFTER INSERT ON job_attempts BEGIN"
    " INSERT INTO sim_sent (job, history, term, holder, writer)"
    " SELECT NEW.job_id, NEW.history_id, term, holder, writer() FROM leases; END",
    *fences.TRIGGERS,
)


class NodeMember(Member):
    """A coordinator with its relay."""

    realm: Owners
    node: Node | None = None

    @property
    def fence(self) -> Fence | None:
        return self.node.cluster.coordinator.fence if self.node and self.node.cluster.coordinator else None

    @property
    def jobs(self) -> JobCoordinator | None:
        """Its part in jobs, under its present id."""
        if self.node is None or self.node.cluster.coordinator is None:
            return None
        work = self.node.cluster.coordinator.member.work
        assert isinstance(work, JobCoordinator)
        return work

    async def live(self, process: VirtualProcess) -> None:
        client = SqliteClient(self.realm.file)
        process.on_death.append(client.disconnect)
        database = SlowDatabase(client, self.realm.slowness)
        node = build_node(
            Settings.model_validate({**TIMES, "node_id": process.name}),
            database=database,
            broker=self.connect("main", saga_topology(CATALOG) + STOPS),
            roles=frozenset({"orchestrator", "coordinator"}),
            catalog=CATALOG,
            name=f"{process.name}-{clock.token()[:8]}",
            links=ClusterLinks(database, self.connect),
            database_watch=DatabaseWatch(database, interval_s=20.0),
        )
        await node.start()
        await node.begin()
        self.node = node
        await self.stopping.wait()
        await node.stop()
        self.node = None

    def connect(
        self, name: str, topology: WantedTopology | None = None, heartbeat: int = 10, reconnect_max_s: float = 15.0
    ) -> MemoryBroker:
        """One more link."""
        made = MemoryBroker(self.realm.server, topology=topology)
        self.process.on_death.append(made.disconnect)
        self.brokers.append(made)
        return made


class Owners(Realm):
    """Three nodes, two workers, a database, and somebody who wants jobs done."""

    witness: Notary

    def __init__(self, seed: int, loop: VirtualLoop, folder: Path, template: Path) -> None:
        super().__init__(seed, loop, Notary())
        disk = self.dice("disk")
        self.file = SqliteFile(
            folder / f"{seed}.db", template=template, delay=lambda: disk.uniform(0.0, 0.003), prepare=fences.prepared
        )
        self.witness.file, self.witness.is_ending = self.file, self._is_ending
        self.slowness = Slowness(lambda: row[0].term if (row := self.row()) is not None else 0)
        self.file.committed = self.slowness.committed
        forget = self.server.forget

        def forgetting() -> None:
            self.witness.broker_forgets()
            forget()

        self.server.forget = forgetting  # type: ignore[method-assign]
        self.members += [NodeMember(self, f"n{place}") for place in range(3)]
        self.members += [WorkerMember(self, f"w{place}", self.file) for place in range(2)]
        self.steered = STEERED[seed % len(STEERED)]
        self.wanted = 0
        self.submitted: list[str] = []
        self.sought: str | None = None

    @property
    def nodes(self) -> list[NodeMember]:
        """Those that can be asked."""
        found = (one for one in self.members if isinstance(one, NodeMember))
        return [one for one in found if one.process.alive and one.node is not None]

    def broker(self, name: str) -> MemoryBroker:
        return MemoryBroker(self.server)

    def row(self) -> tuple[Fence, LeaderMode] | None:
        found = self.file.query("SELECT term, holder, mode FROM leases")
        return (Fence(found[0][0], found[0][1]), LeaderMode(found[0][2])) if found else None

    def database_fails(self) -> None:
        self.file.fail()

    def database_recovers(self) -> None:
        self.file.recover()

    def lose_commits(self, fate: Callable[[], bool | None]) -> None:
        self.file.commit_lost = fate

    def is_quiet(self) -> bool:
        """Whether all that was asked for has ended, and is cleared away."""
        states = ",".join(f"'{state}'" for state in FINAL)
        open_ = f"SELECT count(*) FROM jobs WHERE state NOT IN ({states}) OR channels = 1"
        done = self.file.query(open_)[0][0] == 0 and self.file.query("SELECT count(*) FROM outbox")[0][0] == 0
        return done and len(self.submitted) >= self.wanted

    def is_found(self) -> bool:
        """Whether the complaint has come that is sought."""
        return self.sought is not None and any(self.sought in one for one in self.witness.wrong)

    def _is_ending(self, node_id: str) -> bool:
        process = node_id.partition("-")[0]
        return any(one.process.name == process and one.stopping.is_set() for one in self.members)

    def busiest(self, column: str, but: Member | None = None) -> Member | None:
        """Whose process owns most jobs, or works on most: `column` says which; not `but`."""
        terms = f"channels = 1 AND {column} IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC, 1"
        found = self.file.query(f"SELECT {column} FROM jobs WHERE {terms}")
        names = [name.partition("-")[0] for (name,) in found]
        others = [one for one in self.members if one is not but]
        return next((one for name in names for one in others if one.process.name == name), None)
