"""How does a system of nodes and workers look in which a process dies that has to do with jobs?"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.domain.jobs import FINAL, RUNNING, SUCCEEDED
from orchestrix.persistence.engine import Database
from tests import tally
from tests.acceptance.system import Client, System
from tests.conformance.store.test_jobs import inserted, pending
from tests.fault import job_ledger, numbered
from tests.fault.crashing import At
from tests.processes import Process, Processes
from tests.servers.run import Run
from tests.support import eventually, free_port
from tests.taps import ready

EXECUTING: Final = Path(__file__).with_name("executing.py")
JOBS: Final = 4
MOST: Final = 40
RETRIES: Final = 2
SILENT: Final = 4.0
QUICK: Final = {
    "ORCHESTRIX_CLUSTER__HEARTBEAT": "0.25",
    "ORCHESTRIX_CLUSTER__LEASE": "10",
    "ORCHESTRIX_CLUSTER__RENEW": "0.5",
    "ORCHESTRIX_CLUSTER__PRESENCE": "0.2",
    "ORCHESTRIX_CLUSTER__HANDOFF_ACK": "0.5",
    "ORCHESTRIX_CLUSTER__HANDOFF_RETRIES": "2",
    "ORCHESTRIX_CLUSTER__HANDOFF_HARD": "5",
    "ORCHESTRIX_CLUSTER__ORPHAN_CHECK": "0.5",
    "ORCHESTRIX_CLUSTER__RECONCILE": "0.5",
    "ORCHESTRIX_JOBS__BEAT": "0.3",
    "ORCHESTRIX_ORCHESTRATOR__CLAIM": "1",
    "ORCHESTRIX_GIT__PROVIDER": "none",
    "ORCHESTRIX_WORKERS": "numbered",
}
OF_JOBS: Final = (
    "job_logs",
    "job_attempts",
    "jobs",
    "schedules",
    "outbox",
    "nodes",
    "workers",
    "idempotency_keys",
    "dead_letters",
    "job_registry",
    "registry_removed",
    "job_group",
)


@dataclass(frozen=True)
class Ground:
    """A database with the schema, and a virtual host of the broker."""

    name: str
    database_url: str
    broker_url: str

    @property
    def many(self) -> bool:
        """Whether several nodes may share the database."""
        return self.name != "sqlite"


@dataclass
class Wish:
    """A job that a client wants, under a key of its own, so that it may ask again."""

    key: str
    body: dict[str, Any]
    id: str | None = None


@dataclass
class JobRig(System):
    """A system whose nodes and workers are missed after a second or two, so that nobody waits long."""

    ground: Ground
    spawn: Callable[[Path], Processes]
    home: Path
    silent: float = SILENT
    """After so many seconds a worker counts as gone."""
    rounds: int = 0
    wishes: list[Wish] = field(default_factory=list)
    run: Run | None = None
    """By what executors are started."""
    executors: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.spawn(self.home), self.home, self.ground.database_url, self.ground.broker_url)

    async def next_round(self) -> None:
        """Nothing runs any more, and nothing is left of the last round but who led last."""
        self.rounds += 1
        self.folder = self.home / f"{self.ground.name}-{self.rounds}"
        self.folder.mkdir()
        for module in (numbered.__file__, EXECUTING):
            shutil.copy(Path(module), self.folder)
        self.processes = self.spawn(self.folder)
        self.wishes, self.silent = [], SILENT
        await self.sql(*(f"DELETE FROM {table}" for table in OF_JOBS))

    def env(self, **more: str) -> dict[str, str]:
        patience = {"ORCHESTRIX_CLUSTER__DEAD": "1" if self.ground.many else "0.6"}
        return super().env(**QUICK, **patience, ORCHESTRIX_JOBS__SILENT=str(self.silent), **more)

    # Its processes.

    async def ready_node(self, at: At | None = None) -> tuple[Process, Client]:
        """A node that is ready, armed or not, and a client of it."""
        node, url = self.armed_node(at) if at else self.node()
        await self.ready(url)
        return node, Client(url)

    def armed_node(self, at: At) -> tuple[Process, str]:
        """A node that is to die."""
        return self.node(port=None, **at.env)

    def close(self) -> None:
        """Ends all of its processes."""
        self.processes.close()
        for process in self.executors:
            process.kill9()
        self.executors.clear()

    async def executors_of(self, group: str, admins: Sequence[str], count: int = 1) -> Process:
        """A process with so many executors of the library, which the group has."""
        assert self.run is not None, "it is started by that"
        addresses = [f"http://127.0.0.1:{free_port()}" for _ in range(count)]
        command = (sys.executable, EXECUTING.name, group, ",".join(addresses), ",".join(admins))
        log = self.folder / "executor.log"
        process = Process(self.run, "executor", command, {"PATH": os.environ["PATH"]}, self.folder, log)
        self.executors.append(process)

        async def listed() -> bool:
            assert process.returncode is None, process.log_tail()
            found = await self.sql(f"SELECT address_list FROM job_group WHERE app_name = '{group}'")
            return sorted(address for (text,) in found for address in text.split(",")) == sorted(addresses)

        await eventually(listed, deadline=20, every=0.05, message="the group has the executors")
        return process

    async def wish_of_group(self, group: str, handler: str = "count") -> None:
        """A job for the group."""
        id = await self._insert(executor_group=group, routing="FIRST", handler=handler)
        self.wishes.append(Wish(id, {}, id))

    async def broadcast_of_group(self, group: str, handler: str = "count") -> str:
        """A job for every executor of the group; its id. What is checked at the end are its children."""
        return await self._insert(
            executor_group=group, routing="SHARDING_BROADCAST", broadcast_end="all", handler=handler
        )

    async def _insert(self, **more: Any) -> str:
        database = Database(self.database_url)
        try:
            [job] = await inserted(database, pending(database, **{"queue": None, "retries": RETRIES, **more}))
        finally:
            await database.close()
        return job.id

    async def leader(self, at: At | None = None) -> tuple[Process, Client]:
        """The same, which leads besides."""
        node, client = await self.ready_node(at)
        await node.wait_for_line("elected leader: term")
        return node, client

    async def up(self, at: At | None = None) -> tuple[Process, Client]:
        """The same, beside a worker."""
        up, _ = await asyncio.gather(self.leader(at), self.ready_worker())
        return up

    async def ready_worker(self, at: At | None = None) -> Process:
        """A worker that serves jobs and nothing else."""
        worker = self.worker("--job-queue", "default", **(at.env if at else {}))
        await worker.wait_for_line('"message": "ready"')
        return worker

    # Its jobs.

    async def wish(self, client: Client, handler: str = "count", **more: Any) -> Wish:
        """Asks for one more job; whether there is an answer, its `id` says."""
        body = {"queue": "default", "handler": handler, "retries": RETRIES, "createdBy": "ada", **more}
        wish = Wish(f"{self.ground.name}-{self.rounds}-{len(self.wishes)}", body)
        self.wishes.append(wish)
        with suppress(httpx.HTTPError):
            await self._ask(client, wish)
        return wish

    async def wish_until_death(self, client: Client, doomed: Process, handler: str, count: int) -> None:
        """Asks for so many jobs, and then for one more now and then, until the process has died."""
        while doomed.returncode is None and len(self.wishes) < MOST:
            await self.wish(client, handler)
            if len(self.wishes) >= count:
                with suppress(AssertionError):
                    await doomed.exited(deadline=0.5)

    async def ask_again(self, client: Client) -> None:
        """Each client that was not answered, or was, asks again, and gets the job that it would have got."""
        for wish in self.wishes:
            before = wish.id
            await eventually(partial(self._ask, client, wish), deadline=10, message="an answer")
            assert before in (None, wish.id), "the same key, the same job"

    async def _ask(self, client: Client, wish: Wish) -> bool:
        answer = await client.http.post("/jobs", json=wish.body, headers={"Idempotency-Key": wish.key})
        if answer.status_code not in (409, 503):
            assert answer.status_code == 201, answer.text
            wish.id = answer.json()["id"]
        return wish.id is not None

    async def patient(self, client: Client, count: int) -> None:
        """So many jobs, which run and wait."""
        for _ in range(count):
            assert (await self.wish(client, "patient")).id
        await self.running(count)

    async def running(self, count: int) -> None:
        """Waits until so many jobs run, and have an owner."""

        async def run() -> bool:
            found = f"SELECT count(*) FROM jobs WHERE state = '{RUNNING}' AND owner IS NOT NULL"
            return bool((await self.sql(found))[0][0] == count)

        await eventually(run, deadline=20, message=f"{count} jobs run")

    def go(self) -> None:
        """Who waits goes on."""
        (self.folder / numbered.GO).touch()

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

    # Its end.

    async def all_well(self, state: str = SUCCEEDED, most: int = 1) -> list[job_ledger.Row]:
        """Waits until every job has ended in `state`, and checks that nothing was lost, done twice or is stuck."""
        await eventually(self._ended, deadline=30, every=0.1, message="every job ends, and its log is there")
        await eventually(
            self._nothing_left, deadline=20, every=0.1, message="every job is cleared away, and every message"
        )
        rows = await job_ledger.read(self.database_url)
        tally.saw("jobs", len(rows), part=self.database_url)
        begun = job_ledger.begun(self.folder / numbered.EFFECTS)
        for row in rows:
            row.check(state, most)
            row.check_effects(begun)
        wanted = {wish.id for wish in self.wishes}
        assert not wanted or wanted == {row.id for row in rows}, "each client has one job"
        await self._one_leader_at_a_time()
        return rows

    async def _ended(self) -> bool:
        rows = await job_ledger.read(self.database_url)
        live = [row for row in rows if row.state not in FINAL or not row.complete]
        assert not live, live
        return bool(rows)

    async def _nothing_left(self) -> bool:
        ((kept,),) = await self.sql("SELECT count(*) FROM jobs WHERE channels = 1")
        ((owed,),) = await self.sql("SELECT count(*) FROM outbox")
        assert (kept, owed) == (0, 0)
        ids = [wish.id for wish in self.wishes if wish.id]
        queues = [queue(id) for id in ids for queue in (status_queue, logs_queue)]
        # One may be there again, made by an order that a dead node had sent and not crossed out: it is swept later.
        found = await asyncio.to_thread(ready, self.broker_url, queues)
        assert not any(found.values()), found
        return True

    async def _one_leader_at_a_time(self) -> None:
        terms = [row[0] for row in await self.sql("SELECT term FROM handovers ORDER BY term")]
        assert terms == list(range(terms[0], terms[0] + len(terms))), terms
        await eventually(self._is_led, deadline=20, every=0.1, message="somebody leads")

    async def _is_led(self) -> bool:
        ((last,),) = await self.sql("SELECT max(term) FROM handovers")
        ((term, resigned),) = await self.sql("SELECT term, resigned_at FROM leases")
        return bool(term == last and resigned is None)
