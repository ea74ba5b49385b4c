"""What does a publisher keep of messages that the broker does not answer for?"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import cast

import pytest
from pamqp.base import Frame

from orchestrix import clock
from orchestrix.broker.amqp import publisher as module
from orchestrix.broker.amqp.channel import AmqpChannel, ChannelListener
from orchestrix.broker.amqp.connection import AmqpConnection
from orchestrix.broker.amqp.publisher import AmqpPublisher
from orchestrix.broker.port import Outcome, Outgoing
from tests.fakes.time import Shifted
from tests.support import eventually

pytestmark = pytest.mark.virtual_time


class Tracked(Outgoing):
    """A message that a weak reference can follow."""


class SilentChannel:
    """Takes everything and answers nothing."""

    number = 1

    def __init__(self, listener: ChannelListener) -> None:
        self.listener = listener
        self.abandoned = ""
        self.sent: list[bytes] = []

    async def call(self, request: Frame) -> None:
        """Every call is answered at once."""

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def abandon(self, reason: str) -> None:
        self.abandoned = reason


class QuietLink:
    """A link whose channels are silent."""

    blocked = None
    is_open = True
    frame_max = 131_072

    def __init__(self) -> None:
        self.channels: list[SilentChannel] = []

    async def channel(self, listener: ChannelListener) -> AmqpChannel:
        self.channels.append(SilentChannel(listener))
        return cast(AmqpChannel, self.channels[-1])

    async def drain(self) -> None:
        """Nothing waits."""


@pytest.fixture
def link() -> QuietLink:
    return QuietLink()


@pytest.fixture
async def publisher(link: QuietLink) -> AmqpPublisher:
    made = AmqpPublisher()
    await made.attach(cast(AmqpConnection, link))
    return made


@pytest.fixture
def time() -> Iterator[Shifted]:
    source = Shifted()
    with clock.use(source):
        yield source


def letter(id: str) -> Tracked:
    return Tracked("work", "jobs", b"{}", id)


async def given_up(publisher: AmqpPublisher, *ids: str) -> None:
    results = await publisher.publish([letter(id) for id in ids], timeout=0.01)
    assert {one.outcome for one in results} == {Outcome.UNKNOWN}


async def test_a_message_that_was_given_up_is_not_kept(publisher: AmqpPublisher) -> None:
    message = letter("a")
    kept = weakref.ref(message)
    await asyncio.create_task(publisher.publish([message], timeout=0.01))  # a task keeps what last cancelled it
    del message
    gc.collect()
    assert kept() is None


async def test_too_many_late_confirms_cost_the_channel(
    publisher: AmqpPublisher, link: QuietLink, time: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LATE_CONFIRMS", 3)
    await given_up(publisher, "a", "b", "c")
    await given_up(publisher, "a")
    time.advance(59)
    await given_up(publisher, "a")
    assert len(link.channels) == 1
    time.advance(1)
    await given_up(publisher, "a")
    await eventually(lambda: len(link.channels) == 2, deadline=2.0)
    assert link.channels[0].abandoned == "4 messages unconfirmed for more than 60 s"
    await given_up(publisher, "a")
    assert len(link.channels[1].sent) == 1
    assert b"x-copy" not in link.channels[1].sent[0]


async def test_late_answers_make_room_again(
    publisher: AmqpPublisher, link: QuietLink, time: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LATE_CONFIRMS", 3)
    for _ in range(4):
        await given_up(publisher, "a", "b", "c")
        time.advance(61)
        sent = b"".join(link.channels[0].sent)
        publisher.on_confirm(sent.count(b"application/json"), True, True)
    assert len(link.channels) == 1


async def test_who_waits_when_the_channel_is_opened_anew_hears_of_it_at_once(
    publisher: AmqpPublisher, time: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LATE_CONFIRMS", 0)
    await given_up(publisher, "a")
    waits = asyncio.create_task(publisher.publish([letter("b")], timeout=30))
    time.advance(60)
    await given_up(publisher, "c")
    (told,) = await asyncio.wait_for(waits, 2)
    assert (told.outcome, told.channel_closed) == (Outcome.UNKNOWN, False)
    assert told.detail == "1 message unconfirmed for more than 60 s"
