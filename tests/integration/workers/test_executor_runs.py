"""Does an executor run each attempt once, as over RabbitMQ, whatever becomes of its reports and of itself?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from orchestrix import Executor, JobContext, Permanent, job
from orchestrix.errors import ConfigError
from orchestrix.worker.executor import http_server, runs
from orchestrix.worker.jobs.attempt import AttemptRunner
from tests.support import eventually, free_port, holds

from .fake_coordinator import (
    ATTEMPT_TOKEN,
    BODY_LIMIT,
    CUT,
    DEADLINE_S,
    TOKEN,
    Answer,
    FakeCoordinator,
    Report,
    call,
    fake_coordinator,
    held,
    run_body,
)

BEAT_S = 0.1
LONG_S = 600.0
begun: list[JobContext] = []
"""The attempts whose function was called, in order."""
gate = threading.Event()


@job("executor.lines")
async def lines(context: JobContext) -> dict[str, Any]:
    begun.append(context)
    for number in range(context.payload["number"]):
        await context.log(f"line {number}")
    await context.progress(50)
    return {"lines": context.payload["number"]}


@job("executor.thread")
def in_thread(context: JobContext) -> dict[str, Any]:
    begun.append(context)
    context.log("from a thread")
    return {"thread": threading.current_thread() is not threading.main_thread()}


@job("executor.wait", grace=0.2)
async def wait(context: JobContext) -> dict[str, Any]:
    begun.append(context)
    while not gate.is_set():
        if await context.wait_cancelled(timeout=0.01):
            context.raise_if_cancelled()
    return {"waited": True}


@job("executor.fails")
async def fails(context: JobContext) -> None:
    raise Permanent("no such thing")


@job("executor.talks")
async def talks(context: JobContext) -> None:
    begun.append(context)
    for number in range(1500):
        await context.log(f"{number} {'x' * 2000}")


JOBS = [lines, in_thread, wait, fails, talks]


@pytest.fixture(autouse=True)
def fresh() -> None:
    begun.clear()
    gate.clear()


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[FakeCoordinator, FakeCoordinator]]:
    async with AsyncExitStack() as stack:
        yield (
            await stack.enter_async_context(fake_coordinator()),
            await stack.enter_async_context(fake_coordinator()),
        )


@pytest.fixture
def node(nodes: tuple[FakeCoordinator, FakeCoordinator]) -> FakeCoordinator:
    return nodes[0]


@pytest.fixture
def address() -> str:
    return f"http://127.0.0.1:{free_port()}"


@asynccontextmanager
async def executor(
    address: str, node: FakeCoordinator, token: str | None = TOKEN, **more: Any
) -> AsyncIterator[Executor]:
    options = {"beat": LONG_S, "jobs": JOBS, "stop_timeout": 20.0, **more}
    listen = address.removeprefix("http://")
    async with Executor("shop", address, node.url, token, listen=listen, **options) as running:
        yield running


def from_node(node: FakeCoordinator, status: int = 200, **fields: Any) -> Callable[[Report], Answer]:
    """That answer to reports, and a plain one to heartbeats."""
    return lambda report: (status, fields) if report.kind in ("status", "logs") else (200, {})


async def running(count: int = 1) -> None:
    await eventually(lambda: len(begun) >= count, deadline=DEADLINE_S, every=0.005)


@pytest.mark.req("S2-43", "S0-28")
async def test_a_job_runs_unchanged_and_reports_as_over_rabbitmq(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        body = run_body("executor.lines", node.callback(3), number=3, shardIndex=1, shardTotal=4)
        assert (await call(address, "/run", body)).status_code == 200
        final = await node.ended(3)
    (context,) = begun
    assert (context.shard_index, context.shard_total, context.queue) == (1, 4, "shop")
    assert (context.job_id, context.history_id, context.correlation_id) == ("j-3", "h-3", "c-3")
    who = {"jobId": "j-3", "historyId": "h-3", "workerId": address}
    assert all(one.items() >= who.items() for one in node.said)
    assert [one["seq"] for one in node.said] == list(range(1, len(node.said) + 1))
    first, *middle, last = node.said
    assert first == {**who, "seq": 1, "status": "RUNNING", "progress": None, "result": None, "error": None}
    assert [one["message"] for one in middle if "message" in one] == ["line 0", "line 1", "line 2"]
    assert {one["level"] for one in middle if "message" in one} == {"info"}
    assert last == final
    assert (final["status"], final["result"], final["lastLogSeq"]) == ("SUCCEEDED", {"lines": 3}, 4)
    assert final["progress"] == {"percent": 50}
    reports = [one for one in node.requests if one.kind in ("status", "logs")]
    assert {one.headers["authorization"] for one in reports} == {f"Bearer {ATTEMPT_TOKEN}"}
    assert {one.path.rpartition("/")[0] for one in reports} == {"/jobs/j-3/attempts/h-3"}
    assert {type(one.body) for one in reports if one.kind == "logs"} == {list}


async def test_a_function_of_a_thread_runs_too(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        await call(address, "/run", run_body("executor.thread", node.callback()))
        assert (await node.ended())["result"] == {"thread": True}
    assert [one["message"] for one in node.said if "message" in one] == ["from a thread"]


async def test_a_failure_is_reported(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        await call(address, "/run", run_body("executor.fails", node.callback()))
        error = (await node.ended())["error"]
    assert (error["type"], error["message"], error["retryable"]) == ("Permanent", "no such thing", False)


async def test_it_begins_only_once_its_running_is_answered(node: FakeCoordinator, address: str) -> None:
    answered = asyncio.Event()

    async def late(report: Report) -> Answer:
        if report.kind == "status":
            await answered.wait()
        return 200, {}

    node.answer = late
    async with executor(address, node):
        await call(address, "/run", run_body("executor.lines", node.callback()))
        await node.has("status")
        await holds(lambda: not begun, during=0.3)
        answered.set()
        await running()


async def test_it_does_not_begin_where_the_answer_says_cancel(node: FakeCoordinator, address: str) -> None:
    node.answer = from_node(node, cancel="another one has it")
    async with executor(address, node):
        await call(address, "/run", run_body("executor.lines", node.callback()))
        final = await node.ended()
    assert not begun
    assert (final["status"], final["error"]["message"]) == ("CANCELLED", "another one has it")


async def test_an_attempt_that_no_node_knows_does_not_begin_and_ends(node: FakeCoordinator, address: str) -> None:
    node.answer = from_node(node, 404, detail="no such attempt")
    async with executor(address, node) as one:
        await call(address, "/run", run_body("executor.lines", node.callback()))
        await eventually(lambda: one.history_ids == [] and "status" in node.kinds(), deadline=DEADLINE_S)
    assert not begun


async def test_cancel_in_a_later_answer_stops_it(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        await call(address, "/run", run_body("executor.wait", node.callback()))
        await running()
        node.answer = from_node(node, cancel="by hand")
        await begun[0].log("still here")
        assert (await node.ended())["status"] == "CANCELLED"


async def test_cancel_by_a_call_stops_it_and_one_that_comes_first_too(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        await call(address, "/run", run_body("executor.wait", node.callback()))
        await running()
        for number in (1, 2):
            word = {"jobId": f"j-{number}", "historyId": f"h-{number}", "reason": "by hand"}
            assert (await call(address, "/cancel", word)).status_code == 200
        final = await node.ended()
        assert (final["status"], final["error"]["message"]) == ("CANCELLED", "by hand")
        await call(address, "/run", run_body("executor.wait", node.callback(2), number=2))
        assert (await node.ended(2))["status"] == "CANCELLED"
    assert len(begun) == 1


async def test_a_second_call_for_the_attempt_is_taken_and_runs_nothing(node: FakeCoordinator, address: str) -> None:
    gate.set()
    async with executor(address, node) as one:
        calls = [call(address, "/run", run_body("executor.wait", node.callback())) for _ in range(5)]
        assert {answer.status_code for answer in await asyncio.gather(*calls)} == {200}
        await node.ended()
        await eventually(lambda: one.history_ids == [], deadline=DEADLINE_S)
        assert (await call(address, "/run", run_body("executor.wait", node.callback()))).status_code == 200
        await call(address, "/run", run_body("executor.lines", node.callback(2), number=2))
        await node.ended(2)
    assert [one.history_id for one in begun] == ["h-1", "h-2"]


async def test_it_says_which_attempts_it_has(
    node: FakeCoordinator, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with executor(address, node, beat=BEAT_S, slots=4) as one:
        assert await held(address) == 404
        await call(address, "/run", run_body("executor.wait", node.callback()))
        await running()
        assert await held(address) == 200
        await eventually(lambda: node.heartbeats()[-1]["runs"] == ["h-1"], deadline=DEADLINE_S)
        assert node.heartbeats()[-1]["load"] == 0.25
        gate.set()
        await node.ended()
        await eventually(lambda: one.history_ids == [], deadline=DEADLINE_S)
        assert await held(address) == 200, "its owner may not have read the end yet"
        monkeypatch.setattr(runs, "ENDED_KNOWN_S", 0.0)
        assert await held(address) == 404
        await eventually(lambda: node.heartbeats()[-1]["runs"] == [], deadline=DEADLINE_S)


async def test_reports_that_no_node_takes_are_kept_and_sent_again_in_order(
    nodes: tuple[FakeCoordinator, FakeCoordinator], address: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = nodes
    async with executor(address, first):
        body = run_body("executor.wait", first.callback(), second.callback())
        await call(address, "/run", body)
        await running()
        await second.stop()
        first.answer = from_node(first, 503)
        for number in range(50):
            await begun[0].log(f"line {number}")
        await first.has("logs", 2)
        gate.set()
        await first.stop()
        await holds(lambda: len(first.statuses()) == 1, during=0.3)
        first.answer = from_node(first)
        await first.start()
        final = await first.ended()
    assert [one["message"] for one in first.said if "message" in one] == [f"line {number}" for number in range(50)]
    assert [one["seq"] for one in first.said] == list(range(1, 53))
    assert (final["status"], final["lastLogSeq"]) == ("SUCCEEDED", 51)
    said = [one.getMessage() for one in caplog.records if one.name == "orchestrix.worker"]
    assert sum("no node takes its reports" in one for one in said) < 5
    assert any("taken again" in one for one in said)


async def test_a_lost_answer_has_the_report_sent_again(node: FakeCoordinator, address: str) -> None:
    lost: list[str] = []

    def once(report: Report) -> Answer:
        if report.kind in ("status", "logs") and report.kind not in lost:
            lost.append(report.kind)
            return CUT
        return 200, {}

    node.answer = once
    async with executor(address, node):
        await call(address, "/run", run_body("executor.lines", node.callback(2), number=2))
        await node.ended(2)
    assert len(begun) == 1
    numbers = [one["seq"] for one in node.said]
    assert list(dict.fromkeys(numbers)) == list(range(1, max(numbers) + 1)), "in order, some twice"
    assert len(numbers) > max(numbers)


async def test_it_stays_with_the_callback_that_answers(
    nodes: tuple[FakeCoordinator, FakeCoordinator], address: str
) -> None:
    first, second = nodes
    await first.stop()
    dead = first.callback(20)
    async with executor(address, second):
        await call(address, "/run", run_body("executor.lines", dead, second.callback(20), number=20))
        await second.ended(20)
        await first.start()
        await call(address, "/run", run_body("executor.lines", second.callback(2), dead, number=2))
        await second.ended(2)
    assert first.requests == []


async def test_requests_are_within_the_limits_of_a_node(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        await call(address, "/run", run_body("executor.talks", node.callback()))
        await node.ended()
    logs = [one for one in node.requests if one.kind == "logs"]
    assert max(one.size for one in logs) <= BODY_LIMIT
    assert max(len(one.body) for one in logs) <= 500
    assert len(logs) < 750, "they are sent together"
    messages = [one["message"].partition(" ")[0] for one in node.said if "message" in one]
    assert messages == [str(number) for number in range(1500)]


async def test_lines_that_are_not_taken_hold_the_job_back(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        await call(address, "/run", run_body("executor.wait", node.callback()))
        await running()
        node.answer = from_node(node, 503)
        written = 0

        async def write() -> None:
            nonlocal written
            for _ in range(1100):
                await begun[0].log("x")
                written += 1

        writing = asyncio.create_task(write())
        await eventually(lambda: written == 1000, deadline=DEADLINE_S)
        await holds(lambda: written == 1000, during=0.2)
        node.answer = from_node(node)
        await writing
        gate.set()
        assert (await node.ended())["lastLogSeq"] == 1101


BAD: list[tuple[str, dict[str, Any], int]] = [
    ("unsigned", {"token": None}, 401),
    ("by another token", {"token": "other"}, 401),
    ("old", {"age": 62.0}, 401),
    ("of the future", {"age": -62.0}, 401),
    ("no signature", {"token": None, "X-Orchestrix-Signature": "t=1,v1=é"[:6]}, 401),
]


@pytest.mark.parametrize(
    ("options", "status"), [(options, status) for _, options, status in BAD], ids=[b[0] for b in BAD]
)
@pytest.mark.parametrize("path", ["/run", "/cancel"])
async def test_a_call_that_no_node_has_just_signed_is_refused(
    options: dict[str, Any], status: int, path: str, node: FakeCoordinator, address: str
) -> None:
    async with executor(address, node):
        answer = await call(address, path, run_body("executor.lines", node.callback()), **options)
        assert (answer.status_code, list(answer.json())) == (status, ["detail"])
        assert await held(address) == 404
    assert not begun


async def test_a_signature_of_59_seconds_is_good(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        body = run_body("executor.lines", node.callback())
        assert (await call(address, "/run", body, age=58.0)).status_code == 200
        await node.ended()


async def test_without_a_token_calls_of_this_machine_are_taken_unsigned(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node, token=None):
        body = run_body("executor.lines", node.callback())
        assert (await call(address, "/run", body, token=None)).status_code == 200
        await node.ended()


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"handler": "executor.nobody"}, 422),
        ({"group": "other"}, 422),
        ({"jobId": ""}, 400),
        ({"historyId": "../x"}, 400),
        ({"callbacks": []}, 400),
        ({"callbacks": ["ftp://a"]}, 400),
        ({"callbacks": ["http://a:1@b/jobs"]}, 400),
        ({"token": "two words"}, 400),
        ({"attempt": True}, 400),
        ({"timeoutMs": -1}, 400),
        ({"shardIndex": "0"}, 400),
    ],
)
async def test_what_it_cannot_run_is_refused_for_ever(
    changes: dict[str, Any], status: int, node: FakeCoordinator, address: str
) -> None:
    async with executor(address, node):
        answer = await call(address, "/run", run_body("executor.lines", node.callback()) | changes)
        assert answer.status_code == status
        assert answer.json()["detail"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"jobId": NaN}'])
async def test_a_body_that_is_no_object_is_refused(body: bytes, node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        assert (await call(address, "/run", body)).status_code == 400
        assert (await call(address, "/cancel", body)).status_code == 400


async def test_a_body_that_is_too_large_is_refused(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        assert (await call(address, "/run", b"x" * (1024 * 1024 + 1))).status_code == 413


async def test_other_paths_and_methods(node: FakeCoordinator, address: str) -> None:
    async with (
        executor(address, node, slots=3),
        httpx.AsyncClient(base_url=address, trust_env=False, timeout=DEADLINE_S) as client,
    ):
        assert (await client.get("/health")).json() == {"state": "UP", "running": 0, "slots": 3}
        assert (await client.get("/run")).status_code == 405
        assert (await client.get("/else")).status_code == 404


async def test_where_all_slots_are_taken_it_answers_409(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node, slots=1) as one:
        await call(address, "/run", run_body("executor.wait", node.callback()))
        await running()
        second = run_body("executor.wait", node.callback(2), number=2)
        assert (await call(address, "/run", second)).status_code == 409
        assert (await call(address, "/run", run_body("executor.wait", node.callback()))).status_code == 200
        gate.set()
        await node.ended()
        await eventually(lambda: one.history_ids == [], deadline=DEADLINE_S)
        assert (await call(address, "/run", second)).status_code == 200
        await node.ended(2)


async def test_while_it_drains_it_takes_nothing_new_and_finishes(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node, beat=BEAT_S) as one:
        await call(address, "/run", run_body("executor.wait", node.callback()))
        await running()
        one.drain()
        answer = await call(address, "/run", run_body("executor.wait", node.callback(2), number=2))
        assert answer.status_code == 503
        leaving = asyncio.create_task(one.__aexit__())
        count = len(node.heartbeats())
        await eventually(lambda: len(node.heartbeats()) > count + 2, deadline=DEADLINE_S)
        assert node.heartbeats()[-1]["state"] == "DRAINING"
        assert node.heartbeats()[-1]["runs"] == ["h-1"]
        assert await held(address) == 200
        assert not leaving.done()
        gate.set()
        await leaving
    kinds = [one for one in node.kinds() if one in ("registry", "registryRemove", "status")]
    assert kinds[-1] == "registryRemove"
    assert node.statuses()[-1]["status"] == "SUCCEEDED"


async def test_what_does_not_end_in_time_is_reported_as_worker_stopped(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node, stop_timeout=0.1):
        await call(address, "/run", run_body("executor.wait", node.callback()))
        await running()
    final = node.statuses()[-1]
    assert (final["status"], final["error"]["type"], final["error"]["retryable"]) == ("FAILED", "WorkerStopped", True)
    assert node.kinds()[-1] == "registryRemove"


async def test_it_ends_though_no_node_takes_its_last_report(
    node: FakeCoordinator, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "FINAL_REPORT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(runs, "CANCEL_GRACE_S", 0.1)
    async with asyncio.timeout(DEADLINE_S):
        async with executor(address, node, stop_timeout=0.1):
            await call(address, "/run", run_body("executor.wait", node.callback()))
            await running()
            node.answer = from_node(node, 503)


async def test_a_request_that_does_not_end_is_cut_off(
    node: FakeCoordinator, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_S", 0.2)
    async with executor(address, node):
        host, port = address.removeprefix("http://").split(":")
        for head in (b"", b"POST /run HTTP/1.1\r\nX: ", b"POST /run HTTP/1.0\r\nContent-Length: 9\r\n\r\n{"):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(head)
            async with asyncio.timeout(DEADLINE_S):
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            writer.close()


async def test_a_port_that_is_taken_is_named_and_nothing_is_registered(node: FakeCoordinator, address: str) -> None:
    async with executor(address, node):
        count = len(node.requests)
        with pytest.raises(ConfigError, match=f"cannot listen on {address.removeprefix('http://')}"):
            async with executor(address, node):
                pass
        assert len(node.requests) == count


async def test_reports_carry_the_trace_of_the_call(node: FakeCoordinator, address: str) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with executor(address, node):
        await call(address, "/run", run_body("executor.lines", node.callback()), traceparent=parent)
        await node.ended()
    reports = [one for one in node.requests if one.kind in ("status", "logs")]
    assert {one.headers.get("traceparent") for one in reports} == {parent}


async def test_its_internal_error_runs_the_attempt_not_again_here(
    node: FakeCoordinator, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(AttemptRunner, "run", broken)
    async with executor(address, node) as one:
        await call(address, "/run", run_body("executor.lines", node.callback()))
        await eventually(lambda: one.history_ids == [], deadline=DEADLINE_S)
        assert await held(address) == 404
        assert (await call(address, "/run", run_body("executor.lines", node.callback()))).status_code == 200
        assert await held(address) == 404
    assert any("internal error of the executor" in one.getMessage() for one in caplog.records)
