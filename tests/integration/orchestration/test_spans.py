"""What spans does the engine make of a saga, and what does it send and store of them?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from orchestrix.broker.port import Outcome, Published
from orchestrix.engine.control import Action
from orchestrix.engine.redispatch import RedispatchService
from orchestrix.engine.requests import StartedSaga, StartRequest
from orchestrix.errors import ConflictError, Unavailable
from orchestrix.outbox import rows
from orchestrix.persistence.engine import Transaction
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import TraceContext, context_in, published_context, trace_context
from tests.conformance.store.build import message
from tests.integration.orchestration.rig import Rig
from tests.support import eventually
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id, recorded_spans

CLIENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
STATE = "vendor=opaque,other=1"
PUBLISH_CREATE = "publish orchestrator.commands:cmd.createGitRepo"
PUBLISH_REGISTER = "publish orchestrator.commands:cmd.registerApp"
PROCESS_CREATED = "process orchestrator.events:evt.gitRepoCreated"


async def begin(rig: Rig, key: str, traceparent: str | None = None, tracestate: str | None = None) -> Instance:
    """A started app, whose client has that context."""
    asked = SagaStart(key, "ada", f"c-{key}", {}, traceparent, tracestate)
    result = await rig.starter.start(StartRequest("app", asked))
    assert isinstance(result, StartedSaga)
    return result.instance


def answer(rig: Rig, app: Instance, event: str, headers: Mapping[str, Any], **more: Any) -> None:
    """A worker's event with those headers."""
    body = {"appId": app.id, "correlationId": app.correlation_id, "causationId": app.command_id, **more}
    rig.broker.put(event, json.dumps(body).encode(), exchange="orchestrator.events", headers=headers)


async def sent(rig: Rig, command: str, count: int = 1) -> Mapping[str, Any]:
    """The headers of the last message with that routing key, once there are so many."""
    await eventually(lambda: len(rig.broker.events(command)) >= count, deadline=10)
    return rig.broker.events(command)[-1].headers


async def ended(spans: RecordedSpans, name: str, count: int = 1) -> ReadableSpan:
    """The last span of that name, once so many have ended."""
    await eventually(lambda: len(spans.named(name)) >= count, deadline=10, message=f"{count} of {name}")
    return spans.named(name)[-1]


def trace_of(span: ReadableSpan) -> str:
    """Its trace id."""
    return context_of(span).trace_id


@pytest.mark.req("S3-44", "DC-8")
async def test_a_saga_is_a_chain_of_spans_under_its_client(rig: Rig, spans: RecordedSpans) -> None:
    """Each message follows from the span that made it, and each handling from the span that published its message."""
    app = await begin(rig, "chain", CLIENT, STATE)
    headers = await sent(rig, "cmd.createGitRepo")
    first = await ended(spans, PUBLISH_CREATE)
    assert parent_id(first) == CLIENT[36:52], "the client's span is the parent"
    assert trace_of(first) == CLIENT[3:35]
    assert context_in(headers) == context_of(first)._replace(tracestate=STATE), "the worker follows from the publishing"
    assert app.command_id is not None
    assert context_of(first).span_id == published_context(context_of(first), app.command_id).span_id

    answer(rig, app, "evt.gitRepoCreated", headers)  # a foreign worker that does nothing but copy headers
    moved = await rig.reached(app, "REGISTERING")
    headers = await sent(rig, "cmd.registerApp")
    handled, second = await ended(spans, PROCESS_CREATED), await ended(spans, PUBLISH_REGISTER)
    assert parent_id(handled) == context_of(first).span_id
    assert links_of(handled) == [("message", trace_of(first), context_of(first).span_id)]
    assert parent_id(second) == context_of(handled).span_id, "the next command follows from the event"
    assert moved.trace_head == context_of(handled).traceparent
    assert moved.traceparent == CLIENT, "the instance keeps its root"

    answer(rig, moved, "evt.appRegistered", headers)
    await rig.reached(app, "COMPLETED")
    last = await ended(spans, "process orchestrator.events:evt.appRegistered")
    assert parent_id(last) == context_of(second).span_id
    assert {row.trace_id for row in await rig.history(app)} == {CLIENT[3:35]}


async def test_the_attributes_of_messages(rig: Rig, spans: RecordedSpans) -> None:
    """The names of the semantic conventions, and what only the engine knows."""
    app = await begin(rig, "golden", CLIENT)
    answer(rig, app, "evt.gitRepoCreated", await sent(rig, "cmd.createGitRepo"), id="e-1")
    await rig.reached(app, "REGISTERING")
    publish, process = await ended(spans, PUBLISH_CREATE), await ended(spans, PROCESS_CREATED)
    common = {
        "messaging.system": "rabbitmq",
        "saga.id": app.id,
        "saga.name": "app",
        "orchestrix.correlation_id": "c-golden",
    }
    waited = attribute(publish, "orchestrix.outbox.wait_ms")
    assert isinstance(waited, float)
    assert waited >= 0
    assert publish.kind is SpanKind.PRODUCER
    assert dict(publish.attributes or {}) == common | {
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orchestrator.commands:cmd.createGitRepo",
        "messaging.rabbitmq.destination.routing_key": "cmd.createGitRepo",
        "messaging.message.id": app.command_id,
        "messaging.message.conversation_id": "c-golden",
        "orchestrix.outbox.wait_ms": waited,
    }
    assert process.kind is SpanKind.CONSUMER
    assert dict(process.attributes or {}) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orchestrator.events:evt.gitRepoCreated",
        "messaging.rabbitmq.destination.routing_key": "evt.gitRepoCreated",
        "messaging.rabbitmq.message.delivery_tag": attribute(process, "messaging.rabbitmq.message.delivery_tag"),
        "orchestrix.redelivered": False,
        "saga.state.from": "APP_INITIATED",
        "saga.state.to": "REGISTERING",
        "saga.step": "createGitRepo",
        "saga.attempt": 1,
    }
    assert publish.status.status_code is process.status.status_code is StatusCode.UNSET


async def test_a_batch_has_one_commit_that_links_to_all(rig: Rig, spans: RecordedSpans) -> None:
    """Each message has its own span; their common commit belongs to none of their traces."""
    apps = [await begin(rig, f"batch-{number}", CLIENT.replace("0af7", f"0af{number}")) for number in range(1, 4)]
    for number, _ in enumerate(apps, start=1):
        await sent(rig, "cmd.createGitRepo", number)
    headers = {message.message_id: message.headers for message in rig.broker.events("cmd.createGitRepo")}
    spans.clear()
    await rig.listener.stop()
    for app in apps:
        answer(rig, app, "evt.gitRepoCreated", headers[app.command_id or ""])
    await rig.listener.start()
    for app in apps:
        await rig.reached(app, "REGISTERING")
    await ended(spans, PROCESS_CREATED, 3)
    handled = {context_of(one).span_id for one in spans.named(PROCESS_CREATED)}
    commits = [one for one in spans.named("commit") if parent_id(one) is None]
    linked = {span_id for one in commits for kind, _, span_id in links_of(one) if kind == "batch"}
    alone = {parent_id(one) for one in spans.named("commit") if parent_id(one) is not None}
    assert linked | alone == handled
    assert linked, "some were committed together"
    assert len({trace_of(one) for one in spans.named(PROCESS_CREATED)}) == 3, "no trace has anything of another"
    assert not {trace_of(one) for one in commits} & {trace_of(one) for one in spans.named(PROCESS_CREATED)}


async def test_the_commit_for_one_saga_is_a_span_of_it(rig: Rig, spans: RecordedSpans) -> None:
    app = await begin(rig, "alone", CLIENT)
    answer(rig, app, "evt.gitRepoCreated", await sent(rig, "cmd.createGitRepo"))
    await rig.reached(app, "REGISTERING")
    await ended(spans, PROCESS_CREATED)
    commits = spans.named("commit")
    assert len(commits) == 2
    for one in commits:
        assert trace_of(one) == CLIENT[3:35]
        assert (attribute(one, "saga.id"), attribute(one, "saga.name")) == (app.id, "app")
        assert attribute(one, "orchestrix.correlation_id") == "c-alone"


async def test_a_start_that_is_not_committed_has_a_commit_that_failed(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **_more: Any) -> Any:
        raise Unavailable("no database")

    monkeypatch.setattr(rig.database, "run", away)
    with pytest.raises(Unavailable):
        await begin(rig, "away", CLIENT)
    monkeypatch.undo()
    (commit,) = spans.named("commit")
    assert commit.status.status_code is StatusCode.ERROR
    assert attribute(commit, "error.type") == "Unavailable"


async def test_a_retry_links_to_the_try_before(rig: Rig, spans: RecordedSpans) -> None:
    """The timer follows from the failure; the command's next try from the timer."""
    await rig.wakeups.start()
    app = await begin(rig, "again", CLIENT)
    headers = await sent(rig, "cmd.createGitRepo")
    first = await ended(spans, PUBLISH_CREATE)
    failure = {"type": "Flaky", "message": "not now", "retryable": True, "retryAfterMs": 10}
    answer(rig, app, "evt.stepFailed", headers, saga="app", error=failure)
    again = await sent(rig, "cmd.createGitRepo", 2)
    failed = await ended(spans, "process orchestrator.events:evt.stepFailed")
    timer, second = await ended(spans, "timer retry"), await ended(spans, PUBLISH_CREATE, 2)
    assert parent_id(timer) == context_of(failed).span_id
    assert links_of(timer) == [("retry", trace_of(first), context_of(first).span_id)]
    assert attribute(timer, "saga.attempt") == 2
    assert attribute(timer, "orchestrix.timer.reason") == "retry"
    assert parent_id(second) == context_of(timer).span_id
    assert context_in(again) == context_of(second)
    now = await rig.now(app)
    answer(rig, now, "evt.stepFailed", again, saga="app", error=failure)
    await sent(rig, "cmd.createGitRepo", 3)
    third = await ended(spans, "timer retry", 2)
    assert links_of(third) == [("retry", trace_of(second), context_of(second).span_id)], (
        "to the last try, not the first"
    )
    assert len({trace_of(one) for one in spans.all}) == 1


async def test_a_deadline_follows_from_what_was_sent(rig: Rig, spans: RecordedSpans) -> None:
    await rig.wakeups.start()
    saga = await rig.begin("late", saga="hasty")
    await rig.reached(saga, "FAILED", deadline=10)
    timer = await ended(spans, "timer deadline", 3)
    assert attribute(timer, "saga.state.to") == "FAILED"
    roots = [one for one in spans.all if parent_id(one) is None]
    assert [one.name for one in roots] == ["start saga"], "all the rest is below the root that the engine made"
    assert attribute(roots[0], "saga.id") == saga.id
    row = await rig.now(saga)
    assert row.traceparent == context_of(roots[0]).traceparent
    assert {change.trace_id for change in await rig.history(saga)} == {trace_of(roots[0])}


async def test_what_begins_late_is_a_trace_of_its_own(rig: Rig) -> None:
    """It links back to its cause, and is kept whatever the sampler says of new traces."""
    with recorded_spans(split_after_s=0.05) as spans:
        await rig.wakeups.start()
        app = await begin(rig, "split", CLIENT)
        headers = await sent(rig, "cmd.createGitRepo")
        failure = {"type": "Flaky", "message": "later", "retryable": True, "retryAfterMs": 400}
        answer(rig, app, "evt.stepFailed", headers, saga="app", error=failure)
        again = await sent(rig, "cmd.createGitRepo", 2)
        timer = await ended(spans, "timer retry")
        failed = spans.one("process orchestrator.events:evt.stepFailed")
        assert parent_id(timer) is None
        assert links_of(timer)[0] == ("continued", trace_of(failed), context_of(failed).span_id)
        assert trace_of(timer) != CLIENT[3:35]
        context = context_in(again)
        assert context is not None
        assert context.trace_id == trace_of(timer)
        now = await rig.now(app)
        answer(rig, now, "evt.gitRepoCreated", again)
        await rig.reached(app, "REGISTERING")
        traces = [row.trace_id for row in await rig.history(app)]
        assert traces == [CLIENT[3:35], CLIENT[3:35], *[trace_of(timer)] * (len(traces) - 2)], "history leads to both"


async def test_an_unsampled_client_leaves_nothing_and_goes_on(rig: Rig, spans: RecordedSpans) -> None:
    """No span is made, and its context goes through byte for byte."""
    app = await begin(rig, "quiet", UNSAMPLED, STATE)
    headers = await sent(rig, "cmd.createGitRepo")
    assert headers == {"traceparent": UNSAMPLED, "tracestate": STATE}
    theirs = UNSAMPLED.replace("b7ad", "c0de")
    answer(rig, app, "evt.gitRepoCreated", {"traceparent": theirs, "tracestate": STATE})
    await rig.reached(app, "REGISTERING")
    assert await sent(rig, "cmd.registerApp") == {"traceparent": theirs, "tracestate": STATE}
    assert spans.all == []
    assert {row.trace_id for row in await rig.history(app)} == {UNSAMPLED[3:35]}


async def test_without_the_sdk_the_chain_is_passed_on(rig: Rig) -> None:
    """A foreign worker's own span is the parent of what follows from its event."""
    app = await begin(rig, "off", CLIENT, STATE)
    assert await sent(rig, "cmd.createGitRepo") == {"traceparent": CLIENT, "tracestate": STATE}
    theirs = CLIENT.replace("b7ad", "c0de").replace("-01", "-03")
    answer(rig, app, "evt.gitRepoCreated", {"traceparent": theirs, "tracestate": STATE})
    await rig.reached(app, "REGISTERING")
    assert await sent(rig, "cmd.registerApp") == {"traceparent": theirs, "tracestate": STATE}


async def test_a_worker_that_drops_the_headers_does_not_break_the_tree(rig: Rig, spans: RecordedSpans) -> None:
    app = await begin(rig, "dropped", CLIENT)
    await sent(rig, "cmd.createGitRepo")
    first = await ended(spans, PUBLISH_CREATE)
    answer(rig, app, "evt.gitRepoCreated", {})
    await rig.reached(app, "REGISTERING")
    handled = await ended(spans, PROCESS_CREATED)
    assert parent_id(handled) == context_of(first).span_id
    second = await ended(spans, PUBLISH_REGISTER)
    assert parent_id(second) == context_of(handled).span_id


async def test_what_changes_nothing_says_why(rig: Rig, spans: RecordedSpans) -> None:
    app = await begin(rig, "twice", CLIENT)
    headers = await sent(rig, "cmd.createGitRepo")
    answer(rig, app, "evt.gitRepoCreated", headers)
    await rig.reached(app, "REGISTERING")
    answer(rig, app, "evt.gitRepoCreated", headers, id="e-2")
    again = await ended(spans, PROCESS_CREATED, 2)
    assert attribute(again, "orchestrix.ignored") == "repeated"
    assert attribute(again, "saga.id") == app.id
    assert again.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("headers", [{}, {"traceparent": CLIENT}], ids=["untraced", "traced"])
async def test_an_event_of_an_unknown_app_has_a_span(
    rig: Rig, spans: RecordedSpans, headers: Mapping[str, Any]
) -> None:
    body = {"appId": 999_999, "correlationId": "c-nowhere", "causationId": "x"}
    rig.broker.put(
        "evt.gitRepoCreated",
        json.dumps(body).encode(),
        exchange="orchestrator.events",
        headers=headers,
        correlation_id="c-nowhere",
    )
    lost = await ended(spans, PROCESS_CREATED)
    assert attribute(lost, "orchestrix.ignored") == "unknown-app"
    assert attribute(lost, "orchestrix.correlation_id") == "c-nowhere"


async def test_an_event_that_cannot_be_read_has_a_span(rig: Rig, spans: RecordedSpans) -> None:
    rig.broker.put("evt.gitRepoCreated", b"{", exchange="orchestrator.events", headers={"traceparent": CLIENT})
    broken = await ended(spans, PROCESS_CREATED)
    assert attribute(broken, "orchestrix.ignored") == "not-json"
    assert parent_id(broken) == CLIENT[36:52]


async def test_a_person_s_action_is_a_trace_that_links_back(rig: Rig, spans: RecordedSpans) -> None:
    """What it sends belongs to the action, and the history says so."""
    app = await begin(rig, "verb", CLIENT)
    await sent(rig, "cmd.createGitRepo")
    first = await ended(spans, PUBLISH_CREATE)
    await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.CANCEL, "ada", "enough")))
    action = await ended(spans, "action cancel")
    assert parent_id(action) is None
    assert links_of(action) == [("action", CLIENT[3:35], CLIENT[36:52])]
    assert attribute(action, "orchestrix.action") == "cancel"
    rows = await rig.history(app)
    assert rows[-1].trace_id == trace_of(action) != trace_of(first)


async def test_a_person_s_redispatch_is_in_the_trace_of_the_request(rig: Rig, spans: RecordedSpans) -> None:
    """The request links to what it sends again; what the engine sends again by itself stays in its trace."""
    app = await begin(rig, "resent", CLIENT)
    await sent(rig, "cmd.createGitRepo")
    first = await ended(spans, PUBLISH_CREATE)
    await rig.outbox_empty()
    service = RedispatchService(rig.database, rig.relay, rig.catalog)
    request = tracing.begin("POST /redispatch", tracing.SpanKind.SERVER)
    with tracing.active(request):
        assert await service.redispatch(["app"], [app.id], actor="ada", reason="lost") == 1
    request.end()
    await sent(rig, "cmd.createGitRepo", 2)
    second = await ended(spans, PUBLISH_CREATE, 2)
    assert parent_id(second) == context_of(spans.one("POST /redispatch")).span_id
    assert links_of(spans.one("POST /redispatch")) == [("action", CLIENT[3:35], CLIENT[36:52])]

    await rig.outbox_empty()
    assert await service.redispatch(["app"], [app.id]) == 1, "without a request, as after a reset of the broker"
    await sent(rig, "cmd.createGitRepo", 3)
    third = await ended(spans, PUBLISH_CREATE, 3)
    assert parent_id(third) == context_of(first).span_id
    assert ("retry", trace_of(first), context_of(first).span_id) in links_of(third)
    assert len({context_of(one).span_id for one in (first, third)}) == 2


async def test_no_span_id_stands_twice_in_the_trace_of_a_client_that_acts_in_it(rig: Rig, spans: RecordedSpans) -> None:
    """A script has one trace for all that it does; what resume sends has the id of the command that was sent before."""
    app = await begin(rig, "script", CLIENT)
    await sent(rig, "cmd.createGitRepo")
    context = trace_context(CLIENT)
    assert context is not None
    with tracing.active(tracing.ForwardedContext(context)):
        await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.PAUSE, "ada", "wait")))
        await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.RESUME, "ada", "go on")))
    await ended(spans, PUBLISH_CREATE, 2)
    await rig.outbox_empty()
    request = tracing.begin("POST /redispatch", tracing.SpanKind.SERVER, context)
    with tracing.active(request):
        await RedispatchService(rig.database, rig.relay, rig.catalog).redispatch(["app"], [app.id])
    request.end()
    await ended(spans, PUBLISH_CREATE, 3)
    ids = [(trace_of(one), context_of(one).span_id) for one in spans.all]
    assert len(ids) == len(set(ids))
    pause, resume = spans.one("action pause"), spans.one("action resume")
    assert parent_id(pause) is parent_id(resume) is None
    assert links_of(pause) == [("action", CLIENT[3:35], CLIENT[36:52])]
    assert parent_id(spans.named(PUBLISH_CREATE)[1]) == context_of(resume).span_id


async def test_an_action_in_another_trace_is_part_of_that(rig: Rig, spans: RecordedSpans) -> None:
    app = await begin(rig, "elsewhere", CLIENT)
    await sent(rig, "cmd.createGitRepo")
    request = tracing.begin("request")
    with tracing.active(request):
        await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.PAUSE, "ada", "wait")))
    request.end()
    assert parent_id(spans.one("action pause")) == context_of(spans.one("request")).span_id


async def test_a_retry_that_a_person_asks_for_links_to_the_try_before(rig: Rig, spans: RecordedSpans) -> None:
    app = await begin(rig, "impatient", CLIENT)
    headers = await sent(rig, "cmd.createGitRepo")
    first = await ended(spans, PUBLISH_CREATE)
    failure = {"type": "Flaky", "message": "not now", "retryable": True, "retryAfterMs": 60_000}
    answer(rig, app, "evt.stepFailed", headers, saga="app", error=failure)
    await rig.until(app, lambda one: one.attempt == 2)
    await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.RETRY, "ada", "now")))
    await ended(spans, PUBLISH_CREATE, 2)
    assert ("retry", trace_of(first), context_of(first).span_id) in links_of(spans.one("action retry"))


async def test_an_action_that_is_rolled_back_leaves_no_span(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = await begin(rig, "undone", CLIENT)
    await sent(rig, "cmd.createGitRepo")

    async def refused(*_: Any) -> None:
        raise ConflictError("the commit did not come")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "commit", refused)
        with pytest.raises(ConflictError):
            await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.PAUSE, "ada", "wait")))
    assert spans.named("action pause") == []
    await rig.control.act(Action("app", app.id, ActionRequest(SagaAction.PAUSE, "ada", "wait")))
    spans.one("action pause")


async def test_an_event_whose_channel_is_lost_before_it_is_known_ends_its_span(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: Any) -> None:
        return None

    monkeypatch.setattr(rig.listener, "_known", lost)
    app = await begin(rig, "lost", CLIENT)
    answer(rig, app, "evt.gitRepoCreated", await sent(rig, "cmd.createGitRepo"))
    given_up = await ended(spans, PROCESS_CREATED)
    assert attribute(given_up, "orchestrix.ignored") == "channel-lost"


async def test_a_message_that_is_not_confirmed_is_published_again_with_a_link(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = rig.broker.publish, 1

    async def doubtful(messages: Any, **more: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            return [Published(Outcome.UNKNOWN, "no answer") for _ in messages]
        return await real(messages, **more)

    monkeypatch.setattr(rig.broker, "publish", doubtful)
    await begin(rig, "doubt", CLIENT)
    headers = await sent(rig, "cmd.createGitRepo")
    second = await ended(spans, PUBLISH_CREATE, 2)
    first = spans.named(PUBLISH_CREATE)[0]
    assert first.status.status_code is StatusCode.ERROR
    assert attribute(first, "error.type") == "unknown"
    assert context_of(first).span_id != context_of(second).span_id
    assert links_of(second) == [("retry", trace_of(first), context_of(first).span_id)]
    assert context_in(headers) == context_of(second)


async def test_a_publishing_that_is_cut_off_ends_its_span(
    rig: Rig, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message may have arrived: what its receiver does follows from that span."""
    begun = asyncio.Event()

    async def endless(messages: Any, **more: Any) -> Any:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.broker, "publish", endless)
    await begin(rig, "cut-off", CLIENT)
    await asyncio.wait_for(begun.wait(), 10)
    await rig.relay.stop()
    cut = spans.one(PUBLISH_CREATE)
    assert attribute(cut, "error.type") == "unknown"
    assert parent_id(cut) == CLIENT[36:52]


def test_what_the_sdk_does_not_make_costs_no_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off, a row whose client is sampled is passed on, and nothing else is done."""

    def refused(*_: Any) -> Any:
        raise AssertionError("attributes were made")

    monkeypatch.setattr(rows, "saga_attributes", refused)
    row = message(1, 2, traceparent=CLIENT, tracestate=STATE)
    span = rows.publish_span(row, again=False)
    assert not span.recording
    assert rows.message_of(row, span).headers == {"traceparent": CLIENT, "tracestate": STATE}


async def test_garbage_in_the_header_is_no_context(rig: Rig, spans: RecordedSpans) -> None:
    app = await begin(rig, "garbage", CLIENT)
    await sent(rig, "cmd.createGitRepo")
    first = await ended(spans, PUBLISH_CREATE)
    answer(rig, app, "evt.gitRepoCreated", {"traceparent": "00-zz-01", "tracestate": "\x00"})
    await rig.reached(app, "REGISTERING")
    assert parent_id(await ended(spans, PROCESS_CREATED)) == context_of(first).span_id


def test_a_context_keeps_its_flags() -> None:
    """They are a bit field: a random trace id has another bit."""
    context = TraceContext(CLIENT[:-2] + "03")
    assert context.sampled
    assert context.flags == 3
    assert published_context(context, "0193abcd-1234-7abc-8def-0123456789ab").traceparent.endswith(
        "-8def0123456789ab-03"
    )
    assert published_context(context, "no-uuid") == context
