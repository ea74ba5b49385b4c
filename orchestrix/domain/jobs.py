"""Job rules: the states of a job, and how each event changes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from orchestrix.domain.job_retry_delays import requested_delay, retry_delay
from orchestrix.domain.job_rows import (
    CANCELLED as CANCELLED,
)
from orchestrix.domain.job_rows import (
    DISPATCHED as DISPATCHED,
)
from orchestrix.domain.job_rows import (
    FAILED as FAILED,
)
from orchestrix.domain.job_rows import (
    FINAL as FINAL,
)
from orchestrix.domain.job_rows import (
    HANDING_OFF as HANDING_OFF,
)
from orchestrix.domain.job_rows import (
    LIVE as LIVE,
)
from orchestrix.domain.job_rows import (
    LOST as LOST,
)
from orchestrix.domain.job_rows import (
    ORPHAN_PENDING as ORPHAN_PENDING,
)
from orchestrix.domain.job_rows import (
    OWNED as OWNED,
)
from orchestrix.domain.job_rows import (
    PENDING as PENDING,
)
from orchestrix.domain.job_rows import (
    REPORTED as REPORTED,
)
from orchestrix.domain.job_rows import (
    RUNNING as RUNNING,
)
from orchestrix.domain.job_rows import (
    STATES as STATES,
)
from orchestrix.domain.job_rows import (
    SUCCEEDED as SUCCEEDED,
)
from orchestrix.domain.job_rows import (
    TIMED_OUT as TIMED_OUT,
)
from orchestrix.domain.job_rows import (
    JobAttempt as JobAttempt,
)
from orchestrix.domain.job_rows import (
    JobRow as JobRow,
)
from orchestrix.errors import RefusedAction

TIMEOUT: Final = "Timeout"
"""The type of an error that says that the attempt's time is over, whichever process has found that."""
WORKER_STOPPED: Final = "WorkerStopped"
"""The type of an error that says that the worker ended before the attempt, which is no failure of the job."""

RETRIES_LIMIT: Final = 1000
_NEW_OWNER_GRACE: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class AttemptStatus:
    """A worker's report of an attempt. `seq` counts its statuses and logs together, from 1."""

    job_id: str
    history_id: str
    worker_id: str
    seq: int
    status: str
    progress: Any = None
    result: Any = None
    error: Mapping[str, Any] | None = None
    last_log_seq: int | None = None


@dataclass(frozen=True, slots=True)
class JobTransition:
    """A job after something has happened to it, and its attempt if that has changed.

    `stop` is the history id of an attempt whose worker is to be asked to stop.
    """

    job: JobRow
    attempt: JobAttempt | None = None
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class IgnoredStatus:
    """A status that changes nothing; `stop` is as in `JobTransition`."""

    reason: str
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class AttemptEnding:
    """How an attempt ended without success.

    `counts` says whether it uses up a try, `after` how long the next one is to wait, where the worker requests that.
    `answered` says that the worker itself has reported the end, and need not be asked to stop.
    """

    state: str
    error: Mapping[str, Any]
    retryable: bool = True
    counts: bool = True
    last_log_seq: int | None = None
    answered: bool = False
    after: timedelta | None = None

    @property
    def judged(self) -> bool:
        """Whether the work itself has failed, and was not only stopped before its end."""
        return self.answered and self.counts and self.state == FAILED


WORKER_SILENT: Final = AttemptEnding(LOST, {"type": "WorkerLost", "message": "its worker sends no heartbeats any more"})
ATTEMPT_TIMED_OUT: Final = AttemptEnding(TIMED_OUT, {"type": TIMEOUT, "message": "timed out"})
BROKER_LOST: Final = AttemptEnding(LOST, {"type": "BrokerLost", "message": "the broker lost its data"}, counts=False)
BEGUN_TWICE: Final = AttemptEnding(LOST, {"type": "BegunTwice", "message": "started by another worker"}, counts=False)


def dispatched(job: JobRow, history_id: str, now: datetime) -> JobTransition:
    """The next attempt of a job that is due is dispatched to a worker."""
    fresh = replace(
        _changed(job, now),
        state=DISPATCHED,
        history_id=history_id,
        attempt=job.attempt + 1,
        tries=job.tries + 1,
        channels=1,
        wake_at=_until(job, now),
        dispatched_at=now,
        started_at=None,
        worker_id=None,
        worker_beat_at=None,
        address=None,
        called_at=None,
        seq=0,
        last_log_seq=None,
        progress=None,
    )
    return JobTransition(fresh, _attempt(fresh))


def reported(job: JobRow, status: AttemptStatus, now: datetime, jitter: float) -> JobTransition | IgnoredStatus:
    """What a worker's status does. `jitter` in [0, 1) draws the wait before another try."""
    if status.history_id != job.history_id or not job.live:
        return _stale_status(job, status)
    if job.worker_id not in (None, status.worker_id):
        return ended(job, BEGUN_TWICE, now, jitter) if status.status == RUNNING else IgnoredStatus("another-worker")
    if status.seq <= job.seq:
        return IgnoredStatus("repeated")
    job = replace(job, seq=status.seq, worker_id=job.worker_id or status.worker_id, started_at=job.started_at or now)
    if status.status == RUNNING:
        return _running(job, status, now)
    job = replace(
        job, last_log_seq=status.last_log_seq, progress=job.progress if status.progress is None else status.progress
    )
    if status.status == FAILED:
        return ended(job, _failure(status), now, jitter)
    error = status.error if status.status == CANCELLED else None
    return _finished(replace(job, result=status.result, error=error), status.status, now)


def ended(job: JobRow, ending: AttemptEnding, now: datetime, jitter: float) -> JobTransition:
    """The present attempt has ended without success: another one follows if the policy allows it.

    A worker that still works on it is asked to stop.
    """
    stop = None if ending.answered else job.history_id
    job = replace(
        job, error=dict(ending.error), last_log_seq=ending.last_log_seq, tries=job.tries - (not ending.counts)
    )
    if job.cancel_reason is not None and not ending.judged:
        return replace(_finished(job, CANCELLED, now, of_attempt=ending.state), stop=stop)
    if job.cancel_reason is None and (not ending.counts or (ending.retryable and job.tries <= job.retries)):
        return JobTransition(_waiting(job, ending, now, jitter), _attempt(job, ending.state, now), stop)
    return replace(_finished(job, _ended_state(ending), now, of_attempt=ending.state), stop=stop)


def cancelled(job: JobRow, reason: str, now: datetime) -> JobTransition:
    """The job is to end. A worker that works on it must receive that and report its end first; a broadcast ends with
    its children, which the leader cancels.

    Asking again changes nothing. Raises `RefusedAction` for a job that has ended otherwise.
    """
    if job.state == CANCELLED or (job.state == RUNNING and job.cancel_reason is not None):
        return JobTransition(job, stop=job.history_id if job.state == RUNNING else None)
    if job.ended:
        retry = ("retry",) if job.state != SUCCEEDED and job.saga is None else ()
        raise RefusedAction(f"the job has already ended ({job.state})", *retry)
    asked = replace(job, cancel_reason=reason)
    if job.state == RUNNING and job.has_children:
        return JobTransition(replace(_changed(asked, now), wake_at=now))
    if job.state == RUNNING:
        return JobTransition(_changed(asked, now), stop=job.history_id)
    if job.state == PENDING:
        return JobTransition(replace(_finished(asked, CANCELLED, now).job))
    return replace(_finished(asked, CANCELLED, now), stop=job.history_id)


def taken(job: JobRow, node: str, now: datetime) -> JobRow:
    """The job under its new owner, which has a few seconds to read unacknowledged messages before its deadline.

    Its worker counts as silent only after the new owner has owned the job for the whole silence limit.
    """
    wake_at = job.wake_at
    if job.live and job.owner is not None and wake_at is not None:
        wake_at = max(wake_at, now + _NEW_OWNER_GRACE)
    return replace(
        _changed(job, now),
        ownership=OWNED,
        owner=node,
        owner_epoch=job.owner_epoch + 1,
        wake_at=wake_at,
        handoff_reason=None,
        handoff_at=None,
        handoff_tries=0,
        taken_at=now,
    )


def offered(job: JobRow, reason: str, ownership: str | None, now: datetime) -> JobRow:
    """The job is offered to other nodes, under its present owner."""
    tries = job.handoff_tries + 1
    return replace(_changed(job, now), ownership=ownership, handoff_reason=reason, handoff_at=now, handoff_tries=tries)


def kept(job: JobRow, now: datetime) -> JobRow:
    """No node took it: its owner keeps it."""
    return replace(_changed(job, now), ownership=OWNED, handoff_reason=None, handoff_at=None, handoff_tries=0)


def closed(job: JobRow, now: datetime) -> JobRow:
    """Its queues are gone and it needs no owner."""
    return replace(_changed(job, now), channels=0, owner=None, ownership=None, handoff_reason=None, handoff_at=None)


def reopened(job: JobRow, now: datetime) -> JobRow:
    """A worker that worked on it for too long may have declared its queues again: they have to be checked."""
    return replace(_changed(job, now), channels=1, handoff_at=now)


def _running(job: JobRow, status: AttemptStatus, now: datetime) -> JobTransition:
    first = job.state == DISPATCHED
    fresh = replace(
        _changed(job, now),
        state=RUNNING,
        progress=job.progress if status.progress is None else status.progress,
        worker_beat_at=now,
        wake_at=_until(job, now) if first else job.wake_at,
    )
    return JobTransition(fresh, _attempt(fresh) if first else None)


def _stale_status(job: JobRow, status: AttemptStatus) -> IgnoredStatus:
    """A status of an attempt that is over. A worker that ended it by itself need not be asked to stop."""
    if status.history_id == job.history_id and job.seq >= status.seq:
        return IgnoredStatus("repeated")
    return IgnoredStatus("another-attempt", status.history_id if status.status == RUNNING else None)


def _failure(status: AttemptStatus) -> AttemptEnding:
    error = _readable_error(status.error or {"message": ""})
    retryable = error.get("retryable") is not False and error.get("hold") is not True  # an operator is asked
    return AttemptEnding(
        TIMED_OUT if error.get("type") == TIMEOUT else FAILED,
        error,
        retryable=retryable,
        counts=not (retryable and error.get("type") == WORKER_STOPPED),
        last_log_seq=status.last_log_seq,
        answered=True,
        after=requested_delay(error.get("retryAfterMs")),
    )


def _readable_error(error: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's error with a type, and a message that is a text, whatever it sent: people read them."""
    texts = {name: str(error[name] or "") for name in ("type", "message") if name in error}
    return {"type": "Error", **error, **texts}


def _ended_state(ending: AttemptEnding) -> str:
    return TIMED_OUT if ending.state == TIMED_OUT else FAILED


def _waiting(job: JobRow, ending: AttemptEnding, now: datetime, jitter: float) -> JobRow:
    usual = retry_delay(job.attempt, job.tries, counts=ending.counts, jitter=jitter)
    wait = usual if ending.after is None else ending.after
    return replace(_changed(job, now), state=PENDING, wake_at=now + wait, worker_id=None, worker_beat_at=None)


def _finished(job: JobRow, state: str, now: datetime, of_attempt: str | None = None) -> JobTransition:
    attempt = _attempt(job, of_attempt or state, now) if job.live else None
    return JobTransition(replace(_changed(job, now), state=state, wake_at=None, finished_at=now), attempt)


def _attempt(job: JobRow, state: str | None = None, finished_at: datetime | None = None) -> JobAttempt:
    assert job.history_id is not None, "an attempt has a name"
    assert job.dispatched_at is not None, "an attempt was dispatched"
    return JobAttempt(
        job.history_id,
        job.id,
        job.attempt,
        job.worker_id,
        state or job.state,
        job.dispatched_at,
        job.started_at,
        finished_at,
        job.error if state in (FAILED, TIMED_OUT, LOST) else None,
        job.last_log_seq,
        job.address,
        job.called_at,
    )


def _changed(job: JobRow, now: datetime) -> JobRow:
    return replace(job, version=job.version + 1, updated_at=now)


def _until(job: JobRow, now: datetime) -> datetime | None:
    return None if job.timeout_ms is None else now + timedelta(milliseconds=job.timeout_ms)
