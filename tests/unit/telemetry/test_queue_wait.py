"""How long does a span say that a message has waited, when the time of its sending is in whole seconds?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orchestrix import clock
from orchestrix.telemetry.messaging import begin_process
from tests.tracing import RecordedSpans, attribute

SECOND = 1_800_000_000
NOW = datetime.fromtimestamp(SECOND, UTC) + timedelta(milliseconds=950)


def of_time(milliseconds: int, version: int = 7) -> str:
    """A UUID of that time after the second."""
    digits = f"{SECOND * 1000 + milliseconds:012x}"
    return f"{digits[:8]}-{digits[8:]}-{version}abc-8def-0123456789ab"


@pytest.mark.parametrize(
    ("sent_at", "message_id", "waited"),
    [
        (float(SECOND), of_time(930), 20.0),
        (float(SECOND), of_time(0), 950.0),
        (float(SECOND), of_time(-40), 0.0),  # a retry has the id of its decision, and is sent later
        (float(SECOND - 60), of_time(-40), 59_950.0),  # not of that second
        (float(SECOND - 60), of_time(-59_100), 60_050.0),
        (float(SECOND), of_time(930, version=4), 0.0),
        (float(SECOND - 3), "m-1", 2_950.0),
        (float(SECOND - 3), None, 2_950.0),
        (SECOND + 0.5, of_time(930), 450.0),  # of a sender who knows it better
        (float(SECOND + 5), of_time(0), 0.0),
    ],
)
def test_a_wait_is_not_made_longer_by_the_second(
    sent_at: float, message_id: str | None, waited: float, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)
    begin_process("e", "k", "q", None, message_id=message_id, sent_at=sent_at).end()
    assert attribute(spans.all[0], "orchestrix.queue.wait_ms") == waited


def test_a_time_that_is_none_is_no_wait(spans: RecordedSpans) -> None:
    begin_process("e", "k", "q", None, message_id=of_time(0), sent_at=1e18).end()
    assert attribute(spans.all[0], "orchestrix.queue.wait_ms") is None
