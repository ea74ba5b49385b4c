"""OTLP receiver: a server on loopback that takes spans and metrics as a collector does, by protobuf over HTTP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeVar

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.support import eventually, eventually_sync

KINDS: Final = {1: "INTERNAL", 2: "SERVER", 3: "CLIENT", 4: "PRODUCER", 5: "CONSUMER"}
STATUS: Final = {0: "UNSET", 1: "OK", 2: "ERROR"}


@dataclass(frozen=True, slots=True)
class ReceivedLink:
    """A link of a span."""

    trace_id: str
    span_id: str
    kind: str | None
    """`orchestrix.link.kind`."""


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """A span as it came over the wire; ids are lower-case hexadecimal, times nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: str
    start_ns: int
    end_ns: int
    status: str
    status_message: str
    flags: int
    attributes: Mapping[str, Any]
    links: tuple[ReceivedLink, ...]
    events: tuple[tuple[str, Mapping[str, Any]], ...]
    resource: Mapping[str, Any] = field(repr=False)
    scope: str = ""
    schema_url: str = ""

    @property
    def service(self) -> str | None:
        """`service.name` of its process."""
        return self.resource.get("service.name")

    @property
    def instance(self) -> str | None:
        """`service.instance.id` of its process."""
        return self.resource.get("service.instance.id")


@dataclass(frozen=True, slots=True)
class ReceivedMetric:
    """A metric as it came over the wire. `points` are its values by attributes: a number, or `(count, sum)`."""

    name: str
    kind: str
    unit: str
    points: Sequence[tuple[Mapping[str, Any], Any]]
    traces: frozenset[str]
    """The traces of its exemplars."""
    resource: Mapping[str, Any] = field(repr=False)
    scope: str = ""

    @property
    def service(self) -> str | None:
        """`service.name` of its process."""
        return self.resource.get("service.name")

    @property
    def instance(self) -> str | None:
        """`service.instance.id` of its process."""
        return self.resource.get("service.instance.id")


class OtlpReceiver:
    """What has been received. `environment()` makes a process send its spans here, at once."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[ExportTraceServiceRequest] = []
        self._spans: list[ReceivedSpan] = []
        self._metrics: list[ReceivedMetric] = []
        self._lock = threading.Lock()

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process that sends its spans here. Proxies are for other hosts."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
            "NO_PROXY": "127.0.0.1",
            **more,
        }

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keeps what one request holds."""
        with self._lock:
            self.requests.append(request)
            self._spans.extend(_spans(request))

    def take_metrics(self, request: ExportMetricsServiceRequest) -> None:
        """Keeps what one request holds."""
        with self._lock:
            self._metrics.extend(_metrics(request))

    def metrics(self, name: str) -> list[ReceivedMetric]:
        """What has come of one metric so far, in the order in which it came."""
        with self._lock:
            return [one for one in self._metrics if one.name == name]

    def spans(self) -> list[ReceivedSpan]:
        """All spans so far, in the order in which they came."""
        with self._lock:
            return list(self._spans)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """The spans of one trace, by their start."""
        return sorted((one for one in self.spans() if one.trace_id == trace_id), key=lambda one: one.start_ns)

    async def wait_for(
        self, predicate: Callable[[list[ReceivedSpan]], Any], *, deadline: float = 30.0, message: str = "spans come"
    ) -> list[ReceivedSpan]:
        """Waits until `predicate` holds for all spans so far, and returns these."""
        await eventually(lambda: bool(predicate(self.spans())), deadline=deadline, message=message)
        return self.spans()

    def wait_for_sync(
        self, predicate: Callable[[list[ReceivedSpan]], Any], *, deadline: float = 30.0, message: str = "spans come"
    ) -> list[ReceivedSpan]:
        """`wait_for` for tests without an event loop."""
        eventually_sync(lambda: bool(predicate(self.spans())), deadline=deadline, message=message)
        return self.spans()


R = TypeVar("R", bound=OtlpReceiver)


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """A receiver that listens until the block ends."""
    with receiving(OtlpReceiver) as receiver:
        yield receiver


@contextmanager
def receiving(kind: type[R]) -> Iterator[R]:
    """A receiver of that kind, which listens until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            taken = self.headers.get("Content-Type") == "application/x-protobuf"
            if taken and self.path == "/v1/traces":
                request = ExportTraceServiceRequest()
                request.ParseFromString(body)
                receiver.take(request)
                answer = ExportTraceServiceResponse().SerializeToString()
            elif taken and self.path == "/v1/metrics":
                measured = ExportMetricsServiceRequest()
                measured.ParseFromString(body)
                receiver.take_metrics(measured)
                answer = ExportMetricsServiceResponse().SerializeToString()
            else:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = kind(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="otlp-receiver", daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def _spans(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_resource in request.resource_spans:
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_spans:
            for span in of_scope.spans:
                yield ReceivedSpan(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex() or None,
                    name=span.name,
                    kind=KINDS.get(span.kind, str(span.kind)),
                    start_ns=span.start_time_unix_nano,
                    end_ns=span.end_time_unix_nano,
                    status=STATUS.get(span.status.code, str(span.status.code)),
                    status_message=span.status.message,
                    flags=span.flags,
                    attributes=_attributes(span.attributes),
                    links=tuple(_link(one) for one in span.links),
                    events=tuple((one.name, _attributes(one.attributes)) for one in span.events),
                    resource=resource,
                    scope=of_scope.scope.name,
                    schema_url=of_scope.schema_url,
                )


def _metrics(request: ExportMetricsServiceRequest) -> Iterator[ReceivedMetric]:
    for of_resource in request.resource_metrics:
        resource = _attributes(of_resource.resource.attributes)
        for of_scope in of_resource.scope_metrics:
            for metric in of_scope.metrics:
                kind = str(metric.WhichOneof("data"))
                points = getattr(metric, kind).data_points
                traces = {one.trace_id.hex() for point in points for one in point.exemplars}
                yield ReceivedMetric(
                    name=metric.name,
                    kind=kind,
                    unit=metric.unit,
                    points=[(_attributes(point.attributes), _measured(point)) for point in points],
                    traces=frozenset(traces),
                    resource=resource,
                    scope=of_scope.scope.name,
                )


def _measured(point: Any) -> Any:
    if hasattr(point, "bucket_counts"):
        return point.count, point.sum
    return point.as_int if point.WhichOneof("value") == "as_int" else point.as_double


def _link(link: Any) -> ReceivedLink:
    kind = _attributes(link.attributes).get("orchestrix.link.kind")
    return ReceivedLink(link.trace_id.hex(), link.span_id.hex(), kind)


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind) if kind is not None else None
