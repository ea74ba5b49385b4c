"""Does all of a process end, whatever goes wrong with a part of it?"""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from app import main
from app.bootstrap.node import Node
from app.bootstrap.parts import given_up
from app.lifecycle import Health

ALL = ["resign", "worker", "retire", "http", "stop"]


class Parts:
    """A node, a worker and a server that note when they are ended; those in `broken` fail at it."""

    def __init__(self, *broken: str) -> None:
        self.broken = broken
        self.ended: list[str] = []
        self.health = Health()
        self.should_exit = False

    async def end(self, name: str) -> None:
        self.ended.append(name)
        if name in self.broken:
            raise RuntimeError(name)

    async def resign(self) -> None:
        await self.end("resign")

    async def retire(self) -> None:
        await self.end("retire")

    async def stop(self) -> None:
        await self.end("stop")


class Hung(Parts):
    """A leader with a duty that does not end."""

    async def resign(self) -> None:
        await super().resign()
        await asyncio.Event().wait()


class Hand:
    """The worker of those parts."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

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
    await main._stop(cast(Node, parts), Hand(parts), cast(main.Server, parts), serving)
    assert parts.health.draining
    return parts.ended


@pytest.mark.parametrize("broken", [(), *((name,) for name in ALL), tuple(ALL)], ids=" ".join)
async def test_what_fails_at_its_end_keeps_nothing_else_running(
    broken: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert await stopped(Parts(*broken)) == ALL
    told = [str(one.exc_info[1]) for one in caplog.records if one.exc_info]
    assert told == list(broken)


async def test_a_lead_that_is_not_given_up_holds_nothing_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main, "RESIGN", 0.01)
    assert await asyncio.wait_for(stopped(Hung()), 10) == ALL
    assert any("could not be given up" in one.message for one in caplog.records)


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
