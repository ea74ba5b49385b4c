"""Run call: parses the body by which a node asks an executor to run an attempt of a job, or to stop it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.saga.messages import MAX_ID, UnreadableMessage, load
from orchestrix.worker.executor.urls import HOST_AND_PORT
from orchestrix.worker.jobs.dispatch import JobCancel, JobDispatch, read_cancel

STATUS_PATH: Final = "/status"
LOGS_PATH: Final = "/logs"
MAX_CALLBACKS: Final = 20
MAX_CALLBACK_CHARS: Final = 2000
MAX_TEXT_CHARS: Final = 1000
_ID: Final = re.compile(r"[A-Za-z0-9._~-]{1,36}")
_CALLBACK: Final = re.compile(rf"{HOST_AND_PORT}/[A-Za-z0-9._~/-]*")
_TOKEN: Final = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class RunCall:
    """An attempt that an executor is to run; its reports go to one of `callbacks`, with `token`."""

    dispatch: JobDispatch
    group: str
    callbacks: tuple[str, ...]
    token: str


def read_run(body: bytes) -> RunCall:
    """The call in `body`; fields that it does not know are ignored. Raises `UnreadableMessage`."""
    fields = load(body)
    job_id, history_id = _id(fields, "jobId"), _id(fields, "historyId")
    index, total = _optional_number(fields, "shardIndex", 0), _optional_number(fields, "shardTotal", 1)
    dispatch = JobDispatch(
        job_id=job_id,
        history_id=history_id,
        handler=_text(fields, "handler"),
        payload=fields.get("payload"),
        attempt=_number(fields, "attempt", 1),
        timeout_ms=_optional_number(fields, "timeoutMs", 1),
        correlation_id=_text(fields, "correlationId"),
        status=STATUS_PATH,
        logs=LOGS_PATH,
        shard_index=index,
        shard_total=total,
    )
    return RunCall(dispatch, _text(fields, "group"), _callbacks(fields), _token(fields))


def read_stop(body: bytes) -> JobCancel:
    """The call to stop an attempt in `body`. Raises `UnreadableMessage`."""
    return read_cancel(body)


def is_history_id(text: str) -> bool:
    """Whether an attempt may have this id."""
    return _ID.fullmatch(text) is not None


def _callbacks(fields: Mapping[str, Any]) -> tuple[str, ...]:
    value = fields.get("callbacks")
    if not isinstance(value, list) or not 0 < len(value) <= MAX_CALLBACKS:
        raise UnreadableMessage(f"callbacks: must be a list of 1 to {MAX_CALLBACKS} URLs")
    for one in value:
        if not isinstance(one, str) or len(one) > MAX_CALLBACK_CHARS or not _CALLBACK.fullmatch(one):
            raise UnreadableMessage("callbacks: must be URLs such as http://10.0.0.1:8080/jobs/…")
    return tuple(one.rstrip("/") for one in value)


def _token(fields: Mapping[str, Any]) -> str:
    token = _text(fields, "token")
    if not _TOKEN.fullmatch(token):
        raise UnreadableMessage("token: must be visible ASCII characters")
    return token


def _id(fields: Mapping[str, Any], name: str) -> str:
    value = _text(fields, name)
    if not is_history_id(value):
        raise UnreadableMessage(f"{name}: must have at most 36 letters, digits, dots, - or _")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_CHARS:
        raise UnreadableMessage(f"{name}: must be a text of 1 to {MAX_TEXT_CHARS} characters")
    return value


def _optional_number(fields: Mapping[str, Any], name: str, least: int) -> int | None:
    return None if fields.get(name) is None else _number(fields, name, least)


def _number(fields: Mapping[str, Any], name: str, least: int) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < MAX_ID:
        raise UnreadableMessage(f"{name}: must be a whole number from {least}")
    return value
