"""Tracing in tests: keeps the spans of the code under test in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from orchestrix.telemetry import tracing
from orchestrix.telemetry.sdk import span_factory
from orchestrix.telemetry.trace_context import TraceContext


class RecordedSpans:
    """The spans that have ended, in the order of their ends."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    @property
    def all(self) -> list[ReadableSpan]:
        """All of them."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Those with that name."""
        return [one for one in self.all if one.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only one with that name."""
        (found,) = self.named(name)
        return found

    def clear(self) -> None:
        """Forgets those that have ended."""
        self._exporter.clear()


@contextmanager
def recorded_spans(split_after_s: float = tracing.DEFAULT_SPLIT_AFTER_S) -> Iterator[RecordedSpans]:
    """All spans that begin in the block are kept."""
    exporter = InMemorySpanExporter()
    factory = span_factory(
        [SimpleSpanProcessor(exporter)], service="tests", instance="tests", split_after_s=split_after_s
    )
    former = tracing.install(factory)
    try:
        yield RecordedSpans(exporter)
    finally:
        tracing.install(former)


def context_of(span: ReadableSpan) -> TraceContext:
    """What follows from the span carries this."""
    found = span.get_span_context()
    assert found is not None
    return TraceContext(f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}")


def parent_id(span: ReadableSpan) -> str | None:
    """The id of its parent; None for a root."""
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def links_of(span: ReadableSpan) -> list[tuple[str, str, str]]:
    """Its links: kind, trace id, span id."""
    return [
        (
            str((one.attributes or {}).get("orchestrix.link.kind")),
            f"{one.context.trace_id:032x}",
            f"{one.context.span_id:016x}",
        )
        for one in span.links
    ]


def attribute(span: ReadableSpan, name: str) -> Any:
    """The value of an attribute; None where it has none of that name."""
    return (span.attributes or {}).get(name)
