"""A log reader that stalls: what writes into a pipe that nobody reads goes on with its work all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from orchestrix.domain.jobs import FAILED, SUCCEEDED
from tests.acceptance.system import Client, System
from tests.fault.outside import all_in, job_in, parcels_env, start_all, submit
from tests.fault.parcels import PARCEL
from tests.processes import Processes, Through
from tests.servers.run import Run
from tests.support import NO_TLS

PIPE = 'exec "$@" > >(exec sleep infinity) 2>&1'
"""Lets a program write into a pipe of which nobody ever reads."""
LOUD = 40
CHARACTERS = 3000
"""So many words of so many jobs are more than a pipe holds (64 KiB)."""
ALIVE_WITHIN = 2.0


async def test_work_goes_on_where_nobody_reads_the_logs(
    server_run: Run, tmp_path: Path, postgres_url: str, rabbitmq_url: str
) -> None:
    processes = Processes(Through(server_run, "bash", "-c", PIPE, "bash"), tmp_path)
    system = System(processes, tmp_path, postgres_url, rabbitmq_url)
    system.upgrade()
    env = parcels_env(tmp_path, ORCHESTRIX_LOG__LEVEL="debug")
    try:
        _, url = system.node(port=None, **env)
        system.worker(**env)
        await system.ready(url, deadline=60)
        await _loud(url)
        await start_all(url, PARCEL, [f"after-{n}" for n in range(20)])
        await all_in(postgres_url, PARCEL, [f"after-{n}" for n in range(20)], ("COMPLETED",), deadline=30)
    finally:
        processes.close()


async def _loud(url: str) -> None:
    async with Client(url) as client, asyncio.TaskGroup() as group:
        watch = group.create_task(_lives(url))
        ids = [await submit(client, "grumble", payload={"characters": CHARACTERS}) for _ in range(LOUD)]
        for id in ids:
            await job_in(client, id, FAILED, deadline=40)
        await job_in(client, await submit(client, "carry"), SUCCEEDED, deadline=40)
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


async def _lives(url: str) -> None:
    """Asks all the time whether the node lives. Raises when that is not answered soon."""
    async with httpx.AsyncClient(timeout=ALIVE_WITHIN, trust_env=False, verify=NO_TLS) as http:
        while True:
            assert (await http.get(f"{url}/health/live")).status_code == 200
            await asyncio.sleep(0.1)
