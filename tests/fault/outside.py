"""Outside trials: starting sagas of the test's own, waiting for their ends, and keeping workers alive meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from orchestrix.domain.jobs import FINAL
from orchestrix.saga.definition import Saga
from tests import invariants
from tests.acceptance.system import Client, System
from tests.fault import parcels
from tests.fault.world import NO_GIT
from tests.processes import Process
from tests.support import eventually

ALL_AT_ONCE: Final = 10_000.0
"""Steps that may fail by deadline in a second: no test is to be saved by the limit of the rate."""


def parcels_env(folder: Path, **more: str) -> dict[str, str]:
    """The settings of processes in `folder` that know the sagas of `parcels`, which is copied there."""
    shutil.copy(Path(parcels.__file__), folder)
    return {
        **NO_GIT,
        "ORCHESTRIX_SAGAS": "parcels",
        "ORCHESTRIX_WORKERS": "parcels",
        "ORCHESTRIX_ORCHESTRATOR__TIMEOUTS_PER_SECOND": f"{ALL_AT_ONCE:g}",
        **more,
    }


async def start_all(url: str, saga: Saga, names: Sequence[str]) -> None:
    """Starts an instance for each name at the node of that address."""
    gate = asyncio.Semaphore(50)

    async def one(client: Client, name: str) -> None:
        async with gate:
            answer = await client.http.post(f"/sagas/{saga.name}", json={"key": name, "createdBy": "ada"})
        assert answer.status_code == 200, answer.text

    async with Client(url) as client:
        await asyncio.gather(*(one(client, name) for name in names))


async def rows(database_url: str, statement: str, **values: Any) -> list[Any]:
    """What `statement` finds, on a connection of its own, past all proxies."""
    engine = create_async_engine(database_url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            return list((await connection.execute(text(statement), values)).all())
    finally:
        await engine.dispose()


async def states(database_url: str, saga: Saga) -> dict[str, str]:
    """The state of each instance, by its key."""
    found = await rows(
        database_url,
        "SELECT saga_instances.key, state FROM saga_instances WHERE saga = :saga",
        saga=saga.name,
    )
    return {row[0]: row[1] for row in found}


async def all_in(
    database_url: str, saga: Saga, names: Sequence[str], wanted: Sequence[str], *, deadline: float
) -> float:
    """Waits until each of `names` is in one of the `wanted` states; the seconds that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def there() -> bool:
        now = await states(database_url, saga)
        missing = {name: now.get(name) for name in names if now.get(name) not in wanted}
        few = dict(list(missing.items())[:5])
        assert not missing, f"{len(missing)} of {len(names)} are not {' or '.join(wanted)}, such as {few}"
        return True

    await eventually(there, deadline=deadline, every=0.2, message=f"every {saga.name} is {' or '.join(wanted)}")
    return loop.time() - began


async def all_kept(database_url: str, saga: Saga, names: Sequence[str], *, deadline: float = 20.0) -> invariants.Ledger:
    """Waits until nothing is left to send, checks I1 to I4, and says what the database holds."""

    async def nothing_left() -> invariants.Ledger:
        ledger = await invariants.read(database_url, saga=saga.name)
        ledger.check(names, saga=saga)
        return ledger

    return await eventually(nothing_left, deadline=deadline, every=0.2, message="nothing is left to do")


def begun(folder: Path) -> dict[str, list[int]]:
    """The processes in which each instance has begun its work, by its key, in order."""
    found: dict[str, list[int]] = {}
    path = folder / parcels.BEGUN
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, pid = line.rpartition(" ")
        found.setdefault(name, []).append(int(pid))
    return found


def made(folder: Path, step: str) -> set[int]:
    """The ids of the instances whose effect of `step` is there now."""
    return {int(path.name) for path in (folder / parcels.MADE / step).glob("*")}


class Supervisor:
    """Starts a worker again whenever it has ended, as a service manager does, until the block ends.

    `deaths` counts the ends by SIGKILL, `others` those by any other way.
    """

    def __init__(self, start: Callable[[], Process]) -> None:
        self._start = start
        self.worker = start()
        self.deaths = self.others = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch(), name="supervisor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        (result,) = await asyncio.gather(self._task, return_exceptions=True)
        assert isinstance(result, asyncio.CancelledError), result

    async def restart(self, *, within: float) -> None:
        """SIGTERM, and waits until another one is there."""
        before, old = self.others, self.worker
        old.terminate()
        await eventually(lambda: self.others > before, deadline=within, message=f"{old.name} ends")
        await self.served()

    async def served(self) -> None:
        """Waits until the present worker serves; another death meanwhile is no fault."""
        await eventually(lambda: "cmd.pack" in self.worker.log(), deadline=30, message="a worker serves")

    async def _watch(self) -> None:
        while True:
            await eventually(lambda: self.worker.returncode is not None, deadline=3600, message="it ends")
            if self.worker.returncode == -9:
                self.deaths += 1
            else:
                self.others += 1
            self.worker = self._start()


async def submit(client: Client, handler: str, **more: Any) -> str:
    """`POST /jobs` to the queue of `parcels`; the job's id."""
    body = {"queue": parcels.CARRIERS, "handler": handler, "createdBy": "ada", **more}
    answer = await client.http.post("/jobs", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def job_of(client: Client, job_id: str) -> dict[str, Any]:
    """`GET /jobs/{id}`."""
    answer = await client.http.get(f"/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def job_in(client: Client, job_id: str, *wanted: str, deadline: float) -> dict[str, Any]:
    """Waits until the job is in one of these states. Fails as soon as it has ended in another."""
    job: dict[str, Any] = await eventually(
        lambda: _job_in(client, job_id, {*wanted, *FINAL}), deadline=deadline, every=0.1, message=f"job {wanted}"
    )
    assert job["state"] in wanted, job
    return job


async def _job_in(client: Client, job_id: str, wanted: set[str]) -> dict[str, Any]:
    job = await job_of(client, job_id)
    assert job["state"] in wanted, f"{job['state']}, waits for {job['waitsFor']}"
    return job


async def node_of(system: System, **env: str) -> tuple[Process, str]:
    """A node that is ready, and its address."""
    node, url = system.node(port=None, **env)
    await system.ready(url)
    return node, url
