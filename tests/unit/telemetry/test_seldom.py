"""Is what anybody can make happen said, but not each time?"""

from __future__ import annotations

import logging

import pytest

from orchestrix.telemetry import log_throttle
from orchestrix.telemetry.log_throttle import LogThrottle, LogThrottleFilter


class Clock:
    """Stands in for the clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(log_throttle, "clock", found)
    return found


def test_the_first_is_said_and_later_how_many_were_not(clock: Clock) -> None:
    lines = LogThrottle(interval_s=10)
    assert [lines.due("a") for _ in range(4)] == [0, None, None, None]
    assert lines.due("b") == 0, "each key counts by itself"
    clock.now += 9.9
    assert lines.due("a") is None
    clock.now += 0.1
    assert lines.due("a") == 4
    assert lines.due("a") is None


def test_no_more_keys_are_remembered_than_are_allowed(clock: Clock) -> None:
    lines = LogThrottle(interval_s=10, limit=3)
    for key in "abcd":
        lines.due(key)
    assert lines.due("d") is None
    assert lines.due("a") == 0, "the oldest is forgotten"


def test_a_logger_says_each_message_now_and_then(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("tests.seldom")
    rarely = LogThrottleFilter(interval_s=10)
    log.addFilter(rarely)
    try:
        for number in range(5):
            log.warning("broken: %d", number)
        log.warning("other")
        clock.now += 10
        log.warning("broken: %d", 5)
    finally:
        log.removeFilter(rarely)
    assert [one.getMessage() for one in caplog.records] == ["broken: 0", "other", "broken: 5"]
    assert vars(caplog.records[-1])["left_out"] == 4
