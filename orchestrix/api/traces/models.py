"""Trace models: the spans of a trace, as they are shown."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from orchestrix.api.answers import Answer, OptionalTime, Time
from orchestrix.api.traces.links import TRACE_ID


class SpanStatus(Answer):
    """How a span has ended."""

    code: str = Field(examples=["UNSET"], description="`UNSET`, `OK` or `ERROR`.")
    message: str | None = Field(None, description="What was wrong.")


class SpanLinkBody(Answer):
    """A span of this or another trace that has to do with it."""

    trace_id: str = Field(examples=[TRACE_ID])
    span_id: str = Field(examples=["00f067aa0ba902b7"])
    kind: str | None = Field(None, examples=["retry"], description="`orchestrix.link.kind`: how the two hang together.")


class SpanBody(Answer):
    """One span."""

    model_config = ConfigDict(extra="ignore")

    span_id: str = Field(examples=["00f067aa0ba902b7"])
    parent_span_id: str | None = Field(description="Null for the root.")
    name: str = Field(examples=["POST /apps"])
    kind: str = Field(examples=["SERVER"])
    service: str | None = Field(examples=["orchestrix-api"])
    node: str | None = Field(examples=["node-1-5f3a9c55"])
    start_time: Time
    end_time: OptionalTime
    duration_ms: float | None = Field(examples=[12.5])
    status: SpanStatus
    attributes: dict[str, Any]
    links: list[SpanLinkBody]
    events: list[dict[str, Any]]


class TraceBody(Answer):
    """A trace: its spans, the first to begin first."""

    trace_id: str = Field(examples=[TRACE_ID])
    spans: list[SpanBody]
