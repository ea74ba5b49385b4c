"""Does the API say what jobs wait for, each and in lists?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrix import clock
from orchestrix.api.jobs.models import JobBody, JobPage
from orchestrix.broker.topology import dispatch_queue
from orchestrix.domain import jobs as rules
from orchestrix.domain.leases import Fence
from orchestrix.engine.broker_status import BrokerStatus
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from orchestrix.persistence.engine import Connection, Database
from orchestrix.persistence.registry import groups
from tests.conformance.store.plans import watched
from tests.integration.jobs.rows import joined, leading
from tests.support import eventually

from .test_jobs import changed, running, said, submitted
from .world import World

ADDRESS = "http://10.0.0.7:9999"


async def test_a_job_that_nobody_begins_says_what_helps(world: World) -> None:
    await leading(world.database, Fence(1, "node-1"))
    id = (await submitted(world))["id"]
    at = world.database.now() - timedelta(seconds=10)
    job = await changed(world, id, lambda job: rules.dispatched(job, clock.uuid7(), at))
    etag = f'"{job.version}"'
    answer = await world.client.get(f"/jobs/{id}", headers={"If-None-Match": etag})
    JobBody.model_validate_json(answer.content)
    command = "`orchestrix worker --job-queue reports`"
    assert answer.json()["waitsFor"] == f"no worker serves queue reports: start one with {command}"
    beat = WorkerHeartbeatRow("w-1", ["other", "reports"], 3)
    await world.database.run(lambda tx: nodes.record_worker_heartbeats(tx, [beat]))
    answer = await world.client.get(f"/jobs/{id}", headers={"If-None-Match": etag})
    assert answer.json()["waitsFor"].startswith("its owner node is gone")
    await joined(world.database, "node-1")
    job = await changed(world, id, lambda job: rules.taken(job, "node-1", world.database.now()))
    answer = await world.client.get(f"/jobs/{id}", headers={"If-None-Match": etag})
    assert answer.json()["waitsFor"].startswith("no worker has started it and its dispatch is in no queue")
    world.broker.put(dispatch_queue("reports"), b"{}")

    async def busy() -> bool:
        again = await world.client.get(f"/jobs/{id}", headers={"If-None-Match": etag})
        return str(again.json()["waitsFor"]).startswith("queue reports: its only worker (last heartbeat")

    await eventually(busy, deadline=5, message="the broker is asked again after a second")
    job = await said(world, job, "RUNNING", 1)
    answer = await world.client.get(f"/jobs/{id}", headers={"If-None-Match": etag})
    assert answer.json()["waitsFor"] is None
    answer = await world.client.get(f"/jobs/{id}", headers={"If-None-Match": f'"{job.version}"'})
    assert answer.status_code == 304


async def test_a_list_says_what_its_jobs_wait_for_and_asks_once_for_all(world: World) -> None:
    await leading(world.database, Fence(1, "node-1"))
    at = world.database.now() - timedelta(seconds=10)
    asked = []
    for count in (1, 3):
        while len((await world.client.get("/jobs")).json()["items"]) < count:
            id = (await submitted(world))["id"]
            await changed(world, id, lambda job: rules.dispatched(job, clock.uuid7(), at))
        with watched(world.database) as sent:
            answer = await world.client.get("/jobs")
        JobPage.model_validate_json(answer.content)
        said = [item["waitsFor"] for item in answer.json()["items"]]
        assert all(one.startswith("no worker serves queue reports") for one in said)
        asked.append((len(said), len(sent)))
    assert [count for count, _ in asked] == [1, 3]
    assert asked[0][1] == asked[1][1] <= 4
    await submitted(world)
    assert [item["waitsFor"] for item in (await world.client.get("/jobs?state=PENDING")).json()["items"]] == [None]


async def test_lists_say_of_jobs_for_groups_what_they_wait_for(world: World) -> None:
    database = world.database
    await leading(database, Fence(1, "node-1"))
    await joined(database, "node-1")
    at, asked = database.now() - timedelta(seconds=10), []
    for apps in (["shop"], ["billing", "reports"]):
        for app in apps:
            await database.run(lambda tx, app=app: groups.set_addresses(tx, app, [ADDRESS], tx.now()))  # type: ignore[misc]
            job = await submitted(world, queue=None, group=app)
            await changed(world, job["id"], lambda job: rules.dispatched(job, clock.uuid7(), at))
            await changed(world, job["id"], lambda job: rules.taken(job, "node-1", database.now()))
        with watched(database) as sent:
            answer = await world.client.get("/jobs")
        JobPage.model_validate_json(answer.content)
        said = [item["waitsFor"] for item in answer.json()["items"]]
        assert all("has been called for 1" in one for one in said), said
        asked.append((len(said), len(sent)))
    assert [count for count, _ in asked] == [1, 3]
    assert asked[0][1] == asked[1][1] <= 4
    await database.run(lambda tx: groups.set_addresses(tx, "shop", [], tx.now()))
    await database.run(lambda tx: groups.delete_group(tx, "billing"))
    said = [item["waitsFor"] for item in (await world.client.get("/jobs")).json()["items"]]
    assert [one.partition(":")[0] for one in said] == [
        "no executor of group reports has been called for 10 s",
        "the executor group billing does not exist",
        "group shop has no executor that takes jobs",
    ]


async def test_an_executor_is_not_silent_as_soon_as_a_worker(world: World) -> None:
    database = world.database
    await leading(database, Fence(1, "node-1"))
    await joined(database, "node-1")
    await database.run(lambda tx: groups.set_addresses(tx, "shop", [ADDRESS], tx.now()))
    job = await running(world, queue=None, group="shop")
    told = []
    for seconds in (40, 50):
        heard = database.now() - timedelta(seconds=seconds)
        await changed(
            world,
            job.id,
            lambda job, heard=heard: replace(
                job, version=job.version + 1, address=ADDRESS, worker_beat_at=heard, owner="node-1", ownership="OWNED"
            ),
        )
        told.append((await world.client.get(f"/jobs/{job.id}")).json()["waitsFor"])
        why = (await world.client.get(f"/jobs/{job.id}/why")).json()
        assert why["blocker"] == ("in_progress" if told[-1] is None else "silent_executor")
        assert ADDRESS in why["sentence"]
    assert told[0] is None, "a worker would be silent by now"
    assert told[1].startswith(f"the executor at {ADDRESS} has sent nothing for 50 s, since ")


async def test_no_connection_to_the_database_is_held_while_the_broker_is_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    open = 0
    asked: list[tuple[set[str], int]] = []
    read, empty = Database.read, BrokerStatus.empty

    @asynccontextmanager
    async def counted(self: Database) -> AsyncIterator[Connection]:
        nonlocal open
        async with read(self) as connection:
            open += 1
            try:
                yield connection
            finally:
                open -= 1

    async def noted(self: BrokerStatus, queues: Iterable[str], *, max_age_s: float = 0.0) -> set[str]:
        wanted = set(queues)
        asked.append((wanted, open))
        return await empty(self, wanted, max_age_s=max_age_s)

    id = (await submitted(world))["id"]
    at = world.database.now() - timedelta(seconds=10)
    await changed(world, id, lambda job: rules.dispatched(job, clock.uuid7(), at))
    monkeypatch.setattr(Database, "read", counted)
    monkeypatch.setattr(BrokerStatus, "empty", noted)
    for path in ("/jobs", f"/jobs/{id}"):
        assert (await world.client.get(path)).status_code == 200
    assert asked == [({dispatch_queue("reports")}, 0)] * 2


async def test_who_takes_a_job_over_does_not_hide_that_its_worker_is_silent(world: World) -> None:
    await leading(world.database, Fence(1, "node-1"))
    await joined(world.database, "node-2")
    job = await running(world, retries=1)
    long_ago = world.database.now() - timedelta(seconds=50)
    job = await changed(
        world, job.id, lambda job: replace(job, version=job.version + 1, worker_beat_at=long_ago, owner="node-1")
    )
    job = await changed(world, job.id, lambda job: rules.taken(job, "node-2", world.database.now()))
    assert job.taken_at is not None
    lost = f"{job.taken_at + timedelta(seconds=30):%H:%M:%S} UTC"
    body = (await world.client.get(f"/jobs/{job.id}")).json()
    assert body["waitsFor"].startswith(f"no heartbeat from its worker w-1 for 50 s: at {lost} this attempt counts as")
    assert body["workerBeatAt"].startswith(f"{long_ago:%Y-%m-%dT%H:%M:%S}")


async def test_a_leader_that_has_only_just_begun_is_not_called_late(world: World) -> None:
    id = (await submitted(world))["id"]
    at = world.database.now() - timedelta(seconds=10)
    await changed(world, id, lambda job: replace(job, version=job.version + 1, wake_at=at))
    said = []
    for seconds in (None, 2.0, 60.0):
        if seconds is not None:
            await leading(world.database, Fence(1, "node-1"), seconds)
        said.append((await world.client.get(f"/jobs/{id}")).json()["waitsFor"])
    assert [one.partition(",")[0] for one in said] == [
        "no leader elected (jobs are not dispatched): start a node with `orchestrix serve`",
        "the leader started 2 s ago and will dispatch it soon",
        "not dispatched yet: a queue gets only a part of jobs.max_live before workers start its jobs",
    ]
