"""Do steps of a saga, and runs of a schedule, reach the executors of an app, and come back from them?"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from orchestrix import JobContext, Permanent, job
from tests.integration.jobs.cluster_nodes import GROUP, Cluster
from tests.support import eventually

SAGAS = "tests.integration.jobs.executor_sagas"
ENDED = ("COMPLETED", "FAILED")
begun: list[tuple[str, Any]] = []
faults: set[str] = set()


def _begins(context: JobContext, name: str) -> None:
    begun.append((name, context.shard_index))
    if name in faults:
        raise Permanent("Broken", f"{name} is broken")


@job("sagas.fill")
async def fill(context: JobContext) -> dict[str, Any]:
    _begins(context, "fill")
    return {"filled": context.payload["appName"], "key": context.effect_key}


@job("sagas.empty")
async def empty(context: JobContext) -> None:
    assert context.payload["undoesAttempt"] == 1
    begun.append(("empty", context.effect_key))


@job("sagas.check")
async def check(context: JobContext) -> dict[str, Any]:
    _begins(context, "check")
    return {"shard": context.shard_index}


JOBS = [fill, empty, check]


@pytest.fixture(autouse=True)
def fresh() -> None:
    begun.clear()
    faults.clear()


async def ended(client: httpx.AsyncClient, id: int) -> dict[str, Any]:
    """The saga once it has ended."""
    found: dict[str, Any] = {}

    async def over() -> bool:
        found.update((await client.get(f"/sagas/onboarding/{id}")).json())
        return found["state"] in ENDED

    await eventually(over, deadline=30.0, message="the saga has ended")
    return found


async def started(client: httpx.AsyncClient) -> int:
    """A saga of the app."""
    answer = await client.post("/sagas/onboarding", json={"key": GROUP, "createdBy": "ada", "data": {}})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["id"])


async def test_the_steps_of_an_apps_saga_run_on_the_executors_of_that_app(cluster: Cluster) -> None:
    node = await cluster.node(sagas=[SAGAS])
    async with httpx.AsyncClient(base_url=node.url) as client, cluster.executor(jobs=JOBS), cluster.executor(jobs=JOBS):
        id = await started(client)
        done = await ended(client, id)
        assert done["state"] == "COMPLETED", done
        assert done["data"]["filled"] == GROUP
        assert [one["shard"] for one in done["data"]["results"]] == [0, 1]
        listed = (await client.get("/jobs", params={"saga": "onboarding", "sagaId": id})).json()["items"]
        assert [(one["handler"], one["group"]) for one in listed] == [("sagas.check", GROUP), ("sagas.fill", GROUP)]
        assert listed[1]["routing"]["key"] == f"onboarding:{id}"
    assert sorted(begun, key=str) == [("check", 0), ("check", 1), ("fill", None)]


async def test_what_fails_is_undone_by_an_executor(cluster: Cluster) -> None:
    faults.add("check")
    node = await cluster.node(sagas=[SAGAS])
    async with httpx.AsyncClient(base_url=node.url) as client, cluster.executor(jobs=JOBS):
        done = await ended(client, await started(client))
    assert done["state"] == "FAILED"
    assert [name for name, _ in begun] == ["fill", "check", "empty"]
    assert begun[-1][1] == done["data"]["key"], "one key for the step and its undo"


async def test_the_runs_of_a_schedule_go_to_one_executor(cluster: Cluster) -> None:
    node = await cluster.node()
    async with httpx.AsyncClient(base_url=node.url) as client, cluster.executor(jobs=JOBS), cluster.executor(jobs=JOBS):
        template = {"group": GROUP, "handler": "sagas.check", "routing": {"strategy": "CONSISTENT_HASH"}}
        made = {"name": "often", "interval": "1s", "overlap": "queue", "job": template}
        answer = await client.post("/schedules", json=made)
        assert answer.status_code == 201, answer.text
        wanted = {"scheduleId": str(answer.json()["id"]), "state": "SUCCEEDED"}
        found: list[dict[str, Any]] = []

        async def three() -> bool:
            found[:] = (await client.get("/jobs", params=wanted)).json()["items"]
            return len(found) >= 3

        await eventually(three, deadline=30.0, message="three runs have ended")
        assert (await client.delete("/schedules/often")).status_code == 200
    assert len({one["address"] for one in found}) == 1
    assert {one["routing"]["key"] for one in found} == {wanted["scheduleId"]}
