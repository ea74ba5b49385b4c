"""Does a job run on an executor of an app that was just provisioned, and is it followed though its owner leaves?"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests import jobs_ledger
from tests.acceptance import talking
from tests.acceptance.system import Client, System
from tests.processes import Process
from tests.servers.run import Run
from tests.support import eventually, free_port

TOKEN: Final = "s3cret-of-the-shop"
NODES: Final = {
    "ORCHESTRIX_REGISTRY__TOKEN": TOKEN,
    "ORCHESTRIX_REGISTRY__ALLOW": "127.0.0.0/8",
    "ORCHESTRIX_CLUSTER__HANDOFF_ACK": "0.5",
    "ORCHESTRIX_GIT__PROVIDER": "none",
}
NAMES: Final = ("ada", "bob")
GOOD_PATH: Final = ["APP_INITIATED", "GIT_REPO_CREATED", "REGISTERING", "COMPLETED"]


@pytest.fixture
def executor(server_run: Run, tmp_path: Path) -> Iterator[list[Process]]:
    """The executor's process, once it is started; ended with the test."""
    started: list[Process] = []
    yield started
    for one in started:
        one.kill9()
        print(one.log_tail())


@pytest.mark.req("X-1")
async def test_a_job_of_a_new_app_is_followed_though_its_owner_is_drained(
    system: System, server_run: Run, executor: list[Process]
) -> None:
    nodes = {name: system.node(port=None, **{**NODES, "ORCHESTRIX_NODE_ID": name})[1] for name in NAMES}
    system.worker(**NODES)
    await jobs_ledger.watch(system.database_url)
    for url in nodes.values():
        await system.ready(url)
    async with Client(nodes["ada"]) as client:
        app = await client.created("shop")
        await client.completed(app["id"])
        assert [row["toState"] for row in await client.history(app["id"])] == GOOD_PATH
        address = await _joined(client, system, server_run, executor, list(nodes.values()))
        job = await _begun(client, system)
        assert (job["address"], job["attempt"]) == (address, 1)
        [other] = [name for name in NAMES if not job["owner"].startswith(f"{name}-")]
        drained = await client.http.post(f"/cluster/nodes/{job['owner']}/drain")
        assert drained.status_code == 200, drained.text
        await _talks_on(client, job["id"], f"{other}-")
        (system.folder / "enough").touch()
        ledger = await eventually(lambda: _complete(system), deadline=30, message="the job ends, and its log is there")
        assert ledger is not None
        ledger.check([job["id"]])
        await _is_told(client, job["id"], address)
    assert executor[0].log().count("begins ") == 1


async def _joined(client: Client, system: System, run: Run, started: list[Process], admins: list[str]) -> str:
    """Starts an executor of the app, and waits until it is in the app's group."""
    assert (await _group(client))["addressType"] == "AUTO"
    address = f"http://127.0.0.1:{free_port()}"
    script = shutil.copy(Path(talking.__file__), system.folder)
    env = {"PATH": os.environ["PATH"], "REGISTRY_TOKEN": TOKEN}
    command = (sys.executable, str(script), "shop", ",".join(admins), "30", address)
    started.append(Process(run, "executor", command, env, system.folder, system.folder / "executor.log"))
    await started[-1].wait_for_line("ready")

    async def listed() -> bool:
        return bool((await _group(client))["addressList"] == [address])

    await eventually(listed, deadline=10, message="the group has the executor")
    return address


async def _group(client: Client) -> dict[str, Any]:
    answer = await client.http.get("/registry/groups/shop")
    assert answer.status_code == 200, answer.text
    group: dict[str, Any] = answer.json()
    return group


async def _begun(client: Client, system: System) -> dict[str, Any]:
    """A job for the app's executors, which talks."""
    payload = {"until": str(system.folder / "enough"), "pause": 0.1}
    answer = await client.http.post("/jobs", json={"group": "shop", "handler": "talk", "payload": payload})
    assert answer.status_code == 201, answer.text
    job: dict[str, Any] = answer.json()

    async def talks() -> dict[str, Any] | None:
        found = await _job(client, job["id"])
        return found if found["state"] == "RUNNING" and found["progress"] else None

    found: dict[str, Any] | None = await eventually(talks, deadline=30, message="the job talks")
    assert found is not None
    return found


async def _job(client: Client, job_id: str) -> dict[str, Any]:
    answer = await client.http.get(f"/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    job: dict[str, Any] = answer.json()
    return job


async def _talks_on(client: Client, job_id: str, owner: str) -> None:
    """A node of that name owns it, and reads what it says."""

    async def is_owned() -> dict[str, Any] | None:
        found = await _job(client, job_id)
        return found if str(found["owner"]).startswith(owner) else None

    then = await eventually(is_owned, deadline=30, message=f"{owner} owns it")
    assert then is not None

    async def goes_on() -> bool:
        return bool((await _job(client, job_id))["progress"]["lines"] > then["progress"]["lines"] + 5)

    await eventually(goes_on, deadline=30, message="its new owner reads what it says")


async def _complete(system: System) -> jobs_ledger.JobsLedger | None:
    """What the database holds, once the job is over and its queues are deleted."""
    ledger = await jobs_ledger.read(system.database_url)
    [job] = ledger.jobs.values()
    return ledger if job.state == "SUCCEEDED" and not job.channels else None


async def _is_told(client: Client, job_id: str, address: str) -> None:
    """The API tells of one attempt, at that address, and every line."""
    done = await _job(client, job_id)
    assert (done["state"], done["attempt"], done["address"]) == ("SUCCEEDED", 1, address)
    assert [(one["state"], one["address"]) for one in done["attempts"]] == [("SUCCEEDED", address)]
    said: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, str] = {"limit": "200", **({"cursor": cursor} if cursor else {})}
        page = (await client.http.get(f"/jobs/{job_id}/logs", params=params)).json()
        said += [line["message"] for line in page["items"]]
        cursor = page.get("nextCursor")
        if not cursor:
            break
    assert said == [f"line {n}" for n in range(1, done["result"]["lines"] + 1)]
