"""Can dead letters be listed, corrected, sent again and forgotten over HTTP, and are they on their saga's timeline?"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import NAMESPACE_URL, uuid5

import httpx
import pytest

from orchestrix.api.dead_letters.models import DeadLetterBody, DeadLetterSummary, RedrivenBody
from orchestrix.api.instances.models import MessagePage
from orchestrix.persistence import audit, dead_letters, outbox
from orchestrix.persistence.dead_letters import DeadLetter, kept

from .answers import JSON, problem
from .world import World

DIED = datetime(2026, 1, 31, 12, tzinfo=UTC)
REASON = {"reason": "the worker is mended"}
CREATED = "evt.gitRepoCreated"
UNKNOWN = "00000000-0000-8000-8000-000000000000"


def letter(n: int, content: bytes = b"{not json", **more: Any) -> DeadLetter:
    """A letter that died `n` seconds after noon."""
    body, size, digest = kept(content)
    died = DIED + timedelta(seconds=n)
    fields: dict[str, Any] = {
        "id": str(uuid5(NAMESPACE_URL, str(n))),
        "queue": CREATED,
        "exchange": "orchestrator.events",
        "routing_key": CREATED,
        "type": CREATED,
        "saga": "app",
        "reason": "not-json: Expecting value",
        "error": "Expecting value",
        "deliveries": 1,
        "headers": {"x-reason": "not-json: Expecting value"},
        "died_at": died,
        "recorded_at": died,
    }
    return DeadLetter(body=body, body_size=size, body_sha256=digest, **{**fields, **more})


async def put(world: World, *letters: DeadLetter) -> None:
    async with world.database.begin() as tx:
        await dead_letters.record(tx, letters)


async def owed(world: World) -> int:
    async with world.database.read() as connection:
        return await outbox.pending(connection)


async def ids(world: World, query: str = "") -> list[str]:
    """What the list shows, page by page."""
    found: list[str] = []
    path = f"/dead-letters?{query}"
    while path:
        answer = await world.client.get(path)
        assert answer.status_code == 200, answer.text
        for item in answer.json()["items"]:
            DeadLetterSummary.model_validate(item)
            found.append(item["id"])
        path = f"/dead-letters?{urlsplit(answer.links['next']['url']).query}" if "next" in answer.links else ""
        assert (answer.json()["nextCursor"] is None) == (not path)
    return found


async def test_the_last_to_die_comes_first_on_every_page(world: World) -> None:
    letters = [letter(n) for n in range(5)]
    twins = [letter(n, died_at=DIED) for n in range(5, 8)]
    await put(world, *letters, *twins)
    expected = sorted([*letters, *twins], key=lambda one: (one.died_at, one.id), reverse=True)
    assert await ids(world, "limit=2") == [one.id for one in expected]


async def test_filters(world: World) -> None:
    await put(
        world,
        letter(1),
        letter(2, queue="cmd.createGitRepo"),
        letter(3, saga="order", instance_id=7),
        letter(4, instance_id=7),
        letter(5, reason="too-deep"),
    )
    async with world.database.begin() as tx:
        await dead_letters.redriven(tx, [letter(1).id], DIED)
    for query, wanted in {
        "": [5, 4, 3, 2],
        "redriven=true": [5, 4, 3, 2, 1],
        "redriven=false": [5, 4, 3, 2],
        f"queue={CREATED}": [5, 4, 3],
        "saga=order": [3],
        "appId=7": [4],
        "saga=order&appId=7": [3],
        "reason=not": [4, 3, 2],
        "reason=too-deep&saga=app": [5],
    }.items():
        assert await ids(world, query) == [letter(n).id for n in wanted], query


@pytest.mark.parametrize("query", ["cursor=x", "redriven=yes", "appId=0", "limit=201", "colour=red", "reason="])
async def test_wrong_parameters_are_400(world: World, query: str) -> None:
    problem(await world.client.get(f"/dead-letters?{query}"), 400, "bad_parameter")


async def test_a_cursor_of_another_list_is_400(world: World) -> None:
    for name in ("a", "b"):
        await world.started(name)
    other = (await world.client.get("/apps?limit=1")).json()["nextCursor"]
    problem(await world.client.get(f"/dead-letters?cursor={other}"), 400, "bad_parameter")


@pytest.mark.parametrize(
    ("content", "encoding", "shown"),
    [
        (b'{"appId":1}', "json", {"appId": 1}),
        (b"[1]", "text", "[1]"),
        (b'{"a":1,"a":2}', "text", '{"a":1,"a":2}'),
        ("é".encode(), "text", "é"),
        (b"\0", "base64", b64encode(b"\0").decode()),
        (b"\xff{", "base64", b64encode(b"\xff{").decode()),
        (b"x" * 70_000, None, None),
    ],
)
async def test_one_is_shown_with_its_body(world: World, content: bytes, encoding: str | None, shown: Any) -> None:
    one = letter(1, content, message_id="m-1", instance_id=3, deliveries=0)
    await put(world, one)
    found = (await world.client.get(f"/dead-letters/{one.id.upper()}")).json()
    DeadLetterBody.model_validate(found)
    assert (found["bodyEncoding"], found["body"], found["bodySize"]) == (encoding, shown, len(content))
    assert (found["id"], found["messageId"], found["appId"], found["deliveries"]) == (one.id, "m-1", 3, None)
    assert (found["diedAt"], found["redrivenAt"]) == ("2026-01-31T12:00:01.000000Z", None)
    assert found["headers"] == one.headers


@pytest.mark.parametrize("path", [UNKNOWN, "1", "redrive", "x" * 99])
async def test_one_that_is_not_there_is_404(world: World, path: str) -> None:
    problem(await world.client.get(f"/dead-letters/{path}"), 404, "not_found")
    for method, suffix in (("POST", "/redrive"), ("PATCH", ""), ("DELETE", "")):
        body = {**REASON, **({"body": {}} if method == "PATCH" else {})}
        answer = await world.client.request(method, f"/dead-letters/{path}{suffix}", json=body)
        problem(answer, 404, "not_found")


@pytest.mark.parametrize(("body", "content"), [({"appId": 1}, b'{"appId":1}'), ("{not yet", b"{not yet")])
async def test_a_body_is_changed(world: World, body: Any, content: bytes) -> None:
    await put(world, letter(1))
    path = f"/dead-letters/{letter(1).id}"
    answer = await world.client.patch(path, json={"body": body, **REASON})
    assert (answer.status_code, answer.json()["body"]) == (200, body)
    assert answer.json()["editedAt"]
    async with world.database.read() as connection:
        found = await dead_letters.get(connection, letter(1).id)
    assert found is not None
    assert found.body == content
    assert (await world.client.patch(path, json={"body": body, **REASON})).json() == answer.json()


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({"body": {}}, ["/reason"]),
        ({"body": "x" * 66_000, **REASON}, ["/body"]),
        ({"body": {}, "reason": ""}, ["/reason"]),
        ({"body": {}, "more": 1, **REASON}, ["/more"]),
        (REASON, ["/body"]),
    ],
)
async def test_a_change_that_does_not_fit_is_422(world: World, body: dict[str, Any], pointers: list[str]) -> None:
    await put(world, letter(1))
    found = problem(await world.client.patch(f"/dead-letters/{letter(1).id}", json=body), 422, "invalid_body")
    assert [error["pointer"] for error in found["errors"]] == pointers


async def test_one_is_sent_again_once(world: World) -> None:
    await put(world, letter(1))
    path = f"/dead-letters/{letter(1).id}/redrive"
    first = await world.client.post(path, json=REASON)
    assert (first.status_code, first.json()["redriven"]) == (200, 1)
    assert first.json()["redrivenAt"]
    again = await world.client.post(path, json=REASON)
    assert (again.status_code, again.json()) == (200, first.json())
    assert (await owed(world), len(world.pokes)) == (1, 1)
    assert await ids(world) == []
    found = problem(
        await world.client.patch(f"/dead-letters/{letter(1).id}", json={"body": {}, **REASON}),
        409,
        "illegal_transition",
    )
    assert found["allowed"] == ["drop"]


async def test_one_is_sent_again_without_a_word(world: World) -> None:
    await put(world, letter(1))
    answer = await world.client.post(f"/dead-letters/{letter(1).id}/redrive")
    assert (answer.status_code, answer.json()["redriven"]) == (200, 1)


async def test_one_that_cannot_be_sent_says_what_helps(world: World) -> None:
    await put(world, letter(1, b"x" * 70_000), letter(2, queue="evt.nobody"))
    for n, says in ((1, "edit it"), (2, "ORCHESTRIX_SAGAS")):
        answer = await world.client.post(f"/dead-letters/{letter(n).id}/redrive", json=REASON)
        found = problem(answer, 409, "illegal_transition")
        assert (says in found["detail"], found["allowed"]) == (True, ["edit", "drop"])
    assert await owed(world) == 0


@pytest.mark.parametrize("dry", [({"dryRun": True}, ""), ({}, "?dryRun=true")])
async def test_a_dry_run_only_counts(world: World, dry: tuple[dict[str, Any], str]) -> None:
    await put(world, letter(1), letter(2))
    answer = await world.client.post(f"/dead-letters/redrive{dry[1]}", json={"filter": {}, **REASON, **dry[0]})
    assert answer.json() == {"dryRun": True, "matched": 2, "redriven": 0, "refused": []}
    assert await owed(world) == 0


async def test_those_that_fit_are_sent_again(world: World) -> None:
    await put(
        world, letter(1), letter(2, b"x" * 70_000), letter(3, queue="cmd.createGitRepo"), letter(4, instance_id=9)
    )
    wanted = {"queue": CREATED, "saga": "app", "reason": "not-json"}
    answer = await world.client.post("/dead-letters/redrive", json={"filter": wanted, **REASON})
    RedrivenBody.model_validate_json(answer.content)
    found = answer.json()
    assert (found["matched"], found["redriven"], [one["id"] for one in found["refused"]]) == (3, 2, [letter(2).id])
    assert await owed(world) == 2
    only = await world.client.post("/dead-letters/redrive", json={"filter": {"appId": 9}, **REASON})
    assert only.json()["matched"] == 0
    problem(await world.client.post("/dead-letters/redrive", json=REASON), 422, "invalid_body")
    wrong = {"filter": {"colour": "red"}, **REASON}
    problem(await world.client.post("/dead-letters/redrive", json=wrong), 422, "invalid_body")


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, "no reason was given"),
        ({"params": {"reason": "rubbish"}}, "rubbish"),
        ({"content": json.dumps({"reason": "rubbish"}), "headers": JSON}, "rubbish"),
    ],
)
async def test_one_is_forgotten(world: World, request_: dict[str, Any], reason: str) -> None:
    await put(world, letter(1, instance_id=5))
    answer = await world.client.request("DELETE", f"/dead-letters/{letter(1).id}", **request_)
    assert (answer.status_code, answer.json()["id"]) == (200, letter(1).id)
    async with world.database.read() as connection:
        (row,) = await audit.listing(connection, "app", 5)
    assert (row.actor, row.verb, row.reason) == ("anonymous", "drop-dead-letter", reason)
    problem(await world.client.delete(f"/dead-letters/{letter(1).id}"), 404, "not_found")


async def test_the_token_is_the_actor(world: World) -> None:
    await put(world, letter(1, instance_id=5))
    transport = httpx.ASGITransport(world.built(ada="s3cret"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        path = f"/dead-letters/{letter(1).id}/redrive"
        problem(await client.post(path, json=REASON), 401, "unauthorized")
        answer = await client.post(path, json=REASON, headers={"Authorization": "Bearer s3cret"})
        assert answer.status_code == 200
    async with world.database.read() as connection:
        assert [row.actor for row in await audit.listing(connection, "app", 5)] == ["ada"]


async def test_they_stand_on_the_timeline_of_their_saga(world: World) -> None:
    app = await world.started()
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    mine = letter(1, instance_id=app.id, message_id="m-1", deliveries=3, headers=headers)
    await put(world, mine, letter(2, instance_id=app.id, queue="cmd.createGitRepo", type="cmd.createGitRepo"))
    await put(world, letter(3, instance_id=app.id, saga="order"), letter(4))
    page = (await world.client.get(f"/apps/{app.id}/messages")).json()
    MessagePage.model_validate(page)
    items = page["items"]
    dead = {item["deadLetter"]: item for item in items if item["status"] == "dead"}
    assert set(dead) == {mine.id, letter(2).id}
    assert dead[letter(2).id]["kind"] == "command"
    assert dead[mine.id] == {
        "kind": "event",
        "type": CREATED,
        "id": "m-1",
        "status": "dead",
        "reason": "not-json: Expecting value",
        "error": "Expecting value",
        "count": 1,
        "version": None,
        "traceId": trace,
        "at": "2026-01-31T12:00:01.000000Z",
        "lastAt": "2026-01-31T12:00:01.000000Z",
        "deadLetter": mine.id,
        "deliveries": 3,
        "redriven": 0,
        "redrivenAt": None,
    }
    assert dead[letter(2).id]["traceId"] is None
    assert (await world.client.get(f"/dead-letters/{mine.id}")).json()["traceId"] == trace
