"""Step results: reports the end of a job to the saga of which it is a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from orchestrix import clock
from orchestrix.broker.topology import EVENTS
from orchestrix.domain.job_broadcasts import RESULT_TOO_LARGE
from orchestrix.domain.job_diagnosis import may_wake_leader
from orchestrix.domain.jobs import CANCELLED, FAILED, SUCCEEDED, JobAttempt, JobRow
from orchestrix.jobs import spans
from orchestrix.jobs.broadcasts.counting import count_ended
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.definition import STEP_FAILED
from orchestrix.saga.messages import MAX_DATA, dump

STEP_RESULTS: Final = "(ends of jobs)"
"""Stands in place of the saga in rows with results of jobs. No saga is called so, and none waits for another."""
_UNKNOWN_OUTCOME_ERRORS: Final = frozenset(
    {"Timeout", "WorkerLost", "ExecutorLost", "WorkerStopped", "BrokerLost", "BegunTwice", "OrderLost"}
)
"""Errors after which the outcome of the work is unknown."""
_ERROR_TEXT_LIMIT: Final = 400


@dataclass(frozen=True, slots=True)
class StoredEnds:
    """What else was stored with jobs: whether there are results for sagas, and the broadcasts that changed."""

    results: bool
    broadcasts: Sequence[JobRow]

    @property
    def wakes_leader(self) -> bool:
        """Whether the leader may have something to do for one of the broadcasts now."""
        return any(may_wake_leader(job) for job in self.broadcasts)


async def store_with_results(
    tx: Transaction, changed: Sequence[tuple[int, JobRow]], tried: Iterable[JobAttempt] = ()
) -> StoredEnds:
    """`jobs.store`; and in the same transaction what follows from the end of each job: for the broadcast whose child
    it is, and for the saga of which it, or that broadcast, is a step.

    Raises `Contention` as `count_ended`.
    """
    await jobs.store(tx, changed, tried)
    found = [job for _, job in changed]
    counted = await count_ended(tx, found)
    over = [one.job for one in counted if one.has_just_ended]
    return StoredEnds(await insert_results(tx, [*found, *over]), [one.job for one in counted])


async def insert_results(tx: Transaction, found: Iterable[JobRow], *, again: bool = False) -> bool:
    """Writes the results of those jobs that have ended, the same each time, for their sagas; whether there is one.

    `again` says that they were published before: the rows have an `n` of 1, else of 0.
    """
    ended = [job for job in found if job.ended and job.saga is not None]
    payloads = await jobs.payloads(tx, [job.id for job in ended])
    return await _insert(tx, [(job, payloads.get(job.id)) for job in ended], again)


async def insert_unstored(tx: Transaction, ended: Iterable[JobRow]) -> bool:
    """The same for jobs that were never stored: it may have been done before."""
    return await _insert(tx, [(job, job.payload) for job in ended], again=True)


async def _insert(tx: Transaction, ended: Iterable[tuple[JobRow, Any]], again: bool) -> bool:
    made = (_row(job, payload, tx.now()) for job, payload in ended)
    rows = [replace(row, n=int(again)) for row in made if row is not None]
    await outbox.insert(tx, rows, claimed_by=None, lease_s=0.0)
    return bool(rows)


def _row(job: JobRow, payload: Any, now: datetime) -> OutboxRow | None:
    event = payload.get("event") if isinstance(payload, dict) else None
    if not isinstance(event, str) or not event:
        return None
    problem = _result_problem(job)
    good = job.state == SUCCEEDED and problem is None
    id = clock.named_uuid(b"end of job", job.id.encode())
    body = {
        "id": id,
        "type": event if good else STEP_FAILED,
        "saga": job.saga,
        "appId": job.instance_id,
        "correlationId": job.correlation_id,
        "causationId": job.id,
        **({"data": _data(job)} if good else {"error": _error(job, problem)}),
    }
    traceparent, tracestate = spans.trace_of(job)
    return OutboxRow(
        id=id,
        saga=STEP_RESULTS,
        instance_id=int(id.replace("-", ""), 16) >> 65,
        version=0,
        n=0,
        exchange=EVENTS,
        routing_key=str(body["type"]),
        type=str(body["type"]),
        correlation_id=job.correlation_id,
        body=dump(body),
        timeout_ms=0,
        created_at=now,
        traceparent=traceparent,
        tracestate=tracestate,
    )


def _data(job: JobRow) -> dict[str, Any]:
    """The data of the success; of a broadcast, whose result is a list, they are its `results` by shard."""
    return {"results": job.result} if job.has_children else job.result or {}


def _result_problem(job: JobRow) -> str | None:
    """Why a saga cannot take over the result."""
    if job.state == SUCCEEDED and isinstance(job.error, dict) and job.error.get("type") == RESULT_TOO_LARGE:
        return str(job.error.get("message"))
    if job.has_children:
        return (
            None
            if len(dump(_data(job))) <= MAX_DATA
            else f"the results of its children have more than {MAX_DATA} bytes"
        )
    if job.result is not None and not isinstance(job.result, dict):
        return "the job's result is not a JSON object"
    if job.result is not None and len(dump(job.result)) > MAX_DATA:
        return f"the job's result has more than {MAX_DATA} bytes"
    return None


def _error(job: JobRow, problem: str | None) -> dict[str, Any]:
    """Never a retryable one: the job's own attempts were all."""
    error = job.error if isinstance(job.error, dict) else {}
    type, message = str(error.get("type") or "Error"), str(error.get("message") or job.state)
    if job.state == CANCELLED:
        type, message = "JobCancelled", job.cancel_reason or message
    elif job.state == SUCCEEDED:
        type, message = "BadOutput", problem or message
    unsure = (job.attempt > 0 or job.has_children) and not (
        job.state == FAILED and job.attempt == 1 and type not in _UNKNOWN_OUTCOME_ERRORS
    )
    unsure = unsure or error.get("unsure") is True
    text = f"{message[:_ERROR_TEXT_LIMIT]} (job {job.id})"
    hold = error.get("hold") is True and job.state == FAILED
    more = {"hold": True} if hold else {}
    return {"type": type[:_ERROR_TEXT_LIMIT], "message": text, "retryable": False, "unsure": unsure, **more}
