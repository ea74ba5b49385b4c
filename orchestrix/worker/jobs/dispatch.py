"""Job dispatch: parses the message that starts an attempt of a job, and the one that cancels it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.saga.effect_keys import former_key
from orchestrix.saga.messages import MAX_ID, UnreadableMessage, load

MAX_ID_LENGTH: Final = 36


@dataclass(frozen=True, slots=True)
class JobDispatch:
    """One attempt of a job, as it was sent. `status` and `logs` are the queues of its reports; over HTTP, the paths.

    `timeout_ms` is None where the attempt may take as long as it likes. A job that runs on every executor of a group
    has a number from 0 on among them, `shard_index`, and their count, `shard_total`.
    """

    job_id: str
    history_id: str
    handler: str
    payload: Any
    attempt: int
    timeout_ms: int | None
    correlation_id: str
    status: str
    logs: str
    shard_index: int | None = None
    shard_total: int | None = None

    @property
    def timeout(self) -> float | None:
        """The seconds that the attempt has."""
        return None if self.timeout_ms is None else self.timeout_ms / 1000

    @property
    def log_fields(self) -> dict[str, object]:
        """The log fields of the attempt."""
        fields: dict[str, object] = {
            "correlation_id": self.correlation_id,
            "job_id": self.job_id,
            "history_id": self.history_id,
            "handler": self.handler,
            "try": self.attempt,
        }
        if effect_key_in(self.payload) is not None:
            fields |= {"saga": self.payload["saga"], "app_id": self.payload["appId"], "step": self.payload["step"]}
        return fields


@dataclass(frozen=True, slots=True)
class JobCancel:
    """A cancel message, for one attempt or, without `history_id`, for any attempt of the job."""

    job_id: str
    history_id: str | None
    reason: str


def read(body: bytes) -> JobDispatch:
    """The dispatch in `body`. Raises `UnreadableMessage`; also where it names other queues than its job has.

    Those follow from the job's id: a forged dispatch could otherwise have this worker publish to any queue.
    """
    fields = load(body)
    channels = fields.get("channels")
    if not isinstance(channels, dict):
        raise UnreadableMessage("channels: must be an object")
    job_id = _id(fields, "jobId")
    status, logs = status_queue(job_id), logs_queue(job_id)
    if (_required(channels, "status"), _required(channels, "logs")) != (status, logs):
        raise UnreadableMessage(f"channels: do not belong to job {job_id}")
    return JobDispatch(
        job_id=job_id,
        history_id=_id(fields, "historyId"),
        handler=_required(fields, "handler"),
        payload=fields.get("payload"),
        attempt=_number(fields, "attempt"),
        timeout_ms=None if fields.get("timeoutMs") is None else _number(fields, "timeoutMs"),
        correlation_id=_required(fields, "correlationId"),
        status=status,
        logs=logs,
    )


def read_cancel(body: bytes) -> JobCancel:
    """The cancel message in `body`. Raises `UnreadableMessage`."""
    fields = load(body)
    return JobCancel(
        job_id=_required(fields, "jobId"),
        history_id=_text(fields, "historyId"),
        reason=_text(fields, "reason") or "",
    )


def effect_key_in(payload: object) -> str | None:
    """The effect key of the saga's step that the job is; None for a job that is none.

    The payload of a job that was inserted before such keys existed has none.
    """
    if not isinstance(payload, dict):
        return None
    saga, id, step, key = (payload.get(name) for name in ("saga", "appId", "step", "effectKey"))
    if not isinstance(saga, str) or not isinstance(id, int) or not isinstance(step, str):
        return None
    if isinstance(key, str) and key:
        return key
    return former_key(saga, id, step) if isinstance(payload.get("idempotencyKey"), str) else None


def _text(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise UnreadableMessage(f"{name}: must be a string")
    return value or None


def _id(fields: Mapping[str, Any], name: str) -> str:
    value = _required(fields, name)
    if len(value) > MAX_ID_LENGTH or not (value.isascii() and value.isprintable()):
        raise UnreadableMessage(f"{name}: must have at most {MAX_ID_LENGTH} visible characters")
    return value


def _required(fields: Mapping[str, Any], name: str) -> str:
    value = _text(fields, name)
    if value is None:
        raise UnreadableMessage(f"{name}: is missing")
    return value


def _number(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < MAX_ID:
        raise UnreadableMessage(f"{name}: must be a whole number above 0")
    return value
