"""Attempt messages: builds the status and log messages that an attempt sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from orchestrix import clock
from orchestrix.broker.port import Outgoing
from orchestrix.saga.messages import StepError, dump, load
from orchestrix.worker.commands.events import error_fields
from orchestrix.worker.jobs.dispatch import JobDispatch
from orchestrix.worker.jobs.outcome import AttemptOutcome

STATUS: Final = "job.status"
LOG: Final = "job.log"


@dataclass(frozen=True, slots=True)
class AttemptMessages:
    """Makes the messages of one attempt. `headers` are the trace context of its span."""

    dispatch: JobDispatch
    worker_id: str
    headers: Mapping[str, str]

    def running(self, seq: int, progress: Mapping[str, Any] | None) -> Outgoing:
        """The status RUNNING, with the progress."""
        return self._status(seq, "RUNNING", progress)

    def ended(self, seq: int, ending: AttemptOutcome, progress: Mapping[str, Any] | None, last_log: int) -> Outgoing:
        """The final status; `last_log` is the number of the last log line, 0 if there was none."""
        error = None if ending.error is None else error_fields(ending.error)
        more = {"result": ending.result, "error": error, "lastLogSeq": last_log}
        return self._status(seq, ending.status, progress, **more)

    def log(self, seq: int, level: str, message: str) -> Outgoing:
        """A line of its log."""
        now = clock.now()
        fields = {"level": level, "message": message, "at": moment(now)}
        return self._message(self.dispatch.logs, LOG, seq, now, fields)

    def _status(self, seq: int, status: str, progress: Mapping[str, Any] | None, **more: object) -> Outgoing:
        fields = {"status": status, "progress": progress, "result": None, "error": None, **more}
        return self._message(self.dispatch.status, STATUS, seq, clock.now(), fields)

    def _message(self, queue: str, type: str, seq: int, now: datetime, fields: Mapping[str, object]) -> Outgoing:
        dispatch = self.dispatch
        who = {"jobId": dispatch.job_id, "historyId": dispatch.history_id, "workerId": self.worker_id, "seq": seq}
        return Outgoing(
            exchange="",
            routing_key=queue,
            body=dump({**who, **fields}),
            message_id=clock.uuid7(),
            correlation_id=dispatch.correlation_id,
            type=type,
            timestamp=now,
            headers=self.headers,
        )


def without_result(message: Outgoing, detail: str) -> Outgoing | None:
    """The status FAILED in place of a SUCCEEDED whose result was refused; None for any other message."""
    fields = load(message.body) if message.type == STATUS else {}
    if fields.get("status") != "SUCCEEDED":
        return None
    error = StepError("BadResult", f"the job's result cannot be sent: {detail}", retryable=False)
    body = dump({**fields, "status": "FAILED", "result": None, "error": error_fields(error)})
    return replace(message, body=body, message_id=clock.uuid7())


def moment(time: datetime) -> str:
    """RFC 3339 with six digits and `Z`; `time` is in UTC."""
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")
