"""OTLP metrics: sends the metrics of a process to a receiver, by OpenTelemetry's own environment variables.

Counters and gauges are observable instruments of OpenTelemetry's API, whose provider becomes the global one unless the
user's modules have set theirs: so instruments of one's own are sent too. Histograms join them as data points, for the
API has none that are observed, and its other ones cost too much for each message. All sums count from the start of the
process (cumulative).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

from opentelemetry import metrics as api
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY as SUPPRESS_INSTRUMENTATION
from opentelemetry.context import attach, set_value
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import Exemplar as OtelExemplar
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    MetricReader,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.sdk.metrics.export import Metric as OtelMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from orchestrix import clock, fork_safety
from orchestrix.telemetry.conventions import SCHEMA_URL, SCOPE
from orchestrix.telemetry.log_throttle import LogThrottle
from orchestrix.telemetry.metrics.catalogue import CATALOGUE
from orchestrix.telemetry.metrics.cells import Distribution
from orchestrix.telemetry.metrics.definitions import Kind, Metric
from orchestrix.telemetry.metrics.instruments import PROCESS, Labels, Registry
from orchestrix.version import VERSION

log = logging.getLogger("orchestrix.telemetry")

LOG_INTERVAL_S: Final = 60.0
_NANO: Final = 1_000_000_000


class MetricSender(Protocol):
    """Takes metrics away; called in one thread."""

    def send(self, data: MetricsData) -> bool:
        """Whether they have been taken. May wait."""

    def close(self) -> None:
        """Nothing follows. A `send` that waits in another thread ends soon."""


class MetricPublisher(MetricReader):
    """Sends all metrics by `sender` every `interval_s` seconds, and at the end, in a thread of its own.

    In place of the SDK's periodic reader, whose end waits for the exporter's retries, and which runs in forked
    processes too.
    """

    def __init__(
        self, sender: MetricSender, interval_s: float, resource: Resource, registry: Registry = PROCESS
    ) -> None:
        super().__init__()
        self._sender, self._interval_s, self._registry = sender, interval_s, registry
        self._begun_ns = _now_ns()
        self._stopping = threading.Event()
        self._abandoned = False
        self._throttle = LogThrottle(LOG_INTERVAL_S)
        self._resource = resource
        self._forget = fork_safety.on_fork(self._in_child)
        self.provider = MeterProvider([self], resource=resource, shutdown_on_exit=False)
        _observe(self.provider, registry)
        self._thread = threading.Thread(target=self._run, name="orchestrix-metrics", daemon=True)

    def begin(self) -> None:
        """Begins to send."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Sends them a last time, for at most so many seconds."""
        self._stopping.set()
        self._forget()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._abandoned = True
            self._sender.close()

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """As the base class."""
        self.stop(timeout_millis / 1000)

    def _run(self) -> None:
        attach(set_value(SUPPRESS_INSTRUMENTATION, True))  # the sending is no part of any trace
        while not self._stopping.wait(self._interval_s):
            self._publish()
        self._publish()
        if not self._abandoned:
            self._sender.close()

    def _publish(self) -> None:
        try:
            self.collect()
        except Exception as error:  # of a user's own instruments, or of the exporter
            self._report(f"{type(error).__name__}: {error}")

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **_: Any) -> None:
        if not self._sender.send(with_histograms(metrics_data, self._resource, self._registry, self._begun_ns)):
            self._report("they were not taken")

    def _report(self, why: str) -> None:
        """Says so now and then. What is not taken at the end is no news: the receiver is away, as before."""
        if not self._stopping.is_set() and self._throttle.due(why) is not None:
            log.warning("metrics are not exported: %s", why)

    def _in_child(self) -> None:
        """In a forked process there is no thread, and the metrics are its parent's."""
        self._abandoned = True


def with_histograms(data: MetricsData, resource: Resource, registry: Registry, begun_ns: int) -> MetricsData:
    """`data` and the histograms of the registry, as measured since `begun_ns`."""
    now = _now_ns()
    measured = [
        _histogram(metric, values, begun_ns, now)
        for metric, values in registry.snapshot()
        if metric.kind is Kind.HISTOGRAM
    ]
    scopes = [one for of_resource in data.resource_metrics for one in of_resource.scope_metrics]
    ours = [metric for one in scopes if one.scope.name == SCOPE for metric in one.metrics]
    # One of each scope: the exporter keeps the last of those that are equal.
    scope = ScopeMetrics(InstrumentationScope(SCOPE, VERSION, SCHEMA_URL), [*ours, *measured], SCHEMA_URL)
    others = [one for one in scopes if one.scope.name != SCOPE]
    return MetricsData([ResourceMetrics(resource, [*others, scope], SCHEMA_URL)])


def _histogram(metric: Metric, values: dict[Labels, Any], begun_ns: int, now_ns: int) -> OtelMetric:
    points = [_point(metric, labels, value, begun_ns, now_ns) for labels, value in values.items()]
    return OtelMetric(metric.name, metric.help, metric.unit, Histogram(points, AggregationTemporality.CUMULATIVE))


def _point(metric: Metric, labels: Labels, value: Distribution, begun_ns: int, now_ns: int) -> HistogramDataPoint:
    exemplars = [
        OtelExemplar({}, one.value, now_ns, int(one.context.span_id, 16), int(one.context.trace_id, 16))
        for one in value.exemplars
        if one is not None
    ]
    return HistogramDataPoint(
        attributes=_attributes(metric, labels),
        start_time_unix_nano=begun_ns,
        time_unix_nano=now_ns,
        count=sum(value.counts),
        sum=value.total,
        bucket_counts=value.counts,
        explicit_bounds=metric.buckets,
        min=None,  # type: ignore[arg-type]  # not kept
        max=None,  # type: ignore[arg-type]
        exemplars=exemplars,
    )


def _observe(provider: api.MeterProvider, registry: Registry) -> None:
    meter = provider.get_meter(SCOPE, VERSION, SCHEMA_URL)
    for metric in CATALOGUE:
        if metric.kind is Kind.COUNTER:
            meter.create_observable_counter(metric.name, [_reader(metric, registry)], metric.unit, metric.help)
        elif metric.kind is Kind.GAUGE:
            meter.create_observable_gauge(metric.name, [_reader(metric, registry)], metric.unit, metric.help)


def _reader(metric: Metric, registry: Registry) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Sequence[Observation]:
        values = registry.values(metric)
        return [Observation(value, _attributes(metric, labels)) for labels, value in values.items()]

    return read


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    pairs = zip(metric.labels, labels, strict=True)
    return {label.key: value for label, value in pairs if value}


def _now_ns() -> int:
    return round(clock.now().timestamp() * _NANO)


_publisher: MetricPublisher | None = None


def start(sender: MetricSender, interval_s: float, resource: Resource) -> None:
    """From now on the metrics of this process are sent; the former sending has ended."""
    global _publisher
    stop(0.0)
    _publisher = MetricPublisher(sender, interval_s, resource)
    _publisher.begin()
    if isinstance(api.get_meter_provider(), api._internal._ProxyMeterProvider):  # the user's modules have set none
        api.set_meter_provider(_publisher.provider)


def stop(timeout_s: float) -> None:
    """Sends the metrics a last time, for at most so many seconds, and ends."""
    global _publisher
    former, _publisher = _publisher, None
    if former is not None:
        former.stop(timeout_s)
