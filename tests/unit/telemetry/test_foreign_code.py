"""Is the work safe from what users add to the SDK, and are spans safe from what they say of it?"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import SpanProcessor

from orchestrix.api.traces.models import SpanBody
from orchestrix.broker.dead_letter import dead_letter
from orchestrix.broker.port import Delivery
from orchestrix.telemetry import exporters, sdk, tracing
from orchestrix.telemetry.exporters import StoreExporter, stored
from orchestrix.telemetry.local_store import LocalStore, LocalTraces
from orchestrix.telemetry.log_throttle import LogThrottle
from orchestrix.telemetry.sdk import span_factory
from orchestrix.telemetry.trace_context import TraceContext, context_in
from orchestrix.telemetry.tracing import Value
from tests.tracing import RecordedSpans, context_of

PARENT = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=opaque")
BROKEN_TEXT = "no file b\udcff"


class Broken(SpanProcessor):
    """A processor of the user's own that fails at the begin or the end of a span."""

    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, *_: Any, **_more: Any) -> None:
        if self._at == "start":
            raise ZeroDivisionError("at the start")

    def on_end(self, *_: Any) -> None:
        if self._at == "end":
            raise ZeroDivisionError("at the end")


@pytest.fixture
def restored() -> Iterator[None]:
    """What makes spans is as before afterwards."""
    former = tracing.install(None)
    yield
    tracing.install(former)


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_broken_processor_costs_a_line_and_no_work(
    at: str, restored: None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sdk, "_failures", LogThrottle())
    tracing.install(span_factory([Broken(at)], service="s", instance="i", split_after_s=300))
    for _ in range(3):
        span = tracing.begin("work", parent=PARENT, span_id=7)
        assert span.context is not None
        assert span.context.trace_id == PARENT.trace_id
        span.end()
    lines = [one.getMessage() for one in caplog.records if one.name == "orchestrix.telemetry"]
    assert lines == [f"a span processor or sampler has failed: ZeroDivisionError: at the {at}"], "not one for each"


def test_an_id_that_was_meant_for_a_failed_span_is_not_the_next_one_s(restored: None) -> None:
    factory = span_factory([Broken("start")], service="s", instance="i", split_after_s=300)
    tracing.install(factory)
    tracing.begin("work", parent=PARENT, span_id=7)
    assert getattr(factory._ids.next, "span_id", None) is None


def test_what_the_sampler_drops_is_passed_on_byte_for_byte(restored: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler need not ask the parent: then the client's span is still what follows hangs on."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracing.install(span_factory([], service="s", instance="i", split_after_s=300))
    assert tracing.begin("work", parent=PARENT).context == PARENT
    root = tracing.begin("root").context
    assert root is not None
    assert not root.sampled


def test_a_description_that_is_no_unicode_costs_no_other_span(spans: RecordedSpans) -> None:
    span = tracing.begin("work")
    span.fail("FileNotFoundError", BROKEN_TEXT)
    span.end()
    assert encode_spans(spans.all).SerializeToString()
    assert spans.one("work").status.description == "no file b?"


def test_the_store_keeps_what_no_column_and_no_answer_can_hold(spans: RecordedSpans, tmp_path: Path) -> None:
    path = tmp_path / "traces.db"
    tracing.begin("before").end()
    odd: dict[str, Value] = {"saga.name": "x", "saga.id": 2**70, "text": BROKEN_TEXT, BROKEN_TEXT: 1.5}
    tracing.begin("odd", attributes=odd).end()
    store = StoreExporter(LocalStore(path))
    assert store.send(spans.all)
    store.close()
    for name in ("before", "odd"):
        (found,) = LocalTraces(path).spans(context_of(spans.one(name)).trace_id)
        assert json.loads(SpanBody.model_validate(found).json_bytes())["name"] == name


def test_names_and_descriptions_are_cut_too(spans: RecordedSpans) -> None:
    span = tracing.begin("n" * 10_000)
    span.fail("E", "d" * 10_000)
    span.end()
    (one,) = spans.all
    body = stored(one).body
    assert len(body["name"]) == len(body["status"]["message"]) == exporters.MAX_STORED_CHARS


def test_a_token_in_a_bad_header_is_not_logged(
    restored: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sdk, "adopt_globally", lambda _factory: None)  # it lasts as long as the process
    logger = logging.getLogger("opentelemetry")
    former = logger.handlers[:], logger.propagate
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization Bearer SECRET")
    try:
        exporters.quiet_sdk()
        exporters.setup("s", "i", 300)
    finally:
        tracing.stop(5)
        logger.handlers[:], logger.propagate = former
    assert "SECRET" not in caplog.text
    assert "write OTEL_EXPORTER_OTLP_HEADERS like name=value" in caplog.text


def test_headers_of_bytes_are_a_context_too() -> None:
    """Some clients of AMQP send byte arrays in place of text; their dead letters are of one trace with them."""
    found = context_in({name: value.encode() for name, value in PARENT.headers.items()})
    assert found == PARENT
    assert context_in({"traceparent": b"\xff"}) is None
    raw = {name: value.encode() for name, value in PARENT.headers.items()}
    died = Delivery(
        body=b"{}",
        queue="evt.a",
        exchange="",
        routing_key="evt.a",
        message_id="m-1",
        correlation_id=None,
        type=None,
        headers=raw,
        redelivered=False,
        delivery_count=0,
        tag=1,
        session=1,
    )
    assert context_in(dead_letter(died, "unknown-app").headers) == PARENT
