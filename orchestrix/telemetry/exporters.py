"""Exporters: where the spans and metrics of a process go, by OpenTelemetry's own environment variables and the local
store.

Without a receiver and without a store, and with `OTEL_SDK_DISABLED=true`, no spans are made. Metrics are counted all
the same, for whoever scrapes them.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import sqlite3
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from orchestrix.telemetry import tracing
from orchestrix.telemetry.conventions import LINK_KIND, SERVICE_INSTANCE_ID, SERVICE_NAME
from orchestrix.telemetry.local_store import LocalStore, StoredSpan
from orchestrix.telemetry.log_throttle import LogThrottle

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan

    from orchestrix.telemetry.span_batches import SpanBatches

log = logging.getLogger("orchestrix.telemetry")

TRACES, METRICS = "traces", "metrics"
PROTOCOL: Final = "http/protobuf"
EXTRA: Final = "orchestrix-sagas[otel]"
NOT_INSTALLED: Final = f"are not exported: install {EXTRA}"
METRIC_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
METRIC_INTERVAL_MS: Final = 60_000
STOP_TIMEOUT_S: Final = 2.0
"""Seconds that a process has at its end to send its last spans."""
STORE_DELAY_S: Final = 0.2
SDK_LOG_INTERVAL_S: Final = 60.0
HEADERS_LOGGER: Final = "opentelemetry.util.re"
"""What it logs has the header in it, and that a token."""
BAD_HEADERS: Final = "write OTEL_EXPORTER_OTLP_HEADERS like name=value,name=value, URL-encoded: one is not sent"
MAX_STORED_CHARS: Final = 4096
"""A longer text of an attribute is cut in the local store."""


def setup(service: str, instance: str, split_after_s: float, store: Path | None = None) -> None:
    """From now on spans are made, and go to the receiver of the environment and into `store`, if there is any.

    To be called when the user's modules are imported: they may have set a provider of their own, which stays the
    global one. `service` is the role of the process, such as `orchestrix-worker`; `instance` the id of its node or
    worker. What cannot be done is one warning.
    """
    if _is_true("OTEL_SDK_DISABLED"):
        return
    wanted = _receiver_wanted(TRACES)
    if not wanted and store is None:
        return
    try:
        from orchestrix.telemetry.sdk import adopt_globally, span_factory
    except ImportError:
        if wanted:
            log.warning("%s %s", TRACES, NOT_INSTALLED)
        return
    processors = _processors(wanted, store)
    if processors:
        factory = span_factory(processors, service=service, instance=instance, split_after_s=split_after_s)
        tracing.install(factory)
        adopt_globally(factory)


def trace_endpoint() -> str | None:
    """The receiver of traces that the environment names, if it names one."""
    variable = _first_set(TRACES, "ENDPOINT")
    return os.environ[variable] if variable else None


def setup_metrics(service: str, instance: str) -> None:
    """From now on metrics are sent to the receiver of the environment, if there is one; as `setup` otherwise."""
    if _is_true("OTEL_SDK_DISABLED") or not _receiver_wanted(METRICS):
        return
    try:
        from orchestrix.telemetry.metrics import otlp
        from orchestrix.telemetry.sdk import resource_of
        from orchestrix.telemetry.span_batches import positive

        sender = OtlpMetricSender()
    except ImportError:
        log.warning("%s %s", METRICS, NOT_INSTALLED)
    except Exception as error:  # as in `_otlp`
        log.warning("metrics are not exported: %s: %s", type(error).__name__, error)
    else:
        interval_s = positive(METRIC_INTERVAL, METRIC_INTERVAL_MS) / 1000
        otlp.start(sender, interval_s, resource_of(service, instance))


def stop_metrics(timeout_s: float) -> None:
    """Sends the metrics a last time, for at most so many seconds."""
    if (otlp := sys.modules.get("orchestrix.telemetry.metrics.otlp")) is not None:
        otlp.stop(timeout_s)


def what_to_change() -> str:
    """What has to be done that spans are made, where none are: the end of a sentence."""
    if _is_true("OTEL_SDK_DISABLED"):
        return "unset OTEL_SDK_DISABLED and start again"
    install = "" if _is_installed() else f"install {EXTRA} and start again; "
    return f"{install}`orchestrix dev` keeps traces by itself, others need OTEL_EXPORTER_OTLP_ENDPOINT"


def quiet_sdk() -> None:
    """What OpenTelemetry logs becomes single lines of ours, each kind once in a while and without stack traces.

    For processes whose logs are ours alone.
    """
    logger = logging.getLogger("opentelemetry")
    logger.handlers[:] = [SdkLogHandler()]
    logger.propagate = False


class SdkLogHandler(logging.Handler):
    """Writes what libraries of OpenTelemetry warn of as one line, at most once a minute for each library."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._throttle = LogThrottle(SDK_LOG_INTERVAL_S)

    def emit(self, record: logging.LogRecord) -> None:
        """One line of the logger `orchestrix.telemetry`, at warning."""
        library = ".".join(record.name.split(".")[:3])
        left_out = self._throttle.due(library)
        if left_out is None:
            return
        try:
            text = BAD_HEADERS if record.name == HEADERS_LOGGER else " ".join(record.getMessage().split())
        except Exception:  # arguments that do not fit, or whose text cannot be made
            text = str(record.msg)
        signal = METRICS if "metric" in record.name else TRACES
        log.warning("%s: %s", signal, text, extra={"left_out": left_out} if left_out else None)


def _processors(wanted: bool, store: Path | None) -> list[SpanBatches]:
    from orchestrix.telemetry.span_batches import BatchLimits, SpanBatches

    limits, processors = BatchLimits.of_environment(), []
    if wanted and (sender := _otlp()) is not None:
        processors.append(SpanBatches(sender, limits))
    if store is not None:
        of_store = BatchLimits(min(STORE_DELAY_S, limits.delay_s), queue=4 * BatchLimits().queue)
        processors.append(SpanBatches(StoreExporter(LocalStore(store)), of_store))
    return processors


def _receiver_wanted(signal: str) -> bool:
    """Whether the environment names a receiver that we can send `TRACES` or `METRICS` to; what it names and we cannot
    is one warning.
    """
    variable = f"OTEL_{signal.upper()}_EXPORTER"
    endpoint, protocol = _first_set(signal, "ENDPOINT"), _first_set(signal, "PROTOCOL")
    exporters = {one.strip() for one in os.environ.get(variable, "").split(",")} - {""}
    if signal == METRICS:
        exporters -= {"prometheus"}  # that is `/metrics`
    if "none" in exporters or (not endpoint and exporters <= {"otlp"}):
        return False
    if exporters and "otlp" not in exporters:
        wrong = f"{variable}={','.join(sorted(exporters))} is not built in; use otlp, or none"
    elif protocol and _given(protocol) != PROTOCOL:
        wrong = f"{protocol}={_given(protocol)} is not built in; set it to {PROTOCOL} (usually at port 4318)"
    elif not _is_http_url(_given(endpoint)):
        wrong = f"write {endpoint} like http://localhost:4318"
    else:
        return True
    log.warning("%s are not exported: %s", signal, wrong)
    return False


def _first_set(signal: str, what: str) -> str:
    names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_{what}", f"OTEL_EXPORTER_OTLP_{what}")
    return next((name for name in names if _given(name)), "")


def _given(name: str) -> str:
    return os.environ.get(name, "").strip()


def _otlp() -> OtlpSender | None:
    try:
        return OtlpSender()
    except ImportError:
        log.warning("%s %s", TRACES, NOT_INSTALLED)
    except Exception as error:  # a certificate that is not there, a bad header: the SDK reads its variables itself
        log.warning("traces are not exported: %s: %s", type(error).__name__, error)
    return None


class OtlpSender:
    """Sends spans by OTLP (`http/protobuf`) to where the environment says."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        self._exporter, self._success = OTLPSpanExporter(), SpanExportResult.SUCCESS

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """Whether the receiver has taken them. May wait for as long as `OTEL_EXPORTER_OTLP_TIMEOUT`."""
        return self._exporter.export(spans) is self._success

    def close(self) -> None:
        """Ends a `send` that waits for its next try."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class OtlpMetricSender:
    """Sends metrics by OTLP (`http/protobuf`) to where the environment says."""

    def __init__(self) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult

        self._exporter, self._success = OTLPMetricExporter(), MetricExportResult.SUCCESS

    def send(self, data: MetricsData) -> bool:
        """Whether the receiver has taken them. May wait for as long as `OTEL_EXPORTER_OTLP_TIMEOUT`."""
        return self._exporter.export(data) is self._success

    def close(self) -> None:
        """Ends a `send` that waits for its next try."""
        self._exporter.shutdown()


class StoreExporter:
    """Writes spans into the local store."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        """They are written. Raises `Unstored` if they are not."""
        try:
            self._store.write([stored(one) for one in spans])
        except (OSError, sqlite3.Error) as error:
            raise Unstored(str(error)) from error
        return True

    def close(self) -> None:
        """Closes the file, unless a thread still writes."""
        self._store.close()


class Unstored(Exception):
    """The local store has not taken spans."""


def stored(span: ReadableSpan) -> StoredSpan:
    """A span as the local store keeps it."""
    context = span.get_span_context()
    assert context is not None
    begun, ended = span.start_time or 0, span.end_time or span.start_time or 0
    body = {
        "spanId": f"{context.span_id:016x}",
        "parentSpanId": None if span.parent is None else f"{span.parent.span_id:016x}",
        "name": _text(span.name),
        "kind": span.kind.name,
        "service": span.resource.attributes.get(SERVICE_NAME),
        "node": span.resource.attributes.get(SERVICE_INSTANCE_ID),
        "startTime": _moment(begun),
        "endTime": _moment(ended),
        "durationMs": round((ended - begun) / 1e6, 3),
        "status": {"code": span.status.status_code.name, "message": _value(span.status.description)},
        "attributes": _values(span.attributes),
        "links": [
            {
                "traceId": f"{one.context.trace_id:032x}",
                "spanId": f"{one.context.span_id:016x}",
                "kind": (one.attributes or {}).get(LINK_KIND),
            }
            for one in span.links
        ],
        "events": [
            {"name": _text(one.name), "time": _moment(one.timestamp), "attributes": _values(one.attributes)}
            for one in span.events
        ],
    }
    return StoredSpan(f"{context.trace_id:032x}", begun, body)


def _values(attributes: Any) -> dict[str, Any]:
    return {_text(name): _value(value) for name, value in (attributes or {}).items()}


def _value(value: Any) -> Any:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_value(one) for one in value]
    return _text(str(value))


def _text(text: str) -> str:
    """Its begin, without what is no Unicode."""
    text = text[:MAX_STORED_CHARS]
    return text if text.isascii() else text.encode(errors="replace").decode()


def _moment(nanoseconds: int) -> str:
    moment = datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{nanoseconds // 1000 % 1_000_000:06}Z"


def _is_installed() -> bool:
    try:
        return importlib.util.find_spec("opentelemetry.sdk") is not None
    except ModuleNotFoundError:
        return False


def _is_true(name: str) -> bool:
    return _given(name).lower() == "true"


def _is_http_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
