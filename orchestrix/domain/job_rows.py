"""Job rows: a job and its attempts as they are stored, and their states."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

PENDING: Final = "PENDING"
DISPATCHED: Final = "DISPATCHED"
RUNNING: Final = "RUNNING"
SUCCEEDED: Final = "SUCCEEDED"
FAILED: Final = "FAILED"
CANCELLED: Final = "CANCELLED"
TIMED_OUT: Final = "TIMED_OUT"
LOST: Final = "LOST"
"""Of an attempt alone: its worker sends no more heartbeats, or it was begun twice."""

LIVE: Final = (DISPATCHED, RUNNING)
"""A worker has it, or will have it."""
FINAL: Final = (SUCCEEDED, FAILED, CANCELLED, TIMED_OUT)
STATES: Final = (PENDING, *LIVE, *FINAL)
REPORTED: Final = (RUNNING, SUCCEEDED, FAILED, CANCELLED)
"""The states that a worker can report."""

OWNED: Final = "OWNED"
HANDING_OFF: Final = "HANDING_OFF"
ORPHAN_PENDING: Final = "ORPHAN_PENDING"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """Long work for a worker that serves `queue`, or for an executor of `executor_group`: one of both is None.

    `history_id` names its present attempt, or the last one; `attempt` counts all, `tries` those that count against
    `retries`. `seq` is that of the last status that was applied. `wake_at` is when it is due while it is PENDING, and
    when it times out while a worker has it. `channels` says whether its queues at the broker may exist: from the
    first dispatch until they were deleted. `owner` is the node that consumes them, since `taken_at`; each new owner
    raises `owner_epoch`. `traceparent` and `tracestate` are the trace of the request for it, `trace_head` the span from
    which its next part follows; `log_lines` and `log_bytes` are what is kept of its log, `log_cut` that it was longer.

    Of a job for a group, `routing` is the strategy that picks its executor, by `routing_key` or `routing_address`;
    `address` the executor that the present attempt was given to, at `called_at`. A broadcast ends as `broadcast_end`
    says, `all` or `any`, which no other job has: at the latest `deadline_ms` after it was fired. It has no owner and no
    attempts. Its children have it as `parent_id`, each with the index of its shard, and share its payload;
    `children_left` of them have not ended, and `children_failed` have ended without success. While it is RUNNING,
    `wake_at` is its deadline; afterwards it says that children are still to be cancelled.
    """

    id: str
    queue: str | None
    executor_group: str | None = None
    handler: str
    payload: Any = None
    routing: str | None = None
    state: str = PENDING
    ownership: str | None = None
    owner: str | None = None
    owner_epoch: int = 0
    channels: int = 0
    history_id: str | None = None
    attempt: int = 0
    tries: int = 0
    retries: int = 0
    timeout_ms: int | None = None
    created_by: str
    correlation_id: str
    created_at: datetime
    updated_at: datetime
    version: int = 1
    wake_at: datetime | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_reason: str | None = None
    worker_id: str | None = None
    worker_beat_at: datetime | None = None
    progress: Any = None
    result: Any = None
    error: Any = None
    seq: int = 0
    last_log_seq: int | None = None
    handoff_reason: str | None = None
    handoff_at: datetime | None = None
    handoff_tries: int = 0
    taken_at: datetime | None = None
    schedule_id: str | None = None
    due_at: datetime | None = None
    saga: str | None = None
    instance_id: int | None = None
    step: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    trace_head: str | None = None
    log_lines: int = 0
    log_bytes: int = 0
    log_cut: int = 0
    routing_key: str | None = None
    routing_address: str | None = None
    broadcast_end: str | None = None
    address: str | None = None
    called_at: datetime | None = None
    parent_id: str | None = None
    shard_index: int | None = None
    shard_total: int | None = None
    deadline_ms: int | None = None
    children_total: int | None = None
    children_left: int | None = None
    children_failed: int | None = None

    @property
    def live(self) -> bool:
        """Whether a worker has it or will have it."""
        return self.state in LIVE

    @property
    def has_children(self) -> bool:
        """Whether it is a broadcast that was fired: its children run, and not the job itself."""
        return self.children_left is not None

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.state in FINAL

    @property
    def not_started(self) -> bool:
        """Whether no worker has begun it yet: not even an earlier attempt of it."""
        return (self.state, self.attempt) in ((PENDING, 0), (DISPATCHED, 1))


@dataclass(frozen=True, slots=True)
class JobAttempt:
    """One try of a job. `last_log_seq` is what its worker reported at its end; up to that, logs are still taken.

    `address` is the executor that was called for it, at `called_at`, where the job is for a group.
    """

    history_id: str
    job_id: str
    attempt: int
    worker_id: str | None
    state: str
    dispatched_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: Any = None
    last_log_seq: int | None = None
    address: str | None = None
    called_at: datetime | None = None

    @property
    def open(self) -> bool:
        """Whether reports of its worker are still expected."""
        return self.state in LIVE

    def owns_log_line(self, seq: int, worker_id: str | None) -> bool:
        """Whether a log of that number is one of this attempt's own: it may come after the attempt's end.

        Not one of another worker, which has got a copy of the dispatch.
        """
        if self.worker_id is not None and worker_id != self.worker_id:
            return False
        return self.open or (self.last_log_seq is not None and seq <= self.last_log_seq)
