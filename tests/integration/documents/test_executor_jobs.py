"""Does the executor of docs/executors.md run jobs as the cluster asks, once each, and report them to their end?"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.documents import ROOT, block
from tests.integration.workers.fake_coordinator import (
    ATTEMPT_TOKEN,
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
from tests.servers.run import Run
from tests.support import eventually, free_port, holds

PAGE = ROOT / "docs" / "executors.md"
TIMES = "HEARTBEAT_S, TIMEOUT_S = 30.0, 3.0"
MORE = "SLOTS, STOP_TIMEOUT_S, RETRY_S, MEMORY_S, ENDED_KNOWN_S = 4, 30.0, 1.0, 3600.0, 60.0"
Start = Callable[..., Popen[bytes]]


@pytest.fixture
async def node() -> AsyncIterator[FakeCoordinator]:
    async with fake_coordinator() as made:
        yield made


@pytest.fixture
def address() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def start(server_run: Run, tmp_path: Path, address: str, node: FakeCoordinator) -> Iterator[Start]:
    """Starts the page's script, with these times and a heartbeat now and then."""
    started: list[Popen[bytes]] = []

    def run(slots: int = 4, stop_timeout: float = 30.0) -> Popen[bytes]:
        code = block(PAGE, "python", "ThreadingHTTPServer")
        assert TIMES in code
        assert MORE in code
        code = code.replace(TIMES, "HEARTBEAT_S, TIMEOUT_S = 0.1, 3.0")
        code = code.replace(MORE, MORE.partition(" = ")[0] + f" = {slots}, {stop_timeout}, 0.05, 3600.0, 60.0")
        script = tmp_path / "executor.py"
        script.write_text(code)
        argv = [sys.executable, "-I", str(script), "shop", address, node.url]
        environment = {"PATH": os.environ["PATH"], "REGISTRY_TOKEN": TOKEN}
        started.append(server_run.spawn(argv, env=environment, cwd=tmp_path, log=tmp_path / "executor.log"))
        return started[-1]

    yield run
    for one in started:
        server_run.kill(one)


async def ended(process: Popen[bytes]) -> int | None:
    await eventually(lambda: process.poll() is not None, deadline=DEADLINE_S)
    return process.poll()


def counting(node: FakeCoordinator, to: int, number: int = 1, pause: float = 0.0) -> dict[str, Any]:
    return run_body("count", node.callback(number), number=number, payload={"to": to, "pause": pause})


def messages(node: FakeCoordinator) -> list[str]:
    return [one["message"] for one in node.said if "message" in one]


async def test_it_runs_a_job_once_and_reports_it(start: Start, node: FakeCoordinator, address: str) -> None:
    start()
    await node.has("registry")
    body = counting(node, 45)
    answers = await asyncio.gather(*(call(address, "/run", body) for _ in range(4)))
    assert {one.status_code for one in answers} == {200}
    final = await node.ended()
    assert (final["status"], final["result"], final["lastLogSeq"]) == ("SUCCEEDED", {"counted": 45}, 46)
    assert (await call(address, "/run", body)).status_code == 200
    assert await held(address) == 200
    assert await held(address, 2) == 404
    assert messages(node) == [f"counted {number}" for number in range(45)]
    assert [one["seq"] for one in node.said] == list(range(1, 48))
    assert {one["workerId"] for one in node.said} == {address}
    reports = [one for one in node.requests if one.kind in ("status", "logs")]
    assert {one.headers["authorization"] for one in reports} == {f"Bearer {ATTEMPT_TOKEN}"}


async def test_it_begins_only_once_running_is_answered_and_not_where_that_says_cancel(
    start: Start, node: FakeCoordinator, address: str
) -> None:
    answered, words = asyncio.Event(), {"cancel": "another one has it"}

    async def late(report: Report) -> Answer:
        if report.kind == "status":
            await answered.wait()
        return 200, words if report.path.startswith("/jobs/j-2") else {}

    node.answer = late
    start()
    await node.has("registry")
    for number in (1, 2):
        await call(address, "/run", counting(node, 1, number))
    await node.has("status", 2)
    await holds(lambda: messages(node) == [], during=0.3)
    answered.set()
    assert (await node.ended(1))["status"] == "SUCCEEDED"
    assert (await node.ended(2))["error"]["message"] == "another one has it"
    assert len(messages(node)) == 1


async def test_reports_are_kept_and_sent_again_in_order(start: Start, node: FakeCoordinator, address: str) -> None:
    bad: list[Answer] = [(503, {}), CUT, (502, {})]
    node.answer = lambda report: bad.pop() if bad and report.kind == "logs" else (200, {})
    start()
    await node.has("registry")
    await call(address, "/run", counting(node, 60))
    final = await node.ended()
    assert list(dict.fromkeys(messages(node))) == [f"counted {number}" for number in range(60)]
    assert final["lastLogSeq"] == 61
    assert bad == []


async def test_a_report_that_no_node_can_read_is_not_sent_for_ever(
    start: Start, node: FakeCoordinator, address: str
) -> None:
    refusal = 413, {"detail": "The body has more than 262144 bytes"}

    def too_large(report: Report) -> Answer:
        refused = report.kind == "logs" or (report.kind == "status" and report.body["status"] == "SUCCEEDED")
        return refusal if refused else (200, {})

    node.answer = too_large
    start()
    await node.has("registry")
    await call(address, "/run", counting(node, 1))
    final = await node.ended()
    assert (final["status"], final["result"], final["error"]["type"]) == ("FAILED", None, "BadResult")
    assert (final["error"]["message"], final["lastLogSeq"]) == ("The body has more than 262144 bytes", 2)


async def test_a_refusal_says_why(start: Start, node: FakeCoordinator, address: str) -> None:
    start()
    await node.has("registry")
    refused = await call(address, "/run", run_body("unknown", node.callback(1)))
    assert (refused.status_code, refused.json()["detail"]) == (422, "no function has the name of this job")


async def test_it_stops_at_a_cancel(start: Start, node: FakeCoordinator, address: str) -> None:
    start()
    await node.has("registry")
    await call(address, "/run", counting(node, 10_000, pause=0.01))
    await node.has("logs")
    await eventually(lambda: node.heartbeats()[-1]["runs"] == ["h-1"], deadline=DEADLINE_S)
    word = {"jobId": "j-1", "historyId": "h-1", "reason": "by hand"}
    assert (await call(address, "/cancel", word)).status_code == 200
    final = await node.ended()
    assert (final["status"], final["error"]["message"]) == ("CANCELLED", "by hand")


async def test_what_it_does_not_take(start: Start, node: FakeCoordinator, address: str) -> None:
    start(slots=1)
    await node.has("registry")
    for options in ({"token": None}, {"token": "other"}, {"age": 62.0}):
        assert (await call(address, "/run", counting(node, 1), **options)).status_code == 401
    assert (await call(address, "/run", run_body("nobody", node.callback()))).status_code == 422
    assert (await call(address, "/run", counting(node, 10_000, pause=0.01))).status_code == 200
    assert (await call(address, "/run", counting(node, 1, 2))).status_code == 409


async def test_what_runs_at_sigterm_ends_before_the_deregistration(
    start: Start, node: FakeCoordinator, address: str
) -> None:
    process = start()
    await node.has("registry")
    await call(address, "/run", counting(node, 50, pause=0.02))
    await node.has("logs")
    process.send_signal(signal.SIGTERM)
    await eventually(lambda: node.heartbeats()[-1]["state"] == "DRAINING", deadline=DEADLINE_S)
    assert (await call(address, "/run", counting(node, 1, 2))).status_code == 503
    assert await ended(process) == 0
    assert node.statuses()[-1]["status"] == "SUCCEEDED"
    assert node.kinds()[-1] == "registryRemove"


async def test_what_does_not_end_in_time_is_reported(start: Start, node: FakeCoordinator, address: str) -> None:
    process = start(stop_timeout=0.1)
    await node.has("registry")
    await call(address, "/run", counting(node, 10_000, pause=0.01))
    await node.has("logs")
    process.send_signal(signal.SIGTERM)
    assert await ended(process) == 0
    assert node.statuses()[-1]["error"]["type"] == "WorkerStopped"
    assert node.kinds()[-1] == "registryRemove"
