"""Played node: calls an executor, and takes its registrations and reports."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrix import clock
from orchestrix.domain.registry.signatures import SIGNATURE_HEADER, sign
from orchestrix.errors import Unavailable
from orchestrix.http_client import HttpClient, HttpRequest, HttpResponse
from orchestrix.saga.messages import dump
from orchestrix.worker.executor.http_server import ExecutorRequest, ExecutorResponse, ExecutorServer

POLL_S: Final = 0.01
CALL_TIMEOUT_S: Final = 10.0
FINAL: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
_REPORT: Final = re.compile(r"/jobs/([^/]+)/attempts/([^/]+)/(status|logs)")
_ACCEPTED: Final = ExecutorResponse(200, {"cancel": None})


@dataclass(frozen=True, slots=True)
class ExecutorReport:
    """A report of an attempt: its kind, its body, its token, what was answered, and when, by the monotonic clock."""

    kind: str
    body: Any
    token: str
    status: int
    at: float

    @property
    def state(self) -> str | None:
        """The status that it reports; None for lines."""
        return self.body.get("status") if isinstance(self.body, dict) else None

    @property
    def items(self) -> list[Any]:
        """The status, or the lines."""
        return self.body if isinstance(self.body, list) else [self.body]


@dataclass
class AttemptUnderCheck:
    """An attempt, its reports in their order, and how each is to be answered: by default it is taken."""

    job_id: str
    history_id: str
    token: str
    answer: Callable[[str, Any], ExecutorResponse] = lambda kind, body: _ACCEPTED
    reports: list[ExecutorReport] = field(default_factory=list)

    @property
    def taken(self) -> list[ExecutorReport]:
        """The reports that were taken."""
        return [one for one in self.reports if one.status == 200]

    @property
    def final(self) -> ExecutorReport | None:
        """The last status, once it was taken."""
        return next((one for one in self.taken if one.state in FINAL), None)


@dataclass(frozen=True, slots=True)
class ReceivedRegistration:
    """What the executor has said of itself: at which path, its body and its token."""

    path: str
    body: Any
    token: str


@dataclass
class PlayedNode:
    """A node that calls the executor of the app `group` at `url`, with its registry `token`. It waits for `timeout_s`
    seconds.
    """

    url: str
    group: str
    token: str | None
    timeout_s: float
    port: int = 0
    attempts: dict[str, AttemptUnderCheck] = field(default_factory=dict)
    registrations: list[ReceivedRegistration] = field(default_factory=list)
    unknown_requests: list[str] = field(default_factory=list)
    """Requests that no executor makes."""

    async def __aenter__(self) -> PlayedNode:
        from orchestrix.bootstrap.listening_socket import listening

        with listening("127.0.0.1", [self.port]) as found:
            self.port = found.getsockname()[1]
        self._client = HttpClient()
        self._server = ExecutorServer(("127.0.0.1", self.port), self._answered)
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop()
        await self._client.close()

    @property
    def admin(self) -> str:
        """Where the executor is to register, and to report."""
        return f"http://127.0.0.1:{self.port}"

    # Calls.

    def attempt(self, answer: Callable[[str, Any], ExecutorResponse] | None = None) -> AttemptUnderCheck:
        """One more attempt, whose reports are answered so."""
        one = AttemptUnderCheck(clock.uuid7(), clock.uuid7(), clock.token())
        if answer is not None:
            one.answer = answer
        self.attempts[one.history_id] = one
        return one

    async def run(
        self,
        attempt: AttemptUnderCheck,
        handler: str,
        payload: Any,
        *,
        more: Mapping[str, Any] | None = None,
        headers: Callable[[bytes], Mapping[str, str]] | None = None,
    ) -> HttpResponse:
        """Calls `/run`. `headers` make others than the signature. Raises `Unavailable`."""
        fields = {
            "jobId": attempt.job_id,
            "historyId": attempt.history_id,
            "attempt": 1,
            "handler": handler,
            "payload": payload,
            "timeoutMs": 60_000,
            "correlationId": clock.uuid7(),
            "group": self.group,
            "shardIndex": None,
            "shardTotal": None,
            "callbacks": [f"{self.admin}/jobs/{attempt.job_id}/attempts/{attempt.history_id}"],
            "token": attempt.token,
        }
        return await self.call("POST", "/run", {**fields, **(more or {})}, headers)

    async def call(
        self,
        method: str,
        path: str,
        fields: Mapping[str, Any] | None = None,
        headers: Callable[[bytes], Mapping[str, str]] | None = None,
    ) -> HttpResponse:
        """The executor's answer. Raises `Unavailable`."""
        body = dump(fields) if fields is not None else b""
        made = {"Content-Type": "application/json"} if body else {}
        made |= (headers or self.signature)(body)
        return await self._client.send(HttpRequest(method, f"{self.url}{path}", body, made), CALL_TIMEOUT_S)

    def signature(self, body: bytes) -> dict[str, str]:
        """The headers that sign a body."""
        if self.token is None:
            return {}
        return {SIGNATURE_HEADER: sign(self.token, body, clock.now().timestamp())}

    async def until(self, holds: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Whether it holds within the time."""
        end = clock.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while not holds():
            if clock.monotonic() >= end:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def reached(self, timeout_s: float) -> bool:
        """Whether the executor answers at all within the time."""
        end = clock.monotonic() + timeout_s
        while clock.monotonic() < end:
            try:
                await self.call("GET", "/health")
                return True
            except Unavailable:
                await asyncio.sleep(0.1)
        return False

    # What the executor sends.

    def _answered(self, request: ExecutorRequest) -> ExecutorResponse:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token = token if scheme.lower() == "bearer" else ""
        body = _read(request.body)
        if request.path in ("/api/registry", "/api/registryRemove") and request.method == "POST":
            self.registrations.append(ReceivedRegistration(request.path, body, token))
            return ExecutorResponse(200, {"beatMs": 30_000} if request.path == "/api/registry" else {"removed": True})
        found = _REPORT.fullmatch(request.path)
        attempt = self.attempts.get(found[2]) if found is not None else None
        if found is None or attempt is None or request.method != "POST":
            self.unknown_requests.append(f"{request.method} {request.path[:200]}")
            return ExecutorResponse(404, {"detail": "no attempt of that id was given"})
        answer = attempt.answer(found[3], body)
        attempt.reports.append(ExecutorReport(found[3], body, token, answer.status, clock.monotonic()))
        return answer


def _read(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None
