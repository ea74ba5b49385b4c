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
