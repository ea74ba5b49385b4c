"""Who may ask, and under which name does it stand in the history?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from .answers import BODY, problem
from .world import Exchange, World

ADA = {"Authorization": "Bearer s3cret"}
BOB = {"Authorization": "Bearer other:s3cret="}
REASON = {"reason": "by hand"}


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """An API that knows Ada and Bob."""
    app = world.built(ada="s3cret", bob="other:s3cret=")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client


PROTECTED = [
    ("GET", "/apps"),
    ("POST", "/apps"),
    ("GET", "/apps/1"),
    ("GET", "/apps/1/history"),
    ("GET", "/apps/1/events"),
    ("GET", "/apps/1/why"),
    ("POST", "/apps/1/retry"),
    ("PATCH", "/apps/1"),
    ("DELETE", "/apps/1/deadline"),
    ("GET", "/sagas"),
    ("GET", "/sagas/order"),
    ("POST", "/sagas/order/1/cancel"),
    ("GET", "/deadlines"),
    ("POST", "/redispatch"),
    ("GET", "/dead-letters"),
    ("DELETE", "/dead-letters/00000000-0000-8000-8000-000000000000"),
    ("POST", "/dead-letters/redrive"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/docs/docs.js"),
    ("GET", "/docs/docs.css"),
]


@pytest.mark.parametrize(("method", "path"), PROTECTED)
async def test_who_shows_no_token_gets_401(client: httpx.AsyncClient, world: World, method: str, path: str) -> None:
    answer = await client.request(method, path)
    problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not world.control.actions


@pytest.mark.parametrize(
    "value", ["Bearer wrong", "Bearer", "Bearer ", "Basic s3cret", "s3cret", "Bearer s3cre", "Bearer s3cret x", "", "é"]
)
async def test_a_wrong_token_is_401(client: httpx.AsyncClient, value: str) -> None:
    answer = await client.get("/apps", headers=[(b"Authorization", value.encode("latin-1"))])
    problem(answer, 401, "unauthorized")
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert "s3cret" not in answer.text


async def test_two_tokens_are_none(client: httpx.AsyncClient) -> None:
    twice = [("Authorization", "Bearer s3cret"), ("Authorization", "Bearer s3cret")]
    problem(await client.get("/apps", headers=twice), 401, "unauthorized")


@pytest.mark.parametrize("value", ["Bearer s3cret", "bearer s3cret", "BEARER  s3cret "])
async def test_a_right_token_is_let_in(client: httpx.AsyncClient, value: str) -> None:
    assert (await client.get("/apps", headers={"Authorization": value})).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/health/startup"])
async def test_probes_need_none(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 200


async def test_a_stranger_learns_nothing_about_what_is_there(client: httpx.AsyncClient, world: World) -> None:
    await world.started()
    for path in ("/apps/1", "/apps/2", "/apps?colour=blue", "/sagas/nothing"):
        problem(await client.get(path), 401, "unauthorized")


async def test_a_strangers_body_is_not_read(world: World) -> None:
    async with Exchange(world.built(ada="s3cret"), "/apps", "POST", {"Content-Type": "application/json"}) as exchange:
        await exchange.done()
    assert (exchange.status, exchange.read) == (401, 0)
    assert json.loads(exchange.body)["code"] == "unauthorized"


@pytest.mark.parametrize(("headers", "name"), [(ADA, "ada"), (BOB, "bob")])
async def test_the_tokens_name_is_the_actor(
    client: httpx.AsyncClient, world: World, headers: dict[str, str], name: str
) -> None:
    world.control.answer = RuntimeError("not needed here")
    await client.post("/apps/1/retry", json=REASON, headers=headers)
    assert [action.ask.actor for action in world.control.actions] == [name]


async def test_without_tokens_everybody_is_anonymous(world: World) -> None:
    world.control.answer = RuntimeError("not needed here")
    await world.client.post("/apps/1/retry", json=REASON, headers=ADA)
    assert [action.ask.actor for action in world.control.actions] == ["anonymous"]


async def test_a_start_is_in_history_under_the_name_of_the_token(client: httpx.AsyncClient) -> None:
    created = await client.post("/apps", json={**BODY, "createdBy": "carl"}, headers=ADA)
    history = await client.get(f"/apps/{created.json()['id']}/history", headers=BOB)
    assert history.json()["items"][0]["actor"] == "ada"
    assert created.json()["createdBy"] == "carl"


async def test_nobody_gets_the_answer_to_anothers_key(client: httpx.AsyncClient, world: World) -> None:
    for headers in (ADA, BOB):
        await client.post("/apps", json=BODY, headers={**headers, "Idempotency-Key": "k"})
    keys = [request.idempotency for request in world.starter.requests]
    assert len({key.scope for key in keys if key}) == len(keys) == 2
