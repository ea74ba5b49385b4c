"""What is kept of a wake-up that is put off?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from orchestrix.engine.timers import _rescheduled
from orchestrix.saga.commands import sent_exactly
from tests.unit.sagas.builders import NOW
from tests.unit.sagas.runs import Run


def test_when_the_command_was_sent_is_not_lost_by_a_wait_for_the_own_turn() -> None:
    """As where too many have run out of time at once: else it would count as sent later than it was, and with it the
    whole queue as further than it is."""
    run = Run()
    row = _rescheduled(run.instance, NOW + timedelta(minutes=5))
    assert (row.wake_reason, row.wait_ms, row.sent_at) == ("deadline", 10_000, NOW)
    later = replace(run.instance, wake_at=row.wake_at, sent_at=row.sent_at)
    assert later.sending == NOW
    assert sent_exactly(run.saga, later) == ("cmd.flight", NOW)
    assert _rescheduled(later, NOW + timedelta(minutes=9)).sent_at == NOW
