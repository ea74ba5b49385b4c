"""Does all of a process end, whatever goes wrong with a part of it?"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrix import server
from orchestrix.api.guards.connections import Server
from orchestrix.bootstrap.dev_worker import DevWorker
from orchestrix.bootstrap.stop_signals import given_up
from orchestrix.config.settings import Settings
from orchestrix.lifecycle import Health
from orchestrix.node import Node

ALL = ["resign", "worker", "retire", "http", "stop"]


class Parts:
    """A node, a worker and a server that note when they are ended; those in `broken` fail at it, and `hung` never end,
    whatever is done to them.
    """

    leave_limit_s = 10.0

    def __init__(self, *broken: str, hung: tuple[str, ...] = ()) -> None:
        self.broken, self.hung = broken, hung
        self.ended: list[str] = []
        self.enough = asyncio.Event()
        self.health = Health()
        self.should_exit = False

    async def end(self, name: str) -> None:
        self.ended.append(name)
        if name in self.broken:
            raise RuntimeError(name)
        while name in self.hung and not self.enough.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.enough.wait()

    async def resign(self) -> None:
        await self.end("resign")

    async def retire(self) -> None:
        await self.end("retire")

    async def stop(self) -> None:
        await self.end("stop")


class Hand:
    """The worker of those parts."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.shutdown_limit_s = parts, parts.leave_limit_s

    async def start(self) -> None:
        """It has begun."""

    async def stop(self) -> None:
        await self.parts.end("worker")


async def stopped(parts: Parts) -> list[str]:
    """What was ended, in its order."""

    async def serve() -> None:
        while not parts.should_exit:
            await asyncio.sleep(0)
        await parts.end("http")

    serving = asyncio.create_task(serve())
    await server._stop(cast(Node, parts), cast(DevWorker, Hand(parts)), cast(Server, parts), serving)
    assert parts.health.stopping
    return parts.ended


@pytest.mark.parametrize("broken", [(), *((name,) for name in ALL), tuple(ALL)], ids=" ".join)
async def test_what_fails_at_its_end_keeps_nothing_else_running(
    broken: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert await stopped(Parts(*broken)) == ALL
    told = [str(one.exc_info[1]) for one in caplog.records if one.exc_info]
    assert told == list(broken)


@pytest.mark.parametrize("hung", [*((name,) for name in ALL), tuple(ALL)], ids=" ".join)
async def test_what_does_not_end_is_told_and_holds_nothing_for_long(
    hung: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("RESIGN_TIMEOUT_S", "STOP_HTTP_TIMEOUT_S", "CLOSE_TIMEOUT_S", "STOP_NODE_TIMEOUT_S"):
        monkeypatch.setattr(server, name, 0.01)
    parts = Parts(hung=hung)
    parts.leave_limit_s = 0.01
    assert await asyncio.wait_for(stopped(parts), 10) == ALL
    told = [one.message for one in caplog.records if "did not finish within 0.0" in one.message]
    assert len(told) == len(hung)
    parts.enough.set()


async def test_a_beginning_that_is_given_up_has_ended_whatever_it_fails_with() -> None:
    begun, ends = asyncio.Event(), []

    async def begin() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ends.append("begin")
            raise RuntimeError("at its end")

    beginning = asyncio.create_task(begin())
    await begun.wait()
    await given_up(beginning)
    assert ends == ["begin"]


@pytest.mark.parametrize("broken", ["", "told", "kept"])
async def test_what_a_second_signal_cuts_off_is_written_down_and_told_whichever_fails(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def note(name: str) -> None:
        done.append(name)
        if name == broken:
            raise OSError(name)

    @contextlib.asynccontextmanager
    async def development(*_: object, **__: object) -> AsyncIterator[SimpleNamespace]:
        worker = SimpleNamespace(cut_off=lambda: note("told"))
        node = SimpleNamespace(context=SimpleNamespace(name="node-1"))
        yield SimpleNamespace(node=node, worker=worker)

    async def run(*given: Any) -> None:
        with contextlib.suppress(OSError):
            given[-1]()

    monkeypatch.setattr(server, "development", development)
    monkeypatch.setattr(server, "_run", run)
    places: Any = {"folder": Path(), "broker_ports": (0,), "api_ports": (0,)}
    await server.run_dev(Settings(), **places, ready=lambda running: None, cut_off=lambda node: note("kept"))
    assert done == ["kept", "told"]
