"""Do spans go where the environment says, and does whatever it says cost one line at most?"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrix import clock
from orchestrix.telemetry import exporters, sdk, tracing
from orchestrix.telemetry.local_store import LocalTraces
from orchestrix.telemetry.tracing import SpanKind, SpanLink
from tests.otlp import OtlpReceiver
from tests.support import free_port

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
INSTEAD = "is not built in; set it to http/protobuf (usually at port 4318)"
NO_EXPORT = "traces are not exported: "


class Environment:
    """What is set, and what is said about it."""

    def __init__(self, patch: pytest.MonkeyPatch, log: pytest.LogCaptureFixture) -> None:
        self._patch, self._log = patch, log
        self.adopted: list[sdk.SdkSpanFactory] = []

    def set(self, **variables: str) -> None:
        """Sets them."""
        for name, value in variables.items():
            self._patch.setenv(name, value)

    def begin(self, store: Path | None = None) -> bool:
        """Whether spans are made."""
        exporters.setup("orchestrix-worker", "w-1", 300, store)
        return tracing.enabled()

    @property
    def warnings(self) -> list[str]:
        """What was said, without the times and traces."""
        assert all(one.levelno == logging.WARNING and not one.exc_info for one in self._log.records)
        return [one.getMessage() for one in self._log.records]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Environment]:
    """Nothing is set, and no spans are made."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    found = Environment(monkeypatch, caplog)
    monkeypatch.setattr(sdk, "adopt_globally", found.adopted.append)  # it lasts as long as the process
    former = tracing.install(None)
    yield found
    tracing.stop(5)
    tracing.install(former)


def test_without_a_receiver_and_a_store_no_spans_are_made(environment: Environment) -> None:
    assert not environment.begin()
    assert environment.warnings == []


def test_spans_reach_the_receiver_with_their_process(environment: Environment, otlp: OtlpReceiver) -> None:
    environment.set(**otlp.environment())
    assert environment.begin()
    root = tracing.begin("POST /apps", SpanKind.SERVER, attributes={"saga.id": 1, "saga.compensating": False})
    child = tracing.begin("publish", SpanKind.PRODUCER, root.context)
    assert root.context is not None
    child.link(SpanLink(root.context, "retry"))
    child.fail("Refused", "no such exchange")
    child.end()
    root.end()
    tracing.stop(10)
    second, first = sorted(otlp.spans(), key=lambda one: one.name, reverse=True)
    assert (first.name, first.kind, first.parent_id, first.status) == ("POST /apps", "SERVER", None, "UNSET")
    assert first.attributes == {"saga.id": 1, "saga.compensating": False}
    assert (first.service, first.instance) == ("orchestrix-worker", "w-1")
    assert first.schema_url == "https://opentelemetry.io/schemas/1.44.0"
    assert (second.name, second.kind, second.parent_id) == ("publish", "PRODUCER", first.span_id)
    assert (second.status, second.status_message) == ("ERROR", "no such exchange")
    assert [(one.kind, one.span_id) for one in second.links] == [("retry", first.span_id)]
    assert first.start_ns <= second.start_ns <= second.end_ns <= first.end_ns
    assert len(environment.adopted) == 1
    assert environment.warnings == []


def test_the_endpoint_of_traces_alone_is_taken_as_it_is(environment: Environment, otlp: OtlpReceiver) -> None:
    environment.set(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{otlp.url}/v1/traces")
    assert environment.begin()
    tracing.begin("one").end()
    tracing.stop(10)
    assert [one.name for one in otlp.spans()] == ["one"]


@pytest.mark.parametrize("value", ["true", "TRUE", " true "])
def test_a_disabled_sdk_makes_no_spans(value: str, environment: Environment, tmp_path: Path) -> None:
    environment.set(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318", OTEL_SDK_DISABLED=value)
    assert not environment.begin(tmp_path / "traces.db")
    assert environment.warnings == []
    assert list(tmp_path.iterdir()) == []


def test_no_exporter_leaves_the_local_store(environment: Environment, otlp: OtlpReceiver, tmp_path: Path) -> None:
    environment.set(**otlp.environment(), OTEL_TRACES_EXPORTER="none")
    assert not environment.begin()
    assert environment.begin(tmp_path / "traces.db")
    span = tracing.begin("one")
    span.end()
    tracing.stop(10)
    assert span.context is not None
    assert len(LocalTraces(tmp_path / "traces.db").spans(span.context.trace_id)) == 1
    assert otlp.spans() == []
    assert environment.warnings == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin is not built in; use otlp, or none"),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            f"OTEL_EXPORTER_OTLP_PROTOCOL=grpc {INSTEAD}",
        ),
        (
            {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"},
            f"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json {INSTEAD}",
        ),
        ({ENDPOINT: "localhost:4317"}, f"write {ENDPOINT} like http://localhost:4318"),
        ({ENDPOINT: "http://"}, f"write {ENDPOINT} like http://localhost:4318"),
    ],
)
def test_what_cannot_be_done_is_one_line_that_says_what_to_do(
    given: dict[str, str], said: str, environment: Environment
) -> None:
    environment.set(**{ENDPOINT: "http://127.0.0.1:4318", **given})
    assert not environment.begin()
    assert environment.warnings == [f"{NO_EXPORT}{said}"]


def test_what_the_exporter_itself_refuses_is_one_line(environment: Environment, otlp: OtlpReceiver) -> None:
    environment.set(**otlp.environment(), OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER="none of ours")
    assert not environment.begin()
    (said,) = environment.warnings
    assert said.startswith(f"{NO_EXPORT}RuntimeError: ")


@pytest.mark.parametrize(
    "missing", ["opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http.trace_exporter"]
)
def test_without_the_packages_one_line_says_what_to_install(
    missing: str, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orchestrix.telemetry.sdk", "orchestrix.telemetry.span_batches"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    environment.set(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")
    assert not environment.begin()
    assert environment.warnings == ["traces are not exported: install orchestrix-sagas[otel]"]


def test_without_the_sdk_and_a_receiver_nothing_is_said(
    environment: Environment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "orchestrix.telemetry.sdk")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert not environment.begin(tmp_path / "traces.db")
    assert environment.warnings == []


def test_a_receiver_that_is_away_costs_two_lines_and_no_time(
    environment: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    environment.set(
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{free_port()}",
        OTEL_BSP_SCHEDULE_DELAY="10",
        OTEL_BSP_MAX_QUEUE_SIZE="50",
    )
    sdk_log = logging.getLogger("opentelemetry")
    before = sdk_log.propagate, [*sdk_log.handlers]
    exporters.quiet_sdk()
    try:
        assert environment.begin()
        for _ in range(200):
            tracing.begin("one").end()
        begun = clock.monotonic()
        tracing.stop(exporters.STOP_TIMEOUT_S / 4)
        assert clock.monotonic() - begun < exporters.STOP_TIMEOUT_S
    finally:
        sdk_log.propagate, sdk_log.handlers[:] = before[0], before[1]
    kinds = {one.split(" ")[0] for one in environment.warnings}
    assert kinds <= {"traces:", "spans", "200"}
    assert environment.warnings[-1] == "200 spans lost since the start"
    assert len(environment.warnings) <= 4


def test_what_the_store_keeps_of_a_span(environment: Environment, tmp_path: Path) -> None:
    assert environment.begin(tmp_path / "traces.db")
    root = tracing.begin("POST /orders", SpanKind.SERVER)
    assert root.context is not None
    span = tracing.begin("process cmd.pay", SpanKind.CONSUMER, root.context, links=[SpanLink(root.context, "message")])
    span.set({"saga.name": "order", "saga.id": 7, "long": "x" * 10_000})
    span.fail("CardRefused", "no money")
    span.end()
    root.end()
    tracing.stop(10)
    traces = LocalTraces(tmp_path / "traces.db")
    first, second = traces.spans(root.context.trace_id)
    assert first["parentSpanId"] is None
    assert {**second, "startTime": "", "endTime": "", "durationMs": 0} == {
        "spanId": span.context.span_id if span.context else "",
        "parentSpanId": root.context.span_id,
        "name": "process cmd.pay",
        "kind": "CONSUMER",
        "service": "orchestrix-worker",
        "node": "w-1",
        "startTime": "",
        "endTime": "",
        "durationMs": 0,
        "status": {"code": "ERROR", "message": "no money"},
        "attributes": {
            "saga.name": "order",
            "saga.id": 7,
            "long": "x" * exporters.MAX_STORED_CHARS,
            "error.type": "CardRefused",
        },
        "links": [{"traceId": root.context.trace_id, "spanId": root.context.span_id, "kind": "message"}],
        "events": [],
    }
    assert first["startTime"] <= second["startTime"] <= second["endTime"] <= first["endTime"]
    assert traces.traces_of("order", 7) == [root.context.trace_id]


def test_what_libraries_warn_of_becomes_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    handler = exporters.SdkLogHandler()
    for number in range(5):
        try:
            raise RuntimeError("inside")
        except RuntimeError:
            made = logging.LogRecord(
                "opentelemetry.exporter.otlp.x", logging.ERROR, "", 1, "no\nanswer %s", (number,), sys.exc_info()
            )
        handler.handle(made)
    handler.handle(logging.LogRecord("opentelemetry.sdk.trace", logging.ERROR, "", 1, "odd %d", ("x",), None))
    assert [(one.levelname, one.getMessage(), one.exc_info) for one in caplog.records] == [
        ("WARNING", "traces: no answer 0", None),
        ("WARNING", "traces: odd %d", None),
    ]


@pytest.mark.parametrize("own", [True, False])
def test_the_users_own_provider_stays_the_global_one(own: bool, tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from orchestrix.telemetry import exporters, tracing
theirs = TracerProvider()
if {own}:
    trace.set_tracer_provider(theirs)
exporters.setup("orchestrix-worker", "w-1", 300, Path(sys.argv[1]))
with trace.get_tracer("shop").start_as_current_span("theirs") as span:
    found = f"{{span.get_span_context().trace_id:032x}}"
assert (trace.get_tracer_provider() is theirs) == {own}
assert tracing.begin("ours").recording
tracing.stop(10)
print(found)
"""
    path = tmp_path / "traces.db"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["name"] for one in LocalTraces(path).spans(done.stdout.strip())] == ([] if own else ["theirs"])


def test_it_is_known_what_to_change_where_no_spans_are_made(
    environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = "`orchestrix dev` keeps traces by itself, others need OTEL_EXPORTER_OTLP_ENDPOINT"
    assert exporters.what_to_change() == settings
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    assert exporters.what_to_change() == f"install orchestrix-sagas[otel] and start again; {settings}"
    environment.set(OTEL_SDK_DISABLED="true")
    assert exporters.what_to_change() == "unset OTEL_SDK_DISABLED and start again"
