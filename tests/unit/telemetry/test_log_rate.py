"""Does a process write no more lines than it may in a second, and say how many it left out?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from orchestrix.telemetry import log_events, log_rate
from orchestrix.telemetry.log_rate import LINES_PER_SECOND, LogRateLimit

log = logging.getLogger("orchestrix.test.rate")


class Clock:
    """Stands in for the clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


class Loop:
    """Stands in for the event loop: keeps what it is to call, and in how many seconds."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.later.append((seconds, call))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(log_rate, "clock", found)
    return found


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Loop:
    found = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: found)
    return found


def counts(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int]]:
    """The event and the count of each line of the limit itself."""
    return [(vars(one)["event"], vars(one)["left_out"]) for one in caplog.records if one.name == log.name]


def test_200_lines_pass_in_a_second(clock: Clock, loop: Loop) -> None:
    rate = LogRateLimit(log)
    assert [rate.passes() for _ in range(LINES_PER_SECOND + 5)] == [True] * 200 + [False] * 5
    clock.now += 0.999
    assert (rate.passes(), rate.left_out) == (False, 6)
    clock.now += 0.001
    assert [rate.passes() for _ in range(201)] == [True] * 200 + [False]


def test_one_second_later_a_line_says_how_many_were_left_out(
    clock: Clock, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, log.name)
    rate = LogRateLimit(log, limit=2)
    for _ in range(5):
        rate.passes()
    ((seconds, report),) = loop.later
    assert (seconds, counts(caplog)) == (1.0, [])
    report()
    assert counts(caplog) == [(log_events.LINES_LEFT_OUT, 3)]
    assert caplog.messages == ["3 lines left out: over 2 in a second"]
    report()
    clock.now += 1
    rate.passes()
    assert len(counts(caplog)) == 1, "each left out line counts once"


def test_the_next_line_that_may_pass_reports_first(clock: Clock, loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, log.name)
    rate = LogRateLimit(log, limit=1)
    assert [rate.passes(), rate.passes()] == [True, False]
    clock.now += 1
    assert (rate.passes(), counts(caplog)) == (True, [(log_events.LINES_LEFT_OUT, 1)])


def test_a_clock_that_was_set_back_blocks_nothing(clock: Clock, loop: Loop) -> None:
    rate = LogRateLimit(log, limit=1)
    assert [rate.passes(), rate.passes()] == [True, False]
    clock.now -= 50
    assert rate.passes()


def test_without_an_event_loop_nothing_fails(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, log.name)
    rate = LogRateLimit(log, limit=1)
    assert [rate.passes() for _ in range(3)] == [True, False, False]
    clock.now += 1
    assert rate.passes()
    assert counts(caplog) == [(log_events.LINES_LEFT_OUT, 2)]
