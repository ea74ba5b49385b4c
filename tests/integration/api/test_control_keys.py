"""Is what a person asks done once, however often the request comes?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from orchestrix.broker.topology import saga_topology
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.control import SagaControl
from orchestrix.engine.requests import InFlight
from orchestrix.errors import OutcomeUnknown
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence import audit
from orchestrix.persistence.engine import Transaction
from tests.fakes.broker import FakeBroker

from .answers import problem
from .test_health import document, operations
from .world import CATALOG, World

KEY = {"Idempotency-Key": "k-1"}
REASON = {"reason": "the forge is slow"}
EXTEND = {**REASON, "extendBy": "30m"}
SKIP = {**REASON, "output": {"amount": 4}}


@pytest.fixture
async def client(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    """The API with what really does it behind."""
    database = world.database
    relay = OutboxRelay(database, FakeBroker(), saga_topology(CATALOG), node="n", lease=5.0, batch=10)
    real = SagaControl(database, relay, SagaChangeNotifier(database), CATALOG)
    monkeypatch.setattr(world.control, "act", real.act)
    monkeypatch.setattr(world.control, "act_once", real.act_once)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://test") as client:
        yield client


VERBS: list[tuple[list[str], str, str, dict[str, Any] | None]] = [
    (["terminate"], "POST", "/retry", REASON),
    ([], "POST", "/skip", SKIP),
    ([], "POST", "/pause", REASON),
    (["pause"], "POST", "/resume", REASON),
    ([], "POST", "/cancel", REASON),
    ([], "POST", "/terminate", REASON),
    (["pause"], "PATCH", "", {**REASON, "data": {"amount": 3}}),
    ([], "PATCH", "/deadline", EXTEND),
    ([], "DELETE", "/deadline", REASON),
    ([], "DELETE", "/deadline?reason=no+hurry", None),
]


ONE = "/dead-letters/{id}"
DEEDS: list[tuple[str, str, dict[str, Any] | None, str]] = [
    ("POST", f"{ONE}/redrive", REASON, "redrive-dead-letter"),
    ("POST", f"{ONE}/redrive", None, "redrive-dead-letter"),
    ("PATCH", ONE, {**REASON, "body": {"appId": 1}}, "edit-dead-letter"),
    ("DELETE", ONE, REASON, "drop-dead-letter"),
    ("DELETE", f"{ONE}?reason=old", None, "drop-dead-letter"),
    ("POST", "/dead-letters/redrive", {**REASON, "filter": {"queue": "evt.gitRepoCreated"}}, "redrive-dead-letter"),
    ("POST", "/redispatch", REASON, "redispatch"),
]
"""What is done to dead letters, or to many sagas, and the verb under which the audit has it."""


async def done(world: World, saga: str, id: int) -> list[str]:
    """The verbs that were done to an instance, and that the audit tells."""
    async with world.database.read() as connection:
        return [row.verb for row in await audit.listing(connection, saga, id)]


async def keys_stored(world: World) -> int:
    """How many answers are kept."""
    async with world.database.read() as connection:
        return int((await connection.execute(text("SELECT count(*) FROM idempotency_keys"))).scalar_one())


@pytest.mark.parametrize("saga", ["app", "order"])
@pytest.mark.parametrize(("before", "method", "suffix", "body"), VERBS)
async def test_a_repeated_key_gives_the_stored_answer(
    world: World,
    client: httpx.AsyncClient,
    saga: str,
    before: list[str],
    method: str,
    suffix: str,
    body: dict[str, Any] | None,
) -> None:
    instance = await world.started(saga=saga)
    path = f"/apps/{instance.id}" if saga == "app" else f"/sagas/{saga}/{instance.id}"
    for verb in before:
        assert (await client.post(f"{path}/{verb}", json=REASON)).status_code == 200
    first = await client.request(method, path + suffix, json=body, headers=KEY)
    assert first.status_code == 200, first.text
    assert "idempotent-replayed" not in first.headers
    await client.post(f"{path}/pause", json=REASON)  # the world has gone on meanwhile
    verbs = await done(world, saga, instance.id)
    again = await client.request(method, path + suffix, json=body, headers=KEY)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    for name in ("etag", "content-type", "x-correlation-id"):
        assert again.headers[name] == first.headers[name]
    assert await done(world, saga, instance.id) == verbs


async def test_without_a_key_it_is_done_twice(world: World, client: httpx.AsyncClient) -> None:
    app = await world.started()
    for _ in range(2):
        await client.patch(f"/apps/{app.id}/deadline", json=EXTEND)
    assert await done(world, "app", app.id) == ["set-deadline"] * 2


async def test_what_got_lost_in_the_commit_is_not_done_again(
    world: World, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, real = await world.started(), Transaction.commit

    async def commit(tx: Transaction) -> None:
        await real(tx)
        raise OutcomeUnknown("the connection died")

    with monkeypatch.context() as broken:
        broken.setattr(Transaction, "commit", commit)
        unclear = await client.post(f"/apps/{app.id}/skip", json=SKIP, headers=KEY)
    assert "repeat it with that one" in problem(unclear, 503, "outcome_unknown")["detail"]
    again = await client.post(f"/apps/{app.id}/skip", json=SKIP, headers=KEY)
    assert (again.json()["state"], again.headers["idempotent-replayed"]) == ("REGISTERING", "true")
    assert await done(world, "app", app.id) == ["skip"]


async def test_what_was_rolled_back_is_done_by_the_next_one(
    world: World, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await world.started()

    async def commit(tx: Transaction) -> None:
        raise OutcomeUnknown("the connection died")

    with monkeypatch.context() as broken:
        broken.setattr(Transaction, "commit", commit)
        problem(await client.post(f"/apps/{app.id}/skip", json=SKIP, headers=KEY), 503, "outcome_unknown")
    again = await client.post(f"/apps/{app.id}/skip", json=SKIP, headers=KEY)
    assert (again.json()["state"], "idempotent-replayed" in again.headers) == ("REGISTERING", False)
    assert await done(world, "app", app.id) == ["skip"]


async def test_a_verb_whose_effect_is_there_is_an_answer_too(world: World, client: httpx.AsyncClient) -> None:
    app = await world.started()
    await client.post(f"/apps/{app.id}/pause", json=REASON)
    first = await client.post(f"/apps/{app.id}/pause", json=REASON, headers=KEY)
    await client.post(f"/apps/{app.id}/resume", json=REASON)
    again = await client.post(f"/apps/{app.id}/pause", json=REASON, headers=KEY)
    assert (again.content, again.headers["idempotent-replayed"]) == (first.content, "true")
    assert await done(world, "app", app.id) == ["pause", "resume"]


async def test_a_key_with_another_body_is_422(world: World, client: httpx.AsyncClient) -> None:
    app = await world.started()
    path = f"/apps/{app.id}/deadline"
    await client.patch(path, json=EXTEND, headers=KEY)
    problem(await client.patch(path, json={**EXTEND, "extendBy": "1h"}, headers=KEY), 422, "idempotency_key_reused")
    await client.delete(f"{path}?reason=a", headers=KEY)
    problem(await client.delete(f"{path}?reason=b", headers=KEY), 422, "idempotency_key_reused")
    assert await done(world, "app", app.id) == ["set-deadline", "cancel-deadline"]


async def test_a_key_belongs_to_its_method_and_path(world: World, client: httpx.AsyncClient) -> None:
    one, two = await world.started("one"), await world.started("two")
    for path in (f"/apps/{one.id}/pause", f"/apps/{two.id}/pause", f"/apps/{one.id}/cancel", f"/apps/{one.id}/resume"):
        answer = await client.post(path, json=REASON, headers=KEY)
        assert (answer.status_code, "idempotent-replayed" in answer.headers) == (200, False)
    assert await keys_stored(world) == 4


async def test_a_key_belongs_to_whom_it_was_sent_by(world: World, client: httpx.AsyncClient) -> None:
    app = await world.started()
    protected = httpx.ASGITransport(world.built(ada="a", bob="b"))
    async with httpx.AsyncClient(transport=protected, base_url="http://test") as client:
        for token in ("a", "b"):
            headers = {**KEY, "Authorization": f"Bearer {token}"}
            answer = await client.patch(f"/apps/{app.id}/deadline", json=EXTEND, headers=headers)
            assert "idempotent-replayed" not in answer.headers
    assert await done(world, "app", app.id) == ["set-deadline"] * 2


async def test_the_stored_answer_comes_before_the_version_that_was_seen(
    world: World, client: httpx.AsyncClient
) -> None:
    app = await world.started()
    seen = {"If-Match": '"1"'}
    first = await client.patch(f"/apps/{app.id}/deadline", json=EXTEND, headers={**KEY, **seen})
    assert first.headers["etag"] == '"2"'
    again = await client.patch(f"/apps/{app.id}/deadline", json=EXTEND, headers={**KEY, **seen})
    assert (again.status_code, again.content) == (200, first.content)
    other = await client.patch(f"/apps/{app.id}/deadline", json=EXTEND, headers={"Idempotency-Key": "k-2", **seen})
    assert problem(other, 412, "version_mismatch")["current"] == 2


async def test_what_is_refused_is_not_kept(world: World, client: httpx.AsyncClient) -> None:
    app = await world.started()
    path = f"/apps/{app.id}"
    problem(await client.patch(path, json={**REASON, "data": {"a": 1}}, headers=KEY), 409, "illegal_transition")
    stale = {**KEY, "If-Match": '"7"'}
    problem(await client.post(f"{path}/pause", json=REASON, headers=stale), 412, "version_mismatch")
    problem(await client.post("/apps/4711/pause", json=REASON, headers=KEY), 404, "not_found")
    assert await keys_stored(world) == 0
    await client.post(f"{path}/pause", json=REASON)
    answer = await client.patch(path, json={**REASON, "data": {"a": 1}}, headers=KEY)
    assert (answer.json()["data"], "idempotent-replayed" in answer.headers) == ({"a": 1}, False)


async def test_a_dry_run_neither_keeps_nor_gives_an_answer(world: World, client: httpx.AsyncClient) -> None:
    app = await world.started()
    path = f"/apps/{app.id}/skip"
    assert (await client.post(f"{path}?dryRun=true", json=SKIP, headers=KEY)).json()["dryRun"] is True
    assert await keys_stored(world) == 0
    wet = await client.post(path, json=SKIP, headers=KEY)
    assert (wet.json()["version"], "idempotent-replayed" in wet.headers) == (3, False)
    again = await client.post(f"{path}?dryRun=true", json=SKIP, headers=KEY)
    assert (again.json()["dryRun"], again.json()["app"]["state"]) == (True, "COMPLETED")
    assert await done(world, "app", app.id) == ["skip"]


@pytest.mark.parametrize("query", ["", "?dryRun=true"])
async def test_a_bad_key_is_400(world: World, client: httpx.AsyncClient, query: str) -> None:
    app = await world.started()
    answer = await client.post(f"/apps/{app.id}/pause{query}", json=REASON, headers={"Idempotency-Key": "a b"})
    assert problem(answer, 400, "bad_header")["header"] == "Idempotency-Key"
    assert await done(world, "app", app.id) == []


async def test_a_key_in_flight_is_409_with_a_hint(world: World) -> None:
    world.control.repeated = InFlight()
    answer = await world.client.post("/apps/1/skip", json=REASON, headers=KEY)
    problem(answer, 409, "idempotency_in_flight")
    assert answer.headers["retry-after"] == "1"
    [key] = world.control.keys
    assert (key.key, max(len(key.scope), len(key.fingerprint))) == ("k-1", 64)


async def test_the_document_shows_the_header_on_each_of_these_calls(world: World) -> None:
    api = await document(world)
    keyed = {
        (method.upper(), path)
        for path, method, one in operations(api)
        if any(parameter["name"] == "Idempotency-Key" for parameter in one.get("parameters", []))
    }
    suffixes = {(method, suffix.partition("?")[0]) for _, method, suffix, _ in VERBS}
    ones = ("/apps/{id}", "/sagas/{name}/{id}")
    starts = {("POST", "/apps"), ("POST", "/sagas/{name}"), ("POST", "/jobs")}
    letters = {(method, path.partition("?")[0].format(id="{letter}")) for method, path, *_ in DEEDS}
    assert keyed == starts | letters | {(method, one + suffix) for one in ones for method, suffix in suffixes}
    for method, path in keyed:
        answers = api["paths"][path][method.lower()]["responses"]
        (done,) = set(answers) & {"200", "201"}
        assert "Idempotent-Replayed" in answers[done]["headers"]
        assert "idempotency_in_flight" in str(answers["409"])
        assert "idempotency_key_reused" in str(answers["422"])
        assert "outcome_unknown" in str(answers["503"])
