"""Does the verdict on a worker's stop add up?"""

from __future__ import annotations

import pytest

from orchestrix.cli.worker_check.rules import stop_verdict
from orchestrix.cli.worker_check.verdict import FAILED, PASSED


@pytest.mark.parametrize(
    ("answered", "back", "status", "detail"),
    [
        (4, 16, PASSED, "4 of 20 answered, 16 back in the queue, none lost"),
        (4, 17, PASSED, "4 of 20 answered, 17 back in the queue (1 answered and not acknowledged), none lost"),
        (4, 15, FAILED, "1 command of 20 are lost: they were acknowledged before their event"),
    ],
)
def test_each_command_is_accounted_for(answered: int, back: int, status: str, detail: str) -> None:
    verdict = stop_verdict(20, answered, back)
    assert (verdict.rule, verdict.status, verdict.detail) == ("graceful stop", status, detail)
