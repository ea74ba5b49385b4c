"""Does a process say what it waits for and what it cuts off, and wait for its own last words alone?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from orchestrix.bootstrap import dev_worker
from orchestrix.bootstrap.dev_worker import DevWorker, log_cut_off, log_stopping
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.topology import (
    UNROUTED,
    dead_letters_of,
    dispatch_queue,
    logs_queue,
    status_queue,
    worker_heartbeat_queue,
)
from orchestrix.worker.worker import Worker
from tests.support import eventually

pytestmark = pytest.mark.virtual_time

OWN, FOREIGN = "0190a5a0-0000-7000-8000-000000000001", "0190a5a0-0000-7000-8000-000000000002"


@dataclass
class Jobs:
    """The part of a worker that runs jobs."""

    job_ids: list[str] = field(default_factory=list)
    had: set[str] = field(default_factory=lambda: {OWN})
    queues: tuple[str, ...] = ("reports",)


@dataclass
class Hand:
    """A worker."""

    commands_in_flight: int = 0
    jobs: Jobs | None = field(default_factory=Jobs)
    ended: bool = False

    async def stop(self) -> None:
        self.ended = True


@dataclass
class Broker:
    """A broker whose queues the test fills: by their names, how many messages are not settled."""

    queues: dict[str, int] = field(default_factory=dict)
    looks: int = 0
    each: Callable[[], None] = lambda: None

    def unsettled(self) -> dict[str, int]:
        self.looks += 1
        self.each()
        return self.queues


def of(hand: Hand) -> Worker:
    return cast(Worker, hand)


def made(broker: Broker, hand: Hand | None = None) -> DevWorker:
    worker, server = of(hand or Hand()), cast(EmbeddedBroker, broker)
    return DevWorker(worker, server, ("cmd.a",), ("evt.a", "evt.b"), lambda: "node-1", 30.0)


@pytest.mark.parametrize(
    ("jobs", "commands", "first", "last"),
    [
        (1, 0, "waiting up to 30 s for 1 running job. Press Ctrl-C again to stop now (so)", "1 running job; so"),
        (0, 1, "for 1 running command. ", "stopped before the end: 1 running command; so"),
        (2, 3, "for 2 running jobs and 3 running commands. Press Ctrl-C again to stop now (so)", "so"),
    ],
)
def test_what_is_waited_for_and_what_is_cut_off(
    jobs: int, commands: int, first: str, last: str, caplog: pytest.LogCaptureFixture
) -> None:
    hand = Hand(commands, Jobs(["j"] * jobs))
    log_stopping(of(hand), 30.0, "so")
    assert first in caplog.text
    caplog.clear()
    log_cut_off(of(hand), "so")
    assert last in caplog.text


@pytest.mark.parametrize("jobs", [None, Jobs()])
def test_who_has_nothing_in_hand_says_nothing(jobs: Jobs | None, caplog: pytest.LogCaptureFixture) -> None:
    log_stopping(of(Hand(jobs=jobs)), 30.0, "so")
    log_cut_off(of(Hand(jobs=jobs)), "so")
    assert caplog.text == ""


WORDS = ["evt.b", status_queue(OWN), logs_queue(OWN), worker_heartbeat_queue("node-1")]
REFUSED = [dead_letters_of(name) for name in ("evt.a", "cmd.a", dispatch_queue("reports"))] + [UNROUTED]


@pytest.mark.parametrize("queue", [*WORDS, *REFUSED])
async def test_it_ends_when_its_last_word_is_written(queue: str, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker({queue: 1})
    ending = asyncio.create_task(made(broker).stop())
    await eventually(lambda: broker.looks > 3, deadline=5)
    assert not ending.done()
    broker.queues[queue] = 0
    await asyncio.wait_for(ending, 5)
    assert caplog.text == ""


async def test_what_others_say_is_not_waited_for() -> None:
    foreign = [
        status_queue(FOREIGN),
        logs_queue(FOREIGN),
        worker_heartbeat_queue("node-2"),
        "cmd.a",
        dispatch_queue("reports"),
    ]
    broker, hand = Broker(dict.fromkeys(foreign, 1)), Hand()
    await asyncio.wait_for(made(broker, hand).stop(), 5)
    assert hand.ended
    assert broker.looks > 0


async def test_others_that_go_on_speaking_by_the_same_queues_hold_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """No two of them are ever empty together."""
    broker = Broker({"evt.a": 1, "evt.b": 0})

    def swap() -> None:
        broker.queues["evt.a"], broker.queues["evt.b"] = broker.queues["evt.b"], broker.queues["evt.a"]

    broker.each = swap
    await asyncio.wait_for(made(broker).stop(), 5)
    assert caplog.text == ""


async def test_a_word_that_is_refused_at_last_is_waited_for_as_well() -> None:
    broker = Broker({"evt.a": 1})
    ending = asyncio.create_task(made(broker).stop())
    await eventually(lambda: broker.looks > 1, deadline=5)
    broker.queues |= {"evt.a": 0, dead_letters_of("evt.a"): 1}
    before = broker.looks
    await eventually(lambda: broker.looks > before + 3, deadline=5)
    assert not ending.done()
    broker.queues[dead_letters_of("evt.a")] = 0
    await asyncio.wait_for(ending, 5)


async def test_what_cannot_be_written_is_waited_for_only_so_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dev_worker, "LAST_WRITES_TIMEOUT_S", 0.05)
    hand = Hand()
    await asyncio.wait_for(made(Broker({"evt.a": 1}), hand).stop(), 5)
    assert hand.ended
    assert "the last reports of the worker could not all be stored" in caplog.text
