"""Are letters that cannot be kept tried again ever more seldom, and sooner where they are in the way?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.broker.port import Delivery
from orchestrix.dead_letters.retry_buffer import BUFFER_LIMIT, CROWDED_RETRY_DELAY_S, RETRY_DELAY_LIMIT_S, RetryBuffer
from tests.fakes.time import Shifted

BUG = ZeroDivisionError("a bug")
MOST = 8


class Patient(Shifted):
    def uniform(self, low: float, high: float) -> float:
        return high


@pytest.fixture
def time() -> Iterator[Shifted]:
    """The clock of the test; its dice make every pause as long as it can be."""
    shifted = Patient()
    with clock.use(shifted):
        yield shifted


def delivery(tag: int, body: bytes = b"x", **more: Any) -> Delivery:
    """A dead letter in hand."""
    fields: dict[str, Any] = {"queue": "q.dead", "exchange": "", "routing_key": "q", "session": 1, "headers": {}}
    fields |= {"message_id": None, "correlation_id": None, "type": None, "redelivered": False, "delivery_count": 0}
    return Delivery(body=body, tag=tag, **{**fields, **more})


def alive(_: Delivery) -> bool:
    return True


def test_its_pauses_double_up_to_the_longest_also_under_new_tags(time: Shifted) -> None:
    unkept, pauses = RetryBuffer(MOST), []
    for tag in range(8):
        unkept.failed(delivery(tag), BUG)
        assert unkept.due(alive) == []
        pauses.append(round(unkept.wait() or 0.0, 1))
        time.advance(RETRY_DELAY_LIMIT_S)
        assert (unkept.due(alive), unkept.wait()) == ([delivery(tag)], 0.0)
        unkept.remove(delivery(tag))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    unkept.remove_stored([delivery(9)])
    unkept.failed(delivery(10), BUG)
    assert round(unkept.wait() or 0.0, 1) == 1.0


def test_it_is_stubborn_when_it_has_failed_again_where_it_was(time: Shifted) -> None:
    unkept = RetryBuffer(MOST)
    unkept.failed(delivery(1), BUG)
    assert not unkept.has_failed_often(delivery(1))
    unkept.failed(delivery(1), BUG)
    assert unkept.has_failed_often(delivery(2))
    assert not unkept.has_failed_often(delivery(1, b"other"))
    assert not unkept.has_failed_often(delivery(1, queue="other"))


def test_those_that_crowd_a_queue_stay_no_longer_than_that_allows(time: Shifted) -> None:
    unkept = RetryBuffer(MOST)
    for tag in range(MOST):
        for _ in range(8):
            unkept.failed(delivery(tag, b"%d" % tag), BUG)
    for _ in range(8):
        unkept.failed(delivery(99, queue="other"), BUG)
    time.advance(CROWDED_RETRY_DELAY_S)
    assert [one.tag for one in unkept.due(alive)] == list(range(MOST))
    unkept.remove(delivery(0))
    assert unkept.due(alive) == [], "seven are no crowd"


def test_what_the_broker_has_taken_back_is_forgotten(time: Shifted) -> None:
    unkept = RetryBuffer(MOST)
    unkept.failed(delivery(1), BUG)
    unkept.failed(delivery(1, b"y", session=2), BUG)
    assert unkept.problem() == "cannot store 2 dead letters (kept by the broker): see the log"
    time.advance(RETRY_DELAY_LIMIT_S)
    assert [one.session for one in unkept.due(lambda one: one.session == 2)] == [2]
    assert unkept.due(lambda _: False) == []
    assert (unkept.problem(), unkept.wait()) == (None, None)


def test_it_is_told_once_a_minute(time: Shifted, caplog: pytest.LogCaptureFixture) -> None:
    unkept = RetryBuffer(MOST)
    for tag in range(120):
        unkept.failed(delivery(tag, b"%d" % tag), BUG)
        time.advance(1.0)
    assert caplog.messages == [
        "cannot store 1 dead letter, the last one from q.dead",
        "cannot store 61 dead letters, the last one from q.dead",
    ]
    assert caplog.records[0].exc_info


def test_what_it_remembers_has_an_end(time: Shifted) -> None:
    unkept = RetryBuffer(MOST)
    for n in range(BUFFER_LIMIT + 5):
        unkept.failed(delivery(1, b"%d" % n), BUG)
    assert len(unkept._failures) <= BUFFER_LIMIT
