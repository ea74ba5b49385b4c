"""Are reports sent to the nodes in their order, whatever these answer?"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
from collections.abc import AsyncIterator
from typing import ClassVar

import httpx
import pytest
import trustme
from pydantic import BaseModel

from orchestrix import Executor, JobContext, job
from orchestrix.broker.port import Outcome, Outgoing
from orchestrix.http_client import HttpClient
from orchestrix.saga.messages import dump
from orchestrix.worker.executor.callbacks import Callbacks
from orchestrix.worker.executor.run_call import LOGS_PATH, STATUS_PATH, read_run
from tests.support import free_port, holds

from .fake_coordinator import DEADLINE_S, TOKEN, FakeCoordinator, call, fake_coordinator, run_body


@job("executor.callbacks")
async def unused(context: JobContext) -> None:
    """Something to serve."""


@pytest.fixture
async def node() -> AsyncIterator[FakeCoordinator]:
    async with fake_coordinator() as made:
        yield made


def report(path: str, seq: int) -> Outgoing:
    return Outgoing("", path, dump({"seq": seq}), f"m-{seq}")


async def outcomes(node: FakeCoordinator, *reports: Outgoing) -> tuple[list[Outcome], list[str]]:
    """What becomes of the reports, and with which reasons the attempt is cancelled."""
    client = HttpClient(keep_alive=True)
    cancelled: list[str] = []
    callbacks = Callbacks(client, read_run(dump(run_body("x", node.callback()))), DEADLINE_S, cancelled.append)
    try:
        return [one.outcome for one in await callbacks.publish(reports)], cancelled
    finally:
        await client.close()


MIXED = [report(LOGS_PATH, 1), report(LOGS_PATH, 2), report(STATUS_PATH, 3), report(LOGS_PATH, 4)]


async def test_lines_go_together_and_each_status_alone(node: FakeCoordinator) -> None:
    assert await outcomes(node, *MIXED) == ([Outcome.CONFIRMED] * 4, [])
    assert [(one.kind, one.body) for one in node.requests] == [
        ("logs", [{"seq": 1}, {"seq": 2}]),
        ("status", {"seq": 3}),
        ("logs", [{"seq": 4}]),
    ]


@pytest.mark.parametrize("status", [500, 502, 503, 302, 429])
async def test_after_one_that_is_not_taken_nothing_is_sent(status: int, node: FakeCoordinator) -> None:
    node.answer = lambda report: (status if len(node.requests) == 1 else 200, {})
    assert await outcomes(node, *MIXED) == ([Outcome.UNKNOWN] * 4, [])
    assert node.kinds() == ["logs"]


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_what_no_node_can_read_is_not_sent_for_ever(status: int, node: FakeCoordinator) -> None:
    node.answer = lambda report: (status, {})
    assert (await outcomes(node, MIXED[2]))[0] == [Outcome.REFUSED]


@pytest.mark.parametrize("status", [401, 403, 404, 410])
async def test_what_no_node_knows_is_cancelled(status: int, node: FakeCoordinator) -> None:
    node.answer = lambda report: (status, {})
    found, (reason,) = await outcomes(node, MIXED[2])
    assert found == [Outcome.CONFIRMED]
    assert f"{node.url}/jobs/j-1/attempts/h-1: {status}" in reason


async def test_a_cancel_that_is_null_cancels_nothing(node: FakeCoordinator) -> None:
    node.answer = lambda report: (200, {"cancel": None, "more": [1]})
    assert await outcomes(node, MIXED[2]) == ([Outcome.CONFIRMED], [])


class SETTINGS(BaseModel):
    """What the functions of this module need."""

    section: ClassVar[str] = "executor_callbacks"
    pages: int = 3


@job("executor.settings")
async def counts(context: JobContext) -> dict[str, int]:
    return {"pages": context.settings.pages}


async def test_a_function_has_the_settings_of_its_module(
    node: FakeCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRIX_EXECUTOR_CALLBACKS__PAGES", "7")
    address = f"http://127.0.0.1:{free_port()}"
    async with Executor("shop", address, node.url, TOKEN, listen=address.removeprefix("http://"), jobs=[counts]):
        assert (await call(address, "/run", run_body("executor.settings", node.callback()))).status_code == 200
        assert (await node.ended())["result"] == {"pages": 7}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_waits_for_the_signal_to_stop(number: int, node: FakeCoordinator) -> None:
    async with Executor("shop", "http://10.0.0.7:9999", node.url) as executor:
        waiting = asyncio.create_task(executor.wait_for_stop())
        await holds(lambda: not waiting.done(), during=0.1)
        os.kill(os.getpid(), number)
        await asyncio.wait_for(waiting, DEADLINE_S)


async def test_it_serves_https(node: FakeCoordinator) -> None:
    ca, port = trustme.CA(), free_port()
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert("localhost").configure_cert(serving)
    trusting = ssl.create_default_context()
    ca.configure_trust(trusting)
    address = f"https://localhost:{port}"
    executor = Executor("shop", address, node.url, listen=f"127.0.0.1:{port}", jobs=[unused], tls=serving)
    async with executor, httpx.AsyncClient(verify=trusting, trust_env=False, timeout=DEADLINE_S) as client:
        answer = await client.get(f"https://localhost:{port}/health")
        assert json.loads(answer.content)["state"] == "UP"
