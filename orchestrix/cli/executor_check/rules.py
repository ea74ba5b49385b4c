"""Executor rules: what an executor in any language must do, each shown by attempts that it is called with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from orchestrix import clock
from orchestrix.cli.executor_check.node import FINAL, AttemptUnderCheck, ExecutorReport, PlayedNode
from orchestrix.cli.worker_check.process import CheckedProcess
from orchestrix.cli.worker_check.verdict import FAILED, PASSED, SKIPPED, Verdict
from orchestrix.domain.contracts.jobs import JobLogMessage, JobStatusMessage
from orchestrix.domain.registry.signatures import SIGNATURE_HEADER, sign
from orchestrix.errors import Unavailable
from orchestrix.quantities import counted
from orchestrix.worker.executor.http_server import ExecutorResponse

QUIET_S: Final = 0.7
"""Seconds in which nothing more must come."""
OLD_S: Final = 3600.0
REFUSALS: Final = 3
"""How often a report is answered with 503 before it is taken."""
UNKNOWN_HANDLER: Final = "orchestrix-check-no-such-job"
TAKEN: Final = ExecutorResponse(200, {"cancel": None})
LATER: Final = ExecutorResponse(503, {"detail": "the check takes it later"})
CANCEL: Final = ExecutorResponse(200, {"cancel": "the check cancels it"})
UNREADABLE: Final = ExecutorResponse(422, {"detail": "the check does not take this result"})

Answer = Callable[[str, Any], ExecutorResponse]


@dataclass(frozen=True, slots=True)
class ExecutorUnderCheck:
    """The executor, and what its owner says of it: the job `handler`, a `payload` by which it succeeds, and a `slow`
    one by which it takes some seconds.
    """

    node: PlayedNode
    process: CheckedProcess | None
    handler: str
    payload: Any
    slow: Any
    stop_timeout_s: float

    async def ran(self, answer: Answer | None = None, payload: Any = None) -> AttemptUnderCheck:
        """An attempt that was called, once its last status was taken or the time is over. Raises `Unavailable`."""
        attempt = await self.began(answer, payload)
        await self.node.until(lambda: attempt.final)
        return attempt

    async def began(self, answer: Answer | None = None, payload: Any = None) -> AttemptUnderCheck:
        """An attempt that was called."""
        attempt = self.node.attempt(answer)
        done = await self.node.run(attempt, self.handler, self.payload if payload is None else payload)
        if done.status != 200:
            raise Unavailable(f"/run was answered with {done.status} {done.body[:100]!r}")
        return attempt


ExecutorRule = Callable[[ExecutorUnderCheck], Awaitable[Verdict]]


async def health(executor: ExecutorUnderCheck) -> Verdict:
    """It answers `GET /health` with success."""
    answer = await executor.node.call("GET", "/health")
    good = 200 <= answer.status < 300
    return Verdict("health", PASSED if good else FAILED, f"GET /health: {answer.status}")


async def runs(executor: ExecutorUnderCheck) -> Verdict:
    """It takes an attempt, reports RUNNING, then how it ended, with the token of the attempt."""
    rule, attempt = "run", await executor.ran()
    if not attempt.reports:
        return Verdict(rule, FAILED, "the attempt was taken, and nothing was reported to its callback")
    if attempt.reports[0].state != "RUNNING":
        return Verdict(rule, FAILED, f"the first report is {attempt.reports[0].state or 'a line'}, not RUNNING")
    if attempt.final is None:
        return Verdict(rule, FAILED, "no last status came: raise --timeout if the job takes longer")
    if [one for one in attempt.reports if one.token != attempt.token]:
        return Verdict(rule, FAILED, "a report does not carry the token of the attempt as Bearer")
    if (wrong := _forms(attempt)) is not None:
        return Verdict(rule, FAILED, wrong)
    if attempt.final.state != "SUCCEEDED":
        return Verdict(rule, FAILED, f"the job ended {attempt.final.state}: {attempt.final.body.get('error')}")
    return Verdict(rule, PASSED, f"SUCCEEDED after {counted(len(attempt.reports), 'report')}")


async def counts(executor: ExecutorUnderCheck) -> Verdict:
    """One count over statuses and lines, from 1, in order; the last status names the last line."""
    rule, attempt = "seq", await executor.ran()
    numbers = [item.get("seq") for one in attempt.taken for item in one.items if isinstance(item, dict)]
    if numbers != list(range(1, len(numbers) + 1)):
        return Verdict(rule, FAILED, f"seq is {numbers[:20]}, not 1, 2, 3 … over statuses and lines together")
    if attempt.final is None:
        return Verdict(rule, FAILED, "no last status came")
    lines = [item["seq"] for one in attempt.taken if one.kind == "logs" for item in one.items]
    wanted = lines[-1] if lines else 0
    if (said := attempt.final.body.get("lastLogSeq")) != wanted:
        return Verdict(rule, FAILED, f"lastLogSeq of the last status is {said!r}, not {wanted}")
    return Verdict(rule, PASSED, f"1 to {len(numbers)}; the last line is {wanted}")


async def begins(executor: ExecutorUnderCheck) -> Verdict:
    """Until RUNNING is taken it is sent again, and nothing else is."""
    rule, attempt = "begin", await executor.ran(_refusing(lambda body: body.get("status") == "RUNNING"))
    before = [one for one in attempt.reports if one.at <= _first_taken(attempt)]
    if strange := [one for one in before if one.state != "RUNNING"]:
        what = strange[0].state or "lines"
        return Verdict(rule, FAILED, f"{what} came before RUNNING was answered with 200: the work has begun too early")
    if attempt.final is None:
        return Verdict(rule, FAILED, "RUNNING was answered with 503, and the attempt never came to its end")
    if len({one.body.get("seq") for one in before}) > 1:
        return Verdict(rule, FAILED, "RUNNING that is sent again has another seq")
    return Verdict(rule, PASSED, f"RUNNING was sent {counted(len(before), 'time')}, then the work began")


async def keeps(executor: ExecutorUnderCheck) -> Verdict:
    """A last status that is answered with 503 is sent again."""
    rule, attempt = "report again", await executor.ran(_refusing(lambda body: body.get("status") in FINAL))
    if attempt.final is None:
        return Verdict(rule, FAILED, "a last status that was answered with 503 was not sent until it was taken")
    tries = [one for one in attempt.reports if one.state in FINAL]
    if len({(one.state, one.body.get("seq")) for one in tries}) > 1:
        return Verdict(rule, FAILED, "what is sent again is another status, or has another seq")
    return Verdict(rule, PASSED, f"taken at try {len(tries)}")


async def runs_once(executor: ExecutorUnderCheck) -> Verdict:
    """A call with a historyId that it has run is taken, and runs nothing."""
    rule, attempt = "once", await executor.ran()
    before = len(attempt.reports)
    again = await executor.node.run(attempt, executor.handler, executor.payload)
    if again.status != 200:
        return Verdict(rule, FAILED, f"the second call of a historyId was answered with {again.status}, not 200")
    if await executor.node.until(lambda: len(attempt.reports) > before, QUIET_S):
        return Verdict(rule, FAILED, "a historyId that has run runs again: remember it for an hour")
    return Verdict(rule, PASSED, "the second call was answered with 200, and ran nothing")


async def knows(executor: ExecutorUnderCheck) -> Verdict:
    """`GET /runs/{historyId}` shows whether it has an attempt."""
    rule, attempt = "runs", await executor.ran()
    known = await executor.node.call("GET", f"/runs/{attempt.history_id}")
    unknown = await executor.node.call("GET", f"/runs/{clock.uuid7()}")
    if known.status != 200:
        return Verdict(rule, FAILED, f"an attempt that has just ended: {known.status}, not 200")
    if unknown.status != 404:
        return Verdict(rule, FAILED, f"an attempt that it never had: {unknown.status}, not 404")
    return Verdict(rule, PASSED, "200 for one that has just ended, 404 for another")


async def cancelled_at_begin(executor: ExecutorUnderCheck) -> Verdict:
    """Where RUNNING is answered with `cancel`, the work does not begin."""
    rule, attempt = "cancel in an answer", await executor.ran(lambda kind, body: CANCEL)
    if [one for one in attempt.reports if one.kind == "logs"]:
        return Verdict(rule, FAILED, "RUNNING was answered with cancel, and the work began: it wrote lines")
    if attempt.final is None or attempt.final.state != "CANCELLED":
        ended = "no last status came" if attempt.final is None else f"it ended {attempt.final.state}"
        return Verdict(rule, FAILED, f"RUNNING was answered with cancel, and {ended}, not CANCELLED")
    return Verdict(rule, PASSED, "CANCELLED, without a line")


async def stops_run(executor: ExecutorUnderCheck) -> Verdict:
    """`POST /cancel` stops an attempt; one that it does not have is no error."""
    rule = "cancel"
    stranger = await executor.node.call("POST", "/cancel", _stop(clock.uuid7(), clock.uuid7()))
    if stranger.status != 200:
        return Verdict(rule, FAILED, f"/cancel for an attempt that it does not have: {stranger.status}, not 200")
    if executor.slow is None:
        return Verdict(rule, SKIPPED, "give --slow, a payload by which the job takes some seconds")
    attempt = await executor.began(payload=executor.slow)
    await executor.node.until(lambda: attempt.taken)
    await executor.node.call("POST", "/cancel", _stop(attempt.job_id, attempt.history_id))
    await executor.node.until(lambda: attempt.final)
    if attempt.final is None or attempt.final.state != "CANCELLED":
        ended = "it did not end" if attempt.final is None else f"it ended {attempt.final.state}"
        return Verdict(rule, FAILED, f"{ended} after /cancel, not CANCELLED")
    return Verdict(rule, PASSED, "CANCELLED")


async def refuses(executor: ExecutorUnderCheck) -> Verdict:
    """A job that it does not have is refused for good: a 4xx, but not 409."""
    attempt = executor.node.attempt()
    answer = await executor.node.run(attempt, UNKNOWN_HANDLER, {})
    good = 400 <= answer.status < 500 and answer.status not in (401, 403, 409)
    detail = "" if good else ", so it would be called again: answer 422"
    return Verdict("unknown job", PASSED if good else FAILED, f"/run of a job that it has not: {answer.status}{detail}")


async def checks_signatures(executor: ExecutorUnderCheck) -> Verdict:
    """A call that is not signed, signed otherwise, or long ago is refused with 401."""
    rule, node, token = "signature", executor.node, executor.node.token
    if token is None:
        return Verdict(rule, SKIPPED, "set REGISTRY_TOKEN to the registry token of the app")
    now = clock.now().timestamp()
    forged: dict[str, Callable[[bytes], Mapping[str, str]]] = {
        "without a signature": lambda body: {},
        "with the signature of another token": lambda body: {SIGNATURE_HEADER: sign(f"not {token}", body, now)},
        "with the signature of another body": lambda body: {SIGNATURE_HEADER: sign(token, body + b" ", now)},
        "with a signature of an hour ago": lambda body: {SIGNATURE_HEADER: sign(token, body, now - OLD_S)},
    }
    for what, headers in forged.items():
        attempt = node.attempt()
        answer = await node.run(attempt, executor.handler, executor.payload, headers=headers)
        if answer.status != 401 or attempt.reports:
            return Verdict(rule, FAILED, f"a call {what} was answered with {answer.status}, not 401")
    return Verdict(rule, PASSED, f"{counted(len(forged), 'forged call')}, each answered with 401")


async def ignores_fields(executor: ExecutorUnderCheck) -> Verdict:
    """Fields that it does not know change nothing."""
    rule, attempt = "unknown fields", executor.node.attempt()
    more = {"futureField": {"nested": [1, None]}, "anotherOne": "ä"}
    answer = await executor.node.run(attempt, executor.handler, executor.payload, more=more)
    await executor.node.until(lambda: attempt.final)
    if answer.status != 200 or attempt.final is None or attempt.final.state != "SUCCEEDED":
        ended = attempt.final.state if attempt.final is not None else "nothing"
        return Verdict(rule, FAILED, f"a call with more fields: {answer.status}, and {ended} reported")
    return Verdict(rule, PASSED, "runs as any other")


async def survives_refusal(executor: ExecutorUnderCheck) -> Verdict:
    """A result that no node can read (422) ends as FAILED, and is not sent for ever."""
    rule = "unreadable report"
    attempt = await executor.ran(lambda kind, body: UNREADABLE if _state(body) == "SUCCEEDED" else TAKEN)
    tries = [one for one in attempt.reports if one.state == "SUCCEEDED"]
    if attempt.final is None:
        return Verdict(rule, FAILED, f"the result was refused with 422 and sent {len(tries)} times: report FAILED then")
    if attempt.final.state != "FAILED":
        return Verdict(rule, FAILED, f"the result was refused with 422, and it ended {attempt.final.state}, not FAILED")
    return Verdict(rule, PASSED, "FAILED was reported in its place")


async def registers(executor: ExecutorUnderCheck) -> Verdict:
    """It registers by its heartbeats."""
    from orchestrix.api.registry.models import HeartbeatBody

    rule, node = "registration", executor.node
    await node.until(lambda: node.registrations, 2.0 if executor.process is None else None)
    if not node.registrations:
        status = SKIPPED if executor.process is None else FAILED
        return Verdict(rule, status, f"no heartbeat came: give it {node.admin} as an admin")
    beat = next((one for one in node.registrations if one.path == "/api/registry"), None)
    if beat is None:
        return Verdict(rule, FAILED, "it deregisters, and never registers")
    if (wrong := _form(HeartbeatBody, beat.body, "the heartbeat")) is not None:
        return Verdict(rule, FAILED, wrong)
    if beat.body["registryKey"] != node.group or beat.body["registryValue"].rstrip("/") != node.url:
        who = f"{beat.body['registryKey']} at {beat.body['registryValue']}"
        return Verdict(rule, FAILED, f"it registers {who}, not {node.group} at {node.url}")
    if node.token is not None and beat.token != node.token:
        return Verdict(rule, FAILED, "the heartbeat does not carry the registry token as Bearer")
    return Verdict(rule, PASSED, f"{node.group} at {node.url}")


async def stops(executor: ExecutorUnderCheck) -> Verdict:
    """At SIGTERM it takes no more, ends what runs and reports it, and deregisters last."""
    rule, node, process = "graceful stop", executor.node, executor.process
    if process is None:
        return Verdict(rule, SKIPPED, "give --start, by which the check starts and stops it")
    attempt = await executor.began(payload=executor.slow) if executor.slow is not None else None
    if attempt is not None:
        await node.until(lambda: attempt.taken)
    if await process.stop(executor.stop_timeout_s) is None:
        return Verdict(rule, FAILED, f"it still runs {executor.stop_timeout_s:g} s after SIGTERM")
    await node.until(lambda: False, 0.2)  # what was on its way
    if attempt is not None and attempt.final is None:
        return Verdict(rule, FAILED, "it ended without the last status of the attempt that it ran")
    if not node.registrations:
        return Verdict(rule, PASSED, "it ended; no registration was seen")
    last = node.registrations[-1]
    if last.path != "/api/registryRemove":
        return Verdict(rule, FAILED, "it did not deregister, or sent a heartbeat after its goodbye")
    if last.body.get("instance") != node.registrations[0].body.get("instance"):
        return Verdict(rule, FAILED, "its goodbye has another instance than its heartbeats")
    return Verdict(rule, PASSED, "what ran was reported, then it deregistered")


RULES: Final[Mapping[str, ExecutorRule]] = {
    "registration": registers,
    "seq": counts,
    "begin": begins,
    "report again": keeps,
    "once": runs_once,
    "runs": knows,
    "cancel in an answer": cancelled_at_begin,
    "cancel": stops_run,
    "unknown job": refuses,
    "signature": checks_signatures,
    "unknown fields": ignores_fields,
    "unreadable report": survives_refusal,
    "graceful stop": stops,
}
"""In their order, after those two without which nothing can be said: `health` and `run`."""


def _state(body: Any) -> object:
    return body.get("status") if isinstance(body, dict) else None


def _refusing(refused: Callable[[Mapping[str, Any]], bool]) -> Answer:
    """Answers such statuses with 503 a few times."""
    left = REFUSALS

    def answer(kind: str, body: Any) -> ExecutorResponse:
        nonlocal left
        if left and isinstance(body, dict) and refused(body):
            left -= 1
            return LATER
        return TAKEN

    return answer


def _first_taken(attempt: AttemptUnderCheck) -> float:
    return attempt.taken[0].at if attempt.taken else float("inf")


def _stop(job_id: str, history_id: str) -> dict[str, str]:
    return {"jobId": job_id, "historyId": history_id, "reason": "the check cancels it"}


def _forms(attempt: AttemptUnderCheck) -> str | None:
    """What is wrong with the form of the reports; None if nothing is."""
    for report in attempt.reports:
        if report.kind == "logs" and not isinstance(report.body, list):
            return "logs takes a list of lines"
        for item in report.items:
            model: type[BaseModel] = JobLogMessage if report.kind == "logs" else JobStatusMessage
            if (wrong := _form(model, item, f"{report.kind} {_place(report)}")) is not None:
                return wrong
            if (item["jobId"], item["historyId"]) != (attempt.job_id, attempt.history_id):
                return f"{report.kind} has the jobId or historyId of another attempt"
    return None


def _place(report: ExecutorReport) -> str:
    return f"({report.state})" if report.state else "line"


def _form(model: type[BaseModel], body: Any, what: str) -> str | None:
    try:
        model.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{what}: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    return None
