"""What do spans of messages say of their times, and when is none made?"""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from orchestrix import clock
from orchestrix.telemetry import messaging, tracing
from orchestrix.telemetry.trace_context import TraceContext, trace_context
from orchestrix.telemetry.tracing import Span
from tests.tracing import RecordedSpans, attribute, recorded_spans

SAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
UNSAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "vendor=1")
NOW = 1_800_000_000.5


@pytest.fixture
def _at_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: datetime.fromtimestamp(NOW, UTC))


def id_of(seconds: float) -> str:
    """A UUIDv7 that was made then."""
    digits = f"{round(seconds * 1000):012x}7abc8def0123456789ab"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def process(**more: object) -> Span:
    """A span of handling a message."""
    return messaging.begin_process("e", "k", "q", SAMPLED, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sent_at", "message_id", "waited_ms"),
    [
        pytest.param(1_800_000_000.25, None, 250.0, id="exact"),
        pytest.param(1_800_000_000.0, id_of(1_800_000_000.3), 200.0, id="seconds, and an id of the same second"),
        pytest.param(1_799_999_998.0, id_of(1_799_999_000.0), 1500.0, id="seconds, and the id of an earlier retry"),
        pytest.param(1_799_999_998.0, "no-uuid", 1500.0, id="seconds alone"),
        pytest.param(1_800_000_000.0, None, 0.0, id="never below 0"),
        pytest.param(1_900_000_000.0, None, 0.0, id="a clock that is ahead"),
        pytest.param(None, None, None, id="unknown"),
        pytest.param(1e300, None, None, id="no time at all"),
        pytest.param(float("inf"), None, None, id="infinite"),
        pytest.param(float("nan"), None, None, id="not a number"),
    ],
)
@pytest.mark.usefixtures("_at_now")
def test_the_wait_in_the_queue_is_never_said_to_be_longer_than_it_was(
    spans: RecordedSpans, sent_at: float | None, message_id: str | None, waited_ms: float | None
) -> None:
    process(sent_at=sent_at, message_id=message_id).end()
    found = attribute(spans.all[0], "orchestrix.queue.wait_ms")
    assert found == (None if waited_ms is None else pytest.approx(waited_ms, abs=1.0))


@pytest.mark.usefixtures("_at_now")
def test_a_message_that_waited_for_long_begins_a_trace() -> None:
    with recorded_spans(split_after_s=60) as spans:
        process(sent_at=NOW - 59).end()
        process(sent_at=NOW - 61).end()
    kept, split = spans.all
    assert kept.parent is not None
    assert split.parent is None


def test_nothing_is_made_for_what_is_not_kept(spans: RecordedSpans) -> None:
    made = [
        tracing.begin("a", parent=UNSAMPLED),
        tracing.begin_root("b", tracing.SpanKind.INTERNAL, UNSAMPLED, "action"),
        messaging.begin_process("e", "k", "q", UNSAMPLED),
        messaging.begin_publish("e", "k", id_of(NOW), UNSAMPLED),
    ]
    for one in made:
        assert (one.recording, one.context) == (False, UNSAMPLED)
        with tracing.active(one):
            assert tracing.current_context() == UNSAMPLED
        one.set({"a": 1})
        one.fail("Error")
        one.end()
    assert messaging.begin_commit([UNSAMPLED, None]) is tracing.NO_SPAN
    assert spans.all == []


def test_without_a_factory_there_are_no_span_objects() -> None:
    assert not tracing.enabled()
    assert tracing.begin("a") is tracing.NO_SPAN
    assert messaging.begin_process("e", "k", "q", None) is tracing.NO_SPAN
    assert messaging.begin_commit([SAMPLED]) is tracing.NO_SPAN
    assert isinstance(messaging.begin_publish("e", "k", id_of(NOW), SAMPLED), tracing.ForwardedContext)


@pytest.mark.parametrize(
    "traceparent",
    [
        None,
        7,
        "",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_what_is_no_context_is_none(traceparent: object) -> None:
    assert trace_context(traceparent, "a=1") is None


@pytest.mark.parametrize(
    ("tracestate", "kept"),
    [("a=1,b=2", "a=1,b=2"), ("a=1,a=2", None), ("A=1", None), ("a=" + "x" * 600, None), (7, None), ("", None)],
)
def test_a_bad_tracestate_is_left_out(tracestate: object, kept: str | None) -> None:
    found = trace_context(SAMPLED.traceparent, tracestate)
    assert found == TraceContext(SAMPLED.traceparent, kept)
