"""Request metrics: how many requests are being answered, and how long that takes."""

from __future__ import annotations

import re
from typing import Final

from starlette.types import Scope

from orchestrix.api.traces.server_span import METHODS, OTHER_METHOD, route_of
from orchestrix.telemetry.metrics.catalogue import HTTP_ACTIVE, HTTP_DURATION
from orchestrix.telemetry.metrics.instruments import gauge, histogram
from orchestrix.telemetry.trace_context import TraceContext

NOT_MEASURED: Final = re.compile(r"/(?:health(?:/.*)?|metrics)")
"""Probes and scrapes: they would hide how others are served."""
BROKEN_OFF: Final = "499"
"""Stands for the status of an answer that had not begun when its client went away."""

_active = gauge(HTTP_ACTIVE).at()
_duration = histogram(HTTP_DURATION)


def begin() -> None:
    """A request has come."""
    _active.add()


def end(method: str, scope: Scope, status: int, seconds: float, context: TraceContext | None) -> None:
    """It was answered with that `status`, or broken off before; `context` is its span."""
    _active.add(-1)
    if NOT_MEASURED.fullmatch(scope["path"]):
        return
    labels = (
        method if method in METHODS else OTHER_METHOD,
        route_of(scope) or "",
        str(status) if status else BROKEN_OFF,
    )
    _duration.at(*labels).record(seconds, context)
