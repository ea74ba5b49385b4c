"""Executor endpoints: what an executor answers to the calls of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from orchestrix import clock
from orchestrix.domain.registry.signatures import SIGNATURE_HEADER, signature_refusal
from orchestrix.saga.messages import UnreadableMessage
from orchestrix.worker.executor.http_server import ExecutorRequest, ExecutorResponse
from orchestrix.worker.executor.run_call import read_run, read_stop
from orchestrix.worker.executor.runs import RunAdmission, Runs

RUNS: Final = "/runs/"


class Endpoints:
    """`POST /run`, `POST /cancel`, `GET /runs/{historyId}` and `GET /health`.

    The first two must be signed by `token`; without a token they must come from this machine.
    """

    def __init__(self, app: str, runs: Runs, token: str | None) -> None:
        self._app, self._runs, self._token = app, runs, token

    def answer(self, call: ExecutorRequest) -> ExecutorResponse:
        """The answer to the call."""
        method, path = call.method, call.path
        if path == "/run":
            return self._checked(call, self._run)
        if path == "/cancel":
            return self._checked(call, self._cancel)
        if path == "/health" and method in ("GET", "HEAD"):
            state = "DRAINING" if self._runs.stopping else "UP"
            return ExecutorResponse(
                200, {"state": state, "running": len(self._runs.history_ids), "slots": self._runs.slots}
            )
        if path.startswith(RUNS) and method in ("GET", "HEAD"):
            known = self._runs.knows(path.removeprefix(RUNS))
            return ExecutorResponse(200) if known else _refusal(404, "this executor does not have the attempt")
        return _refusal(404, "an executor has POST /run, POST /cancel, GET /runs/{historyId} and GET /health")

    def _checked(
        self, call: ExecutorRequest, answer: Callable[[ExecutorRequest], ExecutorResponse]
    ) -> ExecutorResponse:
        if call.method != "POST":
            return _refusal(405, f"{call.path} takes POST")
        if self._token is None:
            why = None if call.local else "without a token only calls from this machine are taken"
            refused = 403
        else:
            header = call.headers.get(SIGNATURE_HEADER.lower())
            why, refused = signature_refusal(self._token, header, call.body, clock.now().timestamp()), 401
        if why is not None:
            return _refusal(refused, why)
        try:
            return answer(call)
        except UnreadableMessage as unreadable:
            return _refusal(400, str(unreadable))

    def _run(self, call: ExecutorRequest) -> ExecutorResponse:
        run = read_run(call.body)
        if run.group != self._app:
            return _refusal(422, f"this is an executor of {self._app}, not of {run.group[:100]}")
        match self._runs.take(run, call.headers):
            case RunAdmission.TAKEN:
                return ExecutorResponse(200)
            case RunAdmission.FULL:
                return _refusal(409, f"all {self._runs.slots} slots are taken")
            case RunAdmission.STOPPING:
                return _refusal(503, "this executor stops")
            case RunAdmission.UNKNOWN_JOB:
                handler = run.dispatch.handler[:200]
                lacks = f"this executor has no function for job {handler!r}"
                return _refusal(422, f"{lacks}: every executor of an app needs all its jobs")

    def _cancel(self, call: ExecutorRequest) -> ExecutorResponse:
        self._runs.cancel(read_stop(call.body))
        return ExecutorResponse(200)


def _refusal(status: int, detail: str) -> ExecutorResponse:
    fields: dict[str, Any] = {"detail": detail}
    return ExecutorResponse(status, fields)
