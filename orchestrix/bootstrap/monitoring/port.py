"""Monitoring port: what a worker, or a node without HTTP API, answers about itself, and when it listens.

`/metrics`, `/health/live` and `/health/ready`, without a token: components and yes or no alone. The reasons, which name
hosts and users, are for whoever sends a token of the API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final, TypeAlias

from orchestrix import clock
from orchestrix.bootstrap.context import API
from orchestrix.bootstrap.listening_socket import listening
from orchestrix.bootstrap.monitoring.server import MonitoringRequest, MonitoringResponse, MonitoringServer
from orchestrix.bootstrap.monitoring.snapshot import HealthNote, HealthSnapshot
from orchestrix.config.settings import Settings
from orchestrix.lifecycle import Check, Health
from orchestrix.saga.messages import dump
from orchestrix.telemetry.metrics import exposition

Render: TypeAlias = Callable[[str], tuple[str, bytes]]
"""The metrics in the form that an `Accept` header asks for: their content type and themselves. Thread-safe."""

NOT_READY_AFTER_S: Final = 5.0
"""Seconds without a turn of the event loop after which the process takes no work."""
NOT_LIVE_AFTER_S: Final = 60.0
"""The same, after which it is to be restarted: by then the broker has given its messages to others (heartbeats)."""
SECOND_LOOK_S: Final = 0.6
"""Seconds for a loop that seems to be blocked: a process that was stopped and continues has not noted anything yet."""
GUESSES: Final = 20
"""Wrong tokens that are looked at; then one in `GUESS_S` seconds."""
GUESS_S: Final = 3.0
STOP_TIMEOUT_S: Final = 2.0
"""Seconds to close the port: the last step of a stop."""
LOOP: Final = "Event loop"
JSON: Final = "application/json"
_ADVICE: Final = (
    "set ORCHESTRIX_METRICS__PORT to a free port (each process of a host needs its own; 0: none), or "
    "ORCHESTRIX_METRICS__HOST to an address of this machine"
)


class MonitoringPages:
    """The answers, from what `snapshot` has noted and `render` makes. `tokens` are the secrets of the API."""

    def __init__(self, snapshot: HealthSnapshot, render: Render, tokens: Mapping[str, str]) -> None:
        self._snapshot, self._render = snapshot, render
        self._tokens = [_digest(secret) for secret in tokens.values()]
        self._guesses, self._guessed_at = float(GUESSES), clock.monotonic()

    async def answer(self, request: MonitoringRequest) -> MonitoringResponse:
        """The page of that path."""
        if request.method not in ("GET", "HEAD"):
            return _problem(405, "only GET and HEAD are answered here")
        if request.path == "/metrics":
            return self._metrics(request.headers.get("accept", ""))
        if request.path == "/health/live":
            return _live(await self._noted(NOT_LIVE_AFTER_S))
        if request.path == "/health/ready":
            note = await self._noted(NOT_READY_AFTER_S)
            return _ready(note, with_reasons=self._knows(request.headers.get("authorization", "")))
        return _problem(404, "here are /metrics, /health/live and /health/ready")

    async def _noted(self, limit_s: float) -> HealthNote:
        """The latest note; if that is older than `limit_s`, the one a moment later."""
        if self._snapshot.latest.age_s > limit_s:
            await asyncio.sleep(SECOND_LOOK_S)
        return self._snapshot.latest

    def _metrics(self, accept: str) -> MonitoringResponse:
        content_type, body = self._render(accept)
        return MonitoringResponse(200, content_type, body)

    def _knows(self, given: str) -> bool:
        """Whether `given` is the header of a known token. All are compared, each in the same time."""
        scheme, _, secret = given.strip().partition(" ")
        if not self._tokens or scheme.lower() != "bearer":
            return False
        now = clock.monotonic()
        self._guesses = min(GUESSES, self._guesses + (now - self._guessed_at) / GUESS_S)
        self._guessed_at = now
        if self._guesses < 1:
            return False  # whatever it is, so that a right guess reveals nothing
        known = [token for token in self._tokens if compare_digest(token, _digest(secret.strip()))]
        self._guesses -= 0 if known else 1
        return bool(known)


class MonitoringPort:
    """Serves these pages about `health` at the place that `settings.metrics` names; nowhere if its port is 0."""

    def __init__(self, settings: Settings, health: Health, render: Render = exposition.render) -> None:
        self._place = settings.metrics
        self._snapshot = HealthSnapshot(health)
        tokens = {name: secret.get_secret_value() for name, secret in settings.api.tokens.items()}
        self._pages = MonitoringPages(self._snapshot, render, tokens)
        self._server: MonitoringServer | None = None

    async def start(self) -> None:
        """Listens. Raises `ConfigError` where it cannot."""
        if self._place.port:
            listener = listening(self._place.host, [self._place.port], advice=_ADVICE)
            self._server = MonitoringServer(listener, self._pages.answer)
            self._snapshot.start()
            self._server.start()

    async def stop(self) -> None:
        """Answers what has been asked, and closes the port."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop()
            self._snapshot.stop()


def node_port(settings: Settings, roles: Collection[str], health: Health) -> MonitoringPort:
    """That of a node; one with an HTTP API answers there, and has none."""
    if API in roles:
        settings = settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"port": 0})})
    return MonitoringPort(settings, health)


def _live(note: HealthNote) -> MonitoringResponse:
    blocked = _blocked(note, NOT_LIVE_AFTER_S)
    return _health(not blocked, "blocked" if blocked else "alive", blocked, with_reasons=False)


def _ready(note: HealthNote, *, with_reasons: bool) -> MonitoringResponse:
    own = [] if note.phase is None else [Check(_PHASES[note.phase], False, f"the process is {note.phase}")]
    checks = [*_blocked(note, NOT_READY_AFTER_S), *own, *note.checks]
    good = all(check.healthy for check in checks)
    return _health(good, "ready" if good else "not ready", checks, with_reasons=with_reasons)


_PHASES: Final = {"starting": "Start", "stopping": "Stop"}
"""The component that stands for a phase, as on the pages of the API."""


def _blocked(note: HealthNote, limit_s: float) -> list[Check]:
    """The check that has failed where the loop has not run for longer than `limit_s`."""
    age_s = note.age_s
    return [] if age_s <= limit_s else [Check(LOOP, False, f"a function has blocked it for {age_s:.0f} s")]


def _health(good: bool, status: str, checks: list[Check], *, with_reasons: bool) -> MonitoringResponse:
    shown = checks if with_reasons else [replace(check, reason=None) for check in checks]
    body = dump({"status": status, "checks": [_check(one) for one in shown]})
    return MonitoringResponse(200 if good else 503, JSON, body)


def _check(check: Check) -> dict[str, Any]:
    """In the API's form."""
    fields: dict[str, Any] = {"component": check.component, "isHealthy": check.healthy}
    return fields if check.reason is None else {**fields, "reason": check.reason}


def _problem(status: int, detail: str) -> MonitoringResponse:
    return MonitoringResponse(status, "text/plain; charset=utf-8", f"{detail}\n".encode())


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
