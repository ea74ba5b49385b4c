"""Does every word of every job count once, whoever owns it, over one seed's worth of bad days?

    .venv/bin/python -m tests.simulation.owners --seed 123 --trace

runs that seed again, exactly as it was, and shows what happened. Whole nodes are simulated, over real SQL, and whole
workers: membership, leadership, dispatch, ownership, hand-off, drain, time-outs.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from app import clock
from app.bootstrap.coordinator import Cluster, make_coordinator
from app.bootstrap.jobs import Jobs
from app.broker.port import Topology, WantedTopology
from app.broker.topology import STOPS, saga_topology
from app.cluster.coordinator import Coordinator
from app.config import Settings
from app.domain.jobs import FINAL
from app.domain.leases import Fence, Mode
from app.errors import Conflict, NotFound, RetryLater
from app.jobs import beats, sweeps
from app.jobs.submit import Order
from app.lifecycle import Service, settle_memory
from app.orchestration.incarnation import Incarnation
from app.orchestration.relay import OutboxRelay
from app.persistence import schema
from app.testing.inline_sqlite import SqliteClient, SqliteFile
from app.testing.memory_client import MemoryBroker
from app.testing.virtual_time import Killed, Process, VirtualLoop, VirtualSource, current_process, elapse
from sagas.app_provisioning import APP_PROVISIONING
from sagas.engine.catalog import Catalog
from tests.simulation.ears import heard
from tests.simulation.hands import QUEUE, WorkerMember
from tests.simulation.notary import Notary
from tests.simulation.realm import Member, Realm
from tests.simulation.replay import replay
from tests.simulation.unrest import KINDS, Deed, Fault, Nemesis, Outcome, end, until

DURATION = 12.0
LONGEST = 8.0
PATIENCE = 400.0
"""Seconds in which everything must have ended after the last fault."""
SWEPT_AFTER, SWEEP = 6.0, 2.0
LATEST_COPY = 5.0
"""Seconds after which a message comes a second time at the latest: before the queues of its job are swept."""
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
    "jobs": {"beat": 2.0, "silent": 6.0, "max_live": 50},
}
TRIGGERS = (
    "CREATE TABLE sim_heard (n INTEGER PRIMARY KEY, job, history, seq, owner, epoch, writer)",
    "CREATE TABLE sim_owned (n INTEGER PRIMARY KEY, job, owner, epoch, writer, former, offered)",
    "CREATE TABLE sim_sent (n INTEGER PRIMARY KEY, job, history, term, holder, writer)",
    "CREATE TRIGGER sim_heard_of AFTER UPDATE OF seq ON jobs WHEN NEW.seq <> OLD.seq AND NEW.seq <> 0 BEGIN"
    " INSERT INTO sim_heard (job, history, seq, owner, epoch, writer)"
    " VALUES (NEW.id, NEW.history_id, NEW.seq, NEW.owner, NEW.owner_epoch, writer()); END",
    "CREATE TRIGGER sim_taken AFTER UPDATE OF owner_epoch ON jobs WHEN NEW.owner_epoch <> OLD.owner_epoch BEGIN"
    " INSERT INTO sim_owned (job, owner, epoch, writer, former, offered)"
    " VALUES (NEW.id, NEW.owner, NEW.owner_epoch, writer(), OLD.owner, OLD.handoff_at); END",
    "CREATE TRIGGER sim_dispatched AFTER INSERT ON job_attempts BEGIN"
    " INSERT INTO sim_sent (job, history, term, holder, writer)"
    " SELECT NEW.job_id, NEW.history_id, term, holder, writer() FROM leases; END",
)


class NodeMember(Member):
    """A coordinator with its relay."""

    realm: Owners
    coordinator: Coordinator | None = None
    jobs: Jobs | None = None

    @property
    def fence(self) -> Fence | None:
        return self.coordinator._life.leadership.fence if self.coordinator is not None else None

    async def live(self, process: Process) -> None:
        client = SqliteClient(self.realm.file)
        process.on_death.append(client.sever)
        database, broker = client.database(), self.connect("main", saga_topology(CATALOG) + STOPS)
        relay = OutboxRelay(database, broker, Topology(), node=process.name, lease=5.0, batch=100)
        incarnation = Incarnation(database, broker, relay, CATALOG)
        settings = Settings.model_validate({**TIMES, "node_id": process.name})
        jobs = Jobs(settings=settings, database=database, relay=relay, broker=broker, connect=self.connect)
        around = Cluster(settings, ["coordinator"], database, self.connect, jobs)
        coordinator = make_coordinator(f"{process.name}-{clock.token()[:8]}", around)
        parts: list[Service] = [broker, relay, incarnation, jobs.poke, coordinator]
        for part in parts:
            await part.start()
        self.coordinator, self.jobs = coordinator, jobs
        await self.stopping.wait()
        for part in reversed(parts):
            await part.stop()
        self.coordinator = self.jobs = None

    def connect(self, name: str, topology: WantedTopology | None = None, heartbeat: int = 10) -> MemoryBroker:
        """One more link."""
        made = MemoryBroker(self.realm.server, topology=topology)
        self.process.on_death.append(made.sever)
        self.brokers.append(made)
        return made


class Owners(Realm):
    """Three nodes, two workers, a database, and somebody who wants jobs done."""

    witness: Notary

    def __init__(self, seed: int, loop: VirtualLoop, folder: Path, template: Path) -> None:
        super().__init__(seed, loop, Notary())
        disk = self.dice("disk")
        self.file = SqliteFile(
            folder / f"{seed}.db", template=template, pace=lambda: disk.uniform(0.0, 0.003), prepare=_prepared
        )
        self.witness.file = self.file
        forget = self.server.forget

        def forgetting() -> None:
            self.witness.broker_forgets()
            forget()

        self.server.forget = forgetting  # type: ignore[method-assign]
        self.members += [NodeMember(self, f"n{place}") for place in range(3)]
        self.members += [WorkerMember(self, f"w{place}", self.file) for place in range(2)]
        self.wanted = 0
        self.submitted: list[str] = []

    @property
    def nodes(self) -> list[NodeMember]:
        """Those that can be asked."""
        found = (one for one in self.members if isinstance(one, NodeMember))
        return [one for one in found if one.process.alive and one.jobs is not None]

    def broker(self, name: str) -> MemoryBroker:
        return MemoryBroker(self.server)

    def row(self) -> tuple[Fence, Mode] | None:
        found = self.file.look("SELECT term, holder, mode FROM leases")
        return (Fence(found[0][0], found[0][1]), Mode(found[0][2])) if found else None

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
        done = self.file.look(open_)[0][0] == 0 and self.file.look("SELECT count(*) FROM outbox")[0][0] == 0
        return done and len(self.submitted) == self.wanted


def _prepared(raw: sqlite3.Connection) -> None:
    raw.create_function("writer", 0, lambda: getattr(current_process(), "name", "nobody"))


class Clerk:
    """Puts jobs down, and cancels some."""

    def __init__(self, realm: Owners) -> None:
        self._realm, self._dice = realm, realm.dice("clerk")

    async def run(self) -> None:
        """Asks until everything is put down."""
        dice, realm = self._dice, self._realm
        realm.wanted = dice.randrange(3, 9)
        while len(realm.submitted) < realm.wanted:
            await elapse(dice.uniform(0.1, 3.0))
            nodes = realm.nodes
            if nodes:
                await self._ask(dice.choice(nodes))

    async def _ask(self, member: NodeMember) -> None:
        assert member.jobs is not None
        if self._realm.submitted and self._dice.random() < 0.15:
            await self._done(member, member.jobs.canceller.cancel(self._dice.choice(self._realm.submitted), "unwanted"))
            return
        order = Order(QUEUE, "report", retries=8, timeout_ms=15_000)
        job = await self._done(member, member.jobs.submitter.submit(order))
        if job is not None:
            self._realm.submitted.append(job.id)

    async def _done(self, member: NodeMember, work: Any) -> Any:
        """The answer; None where there is none, or it is a refusal."""
        try:
            asking = member.process.spawn(work)
        except Killed:
            return None
        await asyncio.wait({asking}, timeout=20.0)
        if not asking.done():
            asking.add_done_callback(lambda late: late.cancelled() or late.exception())
            return None
        try:
            return asking.result()
        except (RetryLater, Conflict, NotFound):
            return None


async def days(realm: Owners, nemesis: Nemesis) -> None:
    """The bad days, then time for all to come to an end, then the end."""
    realm.plan = nemesis.plan
    dice = realm.dice("system")
    for member in realm.members:
        realm.loop.call_later(dice.uniform(0.0, 1.0), member.boot)
    clerk = asyncio.ensure_future(Clerk(realm).run())
    begun = realm.loop.time()
    await nemesis.run()
    slept = max((one.at + _asleep(one) for one in nemesis.plan if one.kind in SLEEPS), default=0.0)
    await elapse(max(0.0, begun + slept - realm.loop.time()))
    nemesis.heal()
    if not await until(lambda: _is_over(realm, clerk), PATIENCE):
        realm.witness.complain(f"I2: not quiet {PATIENCE:g} s after the last fault")
    realm.witness.judge()
    await elapse(SWEPT_AFTER + 2 * SWEEP)
    # One that stood still may just have made the queues of an ended job anew: they are cleared as what nobody owns.
    await until(realm.is_quiet, 2 * sweeps.UNOWNED)
    for queue in realm.server.queues:
        if queue.endswith((".status", ".logs")):
            realm.witness.complain(f"I11: {queue} is left behind")
    await end(realm)


def _is_over(realm: Owners, clerk: asyncio.Future[None]) -> bool:
    for member in realm.members:
        member.boot()
    return clerk.done() and realm.is_quiet()


class Simulation:
    """Runs seeds, each in a realm of its own, from one migrated database."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._template = folder, folder / "template.db"
        asyncio.run(schema.upgrade(f"sqlite+aiosqlite:///{self._template}"))
        raw = sqlite3.connect(self._template)
        for statement in TRIGGERS:
            raw.execute(statement)
        raw.commit()
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()

    def run(self, seed: int) -> Outcome:
        """One seed."""
        loop = VirtualLoop()
        with clock.use(VirtualSource(loop, Random(f"{seed}:clock"))), _soon():
            realm = loop.run_until_complete(self._realm(seed, loop))
            nemesis = Nemesis(realm, BAD, duration=DURATION, longest=LONGEST)
            with heard(realm.witness, loop):
                try:
                    loop.run_until_complete(days(realm, nemesis))
                finally:
                    realm.witness.is_over = True
                    loop.bury()
                    loop.close()
                    realm.file.close()
                    for file in self._folder.glob(f"{seed}.db*"):
                        file.unlink()
        plan = [str(one) for one in realm.plan]
        trace = [line.replace(f"{self._folder}/", "") for line in realm.witness.trace]
        return Outcome(seed, realm.witness.wrong, trace, plan, "tests.simulation.owners")

    async def _realm(self, seed: int, loop: VirtualLoop) -> Owners:
        return Owners(seed, loop, self._folder, self._template)


def _asleep(fault: Fault) -> float:
    return 8.0 + 4.0 * fault.share


def sleep(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    """It stands still until others have its jobs, and the broker does not miss it."""
    nemesis.freeze(replace(fault, seconds=_asleep(fault), share=1.0), member)


def lose(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    """A worker is gone, or stands still, for longer than one may be silent."""
    worker = _busiest(nemesis.realm, "worker_id") or nemesis.realm.members[-1]
    gone = replace(fault, seconds=_asleep(fault), share=1.0 if fault.share < 0.5 else 0.1)
    (nemesis.freeze if fault.share < 0.5 else nemesis.kill)(gone, worker)


def leave(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    """Whoever owns most has to hand it over."""
    nemesis.stop(fault, _busiest(nemesis.realm, "owner") or member)


def _busiest(realm: Realm, column: str) -> Member | None:
    assert isinstance(realm, Owners)
    count = (
        f"SELECT {column} FROM jobs WHERE channels = 1 AND {column} IS NOT NULL GROUP BY 1 ORDER BY count(*) DESC, 1"
    )
    names = [name.partition("-")[0] for (name,) in realm.file.look(count)]
    return next((one for name in names for one in realm.members if one.process.name == name), None)


def weather(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    """Messages come late and twice, but not for as long as elsewhere."""
    nemesis.weather(fault, member)
    dice, server = nemesis.realm.dice(f"copies {fault.at}"), nemesis.realm.server
    server.copied_after = lambda queue: dice.uniform(0.0, LATEST_COPY) if dice.random() < 0.5 else None


BAD: dict[str, Deed] = {
    name: deed for name, deed in KINDS.items() if name not in ("stranger", "queue", "freeze writing")
}
BAD |= {"sleep": sleep, "sleep too": sleep, "stop too": leave, "weather": weather}
BAD |= {"worker": lose, "worker too": lose}
SLEEPS = frozenset(("sleep", "sleep too", "worker", "worker too"))


@contextmanager
def _soon() -> Iterator[None]:
    """The queues of ended jobs are swept a little earlier."""
    before = sweeps.SWEPT_AFTER, sweeps.SWEEP, beats._LONG_OVER
    sweeps.SWEPT_AFTER, sweeps.SWEEP = SWEPT_AFTER, SWEEP  # type: ignore[misc]
    beats._LONG_OVER = timedelta(seconds=SWEPT_AFTER / 2)  # type: ignore[misc]
    try:
        yield
    finally:
        sweeps.SWEPT_AFTER, sweeps.SWEEP, beats._LONG_OVER = before  # type: ignore[misc]


@contextmanager
def simulation() -> Iterator[Simulation]:
    """A simulation with a folder of its own, in memory where the machine has such."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="owners-") as folder:
        runs = Simulation(Path(folder))
        settle_memory()
        yield runs


def main() -> int:
    """The command line."""
    with simulation() as runs:
        return replay("Simulates the owners of jobs over bad days.", runs.run)


if __name__ == "__main__":
    sys.exit(main())
