"""SDK: makes spans by the OpenTelemetry SDK; only it and `span_batches` need that to be installed.

The SDK itself reads its environment variables: sampler, limits, batches, resource attributes, endpoint and headers.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.sdk.trace.sampling import _get_from_env_or_default as sampler_of_environment
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.trace import SpanKind as OtelKind

from orchestrix import clock
from orchestrix.quantities import counted
from orchestrix.telemetry.conventions import (
    ERROR_TYPE,
    SCHEMA_URL,
    SCOPE,
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    SERVICE_NAMESPACE,
    SERVICE_VERSION,
)
from orchestrix.telemetry.log_throttle import LogThrottle
from orchestrix.telemetry.span_batches import SpanBatches, stop_all
from orchestrix.telemetry.trace_context import TraceContext
from orchestrix.telemetry.tracing import Attributes, ForwardedContext, Span, SpanKind, SpanLink, link_attributes
from orchestrix.version import VERSION

log = logging.getLogger("orchestrix.telemetry")
_failures = LogThrottle()

_KINDS: Final = {
    SpanKind.INTERNAL: OtelKind.INTERNAL,
    SpanKind.SERVER: OtelKind.SERVER,
    SpanKind.CLIENT: OtelKind.CLIENT,
    SpanKind.PRODUCER: OtelKind.PRODUCER,
    SpanKind.CONSUMER: OtelKind.CONSUMER,
}


class PresetIds(IdGenerator):
    """Random ids, but for the next span id of this thread, if that was given."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.next = threading.local()

    def generate_span_id(self) -> int:
        """The id that was given, else a random one."""
        given: int | None = getattr(self.next, "span_id", None)
        self.next.span_id = None
        return given or self._random.generate_span_id()

    def generate_trace_id(self) -> int:
        """A random id."""
        return self._random.generate_trace_id()

    def is_trace_id_random(self) -> bool:
        """It is."""
        return True


class ContinuingSampler(Sampler):
    """Keeps the root that continues a kept trace; of the others decides the sampler of the environment."""

    def __init__(self, others: Sampler) -> None:
        self._others = others

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: OtelKind | None = None,
        attributes: Any = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        """As the base class."""
        parent = trace.get_current_span(parent_context).get_span_context()
        if not parent.is_valid and links and any(link.context.trace_flags.sampled for link in links):
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)
        return self._others.should_sample(parent_context, trace_id, name, kind, attributes, links)

    def get_description(self) -> str:
        """As the base class."""
        return f"ContinuingSampler({self._others.get_description()})"


class _Current:
    """A span is the current one in the block. As `trace.use_span`, at a third of its cost: each message passes here."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def __enter__(self) -> None:
        self._token = attach(trace.set_span_in_context(self._span))

    def __exit__(self, *_: object) -> None:
        detach(self._token)


class SdkSpan:
    """A span of the SDK."""

    __slots__ = ("_span", "context")
    recording = True

    def __init__(self, span: trace.Span) -> None:
        self._span = span
        self.context: TraceContext | None = _context_of(span.get_span_context())

    def set(self, attributes: Attributes) -> None:
        """Sets attributes."""
        self._span.set_attributes(attributes)

    def rename(self, name: str) -> None:
        """It is called so, as it turns out."""
        self._span.update_name(name)

    def link(self, link: SpanLink) -> None:
        """Links to another span."""
        self._span.add_link(_span_context(link.context), link_attributes(link))

    def fail(self, error_type: str, description: str = "") -> None:
        """Its status is ERROR."""
        if not description.isascii():  # a lone surrogate would cost the whole batch of spans
            description = description.encode(errors="replace").decode()
        self._span.set_attribute(ERROR_TYPE, error_type)
        self._span.set_status(Status(StatusCode.ERROR, description or None))

    def active(self) -> AbstractContextManager[object]:
        """It is the current span in the block. Exceptions pass through it unnoticed."""
        return _Current(self._span)

    def end(self) -> None:
        """It ends now."""
        if self._span.is_recording():
            try:
                self._span.end()
            except Exception as error:  # of a processor that users have added: no reason to end the work
                _report(error)


class SdkSpanFactory:
    """Makes the spans of a process."""

    def __init__(
        self, provider: TracerProvider, ids: PresetIds, split_after_s: float, batches: Sequence[SpanBatches] = ()
    ) -> None:
        self.provider = provider
        self._batches = batches
        self.split_after_s = split_after_s
        self._ids = ids
        self._tracer = provider.get_tracer(SCOPE, VERSION, schema_url=SCHEMA_URL)

    def start(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext | None,
        links: Sequence[SpanLink],
        attributes: Attributes | None,
        span_id: int | None,
    ) -> Span:
        """A new span; what stands for one where the sampler does not keep it, or fails."""
        self._ids.next.span_id = span_id
        try:
            span = self._tracer.start_span(
                name,
                context=_parent_context(parent),
                kind=_KINDS[kind],
                attributes=attributes,
                links=[Link(_span_context(link.context), link_attributes(link)) for link in links],
            )
        except Exception as error:  # of a sampler or a processor that users have added
            _report(error)
            return ForwardedContext(parent)
        if span.is_recording():
            return SdkSpan(span)
        return ForwardedContext(_context_of(span.get_span_context()) if parent is None else parent)

    def remote(self, context: TraceContext) -> AbstractContextManager[object]:
        """A span of another process is the current one in the block."""
        return _Current(trace.NonRecordingSpan(_span_context(context)))

    def current(self) -> trace.Span:
        """The current span object."""
        return trace.get_current_span()

    def stop(self, timeout_s: float) -> None:
        """Exports what has ended, for at most `timeout_s` seconds; how many spans were lost since the start is logged.

        The processors that users have added to the provider have the rest of that time.
        """
        end = clock.monotonic() + timeout_s
        if lost := stop_all(self._batches, timeout_s):
            log.warning("%s lost since the start", counted(lost, "span"))
        others = threading.Thread(target=self.provider.shutdown, name="orchestrix-spans-end", daemon=True)
        others.start()
        others.join(max(0.0, end - clock.monotonic()))


def span_factory(
    processors: Sequence[SpanProcessor], *, service: str, instance: str, split_after_s: float
) -> SdkSpanFactory:
    """A factory whose spans go to `processors`. `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` replace the names.

    `service` is the role of the process, such as `orchestrix-worker`, and `instance` the id of its node or worker.
    """
    ids = PresetIds()
    provider = TracerProvider(
        sampler=ContinuingSampler(sampler_of_environment()),
        resource=resource_of(service, instance),
        id_generator=ids,
        shutdown_on_exit=False,
    )
    for processor in processors:
        provider.add_span_processor(processor)
    batches = [one for one in processors if isinstance(one, SpanBatches)]
    return SdkSpanFactory(provider, ids, split_after_s, batches)


def resource_of(service: str, instance: str) -> Resource:
    """What a process is; see `span_factory`."""
    own = {
        SERVICE_NAME: service,
        SERVICE_NAMESPACE: SCOPE,
        SERVICE_VERSION: VERSION,
        SERVICE_INSTANCE_ID: instance,
    }
    given = Resource.create().attributes
    named = {name: value for name, value in given.items() if name not in own or _is_given(name)}
    return Resource({**own, **named}, SCHEMA_URL)


def adopt_globally(factory: SdkSpanFactory) -> None:
    """Instrumentation of the user's own code takes this provider too, unless the user's code has set one."""
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        trace.set_tracer_provider(factory.provider)


def context_of_otel_span() -> TraceContext | None:
    """The context of OpenTelemetry's current span, whoever made it."""
    found = trace.get_current_span().get_span_context()
    return _context_of(found) if found.is_valid else None


def _report(error: Exception) -> None:
    if _failures.due(type(error).__name__) is not None:
        log.warning("a span processor or sampler has failed: %s: %s", type(error).__name__, error)


def _is_given(name: str) -> bool:
    if name == SERVICE_NAME and os.environ.get("OTEL_SERVICE_NAME"):
        return True
    return f"{name}=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")


def _context_of(found: SpanContext) -> TraceContext:
    traceparent = f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags:02x}"
    return TraceContext(traceparent, found.trace_state.to_header() or None)


@lru_cache(256)
def _span_context(context: TraceContext) -> SpanContext:
    state = TraceState.from_header([context.tracestate]) if context.tracestate else None
    return SpanContext(int(context.trace_id, 16), int(context.span_id, 16), True, TraceFlags(context.flags), state)


def _parent_context(parent: TraceContext | None) -> Context:
    if parent is None:
        return Context()
    return trace.set_span_in_context(trace.NonRecordingSpan(_span_context(parent)), Context())
