"""Does the API use its guard, and bound what one client has open?"""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from orchestrix.api.guards.origin_guard import OriginGuard
from tests.support import eventually

from .answers import BODY, problem
from .world import Exchange, World

SECRETS = {"ada": "the-secret-of-ada", "bob": "the-secret-of-bob"}


def closed(world: World, streams: int = 1000) -> FastAPI:
    """An API that asks for the secrets."""
    return world.built(streams=streams, ada=SECRETS["ada"], bob=SECRETS["bob"])


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRETS[name]}"}


@pytest.mark.parametrize("path", ["/apps", "/docs", "/openapi.json", "/health", "/nowhere", "/apps/1/events"])
async def test_another_host_is_421_everywhere(world: World, path: str) -> None:
    app = world.built(OriginGuard(check_host=True))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://evil.example") as client:
        told = problem(await client.get(path), 421, "misdirected")
        assert "ORCHESTRIX_HTTP__ALLOWED_HOSTS" in told["detail"]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        assert (await client.get(path)).status_code in (200, 404)


@pytest.mark.parametrize("path", ["/apps", "/cluster/nodes/n/drain", "/redispatch", "/apps/1/retry", "/nowhere"])
async def test_another_origin_is_403_with_and_without_tokens(world: World, path: str) -> None:
    for app in (world.app, closed(world)):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            answer = await client.post(path, headers={**bearer("ada"), "Origin": "http://evil.example"})
            problem(answer, 403, "foreign_origin")
    assert not world.control.actions


async def test_a_strangers_body_is_not_read(world: World) -> None:
    headers = {"Host": "localhost", "Origin": "null", "Content-Type": "application/json"}
    async with Exchange(world.app, "/apps", "POST", headers) as exchange:
        await exchange.done()
    assert (exchange.status, exchange.read) == (403, 0)


async def test_guesses_are_limited(world: World) -> None:
    app = closed(world)
    transport = httpx.ASGITransport(app, client=("10.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        found = [await client.get("/apps", headers={"Authorization": f"Bearer wrong-{n}"}) for n in range(30)]
        assert {one.status_code for one in found[:20]} == {401}
        problem(found[-1], 429, "too_many_requests")
        assert int(found[-1].headers["retry-after"]) >= 1
        assert (await client.get("/health/live")).status_code == 200
    other = httpx.ASGITransport(app, client=("10.0.0.2", 1))
    async with httpx.AsyncClient(transport=other, base_url="http://test") as client:
        assert (await client.get("/apps", headers=bearer("ada"))).status_code == 200


async def test_streams_and_long_polls_of_one_token_are_bounded(world: World) -> None:
    app = closed(world, streams=3)
    instance = await world.started()
    path = f"/apps/{instance.id}"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        polls = [
            asyncio.create_task(client.get(f"{path}?wait=30s&sinceVersion=1", headers=bearer("ada"))) for _ in range(2)
        ]
        await eventually(lambda: len(world.watch.waiting) == 2, deadline=10)
        async with Exchange(app, f"{path}/events", headers=bearer("ada")) as stream:
            await eventually(lambda: stream.status == 200 and len(world.watch.waiting) == 3, deadline=10)
            for more in (f"{path}/events", f"{path}?wait=1s&sinceVersion=1", f"{path}/history?wait=1s&sinceVersion=1"):
                answer = await client.get(more, headers=bearer("ada"))
                problem(answer, 429, "too_many_requests")
                assert answer.headers["retry-after"] == "5"
            assert (await client.get(path, headers=bearer("ada"))).status_code == 200
            assert (await client.get(f"{path}?wait=1ms&sinceVersion=1", headers=bearer("bob"))).status_code == 200
        assert (await client.get(f"{path}?wait=1ms&sinceVersion=1", headers=bearer("ada"))).status_code == 200
        for one in polls:
            one.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        for _ in range(9):  # nothing that has ended counts
            assert (await client.get(f"{path}?wait=1ms&sinceVersion=1", headers=bearer("ada"))).status_code == 200


async def test_where_there_are_no_tokens_the_address_counts(world: World) -> None:
    app = world.built(streams=1)
    instance = await world.started()
    async with Exchange(app, f"/apps/{instance.id}/events") as first:
        await eventually(lambda: first.status == 200 and len(world.watch.waiting) == 1, deadline=10)
        async with Exchange(app, f"/apps/{instance.id}/events") as second:
            await second.done()
        assert second.status == 429
        other = httpx.ASGITransport(app, client=("10.0.0.2", 1))
        async with httpx.AsyncClient(transport=other, base_url="http://test") as client:
            answer = await client.get(f"/apps/{instance.id}?wait=1ms&sinceVersion=1")
            assert answer.status_code == 200


async def test_it_is_said_what_each_call_may_answer(world: World) -> None:
    paths = world.app.openapi()["paths"]
    assert {"403", "421", "429"} <= paths["/apps"]["post"]["responses"].keys()
    assert "403" not in paths["/apps"]["get"]["responses"]
    assert "403" in paths["/apps/{id}/events"]["get"]["responses"]
    assert "429" not in paths["/health"]["get"]["responses"]
    assert (await world.client.post("/apps", json=BODY, headers={"Origin": "http://test"})).status_code == 200
