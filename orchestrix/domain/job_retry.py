"""Job retry: begins a job that has ended without success once more, when a person asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from orchestrix.domain.jobs import CANCELLED, FAILED, PENDING, TIMED_OUT, JobRow
from orchestrix.errors import RefusedAction

RETRYABLE: Final = (FAILED, TIMED_OUT, CANCELLED)
QUEUE_DELETION_GRACE: Final = timedelta(seconds=2)
"""How long the next attempt waits where the owner may be just deleting the queues of the last one."""


def retried(job: JobRow, now: datetime) -> JobRow:
    """The job waits for another attempt, and has all its `retries` again; attempts are counted on.

    Asking again before that attempt is dispatched changes nothing. Raises `RefusedAction` for a job in another state,
    and for a step of a saga.
    """
    if job.saga is not None:
        sentence = f"the job is a step of a saga, which decides what follows: {saga_retry(job)}"
        raise RefusedAction(sentence, *_instead(job)[1:])
    if job.parent_id is not None:
        sentence = "the job is a shard of a broadcast: retry that, and it runs again what has failed, with "
        raise RefusedAction(f"{sentence}`orchestrix jobs retry {job.parent_id}`")
    if is_retried(job):
        return job
    if job.state not in RETRYABLE:
        sentence, *allowed = _instead(job)
        raise RefusedAction(f"the job is {job.state}; {sentence}", *allowed)
    return begun_again(job, now)


def begun_again(job: JobRow, now: datetime) -> JobRow:
    """The job that has ended, as it waits for another attempt."""
    return replace(
        job,
        version=job.version + 1,
        updated_at=now,
        state=PENDING,
        tries=0,
        wake_at=now + QUEUE_DELETION_GRACE if job.channels else now,
        started_at=None,
        finished_at=None,
        cancel_reason=None,
        worker_id=None,
        worker_beat_at=None,
        progress=None,
        result=None,
        error=None,
    )


def is_retried(job: JobRow) -> bool:
    """Whether a person's retry is what it waits for: after a failure by itself it would have an error."""
    return job.state == PENDING and job.attempt > 0 and job.error is None


def saga_retry(job: JobRow) -> str:
    """What to do about a job that is a step of a saga."""
    verb = "apps retry" if job.saga == "app" else f"sagas retry {job.saga}"
    return f"retry the saga with `orchestrix {verb} {job.instance_id}`"


def _instead(job: JobRow) -> Sequence[str]:
    """What to do, and then the actions that fit."""
    if job.ended:
        return ["submit another one to do the work again"]
    if job.state == PENDING:
        return ["its next attempt begins by itself", "cancel"]
    return ["wait for its end, or cancel it first", "cancel"]
