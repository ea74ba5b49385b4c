"""Job broadcasts: a job that runs on every executor of its group, as one child for each, and ends by their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from orchestrix.domain import job_retry
from orchestrix.domain.job_retry_delays import retry_delay
from orchestrix.domain.job_rows import CANCELLED, FAILED, FINAL, PENDING, RUNNING, SUCCEEDED, TIMED_OUT, JobRow
from orchestrix.domain.jobs import TIMEOUT
from orchestrix.domain.registry.routing import Strategy
from orchestrix.errors import RefusedAction
from orchestrix.quantities import counted as number_of
from orchestrix.quantities import duration
from orchestrix.saga.job_targets import BroadcastEnd
from orchestrix.saga.messages import MAX_BODY, dump

CHILDREN_LIMIT: Final = 200
"""Children of one broadcast."""
ALL: Final = BroadcastEnd.ALL.value
"""It ends with its last child, and succeeds if all have succeeded."""
ANY: Final = BroadcastEnd.ANY.value
"""It ends with the first child that succeeds; the others are cancelled."""

NO_EXECUTORS: Final = "NoExecutors"
RESULT_TOO_LARGE: Final = "ResultTooLarge"
CHILDREN_FAILED: Final = "ChildrenFailed"
_RESULT_LIMIT: Final = MAX_BODY
"""Bytes of the list of results, as of the message of a single one."""
_SHOWN_INDEXES: Final = 20
_SHOWN_CHARS: Final = 300
_GONE: Final = frozenset(("ExecutorLost", "ExecutorNotReached"))
"""Errors after which a child is not given to the executor that it was made for, as long as there is another one."""


@dataclass(frozen=True, slots=True)
class ChildTally:
    """How many children of a broadcast have not ended, have ended without success, and have succeeded."""

    left: int
    failed: int
    succeeded: int


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """A child as its broadcast's result shows it."""

    index: int
    state: str
    result: Any = None
    error: Any = None


def is_broadcast(job: JobRow) -> bool:
    """Whether it is to run on every executor of its group."""
    return job.routing == Strategy.SHARDING_BROADCAST


def fired(job: JobRow, addresses: Sequence[str], ids: Sequence[str], now: datetime) -> tuple[JobRow, list[JobRow]]:
    """The broadcast from now on, and a child for each of these addresses, with an id of `ids` and its place as index.

    Whatever joins or leaves the group later, addresses and indexes stay. `retries` and `timeout_ms` are the children's.
    """
    assert (job.state, job.has_children) == (PENDING, False), "it is fired once"
    total = len(addresses)
    parent = replace(
        _changed(job, now),
        state=RUNNING,
        started_at=now,
        error=None,
        children_total=total,
        children_left=total,
        children_failed=0,
    )
    made = zip(ids, addresses, range(total), strict=True)
    children = [_child(job, id, place, index, total, now) for id, place, index in made]
    return replace(parent, wake_at=deadline(parent)), children


def _child(job: JobRow, id: str, address: str, index: int, total: int, now: datetime) -> JobRow:
    """Neither a run of the schedule nor the step of the saga: that is the broadcast alone."""
    return JobRow(
        id=id,
        queue=None,
        executor_group=job.executor_group,
        handler=job.handler,
        routing=Strategy.ADDRESS,
        routing_address=address,
        retries=job.retries,
        timeout_ms=job.timeout_ms,
        created_by=job.created_by,
        correlation_id=job.correlation_id,
        created_at=now,
        updated_at=now,
        wake_at=now,
        traceparent=job.traceparent,
        tracestate=job.tracestate,
        trace_head=job.trace_head,
        parent_id=job.id,
        shard_index=index,
        shard_total=total,
    )


def without_executors(job: JobRow, detail: str, now: datetime, jitter: float) -> JobRow:
    """The broadcast whose group has no executor now: one may register before the next of its `retries`."""
    job = replace(_changed(job, now), tries=job.tries + 1, error={"type": NO_EXECUTORS, "message": detail})
    if job.cancel_reason is None and job.tries <= job.retries:
        return replace(job, wake_at=now + retry_delay(job.tries, job.tries, counts=True, jitter=jitter))
    return _finished(job, FAILED, now)


def without_group(job: JobRow, now: datetime) -> JobRow:
    """The broadcast whose group was deleted."""
    error = {"type": "NoGroup", "message": f"there is no executor group {job.executor_group!r}"}
    return _finished(replace(_changed(job, now), error=error), FAILED, now)


def too_large(job: JobRow, executors: int, now: datetime) -> JobRow:
    """The broadcast to more than `CHILDREN_LIMIT` executors, which is refused."""
    message = (
        f"group {job.executor_group} has {executors} executors and a broadcast reaches at most {CHILDREN_LIMIT}: "
        "divide the executors among several groups, and submit a broadcast for each"
    )
    return _finished(replace(_changed(job, now), error={"type": "TooManyExecutors", "message": message}), FAILED, now)


def deadline(job: JobRow) -> datetime | None:
    """When the broadcast times out that was fired, or retried, at `started_at`."""
    if job.deadline_ms is None or job.started_at is None:
        return None
    return job.started_at + timedelta(milliseconds=job.deadline_ms)


def verdict(job: JobRow, tally: ChildTally) -> str | None:
    """The state in which the broadcast ends now; None while it runs on, or has ended already."""
    if job.ended:
        return None
    if job.broadcast_end == ANY and tally.succeeded:
        return SUCCEEDED
    if tally.left:
        return None
    if job.broadcast_end == ANY or tally.failed:
        return FAILED if job.cancel_reason is None else CANCELLED
    return SUCCEEDED


def counted(job: JobRow, tally: ChildTally, now: datetime) -> JobRow:
    """The broadcast with these numbers; itself if it has them."""
    if (job.children_left, job.children_failed) == (tally.left, tally.failed):
        return job
    return replace(_changed(job, now), children_left=tally.left, children_failed=tally.failed)


def ended(job: JobRow, state: str, children: Sequence[ChildEnd], now: datetime) -> JobRow:
    """The broadcast that has been `counted` and ends in `state`. Its result is the list of those of its children.

    Where some of them have not ended, `wake_at` says that they are to be cancelled.
    """
    by_index = sorted(children, key=lambda one: one.index)
    results: list[Any] | None = [one.result if one.state == SUCCEEDED else None for one in by_index]
    error = {FAILED: _failure, TIMED_OUT: _timeout}[state](job, by_index) if state in (FAILED, TIMED_OUT) else None
    if len(dump(results)) > _RESULT_LIMIT:
        results = None
        error = error or {"type": RESULT_TOO_LARGE, "message": _too_large_result(job)}
    return replace(_finished(_changed(job, now), state, now), result=results, error=error)


def state_at_deadline(job: JobRow, now: datetime) -> str | None:
    """The state in which a broadcast ends whose deadline has passed, whatever its children do; None before that."""
    at = deadline(job)
    if job.state != RUNNING or at is None or at > now:
        return None
    return TIMED_OUT if job.cancel_reason is None else CANCELLED


def cancel_reason(job: JobRow) -> str | None:
    """Why the children of a broadcast are to be cancelled that have not ended; None if they are not."""
    if job.cancel_reason is not None:
        return job.cancel_reason
    match job.state:
        case "SUCCEEDED":
            return f"another shard of job {job.id} has succeeded" if job.broadcast_end == ANY else None
        case "TIMED_OUT":
            return f"job {job.id} has timed out"
        case _:
            return None


def settled(job: JobRow, now: datetime) -> JobRow:
    """The broadcast whose children have been cancelled. One that still runs waits for their ends, or its deadline."""
    wake_at = deadline(job) if job.state == RUNNING else None
    return job if job.wake_at == wake_at else replace(_changed(job, now), wake_at=wake_at)


def retried(job: JobRow, children: Sequence[JobRow], now: datetime) -> tuple[JobRow, list[tuple[JobRow, JobRow]]]:
    """The broadcast that runs again those of its children that have not succeeded, each with its index; and these.

    Each is before and after. Raises `RefusedAction` as `job_retry.retried`, and while a child has not ended.
    """
    waiting = job_retry.retried(job, now)
    if left := [one for one in children if not one.ended]:
        stopping = f"{number_of(len(left), 'shard')} of the job {'is' if len(left) == 1 else 'are'} still stopping"
        sentence = f"{stopping}: wait for the end, then retry the job"
        raise RefusedAction(sentence)
    again = [(one, job_retry.begun_again(one, now)) for one in children if one.state != SUCCEEDED]
    parent = replace(waiting, state=RUNNING, started_at=now, children_left=len(again), children_failed=0)
    return replace(parent, wake_at=deadline(parent)), again


def routed(job: JobRow) -> JobRow:
    """The job as its executor is to be picked: a child's further attempts can go to any executor of the group."""
    if job.parent_id is None or job.attempt <= 1:
        return job
    return replace(job, routing=Strategy.FAILOVER)


def in_turn(child: JobRow, addresses: Sequence[str]) -> list[str]:
    """The executors for a child's attempt, in the order to try them: first that which it was made for, unless it was
    lost or not reached there; the others begin with another one for each shard and each attempt.
    """
    others = sorted(one for one in addresses if one != child.routing_address)
    turn = ((child.shard_index or 0) + child.attempt) % max(1, len(others))
    others = others[turn:] + others[:turn]
    own = [one for one in addresses if one == child.routing_address]
    error = child.error if isinstance(child.error, dict) else {}
    return [*others, *own] if error.get("type") in _GONE else [*own, *others]


def _timeout(job: JobRow, children: Sequence[ChildEnd]) -> dict[str, Any]:
    after = duration((job.deadline_ms or 0) / 1000)
    left = [one.index for one in children if one.state not in FINAL]
    message = f"timed out after {after}: {len(left)} of {len(children)} shards had not ended ({_shown(left)})"
    return {"type": TIMEOUT, "message": message, "indexes": left}


def _failure(job: JobRow, children: Sequence[ChildEnd]) -> dict[str, Any]:
    bad = [one for one in children if one.state != SUCCEEDED]
    indexes = [one.index for one in bad]
    first = next((one for one in bad if isinstance(one.error, dict)), bad[0])
    cause = first.error if isinstance(first.error, dict) else {}
    said = f"{cause.get('type') or first.state}: {cause.get('message') or first.state}"[:_SHOWN_CHARS]
    message = f"{len(bad)} of {len(children)} shards failed ({_shown(indexes)}); shard {first.index}: {said}"
    hold = any(isinstance(one.error, dict) and one.error.get("hold") is True for one in bad)
    return {"type": CHILDREN_FAILED, "message": message, "indexes": indexes, **({"hold": True} if hold else {})}


def _shown(indexes: Sequence[int]) -> str:
    more = f" and {len(indexes) - _SHOWN_INDEXES} more" if len(indexes) > _SHOWN_INDEXES else ""
    return f"shard{'' if len(indexes) == 1 else 's'} {', '.join(map(str, indexes[:_SHOWN_INDEXES]))}{more}"


def _too_large_result(job: JobRow) -> str:
    return (
        f"the results of its children have more than {_RESULT_LIMIT} bytes in all: read each of them, "
        f"GET /jobs?parentId={job.id}"
    )


def _finished(job: JobRow, state: str, now: datetime) -> JobRow:
    return replace(job, state=state, finished_at=now, wake_at=now if job.children_left else None)


def _changed(job: JobRow, now: datetime) -> JobRow:
    return replace(job, version=job.version + 1, updated_at=now)


def shards_left(job: JobRow) -> str:
    """How far a broadcast is, in words: `2 of 5 shards have not ended, 1 has failed`."""
    has, failed = "has" if job.children_left == 1 else "have", job.children_failed or 0
    bad = f", {failed} {'has' if failed == 1 else 'have'} failed" if failed else ""
    return f"{job.children_left} of {job.children_total} shards {has} not ended{bad}"
