"""Does a broadcast end as its children end, in whatever order that is, and never otherwise?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import permutations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrix.domain import job_broadcasts as rules
from orchestrix.domain import jobs as job_rules
from orchestrix.domain.job_broadcasts import ALL, ANY, ChildEnd, ChildTally
from orchestrix.domain.job_diagnosis import may_wake_leader
from orchestrix.domain.job_retry import retried
from orchestrix.domain.jobs import CANCELLED, FAILED, FINAL, PENDING, RUNNING, SUCCEEDED, TIMED_OUT, JobRow
from orchestrix.errors import RefusedAction

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(seconds=1)
ENDS = (SUCCEEDED, FAILED, CANCELLED, TIMED_OUT)


def broadcast(**more: Any) -> JobRow:
    """A broadcast that is due."""
    fields: dict[str, Any] = {
        "id": "p",
        "queue": None,
        "executor_group": "shop",
        "handler": "h",
        "payload": {"a": 1},
        "routing": "SHARDING_BROADCAST",
        "broadcast_end": ALL,
        "created_by": "ada",
        "correlation_id": "c",
        "created_at": NOW,
        "updated_at": NOW,
        "wake_at": NOW,
    }
    return JobRow(**{**fields, **more})


def fired(count: int, **more: Any) -> tuple[JobRow, list[JobRow]]:
    """A broadcast to so many executors, and its children."""
    names = [f"http://{index}:1" for index in range(count)]
    return rules.fired(broadcast(**more), names, [f"c-{index:03}" for index in range(count)], NOW)


def after(parent: JobRow, children: list[JobRow]) -> JobRow:
    """The broadcast after a count of its children, as the store makes it."""
    states = [one.state for one in children]
    left, good = sum(one not in FINAL for one in states), states.count(SUCCEEDED)
    tally = ChildTally(left, len(states) - left - good, good)
    job = rules.counted(parent, tally, LATER)
    state = rules.verdict(job, tally)
    if state is None:
        return job
    ends = [ChildEnd(one.shard_index or 0, one.state, one.result, one.error) for one in children]
    return rules.ended(job, state, ends, LATER)


def at_end(child: JobRow, state: str) -> JobRow:
    """A child that has ended."""
    result = f"r{child.shard_index}" if state == SUCCEEDED else None
    error = {"type": "Broken", "message": f"no paper in {child.shard_index}"} if state in (FAILED, TIMED_OUT) else None
    return replace(child, state=state, result=result, error=error, finished_at=LATER)


def test_each_executor_gets_a_shard_of_its_own() -> None:
    parent, children = fired(
        3, retries=2, timeout_ms=5000, schedule_id="s", due_at=NOW, saga="app", instance_id=1, step="x"
    )
    assert (parent.state, parent.channels, parent.owner, parent.attempt, parent.history_id) == (
        RUNNING,
        0,
        None,
        0,
        None,
    )
    assert (parent.children_total, parent.children_left, parent.children_failed) == (3, 3, 0)
    assert [(one.shard_index, one.shard_total, one.routing_address) for one in children] == [
        (0, 3, "http://0:1"),
        (1, 3, "http://1:1"),
        (2, 3, "http://2:1"),
    ]
    for one in children:
        assert (one.state, one.parent_id, one.routing, one.executor_group) == (PENDING, "p", "ADDRESS", "shop")
        assert (one.retries, one.timeout_ms, one.deadline_ms, one.broadcast_end) == (2, 5000, None, None)
        assert (one.schedule_id, one.due_at, one.saga, one.instance_id, one.step) == (None, None, None, None, None)


@pytest.mark.parametrize("end", [ALL, ANY])
@pytest.mark.parametrize("cancel", [None, 0, 1, 2, 3])
def test_every_order_of_every_combination_of_ends(end: str, cancel: int | None) -> None:
    for ends, order in product(product(ENDS, repeat=3), permutations(range(3))):
        parent, children = fired(3, broadcast_end=end)
        expected: str | None = None
        for step, index in enumerate([*order, None]):
            if step == cancel and not parent.ended:
                parent = job_rules.cancelled(parent, "not wanted", LATER).job
                assert (parent.state, parent.wake_at) == (RUNNING, LATER)
            if index is None:
                break
            children[index] = at_end(children[index], ends[index])
            before, parent = parent, after(parent, children)
            assert after(parent, children) is parent, "counting again changes nothing"
            if before.ended:
                assert (parent.state, parent.result, parent.error) == (before.state, before.result, before.error)
            done = [one.state for one in children if one.ended]
            assert parent.children_left == 3 - len(done)
            assert parent.children_failed == len(done) - done.count(SUCCEEDED)
            expected = expected or _expected(end, done, parent.cancel_reason)
            assert parent.state == (expected or RUNNING), (end, ends, order, step)
        assert parent.ended


def _expected(end: str, done: list[str], cancel_reason: str | None) -> str | None:
    """By the words of the documentation, not by the product's rule."""
    bad = FAILED if cancel_reason is None else CANCELLED
    if end == ANY:
        return SUCCEEDED if SUCCEEDED in done else bad if len(done) == 3 else None
    if len(done) < 3:
        return None
    return SUCCEEDED if done == [SUCCEEDED] * 3 else bad


def test_the_result_is_a_list_by_index() -> None:
    parent, children = fired(3)
    for index, state in ((2, SUCCEEDED), (0, SUCCEEDED), (1, FAILED)):
        children[index] = at_end(children[index], state)
        parent = after(parent, children)
    assert parent.result == ["r0", None, "r2"]
    assert (parent.state, parent.finished_at, parent.wake_at) == (FAILED, LATER, None)


def test_the_error_names_the_indexes_that_failed() -> None:
    parent, children = fired(30)
    children = [at_end(one, FAILED if one.shard_index not in (0, 2) else SUCCEEDED) for one in children]
    error = after(parent, children).error
    assert error["type"] == "ChildrenFailed"
    assert error["indexes"] == [1, *range(3, 30)]
    first = "1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21"
    assert error["message"] == f"28 of 30 shards failed (shards {first} and 8 more); shard 1: Broken: no paper in 1"


def test_one_that_asks_for_an_operator_holds_the_step() -> None:
    parent, children = fired(2)
    children = [at_end(one, FAILED) for one in children]
    children[1] = replace(children[1], error={"type": "Held", "message": "ask", "hold": True})
    assert after(parent, children).error["hold"] is True


def test_after_the_first_success_the_others_are_to_be_cancelled() -> None:
    parent, children = fired(3, broadcast_end=ANY, deadline_ms=60_000)
    children[1] = at_end(children[1], SUCCEEDED)
    parent = after(parent, children)
    assert (parent.state, parent.result, parent.wake_at) == (SUCCEEDED, [None, "r1", None], LATER)
    assert may_wake_leader(parent)
    assert rules.cancel_reason(parent) == "another shard of job p has succeeded"
    assert rules.settled(parent, LATER).wake_at is None
    assert not may_wake_leader(rules.settled(parent, LATER))


def test_one_that_is_cancelled_waits_for_its_children_until_its_deadline() -> None:
    parent, _ = fired(2, deadline_ms=60_000)
    asked = job_rules.cancelled(parent, "no", LATER).job
    assert (rules.cancel_reason(asked), asked.state) == ("no", RUNNING)
    assert may_wake_leader(asked)
    settled = rules.settled(asked, LATER)
    assert (settled.state, settled.wake_at) == (RUNNING, NOW + timedelta(seconds=60))
    assert job_rules.cancelled(settled, "no", LATER).job is settled
    assert rules.state_at_deadline(settled, NOW + timedelta(seconds=60)) == CANCELLED


def test_the_deadline_is_that_of_the_whole() -> None:
    parent, children = fired(3, deadline_ms=60_000)
    end = NOW + timedelta(seconds=60)
    assert parent.wake_at == end
    assert rules.state_at_deadline(parent, end - timedelta(microseconds=1)) is None
    assert rules.state_at_deadline(parent, end) == TIMED_OUT
    ends = [ChildEnd(one.shard_index or 0, SUCCEEDED if one.shard_index == 1 else RUNNING, 7) for one in children]
    over = rules.ended(rules.counted(parent, ChildTally(2, 0, 1), end), TIMED_OUT, ends, end)
    assert over.error["message"] == "timed out after 1 min: 2 of 3 shards had not ended (shards 0, 2)"
    assert (over.result, over.wake_at) == ([None, 7, None], end)
    assert rules.cancel_reason(over) == "job p has timed out"
    assert rules.state_at_deadline(fired(1)[0], end) is None


def test_without_executors_it_is_tried_again_within_its_retries() -> None:
    job = rules.without_executors(broadcast(retries=1), "no executors available", NOW, 0.5)
    assert (job.state, job.tries, job.attempt, job.error["type"]) == (PENDING, 1, 0, "NoExecutors")
    assert job.wake_at is not None
    assert job.wake_at > NOW
    job = rules.without_executors(job, "no executors available", LATER, 0.5)
    assert (job.state, job.finished_at, job.wake_at) == (FAILED, LATER, None)
    assert rules.fired(replace(job, state=PENDING), ["a"], ["c"], LATER)[0].error is None


def test_too_many_executors_are_refused_with_what_to_do() -> None:
    job = rules.too_large(broadcast(retries=5), 201, NOW)
    assert (job.state, job.has_children) == (FAILED, False)
    assert "201 executors" in job.error["message"]
    assert "several groups" in job.error["message"]
    assert rules.without_group(broadcast(retries=5), NOW).error["type"] == "NoGroup"


def test_results_that_are_too_large_are_not_kept_twice() -> None:
    parent, children = fired(2)
    children = [replace(at_end(one, SUCCEEDED), result="x" * 600_000) for one in children]
    job = after(parent, children)
    assert (job.state, job.result, job.error["type"]) == (SUCCEEDED, None, "ResultTooLarge")
    assert "GET /jobs?parentId=p" in job.error["message"]


def test_a_retry_runs_again_what_has_not_succeeded() -> None:
    parent, children = fired(4, deadline_ms=60_000)
    children = [at_end(one, state) for one, state in zip(children, ENDS, strict=True)]
    parent = after(parent, children)
    job, again = rules.retried(parent, children, LATER)
    assert [(before.shard_index, one.state, one.tries, one.error) for before, one in again] == [
        (1, PENDING, 0, None),
        (2, PENDING, 0, None),
        (3, PENDING, 0, None),
    ]
    assert (job.state, job.children_left, job.children_failed, job.children_total) == (RUNNING, 3, 0, 4)
    assert (job.result, job.error, job.finished_at) == (None, None, None)
    assert job.wake_at == LATER + timedelta(seconds=60)
    now = [children[0], *(at_end(one, SUCCEEDED) for _, one in again)]
    assert after(job, now).result == ["r0", "r1", "r2", "r3"]


def test_a_retry_waits_for_children_that_are_still_stopping() -> None:
    parent, children = fired(2)
    parent = replace(parent, state=TIMED_OUT, finished_at=NOW)
    with pytest.raises(RefusedAction, match="1 shard of the job is still stopping"):
        rules.retried(parent, [at_end(children[0], FAILED), children[1]], NOW)
    with pytest.raises(RefusedAction, match="jobs retry p"):
        retried(at_end(children[0], FAILED), NOW)
    with pytest.raises(RefusedAction, match="the job is RUNNING"):
        rules.retried(fired(1)[0], [], NOW)


ADDRESSES = st.lists(st.sampled_from([f"http://{n}:1" for n in range(8)]), min_size=1, unique=True)


@given(addresses=ADDRESSES, index=st.integers(0, 199), attempt=st.integers(2, 9), gone=st.booleans())
def test_each_attempt_knows_all_executors_in_an_order(
    addresses: list[str], index: int, attempt: int, gone: bool
) -> None:
    error = {"type": "ExecutorLost" if gone else "Broken", "message": ""}
    own, child = "http://3:1", replace(fired(1)[1][0], shard_index=index, attempt=attempt, error=error)
    child = replace(child, routing_address=own)
    found = rules.in_turn(child, addresses)
    assert sorted(found) == sorted(addresses)
    if own in addresses:
        assert found[-1 if gone else 0] == own
    assert found == rules.in_turn(child, addresses[::-1])
    assert rules.routed(child).routing == "FAILOVER"
    assert rules.routed(replace(child, attempt=1)).routing == "ADDRESS"


def test_shards_of_executors_that_are_gone_are_spread() -> None:
    addresses = [f"http://{n}:1" for n in range(8)]
    lost = [replace(one, attempt=2, error={"type": "ExecutorLost"}) for one in fired(200)[1][:8]]
    assert len({rules.in_turn(one, addresses)[0] for one in lost}) >= 7
