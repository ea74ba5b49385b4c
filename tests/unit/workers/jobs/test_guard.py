"""Does a worker of jobs do only what the database owes?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from app.broker.port import Delivery
from app.broker.topology import DISPATCH
from app.domain.jobs import DISPATCHED, PENDING, RUNNING, SUCCEEDED, Attempt, Job
from app.errors import Unavailable
from app.testing.virtual_time import elapse
from tests.support import eventually
from workers import JobContext
from workers.sdk.jobs.dispatch import read
from workers.sdk.jobs.guard import Asked, Owed, Refused, Stale, Unknown, Verdict, judge

from .house import House, believed, dispatch

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(
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
EARLIER = Attempt("h-1", "j-1", 1, "w", "LOST", NOW)


def asked(*, redelivered: bool = False, queue: str = "default", **changes: Any) -> Asked:
    """An order for `JOB`, with changes."""
    delivery = Delivery(b"", DISPATCH + queue, "", "", None, None, None, {}, redelivered, 0, 1, 1)
    return Asked(read(dispatch(**{"handler": "echo", **changes})), delivery)


def waiting(house: House) -> int:
    """How many orders are in the queue, and in nobody's hand."""
    found = house.server.count(f"{DISPATCH}default")
    return 0 if found is None else found[0]


def test_what_is_owed_comes_as_the_row_has_it() -> None:
    found = judge(asked(payload={"of": "a stranger"}, timeoutMs=1, correlationId="x"), JOB, {}, "me")
    assert isinstance(found, Owed)
    assert (found.order.payload, found.order.timeout_ms, found.order.correlation_id) == (JOB.payload, 5000, "c-row")
    assert found.cancelled is None
    running = replace(JOB, state=RUNNING, worker_id="me", cancel_reason="enough")
    assert cast(Owed, judge(asked(), running, {}, "me")).cancelled == "enough"


@pytest.mark.parametrize(
    ("how", "field"),
    [({"handler": "other"}, "handler"), ({"attempt": 2}, "attempt"), ({"queue": "other"}, "queue")],
    ids=["handler", "attempt", "queue"],
)
def test_what_differs_from_the_row_is_refused(how: dict[str, Any], field: str) -> None:
    assert judge(asked(**how), JOB, {}, "me") == Refused(f"{field}: is not that of job j-1")


@pytest.mark.parametrize("job", [replace(JOB, state=PENDING), replace(JOB, state=SUCCEEDED)], ids=lambda job: job.state)
def test_an_attempt_that_is_over_is_stale(job: Job) -> None:
    assert judge(asked(), job, {}, "me") == Stale()
    assert judge(asked(), replace(job, history_id="h-2", attempt=2), {"h-1": EARLIER}, "me") == Stale()


def test_what_nobody_knows_is_unknown() -> None:
    assert judge(asked(), None, {}, "me") == Unknown("unknown-job")
    other = replace(JOB, history_id="h-2", attempt=2)
    assert judge(asked(), other, {}, "me") == Unknown("unknown-attempt")
    assert judge(asked(), other, {"h-1": replace(EARLIER, job_id="another")}, "me") == Unknown("unknown-attempt")


@pytest.mark.parametrize(
    ("worker", "redelivered", "begins"),
    [("other", False, False), ("other", True, True), ("me", False, True)],
    ids=["a copy", "given out once more", "this worker's own"],
)
def test_another_copy_of_what_a_worker_is_at_is_stale(worker: str, redelivered: bool, begins: bool) -> None:
    running = replace(JOB, state=RUNNING, worker_id=worker)
    assert isinstance(judge(asked(redelivered=redelivered), running, {}, "me"), Owed) is begins


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
    "verdict", [Refused("handler: is not that of job j-1"), Unknown("unknown-job")], ids=lambda verdict: verdict.reason
)
def test_what_is_not_owed_is_a_dead_letter_and_nothing_is_said(house: House, verdict: Refused | Unknown) -> None:
    ran: list[object] = []

    async def echo(context: JobContext) -> None:
        ran.append(context)

    async def look(asked: Sequence[Asked]) -> list[Verdict]:
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

    async def look(asked: Sequence[Asked]) -> list[Verdict]:
        return [Stale() for _ in asked]

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

    async def look(asked: Sequence[Asked]) -> list[Verdict]:
        looks.append(len(asked))
        return [Unknown("unknown-job") if len(looks) < 4 else Owed(one.order) for one in asked]

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

    async def look(asked: Sequence[Asked]) -> list[Verdict]:
        return [Owed(one.order, "enough") for one in asked]

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

    async def look(asked: Sequence[Asked]) -> list[Verdict]:
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

    async def look(asked: Sequence[Asked]) -> list[Verdict]:
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
