"""Does what clients have sent wait in order, in bounded memory, and the newest of equal messages alone?"""

from __future__ import annotations

import asyncio

import pytest

from orchestrix.shards.waiting import OVERHEAD_BYTES, WaitingMessages

ONE, TWO = (b"c-1", b"register"), (b"c-2", b"heartbeat")


async def test_messages_stay_until_they_are_removed_in_the_order_in_which_each_was_sent_last() -> None:
    waiting = WaitingMessages()
    for message in (ONE, TWO, ONE):
        assert waiting.add(message)
    assert await waiting.first(10) == [TWO, ONE]
    assert await waiting.first(1) == [TWO]
    waiting.remove([TWO])
    assert await waiting.first(10) == [ONE]


async def test_one_that_waits_for_messages_is_woken() -> None:
    waiting = WaitingMessages()
    first = asyncio.create_task(waiting.first(10))
    await asyncio.sleep(0)
    assert not first.done()
    waiting.add(ONE)
    assert await first == [ONE]


@pytest.mark.parametrize("again", [False, True])
def test_more_than_there_is_room_for_is_refused_and_room_comes_back(again: bool) -> None:
    size = len(ONE[0]) + len(ONE[1]) + OVERHEAD_BYTES
    waiting = WaitingMessages(size + 10)
    assert waiting.add(ONE)
    assert waiting.add(ONE), "it takes the place of the same one"
    assert not waiting.add(TWO)
    waiting.remove([ONE, ONE] if again else [ONE])
    assert waiting.add(TWO)
    assert not waiting.add(ONE)
