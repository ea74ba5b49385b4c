"""Executor spans: the span of running an attempt of a job that a node has called for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orchestrix.telemetry import conventions as names
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import context_in
from orchestrix.telemetry.tracing import Span, SpanKind
from orchestrix.worker.executor.run_call import RunCall
from orchestrix.worker.jobs.spans import job_attributes

RUN: Final = "POST /run"


def begin_run(call: RunCall, headers: Mapping[str, str], address: str) -> Span:
    """It follows from the node's call, and lasts as long as the attempt."""
    span = tracing.begin(RUN, SpanKind.SERVER, context_in(headers))
    if span.recording:
        dispatch = call.dispatch
        span.set(
            {
                **job_attributes(dispatch),
                names.HTTP_METHOD: "POST",
                names.HTTP_ROUTE: "/run",
                names.JOB_ATTEMPT: dispatch.attempt,
                names.JOB_HANDLER: dispatch.handler,
                names.WORKER_ID: address,
            }
        )
    return span
