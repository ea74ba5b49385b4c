"""Health routes: whether the process is alive, whether it can take work, and its metrics."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from starlette.responses import Response

from orchestrix.api.answers import respond
from orchestrix.api.health.models import CheckBody, HealthBody
from orchestrix.api.operations import Call, Operations
from orchestrix.lifecycle import Check
from orchestrix.telemetry.metrics import exposition

START: Final = "Start"
STOP: Final = "Stop"
"""The states of a node that is only starting or stopping, beside the components that are not there yet or any more.
"""
NEVER_STORED: Final = {"Cache-Control": "no-store"}

operations = Operations("health")
_probe: Final = partial(operations.get, query=None, done="Yes.", public=True)


@_probe("/health")
async def get_health(call: Call) -> HealthBody | Response:
    """Is every component healthy?

    All components of this process. Where tokens are set, the reasons are shown to those who send one.
    """
    checks = call.context.health.checks()
    healthy = all(check.healthy for check in checks)
    return _answer(healthy, "healthy" if healthy else "unhealthy", _describe(call, checks))


@_probe("/health/live")
async def get_live(call: Call) -> HealthBody | Response:
    """Does the process answer at all?

    200 as long as its event loop does. It looks at nothing else: an outage elsewhere must not restart this.
    """
    return _answer(True, "alive", [])


@_probe("/health/ready")
async def get_ready(call: Call) -> HealthBody | Response:
    """Can it take new work?

    A node that serves HTTP is ready when its database has the right tables and takes a write, whatever the state of
    the broker: it keeps what it cannot send yet. Any other one needs all its components. Where tokens are set, the
    reasons are shown to those who send one.
    """
    health = call.context.health
    own = [] if health.started else [Check(START, False, "not finished yet")]
    own += [Check(STOP, False, "the process is stopping")] if health.stopping else []
    checks = own + health.needed()
    good = all(check.healthy for check in checks)
    return _answer(good, "ready" if good else "not ready", _describe(call, checks))


@_probe("/health/startup")
async def get_startup(call: Call) -> HealthBody | Response:
    """Has it finished its start?

    Stays 200 from then on.
    """
    started = call.context.health.started
    return _answer(started, "started" if started else "starting", [])


@_probe("/metrics", done="The metrics.", media=("text/plain", exposition.OPEN_METRICS))
async def get_metrics(call: Call) -> Response:
    """The metrics of this process, for Prometheus.

    OpenMetrics for those who accept it, with exemplars on histograms; else Prometheus' text format.
    """
    media, body = await asyncio.to_thread(exposition.render, call.request.headers.get("accept", ""))
    return Response(body, media_type=None, headers={"Content-Type": media, **NEVER_STORED})


def _describe(call: Call, checks: list[Check]) -> list[Check]:
    """The checks as whoever asks may see them: the reasons name hosts and users, which are not everybody's."""
    return checks if call.authenticator.knows(call.request) else [replace(check, reason=None) for check in checks]


def _answer(good: bool, status: str, checks: list[Check]) -> Response:
    body = HealthBody(status=status, checks=[CheckBody.of(check) for check in checks])
    return respond(body, 200 if good else 503, NEVER_STORED)
