"""Who may ask, and under which name does it stand in the history?"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

import httpx
import pytest

from orchestrix.api.guards.auth import GUESSES
from orchestrix.bootstrap.context import API, NodeContext, NodeSignals
from orchestrix.bootstrap.registry import assemble_registry
from orchestrix.config.registry import RegistrySettings
from orchestrix.config.settings import Settings

from .answers import BODY, problem
from .world import CATALOG, Exchange, World

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
    ("GET", "/registry/groups"),
    ("PUT", "/registry/groups/shop"),
    ("DELETE", "/registry/groups/shop"),
    ("POST", "/registry/route?app=shop"),
    ("POST", "/registry/drain?app=shop"),
    ("GET", "/shards"),
    ("GET", "/shards/orders"),
    ("POST", "/api/registry"),
    ("POST", "/api/registryRemove"),
    ("GET", "/openapi.json"),
    ("GET", "/asyncapi.json"),
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


# Executors

REGISTRY = ("/api/registry", "/api/registryRemove")


def executors(
    world: World, token: str | None, *, client: str = "127.0.0.1", ada: str = ""
) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """An API whose registry has that setting, for a client at that address."""
    settings = Settings(registry=RegistrySettings.model_validate({"token": token, "allow": "127.0.0.0/8,10.0.0.0/8"}))
    node = NodeContext("n", settings, frozenset({API}), world.database, world.broker, CATALOG, NodeSignals())
    world.registry = replace(world.registry, tokens=assemble_registry(node).tokens)
    app = world.built(ada=ada) if ada else world.built()
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(client, 5000)), base_url="http://test")


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def executor(app: str = "shop", address: str = "http://10.0.0.1:9999") -> dict[str, str]:
    return {"registryGroup": "EXECUTOR", "registryKey": app, "registryValue": address}


async def test_the_token_of_executors_opens_registrations_alone(world: World) -> None:
    async with executors(world, "registry-1", client="192.0.2.1", ada="s3cret") as client:
        client.headers.update(bearer("registry-1"))
        for path in REGISTRY:
            for app in ("shop", "billing"):
                assert (await client.post(path, json=executor(app))).status_code == 200
        others = [(method, path) for method, path in PROTECTED if path not in REGISTRY]
        for method, path in others[: GUESSES - 1]:
            problem(await client.request(method, path), 401, "unauthorized")
        assert (await client.post(REGISTRY[0], json=executor())).status_code == 200


async def test_an_address_has_no_more_guesses_where_executors_register(world: World) -> None:
    async with executors(world, "registry-1", client="192.0.2.1", ada="s3cret") as client:
        for place in range(GUESSES):
            answer = await client.post(REGISTRY[place % 2], json=executor(), headers=bearer(f"guess-{place}"))
            problem(answer, 401, "unauthorized")
        problem(await client.get("/apps", headers=ADA), 429, "too_many_requests")
        problem(await client.post(REGISTRY[0], json=executor(), headers=ADA), 429, "too_many_requests")


@pytest.mark.parametrize("token", [None, "registry-1", "shop:registry-1"])
async def test_a_token_of_the_api_opens_registrations_too(world: World, token: str | None) -> None:
    async with executors(world, token, client="192.0.2.1", ada="s3cret") as client:
        for path in REGISTRY:
            for app in ("shop", "billing"):
                assert (await client.post(path, json=executor(app), headers=ADA)).status_code == 200


async def test_the_token_of_one_app_is_403_for_another(world: World) -> None:
    async with executors(world, "shop:registry-1,billing:registry-2", client="192.0.2.1") as client:
        for app, secret in (("shop", "registry-1"), ("billing", "registry-2")):
            for path in REGISTRY:
                assert (await client.post(path, json=executor(app), headers=bearer(secret))).status_code == 200
                for other in {"shop", "billing", "shop2", "Shop", "sho"} - {app}:
                    answer = await client.post(path, json=executor(other), headers=bearer(secret))
                    assert repr(app) in problem(answer, 403, "forbidden")["detail"]
        shown = (await client.get("/registry/groups")).json()["items"]
        assert [one["appName"] for one in shown] == ["billing", "shop"]


@pytest.mark.parametrize("headers", [{}, bearer("registry-2"), bearer("shop:registry-1"), bearer("")])
async def test_where_executors_have_a_token_none_or_a_wrong_one_is_401(world: World, headers: dict[str, str]) -> None:
    for token in ("registry-1", "shop:registry-1"):
        async with executors(world, token) as client:
            for path in REGISTRY:
                answer = await client.post(path, json=executor(address="http://127.0.0.1:9999"), headers=headers)
                problem(answer, 401, "unauthorized")
            assert (await client.get("/registry/groups")).json()["items"] == []


@pytest.mark.parametrize(
    ("client", "address", "status"),
    [
        ("127.0.0.1", "http://127.0.0.1:9999", 200),
        ("127.8.0.1", "http://127.1.0.1:9999", 200),
        ("127.0.0.1", "http://LOCALHOST:9999", 200),
        ("::1", "http://127.0.0.1:9999", 200),
        ("::ffff:127.0.0.1", "http://127.0.0.1:9999", 200),
        ("127.0.0.1", "http://10.0.0.1:9999", 403),
        ("192.0.2.1", "http://127.0.0.1:9999", 403),
        ("::ffff:192.0.2.1", "http://127.0.0.1:9999", 403),
        ("127.0.0.1", "http://localhost.example:9999", 403),
        ("", "http://127.0.0.1:9999", 403),
    ],
)
async def test_without_tokens_registrations_are_from_this_machine_and_of_it(
    world: World, client: str, address: str, status: int
) -> None:
    async with executors(world, None, client=client) as api:
        for path in REGISTRY:
            answer = await api.post(path, json=executor(address=address))
            assert answer.status_code == status, answer.text
            if status == 403:
                assert "ORCHESTRIX_REGISTRY__TOKEN" in problem(answer, 403, "forbidden")["detail"]


async def test_with_tokens_of_the_api_alone_this_machine_needs_one_too(world: World) -> None:
    async with executors(world, None, ada="s3cret") as client:
        for path in REGISTRY:
            problem(await client.post(path, json=executor(address="http://127.0.0.1:9999")), 401, "unauthorized")


async def test_the_secret_of_executors_is_in_no_answer_and_their_name_in_no_audit(world: World) -> None:
    async with executors(world, "shop:registry-1") as client:
        answer = await client.post(REGISTRY[0], json=executor("billing"), headers=bearer("registry-1"))
        assert "registry-1" not in answer.text
        assert (await client.post(REGISTRY[0], json=executor(), headers=bearer("registry-1"))).status_code == 200
        assert (await client.get("/audit")).json()["items"] == []
