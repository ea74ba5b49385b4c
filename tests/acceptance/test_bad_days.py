"""What do clients see when the broker or the database is away, and when they send what nobody should send?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import httpx
import pytest

from orchestrix.broker.embedded import EmbeddedBroker
from tests.acceptance.system import AGAIN, EVERY_DATABASE, Client, System
from tests.servers.postgres import PostgresServer
from tests.support import NO_TLS, eventually, free_port


async def test_a_start_without_a_broker_is_taken_at_once_and_done_later(
    system_on: Callable[[str, str], System], postgres_url: str
) -> None:
    port = free_port()
    system = system_on(postgres_url, f"amqp://guest:guest@127.0.0.1:{port}/")
    _, url = system.node()
    async with Client(url) as client:
        await _answers(url)
        begun = time.monotonic()
        app = await client.created("patient")
        assert time.monotonic() - begun < 3
        assert app["state"] == "APP_INITIATED"
        ready = await client.http.get("/health/ready")
        assert ready.status_code == 200, "it takes requests, whatever becomes of the broker"
        health = await client.http.get("/health")
        assert health.json()["status"] != "Healthy"
        assert "guest:guest" not in ready.text + health.text
        broker = EmbeddedBroker(port=port)
        await broker.start()
        system.worker()
        await client.completed(app["id"], deadline=AGAIN)
        await broker.stop()


@pytest.mark.req("S3-16")
async def test_a_start_without_a_database_is_refused_and_leaves_nothing(
    system_on: Callable[[str, str], System], rabbitmq_url: str, private_postgres: Callable[[], PostgresServer]
) -> None:
    database = await asyncio.to_thread(private_postgres)
    system = system_on(database.url(), rabbitmq_url)
    _, url = system.node()
    await system.ready(url)
    system.worker()
    async with Client(url) as client:
        before = await client.created("before")
        await client.completed(before["id"])
        await asyncio.to_thread(database.kill9)
        begun = time.monotonic()
        refused = await client.create("during")
        assert time.monotonic() - begun < 10
        assert refused.status_code == 503, refused.text
        assert int(refused.headers["Retry-After"]) > 0
        assert refused.headers["content-type"].startswith("application/problem+json")
        assert (await client.http.get("/health/live")).status_code == 200
        await asyncio.to_thread(database.start)
        await system.ready(url)
        after = await client.created("after")
        await client.completed(after["id"])
    ledger = await system.all_ended(["before", "after"], deadline=30)
    ledger.check_completed(["before", "after"])
    assert not ledger.named("during")


NAMES = [
    ("emoji 🚀👩‍👩‍👧", 200),
    ("x" * 200, 200),
    ("x" * 201, 422),
    ("🚀" * 200, 200),
    ("Case", 200),
    ("case", 200),
    ('it\'s "quoted" `;DROP TABLE apps;--', 200),
    ("../../etc/passwd", 200),
    ("-rf", 200),
    ("%2F%00", 200),
    ("שלום", 200),
    ("e\u0301", 200),
    ("\u00e9", 409),
    ("", 422),
    (" lead", 422),
    ("trail ", 422),
    ("con\ttrol", 422),
    ("nul\0", 422),
    ("bell\x07", 422),
]


@EVERY_DATABASE
async def test_names_of_all_kinds(system: System) -> None:
    _, url = system.node()
    system.worker()
    await system.ready(url)
    async with Client(url) as client:
        taken = []
        for name, status in NAMES:
            answer = await client.create(name)
            assert answer.status_code == status, (name, answer.text)
            taken += [answer.json()] if status == 200 else []
        for app in taken:
            await client.completed(app["id"])
    assert sorted(path.name for path in system.repos.glob("*.git")) == sorted(f"{app['id']}.git" for app in taken)
    ours = {"repos", "test.db", "test.db-shm", "test.db-wal"}
    outside = [path for path in system.folder.iterdir() if path.name not in ours and path.suffix != ".log"]
    assert not outside, outside


@EVERY_DATABASE
async def test_one_name_a_hundred_times_at_once(system: System) -> None:
    (_, first), (_, second) = system.node(), system.node()
    await system.ready(first)
    await system.ready(second)
    async with Client(first) as one, Client(second) as two:
        answers = await asyncio.gather(*((one, two)[n % 2].create("wanted") for n in range(100)))
    codes = [answer.status_code for answer in answers]
    assert codes.count(200) == 1
    assert codes.count(409) == 99
    assert len((await system.ledger()).named("wanted")) == 1


@EVERY_DATABASE
async def test_one_idempotency_key_many_times_at_once(system: System) -> None:
    (_, first), (_, second) = system.node(), system.node()
    await system.ready(first)
    await system.ready(second)
    key = {"Idempotency-Key": '"order-1"'}
    body = {"appName": "once", "createdBy": "ada"}
    async with Client(first) as one, Client(second) as two:
        answers = await asyncio.gather(
            *((one, two)[n % 2].http.post("/apps", json=body, headers=key) for n in range(30))
        )
        assert {answer.status_code for answer in answers} <= {200, 409}
        good = [answer for answer in answers if answer.status_code == 200]
        assert len({answer.json()["id"] for answer in good}) == 1
        for answer in answers:
            if answer.status_code == 409:
                assert "Retry-After" in answer.headers, answer.text
        again = await two.http.post("/apps", json=body, headers=key)
        assert again.status_code == 200
        assert again.content == good[0].content
        other = await two.http.post("/apps", json={**body, "createdBy": "bob"}, headers=key)
        assert other.status_code == 422
    assert len((await system.ledger()).apps) == 1


async def test_bodies_that_nobody_should_send(system: System) -> None:
    _, url = system.node()
    await system.ready(url)
    json_type = {"Content-Type": "application/json"}
    bodies = [
        (b"\xff\xfe", 400),
        (b"null", 422),
        (b"[]", 422),
        (b"{", 400),
        (b'{"appName": NaN, "createdBy": "a"}', 400),
        (b'{"appName": 5, "createdBy": "a"}', 422),
        (b'{"appName": "a"}', 422),
        (b'{"appName": "a", "createdBy": "b", "colour": 1}', 422),
        (b'{"appName": "a\\u0000", "createdBy": "b"}', 422),
        (b'{"appName": "a\\ud800", "createdBy": "b"}', 422),
        (b" " * 20_000_000, 413),
    ]
    async with Client(url) as client:
        for content, status in bodies:
            answer = await client.http.post("/apps", content=content, headers=json_type)
            assert answer.status_code == status, (content[:60], answer.text)
            assert answer.headers["content-type"].startswith("application/problem+json")
            assert "Traceback" not in answer.text
        assert (
            await client.http.post("/apps", content=b"x", headers={"Content-Type": "text/plain"})
        ).status_code == 415
        assert (await client.create("still-alive")).status_code == 200


async def _answers(url: str) -> None:
    async def live() -> bool:
        try:
            async with httpx.AsyncClient(trust_env=False, verify=NO_TLS) as http:
                return (await http.get(f"{url}/health/startup")).status_code == 200
        except httpx.HTTPError:
            return False

    await eventually(live, deadline=30)
