"""Do metrics go where the environment says, and never make their process wait?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from opentelemetry.metrics import get_meter_provider

from orchestrix import clock
from orchestrix.telemetry import exporters
from orchestrix.telemetry.metrics.catalogue import NODES_DIED, SAGA_DURATION, SAGA_STARTED
from orchestrix.telemetry.metrics.instruments import counter, histogram
from orchestrix.telemetry.trace_context import TraceContext
from tests.otlp import OtlpReceiver
from tests.support import free_port
from tests.unit.telemetry.test_exporters import Environment, environment

__all__ = ["environment"]
NO_EXPORT = "metrics are not exported: "
CONTEXT = TraceContext(f"00-{'c' * 32}-{'1' * 16}-01")


@pytest.fixture(autouse=True)
def _own_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """The global provider lasts as long as the process."""
    monkeypatch.setattr("opentelemetry.metrics.set_meter_provider", lambda provider: None)
    counter(NODES_DIED)


def sent(otlp: OtlpReceiver) -> bool:
    """Whether metrics of this process have come, once it has stopped sending."""
    exporters.setup_metrics("orchestrix-worker", "w-1")
    exporters.stop_metrics(10)
    return bool(otlp.metrics(NODES_DIED.name))


def test_metrics_reach_the_receiver_with_their_process_and_the_traces_they_are_of(
    environment: Environment, otlp: OtlpReceiver
) -> None:
    environment.set(**otlp.environment(OTEL_METRIC_EXPORT_INTERVAL="3600000"))
    counter(SAGA_STARTED).at("otlp").add(3)
    histogram(SAGA_DURATION).at("otlp").record(2.5, CONTEXT)
    assert sent(otlp), "what was counted so far is sent at the end"
    (started,) = otlp.metrics("saga.started")
    assert (started.kind, started.unit, started.scope) == ("sum", "{saga}", "orchestrix")
    assert (started.service, started.instance) == ("orchestrix-worker", "w-1")
    assert ({"saga": "otlp"}, 3) in started.points
    (took,) = otlp.metrics("saga.duration")
    assert (took.kind, took.unit) == ("histogram", "s")
    assert ({"saga": "otlp"}, (1, 2.5)) in took.points
    assert "c" * 32 in took.traces
    assert environment.warnings == []


def test_they_are_sent_again_and_again(environment: Environment, otlp: OtlpReceiver) -> None:
    environment.set(**otlp.environment(OTEL_METRIC_EXPORT_INTERVAL="20"))
    exporters.setup_metrics("orchestrix-worker", "w-1")
    otlp.wait_for_sync(lambda _: len(otlp.metrics(NODES_DIED.name)) >= 3, message="metrics come")
    exporters.stop_metrics(10)


@pytest.mark.parametrize(
    ("variables", "comes"),
    [
        ({"OTEL_METRICS_EXPORTER": "none"}, False),
        ({"OTEL_METRICS_EXPORTER": "otlp"}, True),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, True),
        ({"OTEL_TRACES_EXPORTER": "none"}, True),
        ({"OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
    ],
)
def test_what_the_environment_wants(
    variables: dict[str, str], comes: bool, environment: Environment, otlp: OtlpReceiver
) -> None:
    environment.set(**{**otlp.environment(), **variables})
    assert sent(otlp) is comes
    assert environment.warnings == []


def test_the_endpoint_of_metrics_alone_is_taken_as_it_is(environment: Environment, otlp: OtlpReceiver) -> None:
    environment.set(OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{otlp.url}/v1/metrics")
    assert sent(otlp)
    assert not environment.begin(), "that is no receiver of traces"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_METRICS_EXPORTER": "console"}, "OTEL_METRICS_EXPORTER=console is not built in; use otlp, or none"),
        ({"OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=grpc is not built in"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector"}, "write OTEL_EXPORTER_OTLP_ENDPOINT like http://localhost:4318"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    variables: dict[str, str], said: str, environment: Environment, otlp: OtlpReceiver
) -> None:
    environment.set(**{**otlp.environment(), **variables})
    assert not sent(otlp)
    (line,) = environment.warnings
    assert line.startswith(NO_EXPORT + said)


def test_without_the_packages_one_line_says_what_to_install(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    environment.set(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")
    exporters.setup_metrics("orchestrix-worker", "w-1")
    assert environment.warnings == [f"{NO_EXPORT}install orchestrix-sagas[otel]"]


def test_a_receiver_that_is_away_costs_no_time(environment: Environment) -> None:
    environment.set(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}", OTEL_METRIC_EXPORT_INTERVAL="10")
    exporters.setup_metrics("orchestrix-worker", "w-1")
    begun = clock.monotonic()
    exporters.stop_metrics(exporters.STOP_TIMEOUT_S / 4)
    assert clock.monotonic() - begun < exporters.STOP_TIMEOUT_S


def test_instruments_of_ones_own_are_sent_unless_the_user_has_a_provider_and_children_send_nothing(
    otlp: OtlpReceiver,
) -> None:
    program = """
import os, sys
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from orchestrix.telemetry import exporters
from orchestrix.telemetry.metrics.catalogue import NODES_DIED
from orchestrix.telemetry.metrics.instruments import counter
counter(NODES_DIED)
theirs = MeterProvider()
if sys.argv[1] == "own":
    metrics.set_meter_provider(theirs)
exporters.setup_metrics("orchestrix-worker", sys.argv[1])
metrics.get_meter("shop").create_counter("shop.sold").add(2)
child = os.fork()
if not child:
    exporters.stop_metrics(10)
    os._exit(0)
os.waitpid(child, 0)
assert (metrics.get_meter_provider() is theirs) == (sys.argv[1] == "own")
exporters.stop_metrics(10)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment |= otlp.environment(OTEL_METRIC_EXPORT_INTERVAL="3600000")
    for which in ("own", "none"):
        done = subprocess.run(
            [sys.executable, "-c", program, which], capture_output=True, text=True, timeout=60, env=environment
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert [(one.instance, one.points) for one in otlp.metrics("shop.sold")] == [("none", [({}, 2)])]
    assert [one.instance for one in otlp.metrics(NODES_DIED.name)] == ["own", "none"]


def test_the_provider_of_this_process_is_left_as_it_was() -> None:
    assert type(get_meter_provider()).__name__ == "_ProxyMeterProvider"
