"""Do coordinator and worker read what the other writes?"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrix import JobContext, Permanent
from orchestrix.broker.port import Outgoing
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import AttemptStatus, JobRow, JobTransition
from orchestrix.jobs import messages
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.saga.messages import dump
from orchestrix.worker.jobs.dispatch import read, read_cancel
from tests.support import eventually

from .house import House

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sent(payload: Any = None) -> JobRow:
    """A job whose first attempt has left."""
    job = JobRow(
        id="j-1",
        queue="default",
        handler="work",
        payload=payload,
        timeout_ms=90_000,
        created_by="ada",
        correlation_id="c-1",
        created_at=NOW,
        updated_at=NOW,
    )
    return rules.dispatched(job, "h-1", NOW).job


@pytest.mark.parametrize("payload", [None, {}, {"pages": 3}, [1, "two"], "text", 7])
def test_a_worker_reads_a_dispatch(payload: Any) -> None:
    order = read(messages.dispatch(sent(payload)))
    assert (order.job_id, order.history_id, order.handler, order.attempt) == ("j-1", "h-1", "work", 1)
    assert (order.payload, order.timeout, order.correlation_id) == (payload, 90.0, "c-1")
    assert (order.status, order.logs) == ("orchestrix.job.j-1.status", "orchestrix.job.j-1.logs")


def test_a_worker_reads_the_word_to_stop() -> None:
    word = read_cancel(messages.stop("j-1", "h-1", "by hand"))
    assert (word.job_id, word.history_id, word.reason) == ("j-1", "h-1", "by hand")


def test_a_coordinator_reads_a_beat(house: House) -> None:
    async def wait(context: JobContext) -> None:
        await asyncio.Event().wait()

    async def days() -> None:
        await house.open(wait=wait)
        house.send("wait")
        await house.says("RUNNING")
        await eventually(lambda: house.beats[-1][1]["jobs"], deadline=15.0)
        sent = house.beats[-1][1]
        said_at = datetime.fromisoformat(sent["timestamp"])
        heard = messages.WorkerHeartbeat("worker-1", ("h-1",), ("default",), 1, said_at=said_at)
        assert messages.read_heartbeat(dump(sent)) == heard

    house.play(days())


async def talks(context: JobContext) -> dict[str, int]:
    await context.log("one")
    await context.progress(50)
    await context.log("two")
    return {"pages": 3}


async def fails(context: JobContext) -> None:
    await context.log("one")
    raise Permanent("Gone", "no such index")


async def stops(context: JobContext) -> None:
    await context.wait_cancelled()
    context.raise_if_cancelled()


@pytest.mark.parametrize(
    ("function", "state", "result", "error", "last_log"),
    [
        (talks, rules.SUCCEEDED, {"pages": 3}, None, 4),
        (fails, rules.FAILED, None, {"type": "Gone", "message": "no such index", "retryable": False}, 2),
        (stops, rules.CANCELLED, None, {"type": "Cancelled", "message": "by hand", "retryable": False}, 0),
        (None, rules.FAILED, None, "UnknownJob", 0),
    ],
)
def test_a_coordinator_reads_all_that_a_job_says(
    house: House, function: Any, state: str, result: Any, error: Any, last_log: int
) -> None:
    heard: list[AttemptStatus | JobLogLine] = []
    take = house.published

    def published(message: Outgoing, queues: Any) -> None:
        take(message, queues)
        if message.exchange == "" and queues:
            heard.append(messages.read_event(queues[0], message.body, NOW))

    async def days() -> None:
        house.published = published  # type: ignore[method-assign]
        await house.open(**({"work": function} if function else {"other": talks}))
        house.put_channels(1)
        house.put(messages.dispatch(sent({"number": 1})))
        await eventually(lambda: heard, deadline=5.0)
        await house.stop_job()
        await house.ended()
        job = sent()
        for status in [one for one in heard if isinstance(one, AttemptStatus)]:
            moved = rules.reported(job, status, NOW, 0.5)
            assert isinstance(moved, JobTransition), moved
            job = moved.job
        assert (job.state, job.result, job.last_log_seq) == (state, result, last_log)
        assert job.error == error or (job.error or {}).get("type") == error
        assert [one.seq for one in heard] == list(range(1, len(heard) + 1))

    house.play(days())
