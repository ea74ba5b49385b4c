"""Do no more dead letters come into the database than a minute has room for, and is that said once?"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from orchestrix import clock
from orchestrix.dead_letters.quota import REFILL_WAIT_S, DeadLetterQuota
from tests.fakes.time import Shifted


@pytest.fixture
def time() -> Iterator[Shifted]:
    """The clock of the test."""
    shifted = Shifted()
    with clock.use(shifted):
        yield shifted


def test_a_quiet_minute_leaves_room_for_as_many_at_once(time: Shifted) -> None:
    quota = DeadLetterQuota(60)
    time.advance(3600)
    assert quota.available() == 60
    quota.take(60)
    assert quota.available() == 0
    assert quota.wait() == REFILL_WAIT_S
    time.advance(10)
    assert quota.available() == 10


def test_what_was_too_many_is_made_up_for(time: Shifted) -> None:
    quota = DeadLetterQuota(60)
    quota.take(90)
    assert quota.available() == 0
    assert 30 < quota.wait() <= 31
    time.advance(31)
    assert quota.available() == 1


def test_it_is_said_once_a_minute(time: Shifted, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "orchestrix.dead_letters")
    quota = DeadLetterQuota(60)
    assert quota.problem() is None
    for _ in range(50):
        quota.take(quota.available())
        quota.available()
        time.advance(1)
    assert len(caplog.records) == 1
    assert quota.problem() == "more than 60 dead letters in a minute: the others stay in their queues"
    time.advance(61)
    assert quota.problem() is None
    quota.take(quota.available() + 1)
    quota.available()
    assert len(caplog.records) == 2
