"""Is every error a problem, and does no body fill the memory?"""

from __future__ import annotations

import asyncio
import json

import pytest
import uvicorn

from orchestrix.api.middleware import MAX_BODY
from tests.support import eventually, free_port

from .answers import BODY, JSON, problem
from .world import Exchange, World


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/apps/", 404, "not_found"),
        ("GET", "/apps/1/why", 404, "not_found"),
        ("POST", "/apps/1/explode", 404, "not_found"),
        ("POST", "/apps/1/edit", 404, "not_found"),
        ("GET", "/apps/1/retry", 405, "method_not_allowed"),
        ("GET", "/registry", 404, "not_found"),
        ("DELETE", "/apps", 405, "method_not_allowed"),
        ("PUT", "/apps/1", 405, "method_not_allowed"),
        ("HEAD", "/apps/1/events", 405, "method_not_allowed"),
        ("GET", "/sagas/nothing", 404, "not_found"),
        ("GET", "/sagas/nothing/1/history", 404, "not_found"),
        ("POST", "/sagas/nothing", 404, "not_found"),
    ],
)
async def test_the_router_answers_with_problems(world: World, method: str, path: str, status: int, code: str) -> None:
    answer = await world.client.request(method, path)
    if method == "HEAD":
        assert answer.status_code == status
    else:
        problem(answer, status, code)


@pytest.mark.parametrize("method", ["DELETE", "OPTIONS", "PUT"])
@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/apps", "GET, HEAD, POST"),
        ("/sagas/order", "GET, HEAD, POST"),
        ("/apps/1/retry", "POST"),
        ("/deadlines", "GET, HEAD"),
        ("/sagas/order/1/history", "GET, HEAD"),
        ("/apps/1/events", "GET"),
        ("/docs", "GET, HEAD"),
    ],
)
async def test_a_405_names_every_method_of_the_path(world: World, method: str, path: str, methods: str) -> None:
    answer = await world.client.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)
    assert problem(answer, 405, "method_not_allowed")["detail"].endswith(f"; allowed are: {methods}.")


@pytest.mark.parametrize("suffix", ["", "/history", "/messages", "/events"])
@pytest.mark.parametrize(
    "wanted", ["1", "0", "-1", "x", "01", "1.0", "9007199254740992", "9" * 30, "٣", "%00", "1%0a", "1;drop"]
)
async def test_an_id_of_nothing_is_404(world: World, wanted: str, suffix: str) -> None:
    problem(await world.client.get(f"/apps/{wanted}{suffix}"), 404, "not_found")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/apps/7", "There is no app 7."),
        ("/apps/0/history", "There is no app 0."),
        ("/apps/9007199254740992/messages", "There is no app 9007199254740992."),
        ("/sagas/order/0/events", "There is no order 0."),
        ("/apps/x", "There is no app 'x': an id is a whole number from 1."),
    ],
)
async def test_a_404_says_what_there_is_not(world: World, path: str, said: str) -> None:
    assert problem(await world.client.get(path), 404, "not_found")["detail"] == said


@pytest.mark.parametrize("path", ["/apps/1", "/apps/1/history", "/apps/1/messages", "/apps/1/events", "/sagas/order"])
async def test_an_unknown_parameter_is_400_everywhere(world: World, path: str) -> None:
    await world.started()
    answer = await world.client.get(f"{path}?colour=blue")
    assert problem(answer, 400, "bad_parameter")["parameter"] == "colour"


@pytest.mark.parametrize("host", ["[::1", "x:y:z", "a b", ""])
async def test_a_strange_host_is_nobodys_trouble(world: World, host: str) -> None:
    for name in "ab":
        await world.started(name)
    headers = {"Host": host, "Idempotency-Key": "k"}
    assert (await world.client.get("/apps?limit=1", headers=headers)).status_code == 200
    assert (await world.client.post("/apps", json=BODY, headers=headers)).status_code == 200
    problem(await world.client.get("/nowhere", headers=headers), 404, "not_found")


async def test_head_is_get_without_a_body(world: World) -> None:
    instance = await world.started()
    got = await world.client.get(f"/apps/{instance.id}")
    head = await world.client.head(f"/apps/{instance.id}")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-length", "content-type"):
        assert head.headers[name] == got.headers[name]


async def test_answers_are_not_to_be_guessed_at_or_kept(world: World) -> None:
    answer = await world.client.get("/apps")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"


# Size


def sized(size: int) -> bytes:
    empty = json.dumps({**BODY, "data": {"x": ""}})
    return json.dumps({**BODY, "data": {"x": "x" * (size - len(empty))}}).encode()


async def test_the_largest_body_is_taken(world: World) -> None:
    answer = await world.client.post("/apps", content=sized(MAX_BODY), headers=JSON)
    assert (len(sized(MAX_BODY)), answer.status_code) == (256 * 1024, 200)


async def test_one_byte_more_is_413(world: World) -> None:
    problem(await world.client.post("/apps", content=sized(MAX_BODY + 1), headers=JSON), 413, "body_too_large")
    assert not world.starter.requests


@pytest.mark.parametrize("length", [str(MAX_BODY + 1), "20000000", "9" * 40])
async def test_a_body_that_says_that_it_is_too_large_is_not_read(world: World, length: str) -> None:
    headers = {**JSON, "Content-Length": length}
    async with Exchange(world.app, "/apps", "POST", headers) as exchange:
        await exchange.done()
    assert (exchange.status, exchange.read) == (413, 0)
    assert json.loads(exchange.body)["code"] == "body_too_large"


async def test_a_body_without_a_length_is_read_no_further_than_needed(world: World) -> None:
    chunk = b" " * 65536
    async with Exchange(world.app, "/apps", "POST", {**JSON, "Transfer-Encoding": "chunked"}) as exchange:
        for _ in range(320):
            exchange.give(chunk, more=True)
        await exchange.done()
    assert exchange.status == 413
    assert exchange.read <= MAX_BODY + len(chunk)
    assert json.loads(exchange.body)["code"] == "body_too_large"


@pytest.mark.parametrize("length", [True, False], ids=["with a length", "chunked"])
async def test_a_server_survives_20_megabytes(world: World, length: bool) -> None:
    body = b"x" * 20_000_000
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(world.app, port=port, log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve())
    try:
        await eventually(lambda: server.started, deadline=5)
        answer = await asyncio.wait_for(_post(port, body, length), 20)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b'"code":"body_too_large"' in answer
        small = await asyncio.wait_for(_post(port, json.dumps(BODY).encode(), True), 5)
        assert small.startswith(b"HTTP/1.1 200 ")
    finally:
        server.should_exit = True
        await serving


async def _post(port: int, body: bytes, length: bool) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        size = f"Content-Length: {len(body)}" if length else "Transfer-Encoding: chunked"
        writer.write(f"POST /apps HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n{size}\r\n\r\n".encode())
        writer.write(body if length else b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        head = await reader.readuntil(b"\r\n\r\n")
        sent = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        return head + await reader.readexactly(int(sent.split(b":")[1]))
    finally:
        writer.close()
