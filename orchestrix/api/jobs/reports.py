"""Report routes: executors report the attempts that they were called for."""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, RootModel

from orchestrix.api.answers import Answer
from orchestrix.api.guards.auth import invalid_token, token_of
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import Problem, invalid_body, not_found
from orchestrix.api.request_body import NO_OBJECT, read_raw, unreadable
from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.domain.jobs import AttemptStatus
from orchestrix.errors import Invalid
from orchestrix.jobs import messages
from orchestrix.jobs.executors.reports import Reported
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.saga.messages import UnreadableMessage, dump, load

LINES_LIMIT: Final = 500
_ONE: Final = "/jobs/{job}/attempts/{history}"
_Event = AttemptStatus | JobLogLine


class StatusReport(BaseModel):
    """A status, as in the job's status queue; other fields are ignored."""

    model_config = ConfigDict(extra="allow")

    jobId: str
    historyId: str
    workerId: str = Field(description="The address of the executor.")
    seq: int = Field(ge=1, description="Counts the lines and statuses of the attempt together.")
    status: str = Field(description="RUNNING, SUCCEEDED, FAILED or CANCELLED.")
    progress: Any = None
    result: Any = None
    error: Any = None
    lastLogSeq: int | None = Field(None, description="With the last status: the seq of the last line, 0 without any.")


class LineReport(BaseModel):
    """A line, as in the job's log queue; other fields are ignored."""

    model_config = ConfigDict(extra="allow")

    jobId: str
    historyId: str
    workerId: str
    seq: int = Field(ge=1)
    level: str = "info"
    message: str
    at: str | None = None


class LogReport(RootModel[list[LineReport]]):
    """Up to 500 lines, in their order."""


class ReportAnswer(Answer):
    """What the executor is to know."""

    cancel: str | None = Field(
        examples=[None], description="Why it must not begin, or must stop; null while it is to continue."
    )


def _refusal(error: Exception, wanted: Any) -> Problem | None:
    return invalid_body([{"pointer": "", "detail": str(error)}]) if isinstance(error, Invalid) else None


operations = Operations("jobs", refusal=_refusal)


def attempt_of(call: Call) -> tuple[str, str]:
    """The ids of the job and of its attempt in the path. Raises `Problem` 404 for what cannot be ids."""
    try:
        return str(UUID(call.path("job"))), str(UUID(call.path("history")))
    except ValueError:
        raise not_found(f"attempt {call.path('history')[:60]!r}") from None


@operations.post(f"{_ONE}/status", of=attempt_of, own_token=True, body=StatusReport, writes_body=False)
async def report_status(call: Call, attempt: tuple[str, str]) -> ReportAnswer:
    """Report the status of an attempt.

    For executors, with the token of the attempt that they were called with. The answer comes when the report is kept;
    with 503 send it again. The work may begin only after RUNNING was answered without `cancel`.
    """
    await _admit(call, attempt[1])
    body = await read_raw(call.request)
    return await _taken(call, attempt, [_read(status_queue(attempt[0]), attempt, body, call, "")])


@operations.post(f"{_ONE}/logs", of=attempt_of, own_token=True, body=LogReport, writes_body=False)
async def report_logs(call: Call, attempt: tuple[str, str]) -> ReportAnswer:
    """Report lines of the log of an attempt.

    Up to 500 in their order; those that were sent before count once. Otherwise as the status.
    """
    await _admit(call, attempt[1])
    lines = _list(await read_raw(call.request))
    if len(lines) > LINES_LIMIT:
        raise invalid_body(
            [{"pointer": "", "detail": f"must have at most {LINES_LIMIT} lines: send the rest after them"}]
        )
    queue = logs_queue(attempt[0])
    return await _taken(
        call, attempt, [_read(queue, attempt, dump(line), call, f"/{place}") for place, line in enumerate(lines)]
    )


async def _admit(call: Call, history_id: str) -> None:
    """Raises `Problem` 401 for all but the token of that attempt."""
    if not await call.context.reports.admits(history_id, token_of(call.request)):
        raise invalid_token()


async def _taken(call: Call, attempt: tuple[str, str], reports: list[Reported]) -> ReportAnswer:
    workers = {str(one.event.worker_id) for one in reports}
    if len(workers) > 1:
        raise invalid_body([{"pointer": "", "detail": "must have lines of one workerId"}])
    if not workers:
        return ReportAnswer(cancel=None)
    return ReportAnswer(cancel=await call.context.reports.take(*attempt, workers.pop(), reports))


def _read(queue: str, attempt: tuple[str, str], body: bytes, call: Call, pointer: str) -> Reported:
    """The report, whose ids are those of the path.

    Raises `Problem` 422 that says which field is wrong, 400 for what is no strict JSON.
    """
    try:
        event = messages.read_event(queue, body, call.context.database.now())
    except UnreadableMessage as refused:
        name, found, detail = str(refused).partition(": ")
        if pointer and str(refused) == "not-an-object":  # a line of a list
            raise invalid_body([{"pointer": pointer, "detail": NO_OBJECT}]) from None
        if not found or not name.isalpha():
            raise unreadable(body, str(refused)) from None
        raise invalid_body([{"pointer": f"{pointer}/{name}", "detail": detail}]) from None
    if event.history_id != attempt[1]:
        raise invalid_body([{"pointer": f"{pointer}/historyId", "detail": "must be that of the path"}])
    return Reported(event, body)


def _list(body: bytes) -> list[Any]:
    """The list in the body, read as strictly as an object. Raises `Problem` 422, 400 for what is no strict JSON."""
    try:
        fields = load(b'{"lines":' + body + b"}")
    except UnreadableMessage as refused:
        raise unreadable(body, _in_a_list(body, str(refused)), "a JSON list") from None
    lines = fields["lines"]
    if len(fields) > 1 or not isinstance(lines, list):
        raise invalid_body([{"pointer": "", "detail": "must be a list"}])
    return lines


def _in_a_list(body: bytes, reason: str) -> str:
    """Why the list is refused, with the place in the body as it came: `load` was given it inside an object."""
    try:
        load(body)
    except UnreadableMessage as refused:
        return reason if str(refused) == "not-an-object" else str(refused)
    return reason
