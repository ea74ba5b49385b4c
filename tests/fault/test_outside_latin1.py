"""A MariaDB whose defaults are not utf8mb4: what a client has sent in any letters comes back as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.acceptance.system import Client
from tests.fault.outside import job_in, parcels_env, submit
from tests.fault.world import World
from tests.servers.maria import MariaServer
from tests.servers.sql import run_sql

DATA = {"город": "Москва", "鍵": ["値", {"😀": "naïve — “quoted”"}], "plain": 1.5}
SETS = {
    "latin1": "CHARACTER SET latin1",
    "utf8mb3": "CHARACTER SET utf8mb3",
    "utf8mb4_general_ci": "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
}


@pytest.fixture(params=SETS)
def odd_world(request: pytest.FixtureRequest, worlds: Callable[[str], World], mariadb: MariaServer) -> Iterator[World]:
    """A world on a database of that character set, on a server whose own default is latin1."""
    name = f"odd_{request.param}"
    run_sql(
        mariadb.url(),
        "SET GLOBAL character_set_server = latin1",
        "SET GLOBAL collation_server = latin1_swedish_ci",
        f"DROP DATABASE IF EXISTS {name}",
        f"CREATE DATABASE {name} {SETS[request.param]}",
    )
    yield worlds(mariadb.url(name))
    run_sql(mariadb.url(), "SET GLOBAL character_set_server = utf8mb4", f"DROP DATABASE IF EXISTS {name}")


async def test_every_letter_comes_back(odd_world: World) -> None:
    world = odd_world
    await world.up(env=parcels_env(world.system.folder))
    async with Client(world.urls[0]) as client:
        await _an_app(client)
        await _a_saga(client)
        await _a_job(client)
    checked = world.system.processes.run("db", "check", env=world.system.env())
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def _an_app(client: Client) -> None:
    body = {"appName": "Привет-01", "createdBy": "Ада 😀", "data": DATA}
    answer = await client.http.post("/apps", json=body, headers={"Idempotency-Key": "k-1"})
    assert answer.status_code == 200, answer.text
    done = await client.completed(answer.json()["id"])
    assert done["data"].pop("executorGroup") == "Привет-01"
    assert {name: done[name] for name in body} == body
    assert (await client.history(done["id"]))[0]["actor"] == "Ада 😀"
    again = await client.http.post("/apps", json=body, headers={"Idempotency-Key": "k-1"})
    assert (again.status_code, again.json()) == (200, answer.json())
    assert await _names(client, q="Прив") == ["Привет-01"]
    assert await _names(client, createdBy="Ада 😀") == ["Привет-01"]
    assert await _names(client, q="прив") == [], "names are told apart by case"
    paused = await client.http.post("/apps/999/cancel", json={"reason": "нет"})
    assert paused.status_code == 404, paused.text


async def _names(client: Client, **query: str) -> list[str]:
    answer = await client.http.get("/apps", params=query)
    assert answer.status_code == 200, answer.text
    return [app["appName"] for app in answer.json()["items"]]


async def _a_saga(client: Client) -> None:
    body = {"key": "посылка", "createdBy": "Ада", "data": DATA}
    answer = await client.http.post("/sagas/parcel", json=body)
    assert answer.status_code == 200, answer.text
    seen: dict[str, Any] = answer.json()
    while seen["state"] != "COMPLETED":
        since = seen["version"]
        path = f"/sagas/parcel/{seen['id']}"
        seen = (await client.http.get(path, params={"wait": "20s", "sinceVersion": since})).json()
        assert seen["version"] > since, f"nothing moved within 20 s: {seen}"
    assert (seen["key"], seen["data"]) == ("посылка", DATA)


async def _a_job(client: Client) -> None:
    job_id = await submit(client, "carry", payload=DATA)
    job = await job_in(client, job_id, "SUCCEEDED", deadline=30)
    assert job["payload"] == DATA
    lines = (await client.http.get(f"/jobs/{job_id}/logs")).json()["items"]
    assert [line["message"] for line in lines] == [f"carried {DATA}"]
