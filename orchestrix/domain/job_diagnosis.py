"""Job diagnosis: why a job does not continue, and what helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from shlex import quote
from typing import Final, NamedTuple

from orchestrix.domain.jobs import (
    ATTEMPT_TIMED_OUT,
    DISPATCHED,
    PENDING,
    RUNNING,
    TIMEOUT,
    AttemptEnding,
    JobRow,
)
from orchestrix.domain.schedules import QUEUED_WAKE_AT
from orchestrix.quantities import duration

DISPATCH_GRACE: Final = timedelta(seconds=5)
"""A due job without a worker is explained only after so long."""


@dataclass(frozen=True, slots=True)
class QueueWorkers:
    """The workers of a queue: so many that send heartbeats, and so many that did so recently and do not any more.

    `ago` is how many seconds ago the last heartbeat of the former was. So many are `stopping`: they send heartbeats,
    and work on jobs of the queue, but take no more.
    """

    known: int = 0
    silent: int = 0
    ago: float = 0.0
    stopping: int = 0


@dataclass(frozen=True, slots=True)
class GroupExecutors:
    """The executors of a group: `addresses` takes new jobs, None where the group does not exist. `attempts` says how
    many were given to each address and have not ended.
    """

    addresses: Sequence[str] | None
    attempts: Mapping[str, int] = field(default_factory=dict)


class SilenceLimits(NamedTuple):
    """After how many seconds without a sign of life the attempts of a worker, and of an executor, are lost."""

    workers: float
    executors: float

    def of(self, job: JobRow) -> float:
        """The limit for who does that job."""
        return self.workers if job.queue is not None else self.executors


@dataclass(frozen=True, slots=True)
class DiagnosisContext:
    """What is known around a job: the workers of its queue or the executors of its group, and since when there is a
    leader, which stores heartbeats.

    After `limit` seconds without a sign of life an attempt is lost. `is_read` says that the node which owns the
    job, and consumes its messages, had a heartbeat recently; `is_empty` that no dispatch is in the queue of its
    workers.
    """

    workers: QueueWorkers
    limit: float
    led_since: datetime | None
    is_read: bool = True
    is_empty: bool = False
    executors: GroupExecutors | None = None


@dataclass(frozen=True, slots=True)
class WaitReason:
    """What keeps a job from continuing: a code for programs, the cause, and what helps, if anything does."""

    code: str
    cause: str
    helps: str = ""

    def __str__(self) -> str:
        return f"{self.cause}: {self.helps}" if self.helps else self.cause


def execution_timeout(job: JobRow) -> AttemptEnding:
    """The ending of an attempt that ran for longer than the job's timeout."""
    if job.timeout_ms is None:
        return ATTEMPT_TIMED_OUT
    message = f"timed out after {duration(job.timeout_ms / 1000)}"
    return replace(ATTEMPT_TIMED_OUT, error={"type": TIMEOUT, "message": message})


def timeout_ending(job: JobRow, workers: QueueWorkers) -> AttemptEnding:
    """The ending of the attempt whose time is over, given the known workers of its queue."""
    if job.state != DISPATCHED:
        return execution_timeout(job)
    if job.queue is None:
        called = "no executor was called" if job.address is None else f"the executor at {job.address} was called"
        message = f"timed out before an executor of group {job.executor_group} began it: {called}"
    else:
        message = f"timed out before a worker started it: {_no_worker(job, workers)}"
    return replace(ATTEMPT_TIMED_OUT, error={"type": TIMEOUT, "message": message})


def may_wake_leader(job: JobRow) -> bool:
    """Whether the leader may have something to do now: another attempt, or a run that has waited for this one's end;
    or children of this broadcast are to be cancelled.
    """
    if job.state == PENDING or (job.ended and job.schedule_id is not None):
        return True
    return job.has_children and (job.ended or job.cancel_reason is not None) and job.wake_at is not None


def may_wait(job: JobRow, now: datetime, limit: float) -> bool:
    """Whether `waits_for` may have an explanation, and so needs to know more; `limit` as in `DiagnosisContext`."""
    match job.state:
        case "DISPATCHED":
            return job.dispatched_at is not None and now - job.dispatched_at > DISPATCH_GRACE
        case "PENDING":
            return job.wake_at is not None and (job.wake_at == QUEUED_WAKE_AT or now - job.wake_at > DISPATCH_GRACE)
        case "RUNNING":
            return job.worker_beat_at is not None and now - job.worker_beat_at > _missed(limit)
        case _:
            return False


def waits_for(job: JobRow, now: datetime, context: DiagnosisContext, problem: str | None = None) -> str | None:
    """What keeps a job from continuing, in a sentence that says what helps; None for one that is as it should be.

    `problem` is as in `wait_reason`.
    """
    reason = wait_reason(job, now, context, problem)
    return None if reason is None else str(reason)


def wait_reason(job: JobRow, now: datetime, context: DiagnosisContext, problem: str | None = None) -> WaitReason | None:
    """What keeps a job from continuing; None for one that is as it should be.

    `problem` is why the broker cannot be used, if it cannot: no heartbeat can come then, and no silence counts.
    """
    if not may_wait(job, now, context.limit):
        return None
    if job.wake_at == QUEUED_WAKE_AT:
        return WaitReason("held", "waiting for another run of its schedule to end")
    if problem is not None:
        return WaitReason("broker_down", f"RabbitMQ is unreachable ({problem})", "restart the broker; no data is lost")
    if context.led_since is None:
        return WaitReason(
            "no_leader", f"no leader elected ({_UNLED[job.state]})", "start a node with `orchestrix serve`"
        )
    led = now - context.led_since
    if job.queue is None:
        return _group_waits(job, now, context, led)
    if job.state == PENDING:
        return _unsent(job, led, context.workers)
    workers = (
        WaitReason("leader_is_new", _workers_unknown(led))
        if not context.workers.known and led < _missed(context.limit)
        else _no_worker(job, context.workers)
    )
    if job.state == RUNNING:
        return WaitReason("silent_worker", _silent_worker(job, now, context, str(workers)))
    if not context.workers.known:
        return workers
    if not context.is_read:
        return _UNREAD
    return _lost(context) if context.is_empty else workers


_UNLED: Final = {
    PENDING: "jobs are not dispatched",
    DISPATCHED: "worker heartbeats are not recorded",
    RUNNING: "worker heartbeats are not recorded",
}
_UNREAD: Final = WaitReason("owner_gone", "its owner node is gone", "wait, another node takes it over")


def _lost(context: DiagnosisContext) -> WaitReason:
    helps = f"a worker may hold it; if it is lost, it is resent within {duration(2 * context.limit)}"
    return WaitReason("lost_dispatch", "no worker has started it and its dispatch is in no queue", helps)


def _missed(limit: float) -> timedelta:
    """A worker sends more than two heartbeats within the limit: after so long, at least one is missing."""
    return timedelta(seconds=limit / 2)


def _unsent(job: JobRow, led: timedelta, workers: QueueWorkers) -> WaitReason:
    if led <= DISPATCH_GRACE:
        return WaitReason("leader_is_new", f"{_begun(led)} and will dispatch it soon")
    if not workers.known:
        most = "a queue gets only a part of jobs.max_live before workers start its jobs"
        missing = _no_worker(job, workers)
        return replace(missing, cause=f"not dispatched yet: {most}, and {missing.cause}")
    return WaitReason(
        "max_live",
        "not dispatched yet: the limit of open jobs (jobs.max_live) is reached, or that of its queue's jobs not yet "
        "started, or the leader is late",
    )


def _workers_unknown(led: timedelta) -> str:
    return f"{_begun(led)} and has not received worker heartbeats yet"


def _begun(led: timedelta) -> str:
    return f"the leader started {duration(int(led.total_seconds()))} ago"


def _silent_worker(job: JobRow, now: datetime, context: DiagnosisContext, workers: str) -> str:
    """A worker's silence counts only once the leader, and the job's owner, have listened for as long themselves."""
    assert job.worker_beat_at is not None, "it may wait"
    heard = [at for at in (job.worker_beat_at, job.taken_at, context.led_since) if at is not None]
    lost, seconds = max(heard) + timedelta(seconds=context.limit), int((now - job.worker_beat_at).total_seconds())
    when = f"once a live node has listened for {duration(context.limit)},"
    if context.is_read and lost > now - DISPATCH_GRACE:
        when = f"at {lost:%H:%M:%S} UTC"
    silent = f"no heartbeat from its worker {job.worker_id} for {duration(seconds)}"
    return f"{silent}: {when} this attempt counts as lost {_follows(job, context.workers, workers)}"


def _follows(job: JobRow, workers: QueueWorkers, problem: str) -> str:
    if job.cancel_reason is not None:
        return "and the job is CANCELLED"
    if job.tries > job.retries:
        return "and the job fails (no retries left)"
    return "and is retried" if workers.known else f"and is retried, but {problem}"


def unserved(queue: str, now: datetime, context: DiagnosisContext) -> tuple[str, str]:
    """Why no worker starts what was sent to a queue, as in `waits_for`, and what to type or to do about it."""
    if context.led_since is None:
        return f"no leader elected ({_UNLED[DISPATCHED]})", "orchestrix serve"
    led = now - context.led_since
    if not context.workers.known and led < _missed(context.limit):
        return _workers_unknown(led), "wait for them, then check again"
    return _served(queue, context.workers)[0], f"orchestrix worker --job-queue {queue}"


def _no_worker(job: JobRow, workers: QueueWorkers) -> WaitReason:
    how, more = _served(job.queue or "", workers)
    code = "busy_workers" if workers.known else "no_worker"
    return WaitReason(code, how, f"start {more} with `orchestrix worker --job-queue {job.queue}`")


def _group_waits(job: JobRow, now: datetime, context: DiagnosisContext, led: timedelta) -> WaitReason:
    """What keeps a job for a group from continuing."""
    if job.state == PENDING:
        return _missing(job.executor_group or "", context.executors) or _not_its_turn(job, led)
    if not context.is_read:
        return _UNREAD
    if job.state == RUNNING:
        return _silent_executor(job, now)
    if job.address is None:
        return _missing(job.executor_group or "", context.executors) or _not_called(job, now)
    return _not_begun(job, now, context.executors)


def _not_its_turn(job: JobRow, led: timedelta) -> WaitReason:
    if led <= DISPATCH_GRACE:
        return WaitReason("leader_is_new", f"{_begun(led)} and will dispatch it soon")
    return WaitReason(
        "max_live",
        f"not dispatched yet: it waits for the turn of group {job.executor_group}: the limit of open jobs "
        "(jobs.max_live) is reached, or the group's part of it, or the leader is late",
    )


def _missing(group: str, executors: GroupExecutors | None) -> WaitReason | None:
    """What a group has too little of."""
    if executors is None or executors.addresses:
        return None
    name = quote(group)
    if executors.addresses is None:
        helps = f"make it with `orchestrix registry set {name} --auto`; without it the job fails"
        return WaitReason("no_group", f"the executor group {group} does not exist", helps)
    helps = (
        f"start one that registers for {group}, or set an address with `orchestrix registry set {name} --address URL`"
    )
    return WaitReason("no_executors", f"group {group} has no executor that takes jobs", helps)


def _not_called(job: JobRow, now: datetime) -> WaitReason:
    cause = f"no executor of group {job.executor_group} has been called{_for(job.dispatched_at, now)}"
    return WaitReason("not_called", cause, _see(job))


def _not_begun(job: JobRow, now: datetime, executors: GroupExecutors | None) -> WaitReason:
    """It was called, and no report has come."""
    known, address = executors or GroupExecutors(None), job.address or ""
    called = f"the executor at {address} was called{_ago(job.called_at, now)}"
    if known.addresses is not None and address not in known.addresses:
        gone = f"{called}, has not begun it, and takes no jobs of group {job.executor_group} any more"
        return WaitReason("executor_gone", gone, "wait, its owner asks it, and gives the attempt up if it is lost")
    if known.addresses and _all_busy(known, address):
        count, attempts = len(known.addresses), sum(known.attempts.values())
        each = f"all {count} executors" if count > 1 else "the only executor"
        busy = (
            f"{called} and has not begun it; {each} of group {job.executor_group} may be busy, with {attempts} attempts"
        )
        return WaitReason("busy_executors", busy, "start another executor, or wait for one to end")
    if job.worker_beat_at is None:
        return WaitReason("not_answered", f"{called} and has not answered since", _see(job))
    return WaitReason("executor_waits", f"{called}, has it, and has not begun it", _see(job))


def _all_busy(known: GroupExecutors, address: str) -> bool:
    """Whether each executor has an attempt besides the one that waits."""
    others = {**known.attempts, address: known.attempts.get(address, 1) - 1}
    return all(others.get(one, 0) > 0 for one in known.addresses or ())


def _silent_executor(job: JobRow, now: datetime) -> WaitReason:
    assert job.worker_beat_at is not None, "it may wait"
    silent = duration(int((now - job.worker_beat_at).total_seconds()))
    cause = f"the executor at {job.address} has sent nothing for {silent}, since {job.worker_beat_at:%H:%M:%S} UTC"
    return WaitReason("silent_executor", cause, "wait, its owner asks it, and gives the attempt up if it is lost")


def _see(job: JobRow) -> str:
    return f"see `orchestrix registry show {quote(job.executor_group or '')}`"


def _ago(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f" {duration(int((now - at).total_seconds()))} ago"


def _for(since: datetime | None, now: datetime) -> str:
    return "" if since is None else f" for {duration(int((now - since).total_seconds()))}"


def not_begun_by(group: str, executors: GroupExecutors) -> tuple[str, str]:
    """Why no executor of a group begins what was dispatched, and what to type or to do about it."""
    missing = _missing(group, executors)
    if missing is None:
        return (
            "its executors are busy or do not answer, or were only just called",
            f"orchestrix registry show {quote(group)}",
        )
    return missing.cause, missing.helps


def _served(queue: str, workers: QueueWorkers) -> tuple[str, str]:
    """The state of the workers that take nothing, and how many more are to be started."""
    if workers.known:
        return f"{_idle(queue, workers)} is busy, hangs or does not receive it", "more"
    if workers.stopping:
        are = "worker is" if workers.stopping == 1 else f"{workers.stopping} workers are"
        return f"queue {queue}: the last {are} stopping", "another"
    if workers.silent:
        known = "the only worker sends" if workers.silent == 1 else f"all {workers.silent} workers send"
        return f"queue {queue}: {known} no heartbeats any more", "one"
    return f"no worker serves queue {queue}", "one"


def _idle(queue: str, workers: QueueWorkers) -> str:
    """A hung worker counts as alive until its next heartbeats are missed: the age of its last one shows that."""
    ago = f"last heartbeat {duration(int(workers.ago))} ago"
    if workers.known == 1:
        return f"queue {queue}: its only worker ({ago})"
    return f"queue {queue}: each of its {workers.known} workers ({ago})"
