"""Trace routes: the traces that this machine keeps, or where they go."""

from __future__ import annotations

import asyncio
import re
from typing import Final
from urllib.parse import urlsplit

from orchestrix.api.dependencies import ApiContext
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import Problem, not_found
from orchestrix.api.traces.models import SpanBody, TraceBody
from orchestrix.api.traces.reader import TraceReader
from orchestrix.telemetry import tracing
from orchestrix.telemetry.exporters import what_to_change

_ID: Final = re.compile(r"[0-9a-f]{32}")

operations = Operations("traces")


def trace_id(call: Call) -> str:
    """The id in the path. Raises `Problem` 404 for what no trace can have."""
    text = call.path("trace")
    if _ID.fullmatch(text) is None:
        raise not_found(f"trace {text[:60]!r}: an id is 32 hexadecimal digits in lower case")
    return text


@operations.get("/traces/{trace}", of=trace_id)
async def get_trace(call: Call, wanted: str) -> TraceBody:
    """Show a trace.

    The spans of all processes of this machine, as `orchestrix dev` keeps them, the first to begin first. Elsewhere
    there are none, and the problem says where they go.
    """
    reader = call.context.trace_reader
    if reader is None:
        raise Problem("not_found", _elsewhere(call.context, wanted))
    spans = await asyncio.to_thread(_spans, reader, wanted)
    if not spans:
        raise not_found(
            f"trace {wanted} here: it is not sampled, older than the newest ones, which are kept, or no span of it has "
            "ended yet"
        )
    return TraceBody(trace_id=wanted, spans=spans)


def _spans(reader: TraceReader, wanted: str) -> list[SpanBody]:
    """In a thread: a trace can be as large as all that is kept."""
    return sorted(map(SpanBody.model_validate, reader.spans(wanted) or ()), key=lambda one: one.start_time)


def _elsewhere(context: ApiContext, wanted: str) -> str:
    """Where to look instead, or what is missing."""
    if not tracing.enabled():
        return f"Tracing is off: {what_to_change()}."
    if (links := context.links.of("", wanted)) is not None and links.trace is not None:
        return f"This node keeps no traces: look at {links.trace}."
    sent = f"traces are sent to {_plain(context.trace_endpoint)}" if context.trace_endpoint else "it exports them"
    return (
        f"This node keeps no traces: {sent}. Set ORCHESTRIX_UI__TRACE_URL to the address of a trace there, and answers "
        "link to it."
    )


def _plain(endpoint: str) -> str:
    """Without the name and the secret that may be in it."""
    try:
        parts = urlsplit(endpoint)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    except ValueError:
        return "OTEL_EXPORTER_OTLP_ENDPOINT"
