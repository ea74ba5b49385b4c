"""Which spans does a worker make of commands and their events, and what does it pass on without them?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from orchestrix import Command, Context, Permanent, Transient, Unavailable, clock
from orchestrix.broker import published_spans
from orchestrix.broker.port import Outcome, Published
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import TraceContext, context_in, published_context
from orchestrix.worker import delivery_spans
from orchestrix.worker.handlers import Handler
from orchestrix.worker.heartbeat import ProcessIdentity
from tests.support import eventually
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id

from .rig import CREATE, CREATED, DELETE, DELETED, FAILED, Rig, command, undo
from .test_worker import Gate, make

pytestmark = pytest.mark.virtual_time

PROCESS = f"process orchestrator.commands:{CREATE}"
PUBLISH = f"publish orchestrator.events:{CREATED}"
MESSAGE_ID = "01980000-0000-7000-8000-00000000abcd"
PARENT = TraceContext("00-0af7651916cd43dd8448eb211c80319c-800000000000abcd-01", "vendor=1,other=a b")
UNSAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "vendor=1,other=a b")
CONFIRMED = Published(Outcome.CONFIRMED)


def received(sent: TraceContext = PARENT, **changes: Any) -> dict[str, Any]:
    """What a delivery has besides its body."""
    return {"headers": sent.headers, "message_id": MESSAGE_ID, "correlation_id": "c-1", **changes}


async def processed(rig: Rig, handler: Handler = make, **changes: Any) -> None:
    await rig.start(handler)
    rig.send(1, **received(**changes))
    await rig.settled()


def event_context(rig: Rig, routing_key: str = CREATED) -> TraceContext:
    """What the headers of the only event say."""
    (event,) = rig.broker.events(routing_key)
    found = context_in(event.headers)
    assert found is not None
    assert dict(event.headers) == found.headers
    return found


def raising(error: Exception) -> Handler:
    async def handler(context: Context, command: Command) -> None:
        raise error

    return handler


def status_of(span: ReadableSpan) -> tuple[StatusCode, str | None]:
    return span.status.status_code, span.status.description


# What they say.


async def test_a_command_has_a_span_that_follows_from_the_one_that_published_it(rig: Rig, spans: RecordedSpans) -> None:
    rig.process = ProcessIdentity("worker-7", "host", "1.0")
    await processed(rig, sent_at=clock.now().timestamp() - 2.5)
    span = spans.one(PROCESS)
    attributes = dict(span.attributes or {})
    assert 2500 <= attributes.pop("orchestrix.queue.wait_ms") < 60_000  # type: ignore[operator]
    assert attributes == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": f"orchestrator.commands:{CREATE}",
        "messaging.rabbitmq.destination.routing_key": CREATE,
        "messaging.rabbitmq.message.delivery_tag": 1,
        "messaging.message.id": MESSAGE_ID,
        "messaging.message.conversation_id": "c-1",
        "orchestrix.redelivered": False,
        "saga.name": "app",
        "saga.id": 1,
        "orchestrix.correlation_id": "c-1",
        "saga.step": "createGitRepo",
        "saga.attempt": 1,
        "orchestrix.worker.id": "worker-7",
    }
    assert (span.kind, status_of(span)) == (SpanKind.CONSUMER, (StatusCode.UNSET, None))
    assert (context_of(span).trace_id, parent_id(span)) == (PARENT.trace_id, PARENT.span_id)
    assert links_of(span) == [("message", PARENT.trace_id, PARENT.span_id)]


async def test_an_event_has_a_span_below_its_command_whose_context_it_carries(rig: Rig, spans: RecordedSpans) -> None:
    await processed(rig)
    span = spans.one(PUBLISH)
    (event,) = rig.broker.events(CREATED)
    assert dict(span.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": f"orchestrator.events:{CREATED}",
        "messaging.rabbitmq.destination.routing_key": CREATED,
        "messaging.message.id": event.message_id,
        "messaging.message.conversation_id": "c-1",
        "saga.name": "app",
        "saga.id": 1,
        "orchestrix.correlation_id": "c-1",
    }
    assert (span.kind, links_of(span), status_of(span)) == (SpanKind.PRODUCER, [], (StatusCode.UNSET, None))
    process = context_of(spans.one(PROCESS))
    assert parent_id(span) == process.span_id
    carried = event_context(rig)
    assert carried == published_context(process, event.message_id)._replace(tracestate=PARENT.tracestate)
    assert carried.span_id == context_of(span).span_id


async def test_the_span_of_a_command_ends_when_its_event_is_confirmed(rig: Rig, spans: RecordedSpans) -> None:
    rig.broker.judge = lambda _: CONFIRMED if len(rig.broker.tried) > 2 else Published(Outcome.UNKNOWN, "late")
    await processed(rig)
    assert [one.name for one in spans.all] == [PUBLISH, PUBLISH, PUBLISH, PROCESS]


async def test_an_event_that_is_published_again_links_to_the_first_copy(rig: Rig, spans: RecordedSpans) -> None:
    rig.broker.judge = lambda _: CONFIRMED if len(rig.broker.tried) > 1 else Published(Outcome.UNKNOWN, "late")
    await processed(rig)
    first, again = spans.named(PUBLISH)
    assert (status_of(first), attribute(first, "error.type")) == ((StatusCode.ERROR, "late"), "unknown")
    assert status_of(again)[0] is StatusCode.UNSET
    assert links_of(again) == [("retry", PARENT.trace_id, context_of(first).span_id)]
    assert parent_id(first) == parent_id(again) == context_of(spans.one(PROCESS)).span_id
    headers = [one.headers["traceparent"] for one in rig.broker.tried]
    assert headers == [context_of(first).traceparent, context_of(again).traceparent]


async def test_an_undo_says_that_it_is_one(rig: Rig, spans: RecordedSpans) -> None:
    await rig.start(make)
    rig.rows.put(1, state="COMPENSATING", command_id="u-1")
    rig.put(undo(), **received())
    await rig.settled()
    assert attribute(spans.one(f"process orchestrator.commands:{DELETE}"), "saga.compensating") is True
    assert spans.one(f"publish orchestrator.events:{DELETED}")


async def test_a_command_without_a_context_begins_a_trace(rig: Rig, spans: RecordedSpans) -> None:
    await rig.start(make)
    rig.send(1)
    await rig.settled()
    span = spans.one(PROCESS)
    assert (parent_id(span), links_of(span)) == (None, [])
    assert event_context(rig).trace_id == context_of(span).trace_id


@pytest.mark.virtual_time(False)
async def test_a_command_that_waited_for_long_begins_a_trace_that_links_back(rig: Rig, spans: RecordedSpans) -> None:
    await processed(rig, sent_at=clock.now().timestamp() - 301)
    span = spans.one(PROCESS)
    assert parent_id(span) is None
    assert context_of(span).trace_id != PARENT.trace_id
    assert ("continued", PARENT.trace_id, PARENT.span_id) in links_of(span)
    assert event_context(rig).trace_id == context_of(span).trace_id


@pytest.mark.parametrize("sent_at", [2.0**63, 1e300, float("nan"), -1e18])
async def test_a_time_of_sending_that_is_none_changes_nothing(rig: Rig, spans: RecordedSpans, sent_at: float) -> None:
    await processed(rig, sent_at=sent_at)
    assert attribute(spans.one(PROCESS), "orchestrix.queue.wait_ms") is None


async def test_the_report_that_work_has_begun_has_a_span_too(
    rig: Rig, spans: RecordedSpans, time: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.worker.commands.slot_monitor.MONITOR_INTERVAL_S", 0.02)
    gate = Gate()
    await rig.start(gate)
    rig.send(1, **received(sent_at=clock.now().timestamp() - 20))
    await gate.has_begun(1)
    time.advance(0.25)
    await eventually(lambda: rig.bodies("evt.stepStarted"), deadline=5)
    gate.open.set()
    await rig.settled()
    span = spans.one("publish orchestrator.events:evt.stepStarted")
    assert parent_id(span) == context_of(spans.one(PROCESS)).span_id
    assert event_context(rig, "evt.stepStarted").span_id == context_of(span).span_id


# The handler.


async def as_coroutine(context: Context, command: Command) -> None:
    await asyncio.sleep(0)
    observe(context)


def in_a_thread(context: Context, command: Command) -> None:
    observe(context)


def behind_a_decorator(context: Context, command: Command) -> Any:
    observe(context)
    return as_coroutine(context, command)


async def in_a_task(context: Context, command: Command) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(as_coroutine(context, command))


def observe(context: Context) -> None:
    """Marks the span that is current for the handler, by each way that leads to it."""
    ours = tracing.current_span()
    assert ours is not None
    assert ours.context is not None
    context.span.set_attribute("by.context", True)
    trace.get_current_span().set_attribute("by.opentelemetry", True)
    trace.get_current_span().add_event("here", {"span": ours.context.span_id})


@pytest.mark.virtual_time(False)
@pytest.mark.parametrize("handler", [as_coroutine, in_a_thread, behind_a_decorator, in_a_task])
async def test_the_handler_runs_inside_the_span_of_its_command(
    rig: Rig, spans: RecordedSpans, handler: Handler
) -> None:
    await processed(rig, handler)
    span = spans.one(PROCESS)
    assert (attribute(span, "by.context"), attribute(span, "by.opentelemetry")) == (True, True)
    assert {str((one.attributes or {})["span"]) for one in span.events} == {context_of(span).span_id}
    assert spans.one(PUBLISH)


@pytest.mark.virtual_time(False)
async def test_a_span_of_the_handlers_own_is_below_that_of_its_command(rig: Rig, spans: RecordedSpans) -> None:
    def handler(context: Context, command: Command) -> None:
        tracer = trace.get_tracer("shop", tracer_provider=tracing._factory.provider)  # type: ignore[union-attr]
        with tracer.start_as_current_span("charge"):
            context.span.set_attribute("amount", 3)

    await processed(rig, handler)
    charge = spans.one("charge")
    assert (attribute(charge, "amount"), parent_id(charge)) == (3, context_of(spans.one(PROCESS)).span_id)


async def test_two_commands_at_once_are_each_inside_their_own_span(rig: Rig, spans: RecordedSpans) -> None:
    began = asyncio.Barrier(2)

    async def handler(context: Context, command: Command) -> None:
        await began.wait()
        context.span.set_attribute("of", context.app_id)

    await rig.start(handler, concurrency=2)
    rig.send(1, 2)
    await rig.settled()
    assert sorted((attribute(one, "of"), attribute(one, "saga.id")) for one in spans.named(PROCESS)) == [(1, 1), (2, 2)]


# Failures.

FAILURES: list[tuple[Handler, str, str]] = [
    (raising(Permanent("Taken", "the name is taken")), "Taken", "the name is taken"),
    (raising(Transient("Slow", "try later")), "Slow", "try later"),
    (raising(ValueError("no")), "ValueError", "no"),
]


@pytest.mark.parametrize(("handler", "error_type", "message"), FAILURES)
async def test_a_failure_is_the_status_of_the_command_alone(
    rig: Rig, spans: RecordedSpans, handler: Handler, error_type: str, message: str
) -> None:
    await processed(rig, handler)
    span = spans.one(PROCESS)
    assert (status_of(span), attribute(span, "error.type")) == ((StatusCode.ERROR, message), error_type)
    assert attribute(span, "orchestrix.ignored") is None
    event = spans.one(f"publish orchestrator.events:{FAILED}")
    assert (status_of(event)[0], parent_id(event)) == (StatusCode.UNSET, context_of(span).span_id)
    assert event_context(rig, FAILED).span_id == context_of(event).span_id


async def test_a_handler_that_takes_too_long_is_inside_its_span_until_then(rig: Rig, spans: RecordedSpans) -> None:
    async def handler(context: Context, command: Command) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            observe(context)

    await rig.start(handler)
    rig.rows.put(1)
    rig.put(command(timeout_ms=50), **received())
    await rig.settled()
    span = spans.one(PROCESS)
    assert (attribute(span, "error.type"), attribute(span, "by.context")) == ("Timeout", True)


async def test_an_outage_of_the_workers_own_is_no_error(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.worker.commands.slots.backoff", lambda _: 0.01)
    tries: list[str] = []

    async def handler(context: Context, command: Command) -> None:
        observe(context)
        tries.append("")
        if len(tries) < 3:
            raise Unavailable("away")

    await processed(rig, handler)
    span = spans.one(PROCESS)
    assert (len(tries), len(span.events), status_of(span)) == (3, 3, (StatusCode.UNSET, None))
    assert attribute(span, "orchestrix.ignored") is None


async def test_an_event_that_the_broker_refuses_fails_the_command(rig: Rig, spans: RecordedSpans) -> None:
    refused = Published(Outcome.REFUSED, "too large")
    rig.broker.judge = lambda message: CONFIRMED if message.routing_key == FAILED else refused
    await processed(rig)
    span = spans.one(PROCESS)
    assert attribute(span, "error.type") == "Unsendable"
    failed = spans.one(PUBLISH)
    assert (attribute(failed, "error.type"), status_of(failed)) == ("refused", (StatusCode.ERROR, "too large"))
    event = spans.one(f"publish orchestrator.events:{FAILED}")
    assert (parent_id(event), links_of(event)) == (context_of(span).span_id, [])
    assert event_context(rig, FAILED).span_id == context_of(event).span_id


# What comes again, or to nothing.


@pytest.mark.parametrize("again", [{"count": 1}, {"headers": {**PARENT.headers, "x-deaths": 1}}])
async def test_a_command_whose_worker_may_have_died_links_as_a_retry(
    rig: Rig, spans: RecordedSpans, again: dict[str, Any]
) -> None:
    await processed(rig, **again)
    span = spans.one(PROCESS)
    assert attribute(span, "orchestrix.redelivered") is True
    assert (parent_id(span), links_of(span)) == (PARENT.span_id, [("retry", PARENT.trace_id, PARENT.span_id)])


async def test_a_command_that_its_saga_is_past_is_ignored(rig: Rig, spans: RecordedSpans) -> None:
    rig.rows.put(1, command_id="m-2", attempt=2)
    await processed(rig)
    span = spans.one(PROCESS)
    assert (attribute(span, "orchestrix.ignored"), attribute(span, "saga.id")) == ("newer", 1)
    assert status_of(span)[0] is StatusCode.UNSET
    assert not spans.named(PUBLISH)


async def test_a_command_ahead_of_its_row_is_ignored_after_a_while(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.worker.commands.admission.EARLY_TIMEOUT_S", 0.05)
    await rig.start(make)
    rig.rows.put(1)
    rig.put(command(attempt=2), **received())
    await rig.settled()
    assert attribute(spans.one(PROCESS), "orchestrix.ignored") == "older"


async def test_a_copy_of_a_command_in_flight_is_a_duplicate(rig: Rig, spans: RecordedSpans) -> None:
    gate = Gate()
    worker = await rig.start(gate)
    rig.send(1, **received())
    await gate.has_begun(1)
    rig.send(1, **received())
    await eventually(lambda: worker.counts.joined, deadline=5)
    (copy,) = spans.named(PROCESS)
    assert (attribute(copy, "orchestrix.ignored"), attribute(copy, "saga.id")) == ("duplicate", 1)
    gate.open.set()
    await rig.settled()
    assert [attribute(one, "orchestrix.ignored") for one in spans.named(PROCESS)] == ["duplicate", None]


async def test_a_command_of_an_unknown_saga_becomes_a_dead_letter_with_its_own_context(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.worker.commands.admission.EARLY_TIMEOUT_S", 0.05)
    await rig.start(make)
    rig.put(command(), **received())
    await rig.settled()
    span = spans.one(PROCESS)
    assert (attribute(span, "orchestrix.ignored"), attribute(span, "saga.id")) == ("unknown-app", 1)
    check_dead_letter(rig, spans, span)


async def test_a_message_that_cannot_be_read_has_a_span_and_keeps_its_context(rig: Rig, spans: RecordedSpans) -> None:
    await rig.start(make)
    rig.broker.put(CREATE, b"{", **received())
    await rig.settled()
    span = spans.one(PROCESS)
    assert (attribute(span, "orchestrix.ignored"), attribute(span, "messaging.message.id")) == ("not-json", MESSAGE_ID)
    assert (attribute(span, "saga.id"), parent_id(span)) == (None, PARENT.span_id)
    check_dead_letter(rig, spans, span)


def check_dead_letter(rig: Rig, spans: RecordedSpans, process: ReadableSpan) -> None:
    (letter,) = rig.broker.published
    assert {name: letter.headers.get(name) for name in PARENT.headers} == PARENT.headers
    publish = spans.one(f"publish {letter.exchange}:{CREATE}")
    assert parent_id(publish) == context_of(process).span_id
    assert links_of(publish) == [("retry", PARENT.trace_id, PARENT.span_id)]
    assert context_of(publish).span_id != PARENT.span_id


UNDO = f"process orchestrator.commands:{DELETE}"


async def with_one_that_waits(rig: Rig, gate: Gate) -> None:
    """The only slot has a command of app 1, one of app 2 waits for it."""
    await rig.start(gate, concurrency=1, stop_timeout=0.05)
    rig.send(1, **received())
    await gate.has_begun(1)
    rig.rows.put(2, state="COMPENSATING", command_id="u-2")
    rig.put(undo(2), **received())
    await eventually(lambda: [2] in rig.rows.looks, deadline=5)


async def test_a_worker_that_stops_ends_the_spans_of_what_it_gives_back(rig: Rig, spans: RecordedSpans) -> None:
    await with_one_that_waits(rig, Gate())
    assert not spans.all
    assert rig.worker is not None
    await rig.worker.stop()
    for one in (spans.one(PROCESS), spans.one(UNDO)):
        assert (attribute(one, "orchestrix.ignored"), status_of(one)[0]) == ("given-back", StatusCode.UNSET)


async def test_a_command_that_is_set_aside_keeps_its_context(rig: Rig, spans: RecordedSpans) -> None:
    gate = Gate()
    worker = await rig.start(gate, concurrency=1, stop_timeout=0.05)
    rig.send(1, **received(headers={**PARENT.headers, "x-deaths": 2}))
    await gate.has_begun(1)
    await worker.stop()
    assert attribute(spans.one(PROCESS), "orchestrix.ignored") == "set-aside"
    (copy,) = rig.broker.published
    assert {name: copy.headers.get(name) for name in PARENT.headers} == PARENT.headers


async def test_a_command_whose_channel_is_lost_before_its_work_has_two_spans(rig: Rig, spans: RecordedSpans) -> None:
    gate = Gate()
    await with_one_that_waits(rig, gate)
    rig.consumer.lose_channel()
    await eventually(lambda: len(spans.all) == 2, deadline=5, message="both copies have joined")
    gate.open.set()
    await rig.settled()
    assert [attribute(one, "orchestrix.ignored") for one in spans.named(PROCESS)] == ["duplicate", None]
    assert [attribute(one, "orchestrix.ignored") for one in spans.named(UNDO)] == ["duplicate", None]


async def test_a_command_whose_channel_is_lost_while_it_waits_is_another_ones(rig: Rig, spans: RecordedSpans) -> None:
    gate = Gate()
    await with_one_that_waits(rig, gate)
    rig.broker.go_down()
    gate.open.set()
    await eventually(lambda: spans.named(UNDO), deadline=5)
    assert attribute(spans.one(UNDO), "orchestrix.ignored") == "channel-lost"
    rig.broker.come_up()
    await rig.settled()
    again = spans.named(UNDO)[-1]
    assert (attribute(again, "orchestrix.ignored"), attribute(again, "orchestrix.redelivered")) == (None, True)


async def test_a_worker_that_ends_without_its_broker_ends_all_spans(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.worker.worker.FINAL_REPORT_TIMEOUT_S", 0.05)
    rig.broker.judge = lambda _: Published(Outcome.UNKNOWN, "late")
    worker = await rig.start(make, stop_timeout=0.05)
    rig.send(1, **received())
    rig.broker.put(CREATE, b"{", **received())
    await eventually(lambda: len(rig.broker.tried) >= 2, deadline=5)
    await worker.stop()
    reasons = {attribute(one, "orchestrix.ignored") for one in spans.named(PROCESS)}
    assert (reasons, len(spans.named(PROCESS))) == ({"unreported"}, 2)


# Without spans.


def echo(seen: list[tuple[str, str]]) -> Handler:
    def handler(context: Context, command: Command) -> None:
        ours = tracing.current_context()
        shown = trace.get_current_span().get_span_context()
        seen.append(("" if ours is None else ours.traceparent, f"{shown.trace_id:032x}"))
        context.span.set_attribute("kept", False)

    return handler


@pytest.mark.virtual_time(False)
async def test_a_trace_that_is_not_kept_is_passed_on_byte_for_byte(rig: Rig, spans: RecordedSpans) -> None:
    seen: list[tuple[str, str]] = []
    await processed(rig, echo(seen), sent=UNSAMPLED)
    assert spans.all == []
    (event,) = rig.broker.events(CREATED)
    assert dict(event.headers) == {"traceparent": UNSAMPLED.traceparent, "tracestate": UNSAMPLED.tracestate}
    assert seen == [(UNSAMPLED.traceparent, UNSAMPLED.trace_id)]


@pytest.mark.virtual_time(False)
@pytest.mark.parametrize("sent", [PARENT, UNSAMPLED, PARENT._replace(traceparent=f"{PARENT.traceparent[:-2]}03")])
async def test_without_the_sdk_a_context_is_passed_on_byte_for_byte(rig: Rig, sent: TraceContext) -> None:
    seen: list[tuple[str, str]] = []
    await processed(rig, echo(seen), sent=sent)
    (event,) = rig.broker.events(CREATED)
    assert dict(event.headers) == {"traceparent": sent.traceparent, "tracestate": sent.tracestate}
    assert seen == [(sent.traceparent, "0" * 32)]


GARBAGE: list[dict[str, object]] = [
    {"traceparent": "garbage"},
    {"traceparent": 3},
    {"traceparent": PARENT.traceparent.upper()},
    {"traceparent": f"00-{'0' * 32}-{'1' * 16}-01"},
    {"traceparent": f"ff{PARENT.traceparent[2:]}"},
    {"traceparent": PARENT.traceparent + "x" * 400},
    {"tracestate": "a=1"},
]


@pytest.mark.parametrize("headers", GARBAGE)
async def test_what_is_no_context_is_ignored(rig: Rig, headers: dict[str, object]) -> None:
    await processed(rig, headers=headers)
    (event,) = rig.broker.events(CREATED)
    assert dict(event.headers) == {}


@pytest.mark.parametrize("headers", GARBAGE)
async def test_what_is_no_context_begins_a_trace(rig: Rig, spans: RecordedSpans, headers: dict[str, object]) -> None:
    await processed(rig, headers=headers)
    assert (parent_id(spans.one(PROCESS)), links_of(spans.one(PROCESS))) == (None, [])
    assert event_context(rig).span_id == context_of(spans.one(PUBLISH)).span_id


async def test_an_invalid_tracestate_is_left_out(rig: Rig) -> None:
    await processed(rig, headers={"traceparent": PARENT.traceparent, "tracestate": "=,="})
    (event,) = rig.broker.events(CREATED)
    assert dict(event.headers) == {"traceparent": PARENT.traceparent}


@pytest.mark.parametrize("headers", [{}, PARENT.headers])
async def test_without_the_sdk_a_command_costs_the_reading_of_one_header(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str]
) -> None:
    read: list[object] = []

    def counted(given: Any) -> TraceContext | None:
        read.append(given)
        return context_in(given)

    monkeypatch.setattr(delivery_spans, "context_in", counted)
    for module, name in (
        (delivery_spans, "saga_attributes"),
        (delivery_spans, "begin_publish"),
        (published_spans, "replace"),
    ):
        monkeypatch.setattr(module, name, refusing(name))
    await processed(rig, headers=headers)
    assert len(rig.broker.events(CREATED)) == len(read) == 1


def refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise AssertionError(f"{name} is for spans that are made")

    return refuse
