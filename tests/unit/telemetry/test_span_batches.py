"""Are ended spans sent, without anybody ever waiting for their receiver?"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from orchestrix import clock
from orchestrix.telemetry import tracing
from orchestrix.telemetry.sdk import SdkSpanFactory, span_factory
from orchestrix.telemetry.span_batches import BatchLimits, SpanBatches
from orchestrix.telemetry.trace_context import TraceContext
from tests.support import eventually_sync

OFTEN = BatchLimits(delay_s=0.01, batch=10, queue=100)
SELDOM = BatchLimits(delay_s=3600, batch=10, queue=30)
UNSAMPLED = TraceContext(f"00-{'1' * 32}-{'2' * 16}-00")


class Receiver:
    """An exporter that does what a test says; `names` are those of the spans that came."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.answer: Callable[[], bool] = lambda: True
        self.closed = False
        self.free = threading.Event()

    def send(self, spans: Sequence[ReadableSpan]) -> bool:
        if not self.answer():
            return False
        self.names += [one.name for one in spans]
        return True

    def close(self) -> None:
        self.closed = True

    def stall(self) -> bool:
        """Like a receiver that takes the connection and no more, or one that is tried again and again."""
        self.free.wait(30)
        return False


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.free.set()


@pytest.fixture
def started() -> Iterator[Callable[[Receiver, BatchLimits], tuple[SpanBatches, SdkSpanFactory]]]:
    """Spans go to a receiver until the end of the test."""
    former = tracing.install(None)

    def start(receiver: Receiver, limits: BatchLimits) -> tuple[SpanBatches, SdkSpanFactory]:
        batches = SpanBatches(receiver, limits)
        factory = span_factory([batches], service="tests", instance="tests", split_after_s=300)
        tracing.install(factory)
        return batches, factory

    yield start
    tracing.install(former)


Start = Callable[[Receiver, BatchLimits], tuple[SpanBatches, SdkSpanFactory]]


def end_spans(count: int, first: int = 0) -> list[str]:
    """So many spans begin and end; their names."""
    wanted = [f"span {number}" for number in range(first, first + count)]
    for name in wanted:
        tracing.begin(name).end()
    return wanted


def test_spans_arrive_in_the_order_of_their_ends(receiver: Receiver, started: Start) -> None:
    batches, _ = started(receiver, OFTEN)
    wanted = end_spans(55)
    eventually_sync(lambda: receiver.names == wanted, deadline=10)
    assert batches.lost == 0


def test_a_full_batch_does_not_wait_for_its_time(receiver: Receiver, started: Start) -> None:
    started(receiver, SELDOM)
    wanted = end_spans(10)
    eventually_sync(lambda: receiver.names == wanted, deadline=10)


def test_a_stop_sends_what_is_left(receiver: Receiver, started: Start) -> None:
    started(receiver, SELDOM)
    wanted = end_spans(3)
    tracing.stop(10)
    assert receiver.names == wanted
    assert receiver.closed
    assert not tracing.enabled()


def test_a_stop_does_not_wait_for_a_receiver_that_hangs(
    receiver: Receiver, started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    batches, _ = started(receiver, SELDOM)
    receiver.answer = receiver.stall
    end_spans(25)
    begun = clock.monotonic()
    tracing.stop(0.2)
    assert clock.monotonic() - begun < 3 * 1
    assert receiver.closed
    assert batches.lost == 25
    assert [one.getMessage() for one in caplog.records] == ["25 spans lost since the start"]


def test_more_than_the_queue_holds_is_lost_and_counted(
    receiver: Receiver, started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    batches, _ = started(receiver, SELDOM)
    entered = threading.Event()

    def answer() -> bool:
        entered.set()
        return receiver.free.wait(30)

    receiver.answer = answer
    end_spans(10)
    assert entered.wait(10)
    end_spans(50, 10)
    assert batches.lost == 20
    assert len([one for one in caplog.records if "faster" in one.getMessage()]) == 1
    receiver.free.set()
    eventually_sync(lambda: len(receiver.names) == 40, deadline=10)


def test_what_is_refused_is_lost_and_counted_in_one_line(
    receiver: Receiver, started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    batches, _ = started(receiver, OFTEN)
    receiver.answer = lambda: False
    end_spans(50)
    eventually_sync(lambda: batches.lost == 50, deadline=10)
    assert [one.levelno for one in caplog.records] == [logging.WARNING]


def test_an_exporter_that_raises_is_asked_again(
    receiver: Receiver, started: Start, caplog: pytest.LogCaptureFixture
) -> None:
    batches, _ = started(receiver, OFTEN)

    def broken() -> bool:
        raise RuntimeError("no such thing")

    receiver.answer = broken
    end_spans(1)
    eventually_sync(lambda: batches.lost == 1, deadline=10)
    receiver.answer = lambda: True
    wanted = end_spans(5, 1)
    eventually_sync(lambda: receiver.names == wanted, deadline=10)
    assert [(one.getMessage(), one.exc_info) for one in caplog.records] == [
        ("spans are lost, 1 so far: RuntimeError: no such thing", None)
    ]


def test_what_its_client_does_not_keep_is_not_sent(receiver: Receiver, started: Start) -> None:
    _, factory = started(receiver, SELDOM)
    assert not tracing.begin("unsampled", parent=UNSAMPLED).recording
    end_spans(1)
    assert factory.provider.force_flush()
    assert receiver.names == ["span 0"]


def test_a_forked_process_makes_no_spans_and_sends_none(receiver: Receiver, started: Start) -> None:
    batches, factory = started(receiver, SELDOM)
    end_spans(5)
    reading, writing = os.pipe()
    receiver.answer = lambda: os.write(writing, b"sent") == 4
    child = os.fork()
    if child == 0:
        try:
            threads = threading.active_count()
            made = tracing.enabled()
            factory.provider.get_tracer("user").start_span("the child's own").end()
            sent = batches.force_flush(100)
            batches.shutdown()
            os.write(writing, f"{made} {sent} {threads} {receiver.names}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 1000).decode() == "False False 1 []"
    tracing.stop(10)
    assert receiver.names == [f"span {number}" for number in range(5)]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, BatchLimits(5.0, 512, 2048)),
        ({"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_BSP_MAX_QUEUE_SIZE": "100"}, BatchLimits(0.05, 100, 100)),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "7"}, BatchLimits(5.0, 7, 2048)),
        ({"OTEL_BSP_SCHEDULE_DELAY": "soon", "OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, BatchLimits(5.0, 512, 2048)),
    ],
)
def test_the_environment_sets_the_limits(
    given: dict[str, str], wanted: BatchLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert BatchLimits.of_environment() == wanted
