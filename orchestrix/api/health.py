"""Health routes: whether the process is alive, and whether it can take work."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from orchestrix.api.instance_routes import Answers, json_of
from orchestrix.api.routes import Call, Handler, Route
from orchestrix.api.schemas import HealthBody
from orchestrix.api.start import JSON
from orchestrix.lifecycle import Check
from orchestrix.saga.messages import dump

START: Final = "Start"
STOP: Final = "Stop"
"""What a node that is only beginning or ending is told by, beside the components that are not there yet or any more."""
NEVER_STORED: Final = {"Cache-Control": "no-store"}


async def overall(call: Call) -> Response:
    """The shape of the specification's shard coordinator: 200, or 503 when a component is not healthy."""
    checks = call.context.health.checks()
    healthy = all(check.healthy for check in checks)
    return _answer(healthy, "healthy" if healthy else "unhealthy", _told(call, checks))


async def live(call: Call) -> Response:
    """200 as long as the event loop answers. Looks at nothing else: an outage elsewhere must not restart this."""
    return _answer(True, "alive", [])


async def ready(call: Call) -> Response:
    """Whether new work can be taken, and what stands against it.

    A node that serves HTTP needs the database and no broker for that: it keeps what it cannot send yet.
    """
    health = call.context.health
    own = [] if health.started else [Check(START, False, "not finished yet")]
    own += [Check(STOP, False, "the process is stopping")] if health.draining else []
    checks = own + health.needed()
    good = all(check.healthy for check in checks)
    return _answer(good, "ready" if good else "not ready", _told(call, checks))


async def startup(call: Call) -> Response:
    """Whether the start is over."""
    started = call.context.health.started
    return _answer(started, "started" if started else "starting", [])


def _told(call: Call, checks: list[Check]) -> list[Check]:
    """The checks as whoever asks may see them: the reasons name hosts and users, which are not everybody's."""
    return checks if call.door.knows(call.request) else [replace(check, reason=None) for check in checks]


def _answer(good: bool, status: str, checks: list[Check]) -> Response:
    body = {"status": status, "checks": [_check(check) for check in checks]}
    return Response(dump(body), 200 if good else 503, NEVER_STORED, JSON)


def _check(check: Check) -> dict[str, Any]:
    shown = {"component": check.component, "isHealthy": check.healthy}
    return shown if check.reason is None else {**shown, "reason": check.reason}


def _route(path: str, name: str, handler: Handler, summary: str, about: str = "") -> Route:
    answers: Answers = {200: json_of(HealthBody, "Yes."), 503: json_of(HealthBody, "No.")}
    return Route(
        "GET", path, name, handler, summary, about, tag="health", parameters=None, answers=answers, public=True
    )


_REASONS: Final = "Where tokens are set, the reasons are told to those who send one."
_READY: Final = (
    "A node that serves HTTP is ready when its database has the right tables and takes a write, whatever becomes of the"
    f" broker; any other one needs all its components. {_REASONS}"
)
ROUTES: Final = (
    _route("/health", "getHealth", overall, "Is every component healthy?", _REASONS),
    _route("/health/live", "getLive", live, "Does the process answer at all?"),
    _route("/health/ready", "getReady", ready, "Can it take new work?", _READY),
    _route("/health/startup", "getStartup", startup, "Has it finished its start?"),
)
