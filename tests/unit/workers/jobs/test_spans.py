"""Which spans does a worker make of jobs and their statuses, and what does it pass on without them?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from orchestrix import JobContext, Permanent
from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.broker.topology import DEAD, DISPATCH_QUEUE_PREFIX
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import TraceContext
from orchestrix.worker.jobs.dispatch import JobCancel
from orchestrix.worker.jobs.functions import JobFunction, JobTable
from orchestrix.worker.jobs.runner import JobRunner
from orchestrix.worker.jobs.state_guard import DispatchVerdict, InvalidDispatch, ReceivedDispatch, StaleDispatch
from tests.fakes.broker import FakeBroker
from tests.support import eventually
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id

from .house import believed, dispatch

pytestmark = pytest.mark.virtual_time

QUEUE = f"{DISPATCH_QUEUE_PREFIX}default"
PROCESS = f"process {QUEUE}"
STATUS = "publish job.{jobId}.status"
MESSAGE_ID = "01980000-0000-7000-8000-00000000abcd"
PARENT = TraceContext("00-0af7651916cd43dd8448eb211c80319c-800000000000abcd-01", "vendor=1,other=a b")
UNSAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "vendor=1,other=a b")
CONFIRMED = Published(Outcome.CONFIRMED)
STEP = {"saga": "shop", "appId": 7, "step": "pay", "attempt": 3, "undoesAttempt": 2}


class Bench:
    """A worker of one job, `work`, over a broker in the test's memory."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.verdicts: list[DispatchVerdict] = []
        self.runner: JobRunner | None = None

    async def open(self, function: Any, stop_timeout: float = 5.0) -> JobRunner:
        table = JobTable([JobFunction("work", "default", function, 0.1)])
        self.runner = JobRunner(
            self.broker, table, [], self._state, worker_id="w", slots=1, stop_timeout=stop_timeout, heartbeat_s=10.0
        )
        await self.runner.start()
        return self.runner

    def send(self, sent: TraceContext | None = PARENT, body: bytes | None = None, **changes: Any) -> None:
        more = {"headers": {} if sent is None else sent.headers, "message_id": MESSAGE_ID, "exchange": "", **changes}
        self.broker.put(QUEUE, dispatch("work") if body is None else body, routing_key=QUEUE, **more)

    async def run(self, function: Any, **changes: Any) -> None:
        """One attempt, from its dispatch to its end."""
        await self.open(function)
        self.send(**changes)
        await self.settled()

    async def settled(self) -> None:
        await self.broker.settled(QUEUE)
        assert self.runner is not None
        counts = self.runner.counts
        ended = lambda: counts.succeeded + counts.failed + counts.cancelled + counts.stale + counts.dead  # noqa: E731
        await eventually(ended, deadline=5.0, message=f"{counts}")

    def reports(self, type: str) -> list[Outgoing]:
        return [one for one in self.broker.published if one.type == type]

    async def _state(self, asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
        return [self.verdicts.pop(0) for _ in asked] if self.verdicts else await believed(asked)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench()
    yield bench
    if bench.runner is not None:
        await bench.runner.stop()


async def talk(context: JobContext) -> None:
    await context.log("half way")


def status_of(span: ReadableSpan) -> tuple[StatusCode, str | None]:
    return span.status.status_code, span.status.description


@pytest.mark.parametrize("number", [0, -7, 2**53, 2**70])
async def test_numbers_in_the_payload_of_another_job_are_none_of_a_saga(
    bench: Bench, spans: RecordedSpans, number: int
) -> None:
    """No exporter takes more than 64 bits, and what it does not take costs the spans beside it."""

    async def work(context: JobContext) -> None:
        return None

    await bench.run(work, body=dispatch("work", payload={**STEP, "appId": number}))
    (process,) = spans.named(PROCESS)
    assert attribute(process, "saga.id") is None
    assert attribute(process, "saga.name") is None


async def test_an_attempt_has_a_span_that_follows_from_its_dispatch(bench: Bench, spans: RecordedSpans) -> None:
    await bench.run(talk, body=dispatch("work", attempt=2))
    span = spans.one(PROCESS)
    assert dict(span.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": QUEUE,
        "messaging.rabbitmq.destination.routing_key": QUEUE,
        "messaging.rabbitmq.message.delivery_tag": 1,
        "messaging.message.id": MESSAGE_ID,
        "orchestrix.redelivered": False,
        "orchestrix.job.id": "j-1",
        "orchestrix.job.attempt": 2,
        "orchestrix.job.handler": "work",
        "orchestrix.job.queue": "default",
        "orchestrix.correlation_id": "c-1",
        "orchestrix.worker.id": "w",
    }
    assert (span.kind, status_of(span)) == (SpanKind.CONSUMER, (StatusCode.UNSET, None))
    assert (context_of(span).trace_id, parent_id(span)) == (PARENT.trace_id, PARENT.span_id)
    assert links_of(span) == [("message", PARENT.trace_id, PARENT.span_id)]


async def test_a_job_that_is_a_step_is_in_the_trace_of_its_saga(bench: Bench, spans: RecordedSpans) -> None:
    await bench.run(talk, body=dispatch("work", payload=STEP))
    expected = {"saga.name": "shop", "saga.id": 7, "saga.step": "pay", "saga.attempt": 3, "saga.compensating": True}
    for one in spans.all:
        assert {name: attribute(one, name) for name in expected} == expected


@pytest.mark.parametrize(
    "payload", [None, [1], {"saga": 3, "appId": 7, "step": "pay"}, {"saga": "shop", "appId": True, "step": "pay"}]
)
async def test_a_payload_that_names_no_step_is_nothing_but_a_payload(
    bench: Bench, spans: RecordedSpans, payload: Any
) -> None:
    await bench.run(talk, body=dispatch("work", payload=payload))
    assert attribute(spans.one(PROCESS), "saga.id") is None


async def test_each_status_has_a_span_below_the_attempt_and_no_line_of_the_log_has_one(
    bench: Bench, spans: RecordedSpans
) -> None:
    await bench.run(talk)
    attempt = context_of(spans.one(PROCESS))
    published = spans.named(STATUS)
    assert len(published) == 2 == len(spans.all) - 1
    assert spans.all[-1].name == PROCESS, "it lasts until its last status is confirmed"
    for span, message in zip(published, bench.reports("job.status"), strict=True):
        assert dict(span.attributes or {}) == {
            "messaging.system": "rabbitmq",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": "orchestrix.job.j-1.status",
            "messaging.destination.template": "job.{jobId}.status",
            "messaging.rabbitmq.destination.routing_key": "orchestrix.job.j-1.status",
            "messaging.message.id": message.message_id,
            "messaging.message.conversation_id": "c-1",
            "orchestrix.job.id": "j-1",
            "orchestrix.correlation_id": "c-1",
        }
        assert (span.kind, parent_id(span), links_of(span)) == (SpanKind.PRODUCER, attempt.span_id, [])
        assert dict(message.headers) == {
            "traceparent": context_of(span).traceparent,
            "tracestate": PARENT.tracestate,
        }
    (line,) = bench.reports("job.log")
    assert dict(line.headers) == {"traceparent": attempt.traceparent, "tracestate": PARENT.tracestate}


async def test_a_status_that_is_published_again_links_to_its_first_copy(bench: Bench, spans: RecordedSpans) -> None:
    lost = [Published(Outcome.UNKNOWN, "late")]
    bench.broker.judge = lambda message: lost.pop() if lost and message.type == "job.status" else CONFIRMED
    await bench.run(talk)
    first, again, last = spans.named(STATUS)
    assert attribute(first, "error.type") == "unknown"
    assert links_of(again) == [("retry", PARENT.trace_id, context_of(first).span_id)]
    assert links_of(last) == []
    headers = [one.headers["traceparent"] for one in bench.reports("job.status")]
    assert headers == [context_of(again).traceparent, context_of(last).traceparent]


def observe(context: JobContext) -> None:
    ours = tracing.current_span()
    assert ours is not None
    assert ours.context is not None
    context.span.set_attribute("by.context", ours.context.span_id)
    trace.get_current_span().set_attribute("by.opentelemetry", True)


async def as_coroutine(context: JobContext) -> None:
    await context.log("inside")
    observe(context)


def in_a_thread(context: JobContext) -> None:
    context.log("inside")
    observe(context)


@pytest.mark.virtual_time(False)
@pytest.mark.parametrize("function", [as_coroutine, in_a_thread])
@pytest.mark.parametrize("timeout_ms", [None, 60_000])
async def test_the_function_runs_inside_the_span_of_its_attempt(
    bench: Bench, spans: RecordedSpans, function: Any, timeout_ms: int | None
) -> None:
    await bench.run(function, body=dispatch("work", timeoutMs=timeout_ms))
    span = spans.one(PROCESS)
    assert attribute(span, "by.context") == context_of(span).span_id
    assert attribute(span, "by.opentelemetry") is True


async def test_a_failure_is_the_status_of_the_attempt_alone(bench: Bench, spans: RecordedSpans) -> None:
    async def fail(context: JobContext) -> None:
        raise Permanent("Broken", "the disk is full")

    await bench.run(fail)
    span = spans.one(PROCESS)
    assert (status_of(span), attribute(span, "error.type")) == ((StatusCode.ERROR, "the disk is full"), "Broken")
    assert {status_of(one)[0] for one in spans.named(STATUS)} == {StatusCode.UNSET}


async def test_a_job_without_a_function_fails(bench: Bench, spans: RecordedSpans) -> None:
    await bench.run(talk, body=dispatch("other"))
    assert attribute(spans.one(PROCESS), "error.type") == "UnknownJob"


async def test_a_job_that_ends_with_its_worker_is_given_back(bench: Bench, spans: RecordedSpans) -> None:
    async def wait(context: JobContext) -> None:
        observe(context)
        await asyncio.Event().wait()

    runner = await bench.open(wait, stop_timeout=0.05)
    bench.send()
    await eventually(lambda: bench.reports("job.status"), deadline=5.0)
    await bench.broker.settled(QUEUE)
    await runner.stop()
    span = spans.one(PROCESS)
    assert (attribute(span, "orchestrix.ignored"), status_of(span)[0]) == ("given-back", StatusCode.UNSET)


async def test_a_job_that_is_cancelled_is_no_error(bench: Bench, spans: RecordedSpans) -> None:
    async def until_cancelled(context: JobContext) -> None:
        assert bench.runner is not None
        assert bench.runner._job_slots is not None
        bench.runner._job_slots.cancel(JobCancel("j-1", "h-1", "by hand"))
        await context.wait_cancelled()

    await bench.run(until_cancelled)
    assert status_of(spans.one(PROCESS))[0] is StatusCode.UNSET


async def test_a_dispatch_whose_worker_may_have_died_links_as_a_retry(bench: Bench, spans: RecordedSpans) -> None:
    await bench.run(talk, count=1)
    span = spans.one(PROCESS)
    assert attribute(span, "orchestrix.redelivered") is True
    assert links_of(span) == [("retry", PARENT.trace_id, PARENT.span_id)]


async def test_a_dispatch_of_an_attempt_that_is_over_is_ignored(bench: Bench, spans: RecordedSpans) -> None:
    bench.verdicts.append(StaleDispatch())
    await bench.run(talk)
    span = spans.one(PROCESS)
    assert (attribute(span, "orchestrix.ignored"), attribute(span, "orchestrix.job.id")) == ("stale", "j-1")
    assert len(spans.all) == 1


async def test_a_copy_of_a_dispatch_is_a_duplicate(bench: Bench, spans: RecordedSpans) -> None:
    await bench.run(talk)
    bench.send()
    await eventually(lambda: len(spans.named(PROCESS)) == 2, deadline=5.0)
    assert attribute(spans.named(PROCESS)[1], "orchestrix.ignored") == "duplicate"


async def test_an_attempt_that_another_worker_gets_is_given_back(bench: Bench, spans: RecordedSpans) -> None:
    def judge(message: Outgoing) -> Published:
        if message.type == "job.status" and not lost:
            lost.append(message)
            bench.broker.consumers[0].lose_channel()
        return CONFIRMED

    lost: list[Outgoing] = []
    bench.broker.judge = judge
    await bench.run(talk)
    first, again = spans.named(PROCESS)
    assert (attribute(first, "orchestrix.ignored"), status_of(first)[0]) == ("given-back", StatusCode.UNSET)
    assert (attribute(again, "orchestrix.ignored"), attribute(again, "orchestrix.redelivered")) == (None, True)


@pytest.mark.parametrize(
    ("body", "verdict", "reason"),
    [(b"{", None, "not-json"), (None, InvalidDispatch("differs: payload"), "differs")],
)
async def test_a_dispatch_that_is_refused_becomes_a_dead_letter_with_its_own_context(
    bench: Bench, spans: RecordedSpans, body: bytes | None, verdict: DispatchVerdict | None, reason: str
) -> None:
    if verdict is not None:
        bench.verdicts.append(verdict)
    await bench.run(talk, body=body)
    span = spans.one(PROCESS)
    assert attribute(span, "orchestrix.ignored") == reason
    (letter,) = [one for one in bench.broker.published if one.exchange == DEAD]
    assert {name: letter.headers.get(name) for name in PARENT.headers} == PARENT.headers
    publish = spans.one(f"publish {DEAD}:{QUEUE}")
    assert (parent_id(publish), attribute(publish, "messaging.message.id")) == (
        context_of(span).span_id,
        letter.message_id,
    )
    assert links_of(publish) == [("retry", PARENT.trace_id, PARENT.span_id)]


@pytest.mark.parametrize("sent", [UNSAMPLED, None])
async def test_a_trace_that_is_not_kept_is_passed_on_byte_for_byte(
    bench: Bench, spans: RecordedSpans, sent: TraceContext | None
) -> None:
    if sent is None:
        tracing.install(None)
    await bench.run(talk, sent=sent)
    assert spans.all == []
    reports = [*bench.reports("job.status"), *bench.reports("job.log")]
    assert [dict(one.headers) for one in reports] == [{} if sent is None else sent.headers] * 3


async def test_without_the_sdk_a_context_is_passed_on_and_garbage_is_not(bench: Bench) -> None:
    await bench.run(talk)
    assert [dict(one.headers) for one in bench.reports("job.status")] == [PARENT.headers] * 2
    bench.broker.published.clear()
    bench.send(body=dispatch("work", 2), headers={"traceparent": "garbage", "tracestate": "a=1"})
    await eventually(lambda: len(bench.reports("job.status")) == 2, deadline=5.0)
    assert [dict(one.headers) for one in bench.reports("job.status")] == [{}] * 2
