"""Is the contract enough to write a worker in any language?"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pika
import pytest

from tests.acceptance.plain_pika import EVENTS, PikaWorker, fail, succeed
from tests.acceptance.system import EVERY_DATABASE, Client, System, create_all
from tests.support import eventually

RUBBISH = [
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b'"text"',
    b"{",
    b"{}",
    b'{"appId": "no number", "correlationId": "x"}',
    b'{"appId": 1, "correlationId": 5}',
    b'{"appId": NaN, "correlationId": "x"}',
    b'{"appId": 1, "correlationId": "a\\u0000b"}',
    b'{"appId": 1, "appId": 2, "correlationId": "x"}',
    b'{"appId": 1, "correlationId": "x", "data": ' + b"[" * 100 + b"]" * 100 + b"}",
    b'{"appId": 1, "correlationId": "x", "data": [1]}',
    b"[" * 100_000,
]
STRANGERS = [
    b'{"appId": 999999999, "correlationId": "nobody"}',
    b'{"appId": 1, "correlationId": "somebody else"}',
]


def three_times_and_rubbish(channel: Any, command: dict[str, Any]) -> None:
    """Every event three times, and what no event is in between."""
    event = EVENTS[command["type"]]
    for body in (RUBBISH[command["appId"] % len(RUBBISH)], *STRANGERS):
        channel.basic_publish("orchestrator.events", event, body)
    succeed(channel, command, times=3)
    headers = {"traceparent": "rubbish", "x-death": "forged", "n": 2**40}
    properties = pika.BasicProperties(  # type: ignore[no-untyped-call]
        headers=headers, content_type="text/plain", correlation_id="é" * 20
    )
    channel.basic_publish("orchestrator.events", event, b"not json", properties)


@EVERY_DATABASE
@pytest.mark.req("S3-38", "S3-39", "S3-43", "S3-55")
async def test_events_three_times_and_rubbish_in_between(system: System) -> None:
    _, url = system.node()
    await system.ready(url)
    names = [f"foreign-{n}" for n in range(60)]
    with PikaWorker(system.broker_url, three_times_and_rubbish):
        async with Client(url) as client:
            answered = await create_all([client], names)
            assert len(answered) == len(names)
            ledger = await system.all_ended(names, deadline=60)
            ledger.check_completed(names)
            messages = (await client.http.get(f"/apps/{ledger.apps[0].id}/messages")).json()
    assert any(item.get("reason") == "repeated" for item in messages["items"]), messages


async def test_unreadable_bodies_are_kept_with_their_reason(system: System) -> None:
    _, url = system.node()
    await system.ready(url)
    connection = pika.BlockingConnection(pika.URLParameters(system.broker_url))
    channel = connection.channel()
    for body in [*RUBBISH, b" " * 20_000_000]:
        channel.basic_publish("orchestrator.events", "evt.gitRepoCreated", body)
    with PikaWorker(system.broker_url, succeed):
        async with Client(url) as client:
            app = await client.created("beside-the-rubbish")
            await client.completed(app["id"])

            letters = await kept(client, len(RUBBISH) + 1)
    connection.close()
    assert {one["queue"] for one in letters} == {"evt.gitRepoCreated"}
    assert all(one["reason"] for one in letters)
    assert [one["bodySize"] for one in letters if "too-large" in one["reason"]] == [20_000_000]


async def kept(client: Client, count: int) -> list[dict[str, Any]]:
    """Waits until there are so many dead letters."""

    async def enough() -> list[dict[str, Any]] | None:
        found: list[dict[str, Any]] = (await client.http.get("/dead-letters")).json()["items"]
        return found if len(found) == count else None

    letters: list[dict[str, Any]] | None = await eventually(
        enough, deadline=30, every=0.05, message=f"{count} dead letters are kept"
    )
    assert letters is not None
    return letters


async def test_a_mistyped_event_is_kept(system: System) -> None:
    _, url = system.node()
    await system.ready(url)
    connection = pika.BlockingConnection(pika.URLParameters(system.broker_url))
    channel = connection.channel()
    channel.basic_publish("orchestrator.events", "evt.gitRepoCraeted", b'{"appId": 1}')
    connection.close()
    async with Client(url) as client:
        (letter,) = await kept(client, 1)
    assert (letter["queue"], letter["reason"], letter["appId"]) == ("orchestrator.unrouted", "unrouted", 1)
    assert letter["routingKey"] == "evt.gitRepoCraeted"


@EVERY_DATABASE
@pytest.mark.req("S3-32", "S3-33")
async def test_a_failing_step_ends_the_saga_with_its_reason(system: System) -> None:
    _, url = system.node()
    await system.ready(url)

    def answer(channel: Any, command: dict[str, Any]) -> None:
        fail(channel, command) if command["appName"] == "unlucky" else succeed(channel, command)

    with PikaWorker(system.broker_url, answer):
        async with Client(url) as client:
            unlucky, lucky = await client.created("unlucky"), await client.created("lucky")
            await client.completed(lucky["id"])

            async def failed() -> bool:
                return bool((await client.app(unlucky["id"]))["state"] == "FAILED")

            await eventually(failed, deadline=10)
            last = (await client.history(unlucky["id"]))[-1]
    assert last["toState"] == "FAILED"
    assert "DiskFull" in last["reason"]
    assert "no space left" in last["reason"]


@pytest.mark.req("S3-44", "S3-17", "S3-24")
async def test_commands_carry_what_the_contract_says(system: System) -> None:
    _, url = system.node()
    await system.ready(url)
    with PikaWorker(system.broker_url, succeed) as worker:
        async with Client(url) as client:
            headers = {
                "X-Correlation-ID": "order-7",
                "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            }
            answer = await client.http.post("/apps", json={"appName": "exact", "createdBy": "ada"}, headers=headers)
            app = answer.json()
            await client.completed(app["id"])
    first, second = worker.commands
    fields = "id type saga appId appName correlationId expectedState step attempt timeoutMs idempotencyKey"
    assert set(first) == set(second) == {*fields.split(), "effectKey", "definitionVersion", "data"}
    assert first["idempotencyKey"] == f"app:{app['id']}:createGitRepo:do"
    made = round(datetime.fromisoformat(app["createdAt"]).timestamp() * 1e6)
    assert re.fullmatch(rf"[0-9a-f-]{{36}}:app:{app['id']}:{made}:createGitRepo", first["effectKey"])
    assert (first["expectedState"], second["expectedState"]) == ("APP_INITIATED", "REGISTERING")
    assert first["correlationId"] == second["correlationId"] == "order-7"
    assert second["data"] == {"by": "pika"}
    for command, properties in zip(worker.commands, worker.properties, strict=True):
        assert properties.message_id == command["id"]
        assert properties.correlation_id == "order-7"
        assert properties.type == command["type"]
        assert properties.content_type == "application/json"
        assert properties.delivery_mode == 2
        assert properties.headers["traceparent"].split("-")[1] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert json.dumps(first)
