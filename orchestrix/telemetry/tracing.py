"""Tracing: begins spans, or passes on the context of others where none are to be made.

Without the OpenTelemetry SDK, with `OTEL_SDK_DISABLED=true`, without an exporter, and for a trace that its client does
not keep, no span object is made, and the context is passed on as it came. `telemetry.sdk` makes the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import datetime
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from orchestrix import clock
from orchestrix.telemetry.conventions import LINK_CONTINUED, LINK_KIND
from orchestrix.telemetry.trace_context import TraceContext

Value = str | int | float | bool
Attributes = Mapping[str, Value]

DEFAULT_SPLIT_AFTER_S: Final = 300.0


class SpanKind(Enum):
    """The kinds of OpenTelemetry."""

    INTERNAL = 0
    SERVER = 1
    CLIENT = 2
    PRODUCER = 3
    CONSUMER = 4


class SpanLink(NamedTuple):
    """A link to another span, and of which kind it is (`orchestrix.link.kind`)."""

    context: TraceContext
    kind: str


class Span(Protocol):
    """A span, or what stands for one that is not made."""

    @property
    def context(self) -> TraceContext | None:
        """What follows from it carries this; None where there is no trace."""

    @property
    def recording(self) -> bool:
        """Whether what is said of it is kept: otherwise attributes need not be made."""

    def set(self, attributes: Attributes) -> None:
        """Sets attributes."""

    def rename(self, name: str) -> None:
        """It is called so, as it turns out."""

    def link(self, link: SpanLink) -> None:
        """Links to another span."""

    def fail(self, error_type: str, description: str = "") -> None:
        """Its status is ERROR. `error_type` is a class or a code, never a text with ids in it."""

    def active(self) -> AbstractContextManager[object]:
        """It is the current span of OpenTelemetry in the block."""

    def end(self) -> None:
        """It ends now. A second end changes nothing."""


class ForwardedContext:
    """Stands for a span that is not made: passes on the context that came."""

    __slots__ = ("context",)
    recording = False

    def __init__(self, context: TraceContext | None) -> None:
        self.context = context

    def set(self, attributes: Attributes) -> None:
        """Nothing is kept."""

    def rename(self, name: str) -> None:
        """Nothing is kept."""

    def link(self, link: SpanLink) -> None:
        """Nothing is kept."""

    def fail(self, error_type: str, description: str = "") -> None:
        """Nothing is kept."""

    def active(self) -> AbstractContextManager[object]:
        """Instrumentation of the user's own code sees the span that the context names."""
        return _factory.remote(self.context) if _factory is not None and self.context is not None else _NOTHING

    def end(self) -> None:
        """Nothing is kept."""


class _Nothing:
    """A block in which nothing is changed."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


_NOTHING: Final = _Nothing()
NO_SPAN: Final = ForwardedContext(None)


class SpanFactory(Protocol):
    """Makes spans that are kept, or none where a new trace is not."""

    split_after_s: float

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext | None,
        links: Sequence[SpanLink],
        attributes: Attributes | None,
        span_id: int | None,
    ) -> Span:
        """A new span, the root of a trace without a `parent`; one that links to a kept span is kept too."""

    def remote(self, context: TraceContext) -> AbstractContextManager[object]:
        """A span of another process, which is not kept, is the current one of OpenTelemetry in the block."""

    def current(self) -> Any:
        """The current span object of OpenTelemetry."""

    def stop(self, timeout_s: float) -> None:
        """Exports what has ended, and ends."""


_factory: SpanFactory | None = None
_current: ContextVar[Span | None] = ContextVar("orchestrix_span", default=None)


def install(factory: SpanFactory | None) -> SpanFactory | None:
    """From now on `factory` makes the spans of this process; the former one is returned."""
    global _factory
    former, _factory = _factory, factory
    return former


def enabled() -> bool:
    """Whether spans are made at all."""
    return _factory is not None


def begin(
    name: str,
    kind: SpanKind = SpanKind.INTERNAL,
    parent: TraceContext | None = None,
    *,
    links: Sequence[SpanLink] = (),
    attributes: Attributes | None = None,
    since: datetime | None = None,
    span_id: int | None = None,
) -> Span:
    """Begins a span under `parent`; without one it is the root of a new trace.

    Where `since`, the time at which what `parent` has left was left, is more than `ORCHESTRIX_TRACES__SPLIT_AFTER` ago,
    the span is the root of a new trace that links back. Under a parent that is not kept nothing is made. `span_id` is
    used where it is given.
    """
    factory = _factory
    if factory is None or (parent is not None and not parent.sampled):
        return NO_SPAN if parent is None else ForwardedContext(parent)
    if parent is not None and since is not None and (clock.now() - since).total_seconds() > factory.split_after_s:
        links, parent = [SpanLink(parent, LINK_CONTINUED), *links], None
    return factory.start(name, kind, parent, links, attributes, span_id)


def begin_root(
    name: str, kind: SpanKind, back: TraceContext | None, link_kind: str, attributes: Attributes | None = None
) -> Span:
    """Begins the root of a new trace that links back to `back`, if there is one; nothing under one that is not kept."""
    if _factory is None or (back is not None and not back.sampled):
        return NO_SPAN if back is None else ForwardedContext(back)
    links = [] if back is None else [SpanLink(back, link_kind)]
    return _factory.start(name, kind, None, links, attributes, None)


@contextmanager
def active(span: Span) -> Iterator[Span]:
    """`span` is the current one in the block and in the tasks that it starts: their log lines name it."""
    token = _current.set(span)
    try:
        with span.active():
            yield span
    finally:
        _current.reset(token)


def current_span() -> Span | None:
    """The span that is `active` here."""
    return _current.get()


def current_context() -> TraceContext | None:
    """The context of the span that is active here."""
    span = _current.get()
    return None if span is None else span.context


def otel_span() -> Any:
    """The current span object of OpenTelemetry, for users' own attributes and events; one that keeps nothing where
    there is none."""
    if _factory is not None:
        return _factory.current()
    from opentelemetry import trace

    return trace.INVALID_SPAN


def link_attributes(link: SpanLink) -> dict[str, str]:
    """The attributes of a link."""
    return {LINK_KIND: link.kind}


def stop(timeout_s: float) -> None:
    """Exports what has ended within `timeout_s` seconds; from then on no spans are made."""
    former = install(None)
    if former is not None:
        former.stop(timeout_s)
