"""Health routes: whether the process is alive, and whether it can take work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from starlette.responses import Response

from orchestrix.api.answers import respond
from orchestrix.api.health.models import CheckBody, HealthBody
from orchestrix.api.operations import Call, Handler, Operations
from orchestrix.lifecycle import Check

START: Final = "Start"
STOP: Final = "Stop"
"""What a node that is only starting or stopping is told by, beside the components that are not there yet or any more.
"""
NEVER_STORED: Final = {"Cache-Control": "no-store"}
REASONS: Final = "Where tokens are set, the reasons are told to those who send one."

operations = Operations("health")


def _probe(path: str, name: str, summary: str, about: str) -> Callable[[Handler], Handler]:
    more: dict[str, Any] = {"query": None, "answer": HealthBody, "done": "Yes.", "public": True}
    return operations.get(f"/health{path}", name, summary, about, **more)


@_probe("", "getHealth", "Is every component healthy?", f"All components of this process. {REASONS}")
async def overall(call: Call) -> Response:
    """The shape of the specification's shard coordinator: 200, or 503 when a component is not healthy."""
    checks = call.context.health.checks()
    healthy = all(check.healthy for check in checks)
    return _answer(healthy, "healthy" if healthy else "unhealthy", _told(call, checks))


@_probe("/live", "getLive", "Does the process answer at all?", "Looks at nothing else: an outage elsewhere is no 503.")
async def live(call: Call) -> Response:
    """200 as long as the event loop answers. Looks at nothing else: an outage elsewhere must not restart this."""
    return _answer(True, "alive", [])


@_probe(
    "/ready",
    "getReady",
    "Can it take new work?",
    "A node that serves HTTP is ready when its database has the right tables and takes a write, whatever the state of "
    f"the broker; any other one needs all its components. {REASONS}",
)
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


@_probe("/startup", "getStartup", "Has it finished its start?", "Stays 200 from then on.")
async def startup(call: Call) -> Response:
    """Whether the start is over."""
    started = call.context.health.started
    return _answer(started, "started" if started else "starting", [])


def _told(call: Call, checks: list[Check]) -> list[Check]:
    """The checks as whoever asks may see them: the reasons name hosts and users, which are not everybody's."""
    return checks if call.door.knows(call.request) else [replace(check, reason=None) for check in checks]


def _answer(good: bool, status: str, checks: list[Check]) -> Response:
    body = HealthBody(status=status, checks=[CheckBody.of(check) for check in checks])
    return respond(body, 200 if good else 503, NEVER_STORED)
