"""Is the event loop of a process watched once it is ready, and not before?"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, cast

import pytest

from orchestrix import server
from orchestrix.bootstrap import worker as worker_process
from orchestrix.config.settings import HttpSettings, Settings
from orchestrix.lifecycle import Health
from tests.support import eventually

PARTS_OF_A_WORKER: Final = (
    *("load_catalog", "open_database", "open_broker", "DefinitionStore", "assemble", "DatabaseWatch"),
    *("export_traces", "MonitoringPort", "gauge", "settle_memory"),
)


class Ready(Exception):
    """The process is ready, which ends the test's run of it."""


class Part:
    """A part of a process. Each call to it notes whether the loop is watched by then."""

    roles = frozenset({"api", "orchestrator"})
    settings = Settings(http=HttpSettings(port=0))
    name = "node-1"
    queues: Sequence[str] = ()
    jobs = None
    commands_in_flight = abandoned = 0

    def __init__(self, watched: list[tuple[str, bool]]) -> None:
        self.watched = watched
        self.health = Health()

    @property
    def parts(self) -> Part:
        return self

    context = registry = listeners = parts

    def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
        def call(*_: object, **__: object) -> Awaitable[None]:
            return self._noted(name)

        return call

    async def _noted(self, name: str) -> None:
        for _ in range(5):  # a watch that was asked for begins in one
            await asyncio.sleep(0)
        self.watched.append((name, is_watched()))

    def bound(self, _: object) -> None:
        """It does not listen."""

    def keep(self, _: object) -> None:
        """It has no metrics."""

    def problem(self) -> None:
        """It is well."""


def is_watched() -> bool:
    return any(one.name == "orchestrix-stalls" for one in threading.enumerate())


@pytest.fixture(autouse=True)
async def none_of_others() -> None:
    await eventually(lambda: not is_watched(), deadline=10)


async def watched_at_last() -> None:
    await eventually(is_watched, deadline=10)
    raise Ready


@pytest.mark.parametrize("dev", [True, False])
async def test_a_node_is_watched_once_it_is_ready(dev: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[tuple[str, bool]] = []
    part: Any = Part(watched)
    for name in ("_server", "node_port", "_running"):
        monkeypatch.setattr(server, name, lambda *_: part)
    for name in ("export_traces", "listening", "settle_memory"):
        monkeypatch.setattr(server, name, lambda *_: None)
    monkeypatch.setattr(server, "_stop", lambda *_: part._noted("the end"))
    with pytest.raises(Ready):
        await server._run(part, part if dev else None, [0], None, lambda _: watched_at_last(), cast(Any, None))
    before = [name for name, seen in watched if not seen]
    assert sorted(before) == sorted(["serve", "start", "start", "begin", "settled", *(["start"] if dev else [])])
    assert ("the end", True) in watched
    await eventually(lambda: not is_watched(), deadline=10)


async def test_a_worker_is_watched_once_it_consumes(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[tuple[str, bool]] = []
    part = Part(watched)
    for name in PARTS_OF_A_WORKER:
        monkeypatch.setattr(worker_process, name, lambda *_, **__: part)
    monkeypatch.setattr(worker_process, "_health", lambda *_: part.health)
    monkeypatch.setattr(worker_process, "stop_traces", lambda: part._noted("the end"))
    ready = asyncio.Event()

    async def run() -> None:
        await worker_process.run_worker(
            Settings(), name="w", queues=(), broker_url=lambda: "amqp://x/", ready=lambda _: ready.set()
        )

    running = asyncio.create_task(run())
    await ready.wait()
    await eventually(is_watched, deadline=10)
    running.cancel()
    await asyncio.wait({running}, timeout=10)
    before = [name for name, seen in watched if not seen]
    steps = ["wait_for_schema", "read_when_available", "start", "start", "wait_connected"]
    assert before == ["start", "start", "start", *steps]
    assert ("the end", True) in watched
    await eventually(lambda: not is_watched(), deadline=10)
