"""Job state explanation: why a job is where it is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Any, Final

from orchestrix.domain.job_broadcasts import is_broadcast, shards_left
from orchestrix.domain.job_diagnosis import DiagnosisContext, WaitReason, wait_reason
from orchestrix.domain.job_retry import is_retried, saga_retry
from orchestrix.domain.jobs import (
    CANCELLED,
    DISPATCHED,
    HANDING_OFF,
    ORPHAN_PENDING,
    PENDING,
    RUNNING,
    SUCCEEDED,
    TIMED_OUT,
    JobRow,
)
from orchestrix.domain.schedules import QUEUED_WAKE_AT
from orchestrix.engine.explain.job import progress_text
from orchestrix.engine.explain.operator_actions import done_by
from orchestrix.persistence.audit import AuditRow
from orchestrix.quantities import counted, duration
from orchestrix.saga.job_targets import BroadcastEnd


@dataclass(frozen=True, slots=True)
class JobStateFacts:
    """What the explanation is found from. `action` is the last cancel or retry by a person, `diagnosis` what is known
    around a job that may wait, `problem` why the broker cannot be used.
    """

    job: JobRow
    now: datetime
    action: AuditRow | None = None
    diagnosis: DiagnosisContext | None = None
    problem: str | None = None

    @property
    def wait(self) -> WaitReason | None:
        """What keeps it from continuing."""
        return wait_reason(self.job, self.now, self.diagnosis, self.problem) if self.diagnosis is not None else None


@dataclass(frozen=True, slots=True)
class JobExplanation:
    """Why a job is where it is: a code for programs, sentences for people, and what to do next.

    `since` is when it came there; `next_at` when the leader acts by itself, None if it never will.
    """

    blocker: str
    sentence: str
    next_action: str
    since: datetime | None
    next_at: datetime | None


def explain(facts: JobStateFacts) -> JobExplanation:
    """Why the job is where it is."""
    job = facts.job
    code, sentence, action = _ended(facts) if job.ended else _live(facts)
    since = {PENDING: job.updated_at, DISPATCHED: job.dispatched_at, RUNNING: job.started_at}
    next_at = None if job.wake_at == QUEUED_WAKE_AT else job.wake_at
    return JobExplanation(code, sentence, action, since.get(job.state, job.finished_at), next_at)


_SERVE: Final = {False: "Start a worker with", True: "See which executors there are with"}


def _ended(facts: JobStateFacts) -> tuple[str, str, str]:
    job = facts.job
    code, again = job.state.lower(), _again(job)
    if job.state == SUCCEEDED:
        return code, f"Succeeded {_where_done(job)}.", "Nothing to do."
    if job.state == CANCELLED:
        return code, f"{_cancelled(facts)}.", f"Nothing to do; if that was a mistake, {again}."
    if is_broadcast(job):
        return code, f"{job.state.capitalize().replace('_', ' ')}: {_error(job)}.", f"{_see(job)}, then {again}."
    sentence = f"{'Timed out' if job.state == TIMED_OUT else 'Failed'} in attempt {job.attempt} ({_left(job)})"
    if job.state == TIMED_OUT and job.started_at is None:
        return code, f"{sentence}: {_error(job)}.", f"{_SERVE[job.queue is None]} `{_worker(job)}`, then {again}."
    if (helps := _help_of_call(job)) is not None:
        return code, f"{sentence}: {_error(job)}.", f"{helps}, then {again}."
    return code, f"{sentence}: {_error(job)}.", f"See `orchestrix jobs logs {job.id}`, fix the cause, then {again}."


def _where_done(job: JobRow) -> str:
    if not job.has_children:
        return f"in attempt {job.attempt}"
    many = counted(job.children_total or 0, "executor")
    return f"on one of {many}" if job.broadcast_end == BroadcastEnd.ANY else f"on {many}"


def _live(facts: JobStateFacts) -> tuple[str, str, str]:
    job, wait = facts.job, facts.wait
    code, sentence, action = _STATES[job.state](facts)
    if wait is not None:
        code, sentence = wait.code, f"The job is {job.state}: {wait.cause}."
        action = f"{wait.helps[:1].upper()}{wait.helps[1:]}." if wait.helps else f"Wait, or {_cancel(job)}."
    if job.cancel_reason is not None and job.has_children:
        return "stopping", f"{_cancelled(facts)}; {shards_left(job)}.", "Wait."
    if job.cancel_reason is not None:
        asked = f"{_cancelled(facts)}; {_whose(job)} has not reported its end yet."
        return "stopping", f"{asked} {sentence}" if wait is not None else asked, "Wait."
    if job.ownership == HANDING_OFF:
        sentence = f"{sentence} Its owner {job.owner} is handing it off to another node ({job.handoff_reason})."
    elif job.ownership == ORPHAN_PENDING:
        sentence = f"{sentence} Its owner {job.owner} is gone; another node takes it over."
    return code, sentence, action


def _pending(facts: JobStateFacts) -> tuple[str, str, str]:
    job, next_attempt = facts.job, f"attempt {facts.job.attempt + 1}"
    left = (
        (job.wake_at - facts.now).total_seconds() if job.wake_at is not None and job.wake_at < QUEUED_WAKE_AT else 0.0
    )
    begins = f"in {duration(round(left))}" if left >= 1 else "now"
    action = f"Wait, or {_cancel(job)}."
    if is_broadcast(job):
        failed = f"Not fired: {_error(job)}. It is tried again" if job.error is not None else "Not fired yet; it begins"
        return "pending" if job.error is None else "retry", f"{failed} {begins}.", action
    if is_retried(job):
        by = (
            done_by(facts.action, "Retried", _moment(facts.action.at))
            if facts.action is not None
            else "Retried by hand"
        )
        return "pending", f"{by}; {next_attempt} begins {begins}.", action
    if job.error is not None:
        last = "; it is the last one" if job.tries >= job.retries else ""
        failed = f"Attempt {job.attempt} failed: {_error(job)}"
        if (helps := _help_of_call(job)) is not None:
            action = f"{helps}, or {_cancel(job)}."
        return "retry", f"{failed}. {next_attempt.capitalize()} begins {begins}{last}.", action
    return "pending", f"Not dispatched yet; {next_attempt} begins {begins}.", action


def _dispatched(facts: JobStateFacts) -> tuple[str, str, str]:
    job = facts.job
    if job.queue is None:
        return "dispatched", f"Attempt {job.attempt} {_given(facts)}{_limit(facts)}.", f"Wait, or {_cancel(job)}."
    sentence = f"Attempt {job.attempt} was sent to queue {job.queue}; no worker has started it yet{_limit(facts)}."
    return "dispatched", sentence, f"Wait, or {_cancel(job)}."


def _given(facts: JobStateFacts) -> str:
    """What has become of an attempt for a group that no executor has begun."""
    job = facts.job
    if job.address is None:
        return f"waits until an executor of group {job.executor_group} is called"
    ago = "" if job.called_at is None else f" {duration(round((facts.now - job.called_at).total_seconds()))} ago"
    answered = "has not answered since" if job.worker_beat_at is None else "has it and has not begun it yet"
    return f"was given to the executor at {job.address}{ago}, which {answered}"


def _running(facts: JobStateFacts) -> tuple[str, str, str]:
    job = facts.job
    if job.has_children:
        return "in_progress", f"Running on executors: {shards_left(job)}{_limit(facts)}.", f"Wait, or {_shards(job)}."
    done = f", {progress_text(job.progress)}" if job.progress is not None else ""
    sentence = f"{_who(job)} is processing attempt {job.attempt}{done}{_limit(facts)}."
    return "in_progress", sentence, f"Wait, or follow it with `orchestrix jobs logs {job.id} -f`."


def _help_of_call(job: JobRow) -> str | None:
    """What helps where no executor could be given the last attempt; None for one that ended otherwise."""
    group = quote(job.executor_group or "")
    match (job.error or {}).get("type") if job.queue is None and isinstance(job.error, dict) else None:
        case "NoGroup":
            return f"Make the group with `orchestrix registry set {group} --auto`"
        case "NoExecutors":
            line = f"orchestrix registry set {group} --address URL"
            return f"Start an executor that registers for {group}, or set an address with `{line}`"
        case "ExecutorNotReached" | "ExecutorRefused":
            return f"See `orchestrix registry show {group}`, correct the executor or the setting in the error"
        case _:
            return None


_STATES: Final = {PENDING: _pending, DISPATCHED: _dispatched, RUNNING: _running}


def _limit(facts: JobStateFacts) -> str:
    at = facts.job.wake_at
    return "" if at is None else f"; it times out in {duration(max(0, round((at - facts.now).total_seconds())))}"


def _cancelled(facts: JobStateFacts) -> str:
    if facts.action is not None:
        return done_by(facts.action, "Cancelled", _moment(facts.action.at))
    if facts.job.cancel_reason is None:
        return f"Reported as cancelled by {_whose(facts.job)}, without a request to cancel it"
    return f"Cancelled: {facts.job.cancel_reason}"


def _left(job: JobRow) -> str:
    error: Any = job.error if isinstance(job.error, dict) else {}
    if error.get("retryable") is False or error.get("hold") is True:
        return "the error is permanent"
    return f"no retries left of {job.retries}" if job.retries else "it has no retries"


def _error(job: JobRow) -> str:
    error: Any = job.error if isinstance(job.error, dict) else {}
    message = str(error.get("message") or "without a message").rstrip(".")
    return message if error.get("type") == "Timeout" else f"{error.get('type')}: {message}"


def _again(job: JobRow) -> str:
    return saga_retry(job) if job.saga is not None else f"run it again with `orchestrix jobs retry {job.id}`"


def _cancel(job: JobRow) -> str:
    return f"stop it with `orchestrix jobs cancel {job.id}`"


def _worker(job: JobRow) -> str:
    """The command that shows or starts who would begin it."""
    if job.queue is None:
        return f"orchestrix registry show {quote(job.executor_group or '')}"
    return f"orchestrix worker --job-queue {job.queue}"


def _see(job: JobRow) -> str:
    shards = _shards(job) if job.has_children else f"see `{_worker(job)}`"
    return f"{shards[:1].upper()}{shards[1:]}"


def _shards(job: JobRow) -> str:
    return f"see its shards with `orchestrix jobs list --parent {job.id}`"


def _who(job: JobRow) -> str:
    return f"Worker {job.worker_id}" if job.queue is not None else f"The executor at {job.address or job.worker_id}"


def _whose(job: JobRow) -> str:
    return f"its worker {job.worker_id}" if job.queue is not None else f"its executor at {job.address or job.worker_id}"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
