"""Does a worker of jobs do only what the database owes?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from orchestrix import JobContext
from orchestrix.broker.port import Delivery
from orchestrix.broker.topology import DISPATCH_QUEUE_PREFIX
from orchestrix.domain.jobs import DISPATCHED, PENDING, RUNNING, SUCCEEDED, JobAttempt, JobRow
from orchestrix.errors import Unavailable
from orchestrix.testing.simulation.virtual_time import elapse
from orchestrix.worker.jobs import slots
from orchestrix.worker.jobs.dispatch import read
from orchestrix.worker.jobs.state_guard import (
    CurrentDispatch,
    DispatchRunsElsewhere,
    DispatchVerdict,
    InvalidDispatch,
    ReceivedDispatch,
    StaleDispatch,
    UnknownDispatch,
    judge,
)
from tests.support import eventually

from .house import House, believed, dispatch

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SINCE = NOW - timedelta(seconds=24)
JOB = JobRow(
    id="j-1",
    queue="default",
    handler="echo",
    payload={"of": "the row"},
    state=DISPATCHED,
    history_id="h-1",
    attempt=1,
    timeout_ms=5000,
    created_by="ada",
    correlation_id="c-row",
    created_at=NOW,
    updated_at=NOW,
)
EARLIER = JobAttempt("h-1", "j-1", 1, "w", "LOST", NOW)


def asked(*, redelivered: bool = False, queue: str = "default", **changes: Any) -> ReceivedDispatch:
    """An order for `JOB`, with changes."""
    delivery = Delivery(b"", DISPATCH_QUEUE_PREFIX + queue, "", "", None, None, None, {}, redelivered, 0, 1, 1)
    return ReceivedDispatch(read(dispatch(**{"handler": "echo", **changes})), delivery)


def waiting(house: House) -> int:
    """How many orders are in the queue, and in nobody's hand."""
    found = house.server.count(f"{DISPATCH_QUEUE_PREFIX}default")
    return 0 if found is None else found[0]


def test_what_is_owed_comes_as_the_row_has_it() -> None:
    found = judge(asked(payload={"of": "a stranger"}, timeoutMs=1, correlationId="x"), JOB, {}, "me", SINCE)
    assert isinstance(found, CurrentDispatch)
    assert (found.dispatch.payload, found.dispatch.timeout_ms, found.dispatch.correlation_id) == (
        JOB.payload,
        5000,
        "c-row",
    )
    assert found.cancelled is None
    running = replace(JOB, state=RUNNING, worker_id="me", cancel_reason="enough")
    assert cast(CurrentDispatch, judge(asked(), running, {}, "me", SINCE)).cancelled == "enough"


@pytest.mark.parametrize(
    ("how", "field"),
    [({"handler": "other"}, "handler"), ({"attempt": 2}, "attempt"), ({"queue": "other"}, "queue")],
    ids=["handler", "attempt", "queue"],
)
def test_what_differs_from_the_row_is_refused(how: dict[str, Any], field: str) -> None:
    assert judge(asked(**how), JOB, {}, "me", SINCE) == InvalidDispatch(f"{field}: does not belong to job j-1")


@pytest.mark.parametrize("job", [replace(JOB, state=PENDING), replace(JOB, state=SUCCEEDED)], ids=lambda job: job.state)
def test_an_attempt_that_is_over_is_stale(job: JobRow) -> None:
    assert judge(asked(), job, {}, "me", SINCE) == StaleDispatch()
    assert judge(asked(), replace(job, history_id="h-2", attempt=2), {"h-1": EARLIER}, "me", SINCE) == StaleDispatch()


def test_what_nobody_knows_is_unknown() -> None:
    assert judge(asked(), None, {}, "me", SINCE) == UnknownDispatch("unknown-job")
    other = replace(JOB, history_id="h-2", attempt=2)
    assert judge(asked(), other, {}, "me", SINCE) == UnknownDispatch("unknown-attempt")
    assert judge(asked(), other, {"h-1": replace(EARLIER, job_id="another")}, "me", SINCE) == UnknownDispatch(
        "unknown-attempt"
    )


LATELY = NOW - timedelta(seconds=1)


@pytest.mark.parametrize(
    ("worker", "redelivered", "beat_at", "verdict"),
    [
        ("other", False, LATELY, StaleDispatch()),
        ("other", False, SINCE, StaleDispatch()),
        ("other", True, LATELY, DispatchRunsElsewhere(LATELY)),
        ("other", True, SINCE, None),
        ("me", False, LATELY, None),
    ],
    ids=["a copy", "a copy of one that is silent", "given back by a full one", "its holder is silent", "its own"],
)
def test_what_a_worker_that_is_heard_is_at_begins_nowhere_else(
    worker: str, redelivered: bool, beat_at: datetime, verdict: DispatchVerdict | None
) -> None:
    running = replace(JOB, state=RUNNING, worker_id=worker, worker_beat_at=beat_at)
    found = judge(asked(redelivered=redelivered), running, {}, "me", SINCE)
    assert found == verdict if verdict is not None else isinstance(found, CurrentDispatch)


@pytest.mark.parametrize(
    ("then", "statuses"),
    [
        (DispatchRunsElsewhere(NOW), []),
        (StaleDispatch(), []),
        (None, ["RUNNING", "SUCCEEDED"]),
    ],
    ids=["beats for it", "over", "silent"],
)
def test_one_that_is_held_elsewhere_waits_for_the_next_beat(
    house: House, then: DispatchVerdict | None, statuses: list[str]
) -> None:
    said: list[DispatchVerdict] = []

    async def echo(context: JobContext) -> None:
        return None

    async def look(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        said.append(DispatchRunsElsewhere(LATELY) if len(said) < 4 else then or CurrentDispatch(asked[0].dispatch))
        return [said[-1]]

    async def days() -> None:
        house.look = look
        await house.open(echo=echo)
        house.send("echo")
        await elapse(2.5)
        assert (house.acknowledged, house.said) == ([], [])
        await eventually(lambda: house.acknowledged, deadline=5.0)
        await elapse(5.0)
        assert (house.statuses(), house.runner.counts.stale) == (statuses, 0 if then is None else 1)

    house.play(days())


@pytest.mark.parametrize(
    "changes",
    [
        {"channels": {"status": "evt.stepFailed", "logs": "orchestrix.job.j-1.logs"}},
        {"channels": {"status": "orchestrix.job.j-1.status", "logs": "orchestrix.job.j-2.logs"}},
        {"jobId": "j" * 37},
        {"historyId": "h\x7f"},
    ],
)
def test_an_order_with_other_channels_or_ids_is_a_dead_letter(house: House, changes: dict[str, Any]) -> None:
    ran: list[object] = []

    async def echo(context: JobContext) -> None:
        ran.append(context)

    async def days() -> None:
        await house.open(echo=echo)
        house.put(dispatch("echo", 1, **changes))
        await eventually(lambda: house.dead, deadline=5.0)
        assert (ran, house.said) == ([], [])
        assert str(house.dead[0].headers["x-reason"]).startswith((*changes, "channels"))

    house.play(days())


@pytest.mark.parametrize(
    "verdict",
    [InvalidDispatch("handler: does not belong to job j-1"), UnknownDispatch("unknown-job")],
    ids=lambda verdict: verdict.reason,
)
def test_what_is_not_owed_is_a_dead_letter_and_nothing_is_said(
    house: House, verdict: InvalidDispatch | UnknownDispatch
) -> None:
    ran: list[object] = []

    async def echo(context: JobContext) -> None:
        ran.append(context)

    async def look(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        return [verdict for _ in asked]

    async def days() -> None:
        house.look = look
        await house.open(echo=echo)
        house.send("echo")
        await eventually(lambda: house.dead, deadline=5.0)
        assert (ran, house.said, house.runner.counts.dead) == ([], [], 1)
        assert house.dead[0].headers["x-reason"] == verdict.reason

    house.play(days())


def test_a_stale_order_is_acknowledged_and_no_more(house: House) -> None:
    async def echo(context: JobContext) -> None:
        raise AssertionError("nothing runs")

    async def look(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        return [StaleDispatch() for _ in asked]

    async def days() -> None:
        house.look = look
        await house.open(echo=echo)
        house.send("echo")
        await eventually(lambda: house.acknowledged, deadline=5.0)
        assert (house.said, house.dead, house.runner.counts.stale) == ([], [], 1)

    house.play(days())


def test_a_row_that_is_visible_a_little_later_is_waited_for(house: House) -> None:
    looks: list[int] = []

    async def echo(context: JobContext) -> dict[str, int]:
        return {"looks": len(looks)}

    async def look(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        looks.append(len(asked))
        return [UnknownDispatch("unknown-job") if len(looks) < 4 else CurrentDispatch(one.dispatch) for one in asked]

    async def days() -> None:
        house.look = look
        await house.open(echo=echo)
        house.send("echo")
        await house.ended()
        assert house.dead == []

    house.play(days())


def test_one_that_was_cancelled_ends_without_its_work(house: House) -> None:
    async def echo(context: JobContext) -> None:
        raise AssertionError("nothing runs")

    async def look(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        return [CurrentDispatch(one.dispatch, "enough") for one in asked]

    async def days() -> None:
        house.look = look
        await house.open(echo=echo)
        house.send("echo")
        await house.ended()
        [last] = house.said
        assert (last["status"], last["error"]["message"]) == ("CANCELLED", "enough")

    house.play(days())


def test_while_the_database_is_away_orders_are_kept_and_no_more_are_taken(house: House) -> None:
    away = [True]

    async def echo(context: JobContext) -> None:
        return None

    async def look(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        if away[0]:
            raise Unavailable("nobody listens")
        return await believed(asked)

    async def days() -> None:
        house.look = look
        await house.open(echo=echo)
        house.send("echo", 1)
        await elapse(1.0)
        house.send("echo", 2, 3)
        await elapse(60.0)
        assert (house.said, house.dead) == ([], [])
        assert waiting(house) > 0, "the next ones are left to others"
        away[0] = False
        await house.ended(1, 2, 3)
        assert {one["historyId"] for one in house.said} == {"h-1", "h-2", "h-3"}
        away[0] = True
        house.send("echo", 4)
        await elapse(1.0)
        await house.close()
        await eventually(lambda: waiting(house) == 1, deadline=5.0, message="what it kept goes to others")

    house.play(days())


def test_after_five_minutes_others_get_what_it_keeps(house: House) -> None:
    async def echo(context: JobContext) -> None:
        return None

    async def look(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        raise Unavailable("nobody listens")

    async def days() -> None:
        house.look = look
        await house.open(echo=echo)
        house.send("echo")
        await elapse(200.0)
        assert waiting(house) == 0
        await elapse(130.0)
        assert waiting(house) == 1
        await elapse(600.0)
        assert waiting(house) == 1, "it takes none before it can ask again"

    house.play(days())


def test_what_is_kept_for_a_place_is_named_by_beats_and_looked_at_again_before_it_begins(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "MAX_REQUEUES", 0)
    over: set[str] = set()
    ran: list[str] = []
    gate = asyncio.Event()

    async def wait(context: JobContext) -> None:
        ran.append(context.history_id)
        await gate.wait()

    async def look(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        return [StaleDispatch() if one.dispatch.history_id in over else CurrentDispatch(one.dispatch) for one in asked]

    def named() -> set[str]:
        return {one["historyId"] for one in house.beats[-1][1]["jobs"]}

    async def days() -> None:
        house.look = look
        await house.open(["a", "b"], places=1, wait=wait)
        house.send("wait", 1, queue="a")
        house.send("wait", 2, queue="b")
        await eventually(lambda: named() == {"h-1", "h-2"}, deadline=30.0, message="both are held here")
        over.update({"h-1", "h-2"} - set(ran))
        gate.set()
        await eventually(lambda: house.runner.counts.stale == 1, deadline=5.0)
        await elapse(5.0)
        assert len(ran) == 1, "it was not owed any more"
        await eventually(lambda: named() == set(), deadline=30.0)

    house.play(days())
