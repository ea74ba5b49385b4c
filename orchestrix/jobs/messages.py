"""Job messages: the wire format of all messages about jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.domain.jobs import REPORTED, RUNNING, AttemptStatus, JobRow
from orchestrix.persistence.cluster.nodes import UNTOLD, WorkerFacts
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.saga.messages import MAX_ID, UnreadableMessage, dump, load

STATUS_QUEUE_SUFFIX: Final = ".status"
WORKER_LEFT: Final = "LEFT"
"""The state in the last heartbeat of a worker."""
_LONGEST_ID: Final = 36
_LONGEST_WORKER: Final = 200
_MOST_QUEUES: Final = 100
_MOST_COMMANDS: Final = 1000
_LONGEST_NAME: Final = 255
_LONGEST_VERSION: Final = 40
_MOST_PLACES: Final = 2**31


@dataclass(frozen=True, slots=True)
class HandoffOffer:
    """A job that its owner, or the leader in its place, wants another node to take."""

    job_id: str
    reason: str
    from_node: str
    owner_epoch: int


@dataclass(frozen=True, slots=True)
class WorkerHeartbeat:
    """A worker's periodic heartbeat: which queues it serves, and which attempts it works on; or that it has `left`.
    `said_at` is the time by its own clock, where it gives one. `lost_places` are as in `WorkerHeartbeatRow`; `facts` is
    what else it reports about itself."""

    worker_id: str
    histories: tuple[str, ...]
    queues: tuple[str, ...] = ()
    jobs: int = 0
    left: bool = False
    said_at: datetime | None = None
    lost_places: int = 0
    facts: WorkerFacts = UNTOLD

    @property
    def serves(self) -> bool:
        """Whether it takes anything new."""
        return bool(self.queues or self.facts.command_queues)


def dispatch(job: JobRow) -> bytes:
    """The job dispatch for a worker. `timeoutMs` is null where the attempt has no time limit."""
    return dump(_dispatch(job))


def matches_dispatch(job: JobRow, body: bytes) -> bool:
    """Whether `body` is the dispatch of the job's present attempt, as far as it goes. Raises `UnreadableMessage`."""
    fields = load(body)
    return all(name in fields and fields[name] == value for name, value in _dispatch(job).items())


def _dispatch(job: JobRow) -> dict[str, Any]:
    return {
        "jobId": job.id,
        "historyId": job.history_id,
        "handler": job.handler,
        "payload": job.payload,
        "attempt": job.attempt,
        "timeoutMs": job.timeout_ms,
        "correlationId": job.correlation_id,
        "channels": {"status": status_queue(job.id), "logs": logs_queue(job.id)},
    }


def assigned(job: JobRow) -> bytes:
    """The message that a job needs an owner."""
    return dump({"jobId": job.id, "historyId": job.history_id})


def offer(job_id: str, reason: str, owner: str | None, owner_epoch: int) -> bytes:
    """The same for one whose owner cannot or does not want to keep it."""
    return dump({"jobId": job_id, "reason": reason, "fromNode": owner, "ownerEpoch": owner_epoch})


def taken(job_id: str, owner: str, owner_epoch: int) -> bytes:
    """The answer to an offer."""
    return dump({"jobId": job_id, "newOwner": owner, "ownerEpoch": owner_epoch})


def stop(job_id: str, history_id: str, reason: str) -> bytes:
    """The message that asks whichever worker processes an attempt to stop it."""
    return dump({"jobId": job_id, "historyId": history_id, "reason": reason})


def read_job_id(body: bytes) -> str:
    """Which job needs an owner. Raises `UnreadableMessage`."""
    return _id(load(body), "jobId")


def read_history_id(body: bytes) -> str:
    """Which attempt a dispatch is for. Raises `UnreadableMessage`."""
    return _id(load(body), "historyId")


def read_offer(body: bytes) -> HandoffOffer:
    """The offer in `body`. Raises `UnreadableMessage`."""
    fields = load(body)
    reason, node = _required(fields, "reason", 20), _required(fields, "fromNode", 100)
    return HandoffOffer(_id(fields, "jobId"), reason, node, _whole(fields, "ownerEpoch", 0))


def read_taken(body: bytes) -> tuple[str, int]:
    """Which job has been taken, and its new epoch. Raises `UnreadableMessage`."""
    fields = load(body)
    return _id(fields, "jobId"), _whole(fields, "ownerEpoch", 0)


def read_heartbeat(body: bytes) -> WorkerHeartbeat:
    """The heartbeat in `body`: its jobs are history ids, or objects that have them. Raises `UnreadableMessage`."""
    fields = load(body)
    jobs = fields.get("jobs", ())
    if not isinstance(jobs, list):
        raise UnreadableMessage("jobs: must be a list")
    names = [one.get("historyId") if isinstance(one, dict) else one for one in jobs]
    known = (name for name in names if isinstance(name, str) and 0 < len(name) <= _LONGEST_ID)
    queues = fields.get("queues", ())
    served = [one[:100] for one in queues if isinstance(one, str)] if isinstance(queues, list) else []
    left = fields.get("state") == WORKER_LEFT
    worker, said_at = _required(fields, "workerId", 100), _moment(fields.get("timestamp"))
    lost = _count(fields.get("lostPlaces")) or 0
    facts = WorkerFacts(
        host=_name(fields.get("host"), _LONGEST_NAME),
        version=_name(fields.get("version"), _LONGEST_VERSION),
        command_queues=_names(fields.get("commandQueues")),
        commands=_count(fields.get("commands")),
        handlers=_names(fields.get("handlers")),
    )
    return WorkerHeartbeat(worker, tuple(known), tuple(served[:_MOST_QUEUES]), len(jobs), left, said_at, lost, facts)


def _count(value: object) -> int | None:
    """None for what is no number, or too large for a column."""
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value < _MOST_PLACES else None


def _name(value: object, limit: int) -> str | None:
    return value[:limit] if isinstance(value, str) else None


def _names(value: object) -> tuple[str, ...] | None:
    """The texts of a list; None for what is no list."""
    if not isinstance(value, list):
        return None
    return tuple(one[:_LONGEST_NAME] for one in value[:_MOST_COMMANDS] if isinstance(one, str))


def read_event(queue: str, body: bytes, now: datetime) -> AttemptStatus | JobLogLine:
    """A worker's message in one of the queues of a job. Raises `UnreadableMessage`."""
    fields = load(body)
    job_id = _id(fields, "jobId")
    if not queue.startswith(f"orchestrix.job.{job_id}."):
        raise UnreadableMessage("jobId: belongs to another job")
    who = job_id, _id(fields, "historyId"), _required(fields, "workerId", _LONGEST_WORKER), _whole(fields, "seq", 1)
    return _status(fields, *who) if queue.endswith(STATUS_QUEUE_SUFFIX) else _log(fields, now, *who)


def _status(fields: Mapping[str, Any], job_id: str, history_id: str, worker_id: str, seq: int) -> AttemptStatus:
    status = _required(fields, "status", 20)
    if status not in REPORTED:
        raise UnreadableMessage(f"status: must be one of {', '.join(REPORTED)}")
    error = fields.get("error")
    if error is not None and not isinstance(error, dict):
        raise UnreadableMessage("error: must be an object")
    last = _whole(fields, "lastLogSeq", 0) if fields.get("lastLogSeq") is not None and status != RUNNING else None
    return AttemptStatus(
        job_id, history_id, worker_id, seq, status, fields.get("progress"), fields.get("result"), error, last
    )


def _log(
    fields: Mapping[str, Any], now: datetime, job_id: str, history_id: str, worker_id: str, seq: int
) -> JobLogLine:
    message = fields.get("message", "")
    if not isinstance(message, str):
        raise UnreadableMessage("message: must be a string")
    level = fields.get("level") or "info"
    if not isinstance(level, str):
        raise UnreadableMessage("level: must be a string")
    return JobLogLine(history_id, seq, job_id, worker_id, level, message, _moment(fields.get("at")) or now)


def _moment(value: object) -> datetime | None:
    """The time that the worker gives; None for one that not every database can store."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
        at = at.astimezone(UTC) if at.tzinfo is not None else at.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return at if 1970 <= at.year <= 9000 else None


def _id(fields: Mapping[str, Any], name: str) -> str:
    return _required(fields, name, _LONGEST_ID)


def _required(fields: Mapping[str, Any], name: str, limit: int) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise UnreadableMessage(f"{name}: is missing" if value in (None, "") else f"{name}: must be a string")
    if len(value) > limit:
        raise UnreadableMessage(f"{name}: must have at most {limit} characters")
    return value


def _whole(fields: Mapping[str, Any], name: str, least: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < MAX_ID:
        raise UnreadableMessage(f"{name}: must be a whole number from {least}")
    return value
