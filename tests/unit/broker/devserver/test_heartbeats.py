"""Does the broker beat when it has nothing to say, and give up a peer that is silent?"""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from pamqp import commands
from pamqp.heartbeat import Heartbeat

from orchestrix import clock
from orchestrix.broker.embedded import EmbeddedBroker
from tests.unit.broker.devserver.raw import raw

pytestmark = pytest.mark.usefixtures("quick_heartbeats")


async def test_it_beats_when_it_had_nothing_else_to_say_for_an_interval(server: EmbeddedBroker) -> None:
    async with raw(server) as link:
        await link.open(heartbeat=1)
        before = clock.monotonic()
        await link.until(Heartbeat)
        assert clock.monotonic() - before < 0.4


async def test_a_silent_peer_is_given_up_after_two_intervals_and_its_messages_return(server: EmbeddedBroker) -> None:
    async with raw(server) as link:
        await link.open(heartbeat=1)
        link.send(commands.Queue.Declare(queue="mine", exclusive=True), 1)
        before = clock.monotonic()
        with contextlib.suppress(ConnectionError):
            await link.rest()
        assert 0.4 <= clock.monotonic() - before < 2
    assert server.queue_depths() == {}


async def test_a_peer_that_beats_is_kept(server: EmbeddedBroker) -> None:
    async with raw(server) as link:
        await link.open(heartbeat=1)
        for _ in range(6):  # each arrives half an interval after the last
            await link.until(Heartbeat)
            link.writer.write(b"\x08\x00\x00\x00\x00\x00\x00\xce")
        link.send(commands.Queue.Declare(queue="mine", exclusive=True), 1)
        await link.until(commands.Queue.DeclareOk)


async def test_without_heartbeat_there_is_none(server: EmbeddedBroker) -> None:
    async with raw(server) as link:
        await link.open(heartbeat=0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                raise AssertionError(f"unexpected {await link.frame()}")
