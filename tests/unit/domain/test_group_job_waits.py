"""Is it said of a job for a group what it waits for, without a word of queues and workers?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrix.domain import jobs as rules
from orchestrix.domain.job_diagnosis import (
    DiagnosisContext,
    GroupExecutors,
    QueueWorkers,
    SilenceLimits,
    not_begun_by,
    timeout_ending,
    wait_reason,
)
from orchestrix.domain.jobs import RUNNING, AttemptEnding, JobRow
from orchestrix.domain.registry import executor_calls
from orchestrix.engine.explain.job import AwaitedJob, describe
from orchestrix.engine.explain.job_state import JobStateFacts, explain
from tests.unit.domain.test_job_waits import NOW, around, pending

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HERE = "http://a:1"
GROUP: dict[str, Any] = {"queue": None, "executor_group": "web shop"}
WAITING = pending(**GROUP)
SENT = rules.dispatched(pending(timeout_ms=600_000, **GROUP), "h1", NOW).job
CALLED = replace(SENT, address=HERE, called_at=NOW)
TAKEN = replace(CALLED, worker_beat_at=NOW)
UNSET = "http://a:1 is not called: ORCHESTRIX_REGISTRY__ALLOW is not set, so no executor is"
DENIED = "does not have this attempt: it was restarted"
AT_WORK = replace(CALLED, state=RUNNING, worker_id=HERE, worker_beat_at=NOW)


def known(*addresses: str, **attempts: int) -> GroupExecutors:
    """A group with these addresses, and so many attempts at `http://{name}:1`."""
    return GroupExecutors(addresses, {f"http://{name}:1": count for name, count in attempts.items()})


REGISTER = "start one that registers for web shop, or set an address with `orchestrix registry set 'web shop' --address"
ASKED = "wait, its owner asks it, and gives the attempt up if it is lost"
SEE = "see `orchestrix registry show 'web shop'`"
THERE = "http://b:1"
BUSY = f"the executor at {HERE} was called 1 min ago and has not begun it; "
GONE = f"the executor at {HERE} was called 1 min ago, has not begun it, and takes no jobs of group web shop any more"
WAITS = [
    (
        WAITING,
        known(HERE),
        "max_live",
        "not dispatched yet: it waits for the turn of group web shop: the limit of open",
    ),
    (WAITING, known(), "no_executors", f"group web shop has no executor that takes jobs: {REGISTER}"),
    (
        WAITING,
        GroupExecutors(None),
        "no_group",
        "the executor group web shop does not exist: make it with `orchestrix registry set 'web shop' --auto`; without",
    ),
    (SENT, known(HERE), "not_called", f"no executor of group web shop has been called for 1 min: {SEE}"),
    (SENT, known(), "no_executors", f"group web shop has no executor that takes jobs: {REGISTER}"),
    (SENT, GroupExecutors(None), "no_group", "the executor group web shop does not exist"),
    (
        CALLED,
        known(HERE),
        "not_answered",
        f"the executor at {HERE} was called 1 min ago and has not answered since: {SEE}",
    ),
    (
        TAKEN,
        known(HERE),
        "executor_waits",
        f"the executor at {HERE} was called 1 min ago, has it, and has not begun it",
    ),
    (
        CALLED,
        known(HERE, a=2),
        "busy_executors",
        f"{BUSY}the only executor of group web shop may be busy, with 2 attempts",
    ),
    (
        CALLED,
        known(HERE, THERE, a=2, b=1),
        "busy_executors",
        f"{BUSY}all 2 executors of group web shop may be busy, with 3",
    ),
    (CALLED, known(HERE, THERE, a=2), "not_answered", "has not answered since"),
    (CALLED, known(HERE, THERE, a=1, b=5), "not_answered", "has not answered since"),
    (CALLED, known(THERE), "executor_gone", f"{GONE}: {ASKED}"),
    (CALLED, known(), "executor_gone", f"{GONE}: {ASKED}"),
    (
        AT_WORK,
        known(HERE),
        "silent_executor",
        f"the executor at {HERE} has sent nothing for 1 min, since 12:00:00 UTC: {ASKED}",
    ),
]


@pytest.mark.parametrize(("job", "executors", "code", "said"), WAITS)
def test_what_it_waits_for(job: JobRow, executors: GroupExecutors, code: str, said: str) -> None:
    found = wait_reason(job, NOW + MINUTE, context(executors))
    assert found is not None
    assert (found.code, str(found).startswith(said) or said in str(found)) == (code, True), str(found)
    assert "worker" not in str(found)
    assert "queue" not in str(found)


def test_the_codes_are_documented() -> None:
    text = (Path(__file__).parents[3] / "docs" / "jobs.md").read_text(encoding="utf-8")
    assert [code for _, _, code, _ in WAITS if f"`{code}`" not in text] == []


def context(executors: GroupExecutors | None = None, **more: Any) -> DiagnosisContext:
    """What is known where executors are lost after 90 s."""
    return replace(around(led=MINUTE * 9, executors=executors, **more), limit=90.0)


@pytest.mark.parametrize("job", [SENT, CALLED, AT_WORK])
def test_an_owner_that_is_gone_comes_first(job: JobRow) -> None:
    found = wait_reason(job, NOW + MINUTE, context(known(), is_read=False))
    assert found is not None
    assert found.code == "owner_gone"


def test_without_a_leader_or_with_a_new_one_nothing_is_said_of_executors() -> None:
    unled = wait_reason(SENT, NOW + MINUTE, around(led=None, executors=known()))
    new = wait_reason(WAITING, NOW + timedelta(seconds=9), replace(context(known(HERE)), led_since=NOW + 6 * SECOND))
    assert unled is not None
    assert new is not None
    assert (unled.code, new.code) == ("no_leader", "leader_is_new")


def test_an_executor_is_silent_only_after_half_of_its_own_limit() -> None:
    limits = SilenceLimits(workers=30.0, executors=90.0)
    assert (limits.of(AT_WORK), limits.of(replace(AT_WORK, queue="q", executor_group=None))) == (90.0, 30.0)
    assert wait_reason(AT_WORK, NOW + 44 * SECOND, context(known(HERE))) is None
    assert wait_reason(AT_WORK, NOW + 46 * SECOND, context(known(HERE))) is not None


@pytest.mark.parametrize(
    ("executors", "said", "fix"),
    [
        (known(HERE), "its executors are busy or do not answer", "orchestrix registry show 'web shop'"),
        (known(), "group web shop has no executor that takes jobs", REGISTER),
        (GroupExecutors(None), "the executor group web shop does not exist", "make it with `orchestrix registry set"),
    ],
)
def test_a_group_says_why_its_jobs_are_not_begun(executors: GroupExecutors, said: str, fix: str) -> None:
    cause, helps = not_begun_by("web shop", executors)
    assert (said in cause, helps.startswith(fix)) == (True, True), (cause, helps)


@pytest.mark.parametrize(
    ("ending", "told", "helps"),
    [
        (
            executor_calls.no_group("web shop"),
            "there is no executor group 'web shop'",
            "Make the group with `orchestrix registry set 'web shop' --auto`",
        ),
        (
            executor_calls.no_executors("no executors available"),
            "no executors available",
            "Start an executor that registers for",
        ),
        (executor_calls.not_reached([HERE], UNSET), UNSET, "See `orchestrix registry show 'web shop'`"),
        (
            executor_calls.refused(HERE, "no such handler"),
            "refuses the job: no such handler",
            "See `orchestrix registry show",
        ),
        (executor_calls.lost(HERE, DENIED), DENIED, "See `orchestrix jobs logs j`"),
    ],
)
def test_why_says_how_a_call_has_ended_and_what_helps(ending: AttemptEnding, told: str, helps: str) -> None:
    found = explain(JobStateFacts(rules.ended(CALLED, ending, NOW, 0.5).job, NOW))
    assert (found.blocker, told in found.sentence) == ("failed", True), found.sentence
    assert found.next_action.startswith(helps)
    assert found.next_action.endswith("run it again with `orchestrix jobs retry j`.")


def test_why_tells_of_the_shards_of_a_broadcast() -> None:
    waiting = replace(WAITING, routing="SHARDING_BROADCAST", broadcast_end="all")
    total: dict[str, Any] = {"children_total": 3, "children_left": 1, "children_failed": 1}
    running = replace(waiting, state=RUNNING, started_at=NOW, wake_at=NOW + MINUTE, **total)
    shards, again = (
        "see its shards with `orchestrix jobs list --parent j`",
        "run it again with `orchestrix jobs retry j`",
    )
    left = "1 of 3 shards has not ended, 1 has failed"
    found = explain(JobStateFacts(running, NOW))
    assert found.sentence == f"Running on executors: {left}; it times out in 1 min."
    assert (found.blocker, found.next_action) == ("in_progress", f"Wait, or {shards}.")
    stopping = explain(JobStateFacts(replace(running, cancel_reason="x"), NOW))
    assert stopping.sentence == f"Cancelled: x; {left}."
    error = {"type": "ChildrenFailed", "message": "1 of 3 shards failed"}
    failed = explain(JobStateFacts(replace(running, state="FAILED", error=error, children_left=0), NOW))
    assert failed.sentence == "Failed: ChildrenFailed: 1 of 3 shards failed."
    assert failed.next_action == f"S{shards[1:]}, then {again}."
    done = replace(running, state="SUCCEEDED", children_left=0, children_failed=0)
    assert explain(JobStateFacts(done, NOW)).sentence == "Succeeded on 3 executors."
    first = replace(done, broadcast_end="any")
    assert explain(JobStateFacts(first, NOW)).sentence == "Succeeded on one of 3 executors."
    never = replace(waiting, state="FAILED", tries=1, error={"type": "NoExecutors", "message": "none"})
    assert explain(JobStateFacts(never, NOW)).sentence == "Failed: NoExecutors: none."


def test_a_saga_says_where_the_executor_of_its_step_is() -> None:
    for job, where in (
        (AT_WORK, f"is RUNNING at the executor {HERE} (attempt 1)"),
        (SENT, "is DISPATCHED (attempt 1)"),
    ):
        assert where in describe(AwaitedJob("j", job), NOW)[0]


def test_why_says_what_helps_before_the_next_try() -> None:
    job = rules.ended(replace(CALLED, retries=1), executor_calls.no_executors("none"), NOW, 0.5).job
    found = explain(JobStateFacts(job, NOW))
    assert (found.blocker, "NoExecutors: none" in found.sentence) == ("retry", True)
    assert found.next_action.startswith("Start an executor that registers for 'web shop', or set an address with")
    assert found.next_action.endswith("or stop it with `orchestrix jobs cancel j`.")


@pytest.mark.parametrize(("job", "called"), [(SENT, "no executor was called"), (CALLED, f"at {HERE} was called")])
def test_its_timeout_before_it_began(job: JobRow, called: str) -> None:
    message = timeout_ending(job, QueueWorkers()).error["message"]
    assert message.startswith("timed out before an executor of group web shop began it: ")
    assert called in message


def test_why_names_the_executor() -> None:
    later = NOW + MINUTE
    for job, said in (
        (SENT, "Attempt 1 waits until an executor of group web shop is called; it times out in 9 min."),
        (CALLED, f"was given to the executor at {HERE} 1 min ago, which has not answered since; it times out in"),
        (TAKEN, f"was given to the executor at {HERE} 1 min ago, which has it and has not begun it yet; it times"),
        (AT_WORK, f"The executor at {HERE} is processing attempt 1"),
        (replace(AT_WORK, cancel_reason="x"), f"Cancelled: x; its executor at {HERE} has not reported its end yet."),
    ):
        found = explain(JobStateFacts(job, later)).sentence
        assert said in found, found
        assert "orker" not in found
    late = rules.ended(CALLED, timeout_ending(CALLED, QueueWorkers()), NOW, 0.5).job
    assert "`orchestrix registry show 'web shop'`" in explain(JobStateFacts(late, NOW)).next_action
