"""Is everything named that is known of the failure of a step, and nothing else?"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from orchestrix import COMPLETED, Job, NothingToUndo, RetryPolicy, Saga, Step
from orchestrix.engine.explain.step_failure import StepFailure

NOON = datetime(2026, 1, 31, tzinfo=UTC)
NOTHING = NothingToUndo("leaves nothing")
PAY = Step("pay", "PAYING", "cmd.pay", "evt.paid", "BUILDING", NOTHING, retry=RetryPolicy(attempts=3))
BUILD = Step("build", "BUILDING", event="evt.built", then=COMPLETED, undo=NOTHING, job=Job("build-image"))
TRIP = Saga("trip", (PAY, BUILD))


@pytest.mark.parametrize(
    ("step", "attempt", "error", "text"),
    [
        ("pay", 2, "Declined: no", "step pay, attempt 2 of 3, at noon: Declined: no"),
        ("pay", None, "Declined: no", "step pay, at noon: Declined: no"),
        ("pay", 3, None, "step pay, attempt 3 of 3, at noon"),
        ("build", 1, "Exit: 2", "step build, at noon: Exit: 2"),
        ("renamed", 2, "Declined: no", "step renamed, attempt 2, at noon: Declined: no"),
        (None, None, "Declined: no", "at noon: Declined: no"),
    ],
    ids=[
        "all",
        "no attempt",
        "no error",
        "a job's attempts are not the step's",
        "a step of another version",
        "no step",
    ],
)
def test_a_failure_is_described_as_far_as_it_is_known(
    step: str | None, attempt: int | None, error: str | None, text: str
) -> None:
    assert StepFailure(NOON, step, attempt, error).describe(TRIP, "noon") == text
