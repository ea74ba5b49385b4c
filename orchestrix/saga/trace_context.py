"""Trace context: the trace that a message belongs to, by its W3C `traceparent` header."""

from __future__ import annotations

import re
from typing import Final

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-(?P<trace>[0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_NO_TRACE: Final = "0" * 32


def trace_id(traceparent: object) -> str | None:
    """The trace id, 32 hexadecimal digits; None for what is no `traceparent` (W3C Trace Context, level 2)."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    return None if found is None or found["trace"] == _NO_TRACE else found["trace"]


def next_part(traceparent: str | None, tracestate: str | None, head: str | None) -> tuple[str | None, str | None]:
    """`traceparent` and `tracestate` of what follows from the span `head`, of something whose trace began with the two
    others. The state holds for the trace that it came with alone.
    """
    if head is None or traceparent is None:
        return head or traceparent, None if traceparent is None else tracestate
    return head, tracestate if head[3:35] == traceparent[3:35] else None
