"""Is each attempt begun once, and no word of it lost, whatever happens to executors, their nodes and the broker?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.fault.executor_jobs import CALLED, NODE_JS, ExecutorJobs, Talkers
from tests.fault.executors import Address, RegistryWorld, Times
from tests.fault.proxy import Way
from tests.jobs_ledger import Told
from tests.processes import Process
from tests.servers.run import Run
from tests.support import eventually, holds

KINDS = ["python", "sdk", "sdk", "sdk", *(["node"] if NODE_JS else [])]
"""Five executors; on a machine without Node four."""
CALL = b"POST /run "
MOVED_S = 30.0
"""Three times the seconds in which the jobs of a node that is gone have another owner, with the settings of here."""
LOST_S = 90.0
"""Three times the 30 s in which a restart of an executor is found."""


@pytest.fixture
def talkers(server_run: Run, tmp_path: Path, times: Times) -> Iterator[Talkers]:
    """Starts executors; ends them with the test and shows their logs if it failed."""
    made = Talkers(server_run, tmp_path, times.heartbeat)
    yield made
    made.close()


@pytest.fixture
def system(registry: RegistryWorld, talkers: Talkers) -> ExecutorJobs:
    """Two nodes, of which none runs yet."""
    return ExecutorJobs(registry, talkers)


@pytest.mark.req("X-1")
async def test_each_attempt_is_begun_once_and_all_its_words_come(
    system: ExecutorJobs, scale: Callable[[int, int], int]
) -> None:
    print(f"executors: {KINDS}" if NODE_JS else f"executors: {KINDS}; there is no Node on this machine")
    await system.up(ORCHESTRIX_REGISTRY__DEAD="90")  # no silence is so long that an attempt is lost by it
    five = [await system.executor(kind, linked=place == 0) for place, kind in enumerate(KINDS)]
    await _restarts_are_found(system, [one for place, one in enumerate(five) if KINDS.index(KINDS[place]) == place])
    jobs = [await system.submit(address, "enough") for address in five]
    await system.talk(jobs)
    await system.moved(_killed, jobs, within=MOVED_S)
    await system.moved(_stopped, jobs, within=MOVED_S)
    await _broker_is_away(system, jobs, scale(4, 60))
    jobs.append(await _its_answer_is_lost(system, five[0]))
    jobs.append(await _two_nodes_call_at_once(system, five[0]))
    await _all_leave(system, jobs)


async def _restarts_are_found(system: ExecutorJobs, addresses: Sequence[Address]) -> None:
    """An executor of each kind dies in mid-run and is there again at once: its attempt is lost, and runs again."""
    jobs = [await system.submit(address, "again", retries=3) for address in addresses]
    await system.talk(jobs)
    first = [one.history for one in await system.told(*jobs)]
    for address in addresses:
        system.running[address][1].kill9()
    await asyncio.gather(*(system.start(system.running[one][0], one) for one in addresses))
    began = time.monotonic()
    await system.until("it runs again", lambda job: job.attempt == 2 and job.seq > 0, jobs, within=LOST_S)
    print(f"all run again {time.monotonic() - began:.1f} s after the restarts")
    ledger = await system.over("again", jobs)
    begun = system.talkers.begun()
    for job, address, lost in zip(jobs, addresses, first, strict=True):
        told = ledger.jobs[job]
        assert [(one, state, worker) for one, state, worker, _ in told.attempts] == [
            (lost, "LOST", address),
            (told.history, "SUCCEEDED", address),
        ]
        assert [line.message for line in told.lines[str(told.history)]] == [
            f"line {n}" for n in range(1, told.result["lines"] + 1)
        ]
        assert (begun[str(lost)], begun[str(told.history)]) == (1, 1)
    errors = await system.registry.sql("SELECT error FROM job_attempts WHERE state = 'LOST'")
    assert all("restarted" in str(row.error) for row in errors), errors


async def _killed(process: Process) -> None:
    process.kill9()


async def _stopped(process: Process) -> None:
    process.terminate()
    await process.exited()


async def _broker_is_away(system: ExecutorJobs, jobs: Sequence[str], seconds: int) -> None:
    """Meanwhile executors keep what nobody takes. How much that is, is counted by what they say: none of it comes."""
    links = [node.broker for node in system.registry.world.nodes]
    for link in links:
        link.refuse()
        link.reset()
    running = [process for _, process in system.running.values()]
    await holds(lambda: all(one.returncode is None for one in running), during=seconds, message="executors live on")
    for link in links:
        link.heal()
    await system.registry.world.ready()
    await system.talk(jobs, within=60.0)


async def _its_answer_is_lost(system: ExecutorJobs, address: Address) -> str:
    """The executor takes an attempt, and whoever called it never hears so, and calls again or asks for it."""
    link, process = system.links[address], system.running[address][1]
    link.black_hole(Way.DOWN)
    job = await system.submit(address, "enough")
    await system.talk([job])
    [now] = await system.told(job)

    def is_asked() -> bool:
        return f"/runs/{now.history}" in process.log()

    await eventually(is_asked, deadline=30, message="it is asked for it")
    link.lose()
    return job


async def _two_nodes_call_at_once(system: ExecutorJobs, address: Address) -> str:
    """One dies in the middle of its call, the other one calls as well, and then both calls come."""
    link, process = system.links[address], system.running[address][1]
    before = process.log().count(CALLED)
    link.black_hole(Way.UP)
    job = await system.submit(address, "enough")

    async def called_by() -> str | None:
        query = f"SELECT owner FROM jobs WHERE id = '{job}' AND called_at IS NOT NULL"
        found = await system.registry.sql(query)
        return str(found[0].owner) if found and link.held(CALL) else None

    place = system.node_of(await eventually(called_by, deadline=30, message="a node calls it"))
    node = system.registry.world.nodes[place]
    node.process.kill9()

    def is_moved(now: Told) -> bool:
        return now.owner is not None and system.node_of(now.owner) != place

    await system.until("the other one owns it", is_moved, [job], within=MOVED_S)
    held = link.held(CALL)
    await eventually(lambda: link.held(CALL) > held, deadline=30, message="it calls, too")
    link.heal()
    await eventually(
        lambda: process.log().count(CALLED) >= before + 2, deadline=30, message="the call of the dead one has come, too"
    )
    await system.talk([job])
    node.restart()
    await system.registry.world.ready()
    return job


async def _all_leave(system: ExecutorJobs, jobs: Sequence[str]) -> None:
    """They say goodbye in mid-run, and end what they have."""
    for _, process in system.running.values():
        process.terminate()

    async def drain() -> bool:
        rows = await system.registry.sql("SELECT state FROM job_registry")
        return [row.state for row in rows] == ["DRAINING"] * len(system.running)

    await eventually(drain, deadline=20, message="each of them drains")
    await system.talk(jobs)
    ledger = await system.over("enough", jobs)
    ledger.check(jobs)
    begun = system.talkers.begun()
    assert {one.history: begun[str(one.history)] for one in ledger.jobs.values()} == {
        one.history: 1 for one in ledger.jobs.values()
    }
    for _, process in system.running.values():
        assert await process.exited() == 0
    assert sorted(await system.registry.removed()) == sorted((one, "goodbye") for one in system.running)
