"""Is it said of a job for a group what it waits for, without a word of queues and workers?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix.domain import jobs as rules
from orchestrix.domain.job_diagnosis import QueueWorkers, timeout_ending, wait_reason
from orchestrix.domain.jobs import RUNNING, JobRow
from orchestrix.engine.explain.job_state import JobStateFacts, explain
from tests.unit.domain.test_job_waits import NOW, around, pending

MINUTE = timedelta(minutes=1)
HERE = "http://a:1"
GROUP: dict[str, Any] = {"queue": None, "executor_group": "web shop"}
WAITING = pending(**GROUP)
SENT = rules.dispatched(pending(timeout_ms=600_000, **GROUP), "h1", NOW).job
CALLED = replace(SENT, address=HERE, called_at=NOW)
AT_WORK = replace(CALLED, state=RUNNING, worker_id=HERE, worker_beat_at=NOW)


@pytest.mark.parametrize(
    ("job", "code", "said"),
    [
        (WAITING, "max_live", "the limit of open jobs (jobs.max_live) is reached"),
        (
            SENT,
            "not_called",
            "no executor of group web shop has been called: see `orchestrix registry show 'web shop'`",
        ),
        (CALLED, "executor_waits", f"the executor at {HERE} was called and has not begun it: see"),
        (AT_WORK, "silent_executor", f"the executor at {HERE} has sent nothing for 1 min: wait, its owner asks it"),
    ],
)
def test_what_it_waits_for(job: JobRow, code: str, said: str) -> None:
    found = wait_reason(job, NOW + MINUTE, around(led=MINUTE * 9))
    assert found is not None
    assert (found.code, said in str(found), "worker" in str(found)) == (
        code,
        True,
        False,
    ), str(found)


@pytest.mark.parametrize(("job", "called"), [(SENT, "no executor was called"), (CALLED, f"at {HERE} was called")])
def test_its_timeout_before_it_began(job: JobRow, called: str) -> None:
    message = timeout_ending(job, QueueWorkers()).error["message"]
    assert message.startswith("timed out before an executor of group web shop began it: ")
    assert called in message


def test_why_names_the_executor() -> None:
    assert f"executor at {HERE}" in explain(JobStateFacts(CALLED, NOW)).sentence
    assert "executor of group web shop" in explain(JobStateFacts(SENT, NOW)).sentence
    late = rules.ended(CALLED, timeout_ending(CALLED, QueueWorkers()), NOW, 0.5).job
    assert "`orchestrix registry show 'web shop'`" in explain(JobStateFacts(late, NOW)).next_action
