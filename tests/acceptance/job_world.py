"""How does a test run a cluster with talking jobs, disturb one node at a time, and see who owns what?"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from orchestrix.persistence.tables import job_logs, jobs, leases, nodes
from tests import jobs_ledger
from tests.acceptance import chatter
from tests.acceptance.system import System
from tests.fault.proxy import Proxy
from tests.fault.world import NO_GIT, Member
from tests.jobs_ledger import JobsLedger
from tests.processes import Process
from tests.support import NO_TLS, eventually, free_port

NAMES: Final = ("ada", "bob", "cyd")
UP: Final = ("ALIVE", "DRAINING")
FAST: Final = 5.0
"""Seconds in which the jobs of a node that was killed have another owner, where nothing else is amiss."""


@dataclass(frozen=True, slots=True)
class Tempo:
    """The timings of a cluster, in seconds; `slack` is how many times what is promised a test waits."""

    lease: float = 30.0
    dead: float = 30.0
    orphan_check: float = 30.0
    away: float = 45.0
    """How long servers and links are away: longer than a lease, and than a silent node lives."""
    talk: float = 1.0
    slack: float = 1.5
    env: dict[str, str] = field(default_factory=dict)

    @property
    def owned(self) -> float:
        """Within so many seconds of the end of its owner a job has another one, by whichever way."""
        return self.slack * (self.dead + self.orphan_check + FAST)

    @property
    def led(self) -> float:
        """Within so many seconds somebody leads again, also where the leader only sleeps."""
        return self.slack * (1.1 * self.lease + FAST)


REAL: Final = Tempo()
"""As the product comes."""
SCALED: Final = Tempo(
    lease=4.0,
    dead=4.0,
    orphan_check=3.0,
    away=5.0,
    talk=0.5,
    slack=3.0,
    env={
        "ORCHESTRIX_CLUSTER__HEARTBEAT": "1",
        "ORCHESTRIX_CLUSTER__DEAD": "4",
        "ORCHESTRIX_CLUSTER__LEASE": "4",
        "ORCHESTRIX_CLUSTER__RENEW": "1",
        "ORCHESTRIX_CLUSTER__HANDOFF_ACK": "0.5",
        "ORCHESTRIX_CLUSTER__HANDOFF_HARD": "6",
        "ORCHESTRIX_CLUSTER__ORPHAN_CHECK": "3",
        "ORCHESTRIX_CLUSTER__RECONCILE": "1",
        "ORCHESTRIX_CLUSTER__PRESENCE": "0.5",
        "ORCHESTRIX_JOBS__BEAT": "1",
    },
)


@dataclass(frozen=True, slots=True)
class Standing:
    """How it stands at a moment: the jobs' states and owners, how many lines each has, the nodes and who leads."""

    states: dict[str, str]
    owners: dict[str, str | None]
    """Of those that have queues."""
    lines: dict[str, int]
    nodes: dict[str, str]
    term: int
    leader: str
    leased: bool


class JobWorld:
    """Three nodes on one database and one broker, each over links of its own, and workers whose jobs talk."""

    def __init__(self, system: System, tempo: Tempo, *, places: int) -> None:
        self.system, self.tempo, self._places = system, tempo, places
        self.nodes: dict[str, Member] = {}
        self.workers: list[Process] = []
        self.submitted: list[str] = []
        self._enough = system.folder / "enough"

    # Its beginning and its end.

    async def up(self) -> None:
        """Starts everything, and waits until it is ready."""
        shutil.copy(Path(chatter.__file__), self.system.folder)
        await jobs_ledger.watch(self.system.database_url)
        env = {**NO_GIT, "ORCHESTRIX_WORKERS": "chatter", **self.tempo.env}
        self.workers = [
            self.system.worker("--job-queue", chatter.NAME, "--concurrency", str(self._places), **env) for _ in range(2)
        ]
        for name in NAMES:
            self.nodes[name] = self._node(name, {**env, "ORCHESTRIX_LOG__FORMAT": "json"})
        await self.ready()
        for worker in self.workers:
            await worker.wait_for_line(chatter.NAME)

    def _node(self, name: str, env: dict[str, str]) -> Member:
        database, broker = Proxy.to(self.system.database_url), Proxy.to(self.system.broker_url)
        port = free_port()
        settings = {
            **env,
            "ORCHESTRIX_NODE_ID": name,
            "ORCHESTRIX_DATABASE_URL": database.through(self.system.database_url),
            "ORCHESTRIX_BROKER_URL": broker.through(self.system.broker_url),
        }

        def start() -> Process:
            return self.system.node(port=port, **settings)[0]

        return Member(start(), database, broker, f"http://127.0.0.1:{port}", start)

    async def ready(self, *, deadline: float = 60.0) -> None:
        """Waits until all nodes are ready."""
        await asyncio.gather(*(self.system.ready(node.url, deadline=deadline) for node in self.nodes.values()))

    async def ended(self) -> JobsLedger:
        """Lets the jobs come to their end; what the database holds then."""
        self._enough.touch()

        async def over() -> bool:
            standing = await self.look()
            return set(standing.states.values()) <= {"SUCCEEDED"} and not standing.owners

        await eventually(over, deadline=40 * self.tempo.slack, every=0.2, message="every job ends, and is cleared away")
        return await jobs_ledger.read(self.system.database_url)

    def close(self) -> None:
        """Ends the processes, then their links."""
        for node in self.nodes.values():
            node.process.kill9()
            node.database.close()
            node.broker.close()

    # What is asked of it.

    async def submit(self, count: int, *, at: Iterable[str] = NAMES) -> None:
        """Puts so many more jobs down, at the first of these nodes that takes them."""
        urls = [self.nodes[name].url for name in at]
        async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=20) as http:
            for _ in range(count):
                self.submitted.append(await self._submit(http, urls))

    async def _submit(self, http: httpx.AsyncClient, urls: list[str]) -> str:
        key = {"Idempotency-Key": f"job-{len(self.submitted)}"}
        payload = {"until": str(self._enough), "pause": self.tempo.talk}
        body = {"queue": chatter.NAME, "handler": chatter.NAME, "payload": payload}

        async def answered() -> str | None:
            for url in urls:
                with suppress(httpx.HTTPError):
                    answer = await http.post(f"{url}/jobs", json=body, headers=key)
                    assert answer.status_code in (201, 409, 503), answer.text
                    if answer.status_code == 201:
                        return str(answer.json()["id"])
            return None

        found = await eventually(answered, deadline=60, every=0.2, message="somebody takes a job")
        assert found is not None
        return found

    async def look(self) -> Standing:
        """How it stands now. Raises AssertionError while the database is away, so that `eventually` goes on."""
        engine = create_async_engine(self.system.database_url, poolclass=NullPool)
        try:
            async with engine.connect() as connection:
                table = jobs.c
                found = (await connection.execute(select(table.id, table.state, table.owner, table.channels))).all()
                counts = select(job_logs.c.job_id, func.count()).group_by(job_logs.c.job_id)
                lines = {row[0]: row[1] for row in await connection.execute(counts)}
                states = {row.id: row.state for row in await connection.execute(select(nodes.c.id, nodes.c.state))}
                lease = (await connection.execute(select(leases.c.term, leases.c.holder, _leased(engine)))).first()
        except (DBAPIError, OSError, TimeoutError) as away:
            raise AssertionError(f"the database is away: {away}") from None
        finally:
            await engine.dispose()
        term, holder, leased = lease if lease is not None else (0, "", False)
        return Standing(
            states={row.id: row.state for row in found},
            owners={row.id: row.owner for row in found if row.channels},
            lines={id: lines.get(id, 0) for id in (row.id for row in found)},
            nodes=states,
            term=term,
            leader=holder,
            leased=bool(leased),
        )

    # Who is who.

    async def leader(self) -> str:
        """The id of the node that leads."""

        async def led() -> str | None:
            standing = await self.look()
            return standing.leader if standing.leased and standing.nodes.get(standing.leader) == "ALIVE" else None

        found = await eventually(led, deadline=self.tempo.led, every=0.1, message="somebody leads")
        assert found is not None
        return found

    async def follower(self) -> str:
        """The id of another one, which owns jobs."""

        async def follows() -> str | None:
            leader, standing = await self.leader(), await self.look()
            owners = {owner for owner in standing.owners.values() if owner is not None}
            fit = [id for id, state in standing.nodes.items() if state == "ALIVE" and id != leader and id in owners]
            return fit[0] if fit else None

        found = await eventually(follows, deadline=self.tempo.owned, every=0.2, message="a follower owns jobs")
        assert found is not None
        return found

    def node(self, id: str) -> Member:
        """The node of that id."""
        return self.nodes[name_of(id)]

    def others(self, id: str) -> list[str]:
        """The names of all nodes but that one."""
        return [name for name in NAMES if name != name_of(id)]

    def workers_live(self) -> bool:
        """Whether no worker has ended."""
        return all(worker.returncode is None for worker in self.workers)

    def all_live(self) -> bool:
        """Whether no process has ended."""
        return self.workers_live() and all(node.alive for node in self.nodes.values())

    # What is waited for.

    async def until(self, what: str, fits: Callable[[Standing], bool], *, within: float) -> float:
        """Waits until it stands so; how many seconds that took."""
        began = time.monotonic()

        async def so() -> bool:
            return fits(await self.look())

        try:
            await eventually(so, deadline=within, every=0.1, message=what)
        except AssertionError as late:
            raise AssertionError(f"{late}; {_told(await self.look())}") from None
        return time.monotonic() - began

    async def owned(self, *gone: str, within: float | None = None) -> float:
        """Waits until every job has an owner that is there, and is none of `gone`; how many seconds that took."""

        def all_owned(standing: Standing) -> bool:
            there = {id for id, state in standing.nodes.items() if state in UP} - set(gone)
            return all(owner in there for owner in standing.owners.values())

        return await self.until("every job has an owner", all_owned, within=within or self.tempo.owned)

    async def led(self, *, but: str) -> float:
        """Waits until another one leads; how many seconds that took."""
        return await self.until(
            f"another one than {but} leads", lambda now: now.leader != but and now.leased, within=self.tempo.led
        )

    async def buried(self, id: str) -> float:
        """Waits until that node is found dead, and others own its jobs; how many seconds that took.

        Where everything but the heartbeats of links is quick, the broker still holds some offers out to a frozen node.
        """
        took = await self.until(
            f"{id} is DEAD", lambda now: now.nodes.get(id) == "DEAD", within=self.tempo.led + self.tempo.owned
        )
        return took if self.tempo.env else took + await self.owned(id)

    async def joined_anew(self, id: str) -> None:
        """Waits until that node has found out that it is dead, and is there under another id."""
        await self.node(id).process.wait_for_line(f"node {id} was declared dead", deadline=40)

        def there(standing: Standing) -> bool:
            return any(
                one != id and name_of(one) == name_of(id) and state == "ALIVE" for one, state in standing.nodes.items()
            )

        await self.until(f"{id} is there again", there, within=10 * self.tempo.slack)
        await self.ready()

    async def talking(self) -> None:
        """Waits until every job runs and new lines come from each of them."""
        before: dict[str, int] = {}

        def heard(standing: Standing) -> bool:
            if not before:
                before.update(standing.lines)
            return all(standing.lines[id] > before.get(id, 0) for id in self.submitted) and self.all_run(standing)

        await self.until("every job talks", heard, within=20 * self.tempo.slack)

    def all_run(self, standing: Standing) -> bool:
        """Whether every job is at work."""
        return all(standing.states.get(id) == "RUNNING" for id in self.submitted)


async def refused(process: Process, id: str) -> None:
    """Waits until the process has logged that a write of its own as the leader `id` was refused."""
    await process.wait_for_line(rf"{id} wrote as leader of term \d+[^\n]* nothing was written", deadline=20)


def name_of(id: str) -> str:
    """The name of the node of that id."""
    return id.rpartition("-")[0]


def _leased(engine: Any) -> Any:
    clock = func.clock_timestamp() if engine.dialect.name == "postgresql" else func.utc_timestamp(6)
    return leases.c.lease_until > clock


def _told(standing: Standing) -> str:
    idle = [id for id, state in standing.states.items() if state != "RUNNING"]
    return (
        f"leader {standing.leader} of {standing.term}; nodes {standing.nodes}; {standing.owners}; not at work: {idle}"
    )


Act = Callable[[JobWorld], Awaitable[str]]
"""A fault, from its beginning until it is over and every job is owned again; what is to be told of it."""
