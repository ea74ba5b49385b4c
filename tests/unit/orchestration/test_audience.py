"""Since when does a queue have a consumer, as a node sees it now and then?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.broker.port import LinkState, Outcome, Outgoing, Published
from orchestrix.engine import consumer_presence
from orchestrix.engine.consumer_presence import ConsumerPresence
from orchestrix.errors import Unavailable
from orchestrix.telemetry.metrics.catalogue import COMMAND_CONSUMERS, COMMAND_MESSAGES
from orchestrix.telemetry.metrics.instruments import Registry
from tests.support import eventually

pytestmark = pytest.mark.virtual_time

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOONER = NOW - timedelta(hours=1)


class Queues:
    """A broker that is asked for its queues alone. `hearers` is how many each has, None for one that is not there.

    Those in `unseen` cannot be looked at. While it `is_full` it takes no messages.
    """

    state = LinkState.UP
    blocked: str | None = None

    def __init__(self) -> None:
        self.is_full = False
        self.hearers: dict[str, int | None] = {"cmd.a": 1, "cmd.b": 1}
        self.away = False
        self.unseen: set[str] = set()
        self.asked = 0
        self.hooks: list[Any] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.at_once = self.most_at_once = 0

    def on_up(self, hook: Any) -> None:
        self.hooks.append(hook)

    async def publish(self, messages: Sequence[Outgoing], timeout: float) -> list[Published]:
        return [Published(Outcome.UNKNOWN if self.is_full or self.away else Outcome.RETURNED)]

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        self.asked += 1
        if self.away or queue in self.unseen:
            raise Unavailable("the link is down")
        found = self.hearers[queue]
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.answers.wait()
        self.at_once -= 1
        return None if found is None else (7, found)

    def comes_up(self, generation: int) -> None:
        self.away = False
        for hook in self.hooks:
            hook(generation)


class Seen:
    """An audience whose looks are never too soon, with a clock of its own."""

    def __init__(self) -> None:
        self.now = NOW
        self.queues = Queues()
        self.audience = ConsumerPresence(self.queues, lambda: self.queues.hearers, lambda: self.now)  # type: ignore[arg-type]

    async def look(self, seconds: float = 0.0) -> list[datetime | None]:
        """What is known that much later."""
        self.now += timedelta(seconds=seconds)
        await self.audience.refresh()
        return [self.audience.since(command, SOONER) for command in ("cmd.a", "cmd.b")]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    monkeypatch.setattr(consumer_presence, "CHECK_INTERVAL_S", 0.0)
    return Seen()


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Where it shows its counts: nothing that other tests have left is there."""
    made = Registry()
    monkeypatch.setattr(consumer_presence, "gauge", made.gauge)
    return made


async def test_a_queue_that_always_had_a_consumer_had_one_from_the_beginning(seen: Seen) -> None:
    assert await seen.look() == [SOONER, SOONER]
    assert await seen.look(5) == [SOONER, SOONER]


@pytest.mark.parametrize("missing", [0, None])
async def test_a_queue_has_a_consumer_from_when_it_was_seen_to_have_one_again(seen: Seen, missing: int | None) -> None:
    seen.queues.hearers["cmd.a"] = missing
    assert await seen.look() == [None, SOONER]
    assert await seen.look(5) == [None, SOONER]
    seen.queues.hearers["cmd.a"] = 2
    assert await seen.look(1) == [NOW + timedelta(seconds=6), SOONER]
    assert await seen.look(9) == [NOW + timedelta(seconds=6), SOONER]
    later = NOW + timedelta(seconds=10)
    assert seen.audience.since("cmd.a", later) == later, "an outage since then counts too"


async def test_queues_that_no_saga_has_any_more_are_not_in_the_metrics(seen: Seen, metrics: Registry) -> None:
    await seen.audience.start()
    await seen.look()
    assert metrics.values(COMMAND_MESSAGES) == {(): 14}
    del seen.queues.hearers["cmd.b"]
    await seen.audience.refresh()
    assert metrics.values(COMMAND_CONSUMERS) == {("cmd.a",): 1}
    assert metrics.values(COMMAND_MESSAGES) == {(): 7}
    await seen.audience.stop()
    assert metrics.values(COMMAND_CONSUMERS) == metrics.values(COMMAND_MESSAGES) == {}


async def test_a_queue_that_could_not_be_looked_at_is_not_in_the_metrics(seen: Seen, metrics: Registry) -> None:
    await seen.audience.start()
    seen.queues.hearers["cmd.b"] = None
    await seen.look()
    assert metrics.values(COMMAND_CONSUMERS) == {("cmd.a",): 1, ("cmd.b",): 0}, "a queue that is not there has none"
    seen.queues.unseen = {"cmd.a"}
    assert await seen.look() == [None, None], "no time of a deadline passes meanwhile"
    assert metrics.values(COMMAND_CONSUMERS) == {("cmd.b",): 0}, "0 consumers would be a false alert"
    seen.queues.unseen = set()
    await seen.look()
    assert metrics.values(COMMAND_CONSUMERS) == {("cmd.a",): 1, ("cmd.b",): 0}
    await seen.audience.stop()


async def test_the_way_back_is_open_from_when_the_broker_was_seen_to_take_messages_again(seen: Seen) -> None:
    await seen.look()
    assert seen.audience.answers_since(SOONER) == SOONER
    seen.queues.is_full = True
    assert await seen.look(5) == [SOONER, SOONER], "the queues are read all the same"
    assert seen.audience.answers_since(SOONER) is None
    seen.queues.is_full = False
    await seen.look(1)
    assert seen.audience.answers_since(SOONER) == NOW + timedelta(seconds=6)
    seen.queues.blocked = "low on memory"
    assert seen.audience.answers_since(SOONER) is None, "it has said so since the last look"
    seen.queues.blocked = None
    assert seen.audience.answers_since(SOONER) is None, "the next look says from when on"
    await seen.look(0)
    assert seen.audience.answers_since(SOONER) == NOW + timedelta(seconds=6)
    await seen.look(9)
    assert seen.audience.answers_since(SOONER) == NOW + timedelta(seconds=6)
    later = NOW + timedelta(seconds=10)
    assert seen.audience.answers_since(later) == later


async def test_what_could_not_be_looked_at_has_no_consumer_until_the_link_is_back(seen: Seen) -> None:
    seen.queues.away = True
    assert await seen.look() == [None, None]
    seen.queues.comes_up(2)
    assert await seen.look(3) == [SOONER, SOONER], "the outage itself is told by when the link came up"


async def test_a_moment_after_a_look_nothing_is_asked_again() -> None:
    seen = Seen()
    await seen.look()
    await seen.look()
    assert seen.queues.asked == 2
    seen.queues.comes_up(2)
    await seen.look()
    assert seen.queues.asked == 4, "what was seen over another link is old"


async def test_a_look_that_a_new_link_overtakes_is_taken_again() -> None:
    seen = Seen()
    seen.queues.answers.clear()
    looking = asyncio.create_task(seen.audience.refresh())
    await eventually(lambda: seen.queues.at_once == 2, deadline=3)
    seen.queues.comes_up(2)
    seen.queues.answers.set()
    await looking
    await seen.look()
    assert seen.queues.asked == 4


async def test_few_queues_are_looked_at_at_once() -> None:
    seen = Seen()
    seen.queues.hearers.update({f"cmd.{number}": 1 for number in range(3 * consumer_presence.CONCURRENT_CHECKS)})
    many = ConsumerPresence(seen.queues, lambda: seen.queues.hearers, lambda: NOW)  # type: ignore[arg-type]
    seen.queues.answers.clear()
    looking = asyncio.create_task(many.refresh())
    await eventually(lambda: seen.queues.at_once == consumer_presence.CONCURRENT_CHECKS, deadline=3)
    seen.queues.answers.set()
    await looking
    assert (seen.queues.asked, seen.queues.most_at_once) == (
        len(seen.queues.hearers),
        consumer_presence.CONCURRENT_CHECKS,
    )


async def test_it_looks_by_itself_and_more_often_while_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_presence, "CHECK_INTERVAL_S", 0.02)
    seen = Seen()
    seen.queues.hearers["cmd.b"] = 0
    await seen.audience.start()
    try:
        await eventually(lambda: seen.queues.asked >= 10, deadline=3)
        seen.queues.hearers["cmd.b"] = 1
        await eventually(lambda: seen.audience.since("cmd.b", SOONER) == NOW, deadline=3)
    finally:
        await seen.audience.stop()


async def test_a_queue_is_silent_once_it_has_had_no_consumer_for_long_enough(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    assert seen.audience.is_silent("cmd.a", 5) is None, "nobody has looked yet"
    await seen.look()
    assert seen.audience.is_silent("cmd.a", 5) is False
    seen.queues.hearers["cmd.a"] = 0
    await seen.look()
    assert seen.audience.is_silent("cmd.a", 5) is None, "it may be a worker that starts anew"
    assert seen.audience.is_silent("cmd.a", 0) is True
    now += 5
    assert seen.audience.is_silent("cmd.a", 5) is True
    assert seen.audience.is_silent("cmd.b", 5) is False
    seen.queues.comes_up(2)
    assert seen.audience.is_silent("cmd.a", 5) is None, "what was before is the outage's"
    await seen.look()
    assert seen.audience.is_silent("cmd.a", 5) is None
    seen.queues.hearers["cmd.a"] = 1
    await seen.look()
    assert seen.audience.is_silent("cmd.a", 5) is False
