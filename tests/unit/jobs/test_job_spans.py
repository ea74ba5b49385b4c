"""Do traces show each attempt of a job, and does each part follow from the one that led to it?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, cast

import pytest

from orchestrix import clock
from orchestrix.broker.port import Delivery
from orchestrix.domain import jobs as rules
from orchestrix.domain.job_retry import retried
from orchestrix.domain.jobs import (
    ATTEMPT_TIMED_OUT,
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    WORKER_SILENT,
    AttemptEnding,
    AttemptStatus,
    JobRow,
    JobTransition,
)
from orchestrix.jobs import outbox_rows, step_results
from orchestrix.jobs import spans as job_spans
from orchestrix.jobs.submission import JobRequest, job_of
from orchestrix.persistence.engine import Transaction
from orchestrix.saga.job_targets import JobTarget
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import TraceContext, context_in, published_context, trace_context
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id

KEPT: Final = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", "vendor=1")
NOT_KEPT: Final = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02", "vendor=1")
WORKER: Final = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-1111111111111111-03")
ELSEWHERE: Final = TraceContext("00-22222222222222222222222222222222-3333333333333333-03")
LONG: Final = timedelta(seconds=tracing.DEFAULT_SPLIT_AFTER_S + 60)
FAILS: Final = AttemptEnding(FAILED, {"type": "Broken", "message": "no paper"}, answered=True)


class Commit:
    """A transaction, as far as spans know it."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], None]] = []

    def then(self, call: Callable[[], None]) -> None:
        """Calls it when this is done."""
        self._calls.append(call)

    def done(self) -> None:
        """It is committed."""
        for call in self._calls:
            call()


def job(context: TraceContext | None = KEPT, *, ago: timedelta = timedelta(0), **more: Any) -> JobRow:
    """A job that is due."""
    at = clock.now() - ago
    parent, state = (None, None) if context is None else context
    who = {"id": clock.uuid7(), "queue": "reports", "handler": "monthly", "created_by": "ada", "correlation_id": "c-1"}
    times = {"created_at": at, "updated_at": at, "wake_at": at}
    return JobRow(**{**who, **times, "traceparent": parent, "tracestate": state, "trace_head": parent, **more})


def step(context: TraceContext | None = KEPT, **more: Any) -> JobRow:
    """A job that is the step of a saga."""
    return job(context, saga="order", instance_id=7, step="print", **more)


def dispatch(*due: JobRow) -> list[JobRow]:
    """Their next attempts."""
    tx = Commit()
    moved = [rules.dispatched(one, clock.uuid7(), clock.now()) for one in due]
    found = job_spans.dispatch(cast(Transaction, tx), due, moved)
    tx.done()
    return [one.job for one in found]


def ended(before: JobRow, ending: AttemptEnding = FAILS, ago: timedelta = timedelta(0)) -> JobRow:
    """The job after an attempt, by the rules alone."""
    return rules.ended(before, ending, clock.now() - ago, 0.5).job


def rescue(before: JobRow, ending: AttemptEnding = WORKER_SILENT) -> JobRow:
    """The job after this node has found that its attempt is over."""
    tx, moved = Commit(), rules.ended(before, ending, clock.now(), 0.5)
    [found] = job_spans.end_attempts(cast(Transaction, tx), [before], [moved])
    tx.done()
    return found.job


def head(of: JobRow) -> TraceContext:
    """The span from which its next part follows."""
    found = trace_context(of.trace_head)
    assert found is not None
    return found


def published(of: JobRow, by: TraceContext) -> tuple[str, str, str]:
    """The link to the first publishing of its attempt's dispatch, in that trace."""
    context = published_context(by, str(of.history_id))
    return ("retry", context.trace_id, context.span_id)


def message(context: TraceContext | None, **more: Any) -> Delivery:
    """A worker's message."""
    queue = "orchestrix.job.j.status"
    headers = {} if context is None else context.headers
    return Delivery(
        b"{}",
        queue,
        "",
        queue,
        "m-1",
        None,
        None,
        headers,
        **{"redelivered": False, **more},
        delivery_count=0,
        tag=5,
        session=1,
    )


def test_a_dispatch_says_what_it_is_for(spans: RecordedSpans) -> None:
    before = step(retries=2)
    [after] = dispatch(before)
    span = spans.one("dispatch job")
    assert dict(span.attributes or {}) == {
        "orchestrix.correlation_id": "c-1",
        "orchestrix.job.id": before.id,
        "orchestrix.job.attempt": 1,
        "orchestrix.job.handler": "monthly",
        "orchestrix.job.queue": "reports",
        "saga.name": "order",
        "saga.id": 7,
        "saga.step": "print",
        "saga.compensating": False,
    }
    assert (parent_id(span), links_of(span), span.kind.name) == (KEPT.span_id, [], "INTERNAL")
    assert head(after) == context_of(span)
    row = outbox_rows.dispatch(after, clock.now())
    assert (row.traceparent, row.tracestate, row.n) == (after.trace_head, "vendor=1", 0)
    assert outbox_rows.assigned(after, clock.now()).traceparent == after.trace_head
    assert (after.traceparent, after.tracestate) == KEPT, "the root stays"


def test_a_job_of_nobody_has_no_saga(spans: RecordedSpans) -> None:
    [after] = dispatch(job(None, schedule_id="s-1"))
    span = spans.one("dispatch job")
    assert (attribute(span, "saga.name"), attribute(span, "orchestrix.schedule.id")) == (None, "s-1")
    assert (parent_id(span), head(after)) == (None, context_of(span))


def test_what_undoes_a_step_says_so(spans: RecordedSpans) -> None:
    dispatch(replace(step(), step="print:undo"))
    span = spans.one("dispatch job")
    assert (attribute(span, "saga.step"), attribute(span, "saga.compensating")) == ("print", True)


def test_one_commit_for_many_links_to_each_and_for_one_is_its_child(spans: RecordedSpans) -> None:
    dispatch(job(), job(ELSEWHERE), job(NOT_KEPT))
    made, commit = spans.named("dispatch job"), spans.one("commit")
    assert (parent_id(commit), attribute(commit, "messaging.batch.message_count")) == (None, 2)
    batch = [("batch", context_of(one).trace_id, context_of(one).span_id) for one in made]
    assert sorted(links_of(commit)) == sorted(batch)
    spans.clear()
    dispatch(job())
    assert parent_id(spans.one("commit")) == context_of(spans.one("dispatch job")).span_id


def test_what_is_rolled_back_leaves_no_span(spans: RecordedSpans) -> None:
    before = job()
    moved = rules.dispatched(before, clock.uuid7(), clock.now())
    tx = Commit()
    _dispatch(tx, before, moved)
    assert spans.all == []
    tx.done()
    assert {one.name for one in spans.all} == {"dispatch job", "commit"}


def _dispatch(tx: Commit, before: JobRow, moved: JobTransition) -> None:
    job_spans.dispatch(cast(Transaction, tx), [before], [moved])


def test_the_next_attempt_links_to_the_publishing_of_the_one_before(spans: RecordedSpans) -> None:
    [first] = dispatch(job(retries=3))
    failed = _failed(first, WORKER)
    assert head(failed) == WORKER
    [second] = dispatch(failed)
    span = spans.named("dispatch job")[1]
    assert parent_id(span) == WORKER.span_id
    assert links_of(span) == [published(first, KEPT)]
    assert attribute(span, "orchestrix.job.attempt") == 2
    [third] = dispatch(_failed(second, WORKER))
    assert links_of(spans.named("dispatch job")[2]) == [published(second, KEPT)]
    assert head(third) == context_of(spans.named("dispatch job")[2])


def _failed(before: JobRow, by: TraceContext) -> JobRow:
    return job_spans.after_end(before, ended(before), by)


def test_an_attempt_that_ended_in_another_trace_is_followed_in_that_of_its_dispatch(spans: RecordedSpans) -> None:
    [first] = dispatch(job(retries=3))
    failed = _failed(first, ELSEWHERE)
    assert failed.trace_head == first.trace_head
    dispatch(failed)
    span = spans.named("dispatch job")[1]
    assert (parent_id(span), links_of(span)) == (head(first).span_id, [published(first, KEPT)])
    spans.clear()
    dispatch(replace(failed, dispatched_at=clock.now() - LONG))
    late = spans.one("dispatch job")
    assert (parent_id(late), context_of(late).trace_id == KEPT.trace_id) == (None, False)
    assert links_of(late) == [("continued", KEPT.trace_id, head(first).span_id), published(first, KEPT)]


def test_the_result_follows_from_the_last_status_in_whichever_trace(spans: RecordedSpans) -> None:
    [first] = dispatch(step())
    done = _succeeded(first, ELSEWHERE)
    row = step_results._row(done, {"event": "evt.printed"}, clock.now())
    assert row is not None
    assert (row.traceparent, row.tracestate) == (ELSEWHERE.traceparent, None), "the state is that of another trace"


def _succeeded(before: JobRow, by: TraceContext) -> JobRow:
    status = AttemptStatus(before.id, str(before.history_id), "w", 1, SUCCEEDED, result={})
    moved = rules.reported(before, status, clock.now(), 0.5)
    assert isinstance(moved, JobTransition)
    return job_spans.after_end(before, moved.job, by)


def test_a_job_that_runs_on_still_follows_from_its_dispatch(spans: RecordedSpans) -> None:
    [first] = dispatch(step())
    running = rules.reported(first, AttemptStatus(first.id, str(first.history_id), "w", 1, RUNNING), clock.now(), 0.5)
    assert isinstance(running, JobTransition)
    assert _after(first, running.job).trace_head == first.trace_head


def _after(before: JobRow, after: JobRow) -> JobRow:
    return job_spans.after_end(before, after, WORKER)


def test_a_late_dispatch_begins_a_trace_that_links_back(spans: RecordedSpans) -> None:
    [after] = dispatch(job(ago=LONG))
    span = spans.one("dispatch job")
    assert (parent_id(span), links_of(span)) == (None, [("continued", KEPT.trace_id, KEPT.span_id)])
    assert (head(after), context_of(span).trace_id == KEPT.trace_id) == (context_of(span), False)
    assert outbox_rows.dispatch(after, clock.now()).tracestate is None


def test_a_rescue_is_in_the_trace_and_says_why(spans: RecordedSpans) -> None:
    [first] = dispatch(step(retries=1))
    spans.clear()
    waiting = rescue(first)
    span = spans.one("end job attempt")
    assert (parent_id(span), links_of(span)) == (head(first).span_id, [])
    assert (attribute(span, "error.type"), attribute(span, "orchestrix.job.state")) == ("WorkerLost", PENDING)
    assert (attribute(span, "saga.id"), attribute(span, "orchestrix.job.attempt")) == (7, 1)
    assert (head(waiting), span.status.status_code.name) == (context_of(span), "ERROR")
    [second] = dispatch(waiting)
    assert parent_id(spans.one("dispatch job")) == context_of(span).span_id
    assert links_of(spans.one("dispatch job")) == [published(first, KEPT)]
    assert rescue(second, ATTEMPT_TIMED_OUT).trace_head == context_of(spans.named("end job attempt")[1]).traceparent


def test_a_late_rescue_begins_a_trace_that_links_back_and_the_next_attempt_too(spans: RecordedSpans) -> None:
    [first] = dispatch(job(retries=1))
    silent = replace(first, updated_at=clock.now() - LONG, dispatched_at=clock.now() - LONG)
    spans.clear()
    waiting = rescue(silent)
    span = spans.one("end job attempt")
    assert (parent_id(span), links_of(span)) == (None, [("continued", KEPT.trace_id, head(first).span_id)])
    dispatch(waiting)
    again = spans.one("dispatch job")
    assert parent_id(again) is None
    assert links_of(again) == [("continued", KEPT.trace_id, head(first).span_id), published(first, KEPT)]
    spans.clear()
    heard = rescue(replace(silent, worker_beat_at=clock.now()))
    assert parent_id(spans.one("end job attempt")) == head(first).span_id
    assert head(heard) == context_of(spans.one("end job attempt"))
    last = rescue(replace(silent, retries=0))
    assert head(last) == context_of(spans.named("end job attempt")[1]), "its result follows from that"


def test_a_lost_dispatch_is_sent_again_and_links_to_the_first(spans: RecordedSpans) -> None:
    [first] = dispatch(job())
    spans.clear()
    kept, follows = _redispatch(first)
    span = spans.one("dispatch job")
    assert (parent_id(span), links_of(span)) == (head(first).span_id, [published(first, KEPT)])
    assert (kept.trace_head, head(follows)) == (first.trace_head, context_of(span))
    assert _again(first, follows), "the span of its publishing has an id of its own"
    late = replace(first, dispatched_at=clock.now() - LONG)
    spans.clear()
    kept, follows = _redispatch(late)
    span = spans.one("dispatch job")
    assert links_of(span) == [("continued", KEPT.trace_id, head(first).span_id), published(first, KEPT)]
    assert (parent_id(span), head(kept), head(follows)) == (None, context_of(span), context_of(span))
    assert not _again(late, follows)


def _redispatch(before: JobRow) -> tuple[JobRow, JobRow]:
    tx = Commit()
    [kept], follow = job_spans.redispatch(cast(Transaction, tx), [before], [before])
    tx.done()
    return kept, follow[before.id]


def _again(before: JobRow, follows: JobRow) -> bool:
    again = job_spans.published_again(before, follows)
    return again and outbox_rows.dispatch(follows, clock.now(), again=again).n == 1


def test_a_status_follows_from_its_message(spans: RecordedSpans) -> None:
    [first] = dispatch(step())
    status = AttemptStatus(first.id, str(first.history_id), "w-1", 1, RUNNING)
    spans.clear()
    made = _begin_status(first, message(WORKER, redelivered=True), status)
    made.end()
    span = spans.one("process job.{jobId}.status")
    found = dict(span.attributes or {})
    assert found == {
        **found,
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orchestrix.job.j.status",
        "messaging.destination.template": "job.{jobId}.status",
        "messaging.rabbitmq.destination.routing_key": "orchestrix.job.j.status",
        "messaging.rabbitmq.message.delivery_tag": 5,
        "messaging.message.id": "m-1",
        "messaging.message.conversation_id": "c-1",
        "orchestrix.redelivered": True,
        "orchestrix.correlation_id": "c-1",
        "orchestrix.job.id": first.id,
        "orchestrix.job.attempt": 1,
        "orchestrix.job.handler": "monthly",
        "orchestrix.job.queue": "reports",
        "orchestrix.job.status": "RUNNING",
        "orchestrix.worker.id": "w-1",
        "saga.name": "order",
        "saga.id": 7,
        "saga.step": "print",
        "saga.compensating": False,
    }
    assert (parent_id(span), span.kind.name) == (WORKER.span_id, "CONSUMER")
    assert links_of(span) == [("retry", WORKER.trace_id, WORKER.span_id)]
    spans.clear()
    _begin_status(first, message(None), status).end()
    assert parent_id(spans.one("process job.{jobId}.status")) == head(first).span_id, "its worker copies no headers"


def _begin_status(before: JobRow, delivery: Delivery, status: AttemptStatus) -> tracing.Span:
    return job_spans.begin_status(before, delivery, status)


def test_a_hand_off_is_in_the_trace_of_the_job(spans: RecordedSpans) -> None:
    [first] = dispatch(step())
    given = rules.offered(rules.taken(first, "n-1", clock.now()), "Shutdown", rules.HANDING_OFF, clock.now())
    spans.clear()
    _hand_off(given, {})
    span = spans.one("hand off job")
    assert parent_id(span) == head(first).span_id
    found = {name: attribute(span, f"orchestrix.{name}") for name in ("node.from", "node.to", "job.handoff_reason")}
    assert found == {"node.from": "n-1", "node.to": "n-2", "job.handoff_reason": "Shutdown"}
    assert (attribute(span, "orchestrix.job.id"), attribute(span, "saga.id")) == (first.id, 7)
    spans.clear()
    _hand_off(given, {first.id: message(WORKER)})
    span = spans.one("hand off job")
    assert (parent_id(span), links_of(span)) == (WORKER.span_id, [("message", WORKER.trace_id, WORKER.span_id)])
    spans.clear()
    _hand_off(first, {})
    assert spans.all == [], "it had no owner"


def _hand_off(before: JobRow, offers: dict[str, Delivery]) -> None:
    tx = Commit()
    job_spans.hand_off(cast(Transaction, tx), [before], "n-2", offers)
    tx.done()


@pytest.mark.parametrize("late", [False, True])
def test_an_orphan_is_offered_in_its_trace_unless_that_is_long_over(spans: RecordedSpans, late: bool) -> None:
    [first] = dispatch(job())
    at = clock.now() - LONG if late else clock.now()
    owned = replace(rules.taken(first, "n-1", at), dispatched_at=at)
    spans.clear()
    offer = _offer(owned)
    span = spans.one("offer job")
    assert parent_id(span) == (None if late else head(first).span_id)
    assert links_of(span) == ([("continued", KEPT.trace_id, head(first).span_id)] if late else [])
    assert attribute(span, "orchestrix.node.from") == "n-1"
    assert offer.traceparent == context_of(span).traceparent


def _offer(before: JobRow) -> Any:
    tx, offered = Commit(), rules.offered(before, "NodeCrash", rules.ORPHAN_PENDING, clock.now())
    [job] = job_spans.offer(cast(Transaction, tx), [before], [offered])
    tx.done()
    return outbox_rows.offer(job, "NodeCrash", clock.now())


def test_a_persons_retry_begins_a_trace_that_links_to_the_job(spans: RecordedSpans) -> None:
    [first] = dispatch(job())
    failed = _failed(first, WORKER)
    spans.clear()
    again = _act("retry-job", failed, retried(failed, clock.now()))
    span = spans.one("retry-job")
    assert (parent_id(span), links_of(span)) == (None, [("action", WORKER.trace_id, WORKER.span_id)])
    assert (attribute(span, "orchestrix.action"), head(again)) == ("retry-job", context_of(span))
    dispatch(again)
    assert (parent_id(spans.one("dispatch job")), links_of(spans.one("dispatch job"))) == (head(again).span_id, [])


def test_a_persons_cancel_is_in_the_trace_of_the_request(spans: RecordedSpans) -> None:
    [first] = dispatch(job())
    spans.clear()
    request = tracing.begin("POST")
    with tracing.active(request):
        gone = _act("cancel-job", first, rules.cancelled(first, "not wanted", clock.now()).job)
    span = spans.one("cancel-job")
    assert request.context is not None
    assert (parent_id(span), links_of(span)) == (
        request.context.span_id,
        [("action", KEPT.trace_id, head(first).span_id)],
    )
    assert head(gone) == context_of(span), "its result follows from that"
    running = replace(first, state=RUNNING)
    assert _act("cancel-job", running, replace(running, cancel_reason="-")).trace_head == first.trace_head


def _act(action: str, before: JobRow, after: JobRow) -> JobRow:
    tx = Commit()
    found = job_spans.act(cast(Transaction, tx), action, before, after)
    tx.done()
    return found


def test_a_job_follows_from_the_request_for_it(spans: RecordedSpans) -> None:
    wanted = JobRequest(
        JobTarget("reports"), handler="monthly", traceparent=KEPT.traceparent, tracestate=KEPT.tracestate
    )
    with tracing.active(tracing.begin("POST", parent=KEPT)) as request:
        found, bare = job_of(wanted, clock.now()), job_of(JobRequest(JobTarget("q"), handler="h"), clock.now())
    assert request.context is not None
    assert (found.traceparent, found.tracestate, found.trace_head) == (*KEPT, request.context.traceparent)
    assert (bare.traceparent, bare.trace_head) == (request.context.traceparent, request.context.traceparent)
    outside = job_of(wanted, clock.now())
    assert (outside.traceparent, outside.tracestate, outside.trace_head) == (*KEPT, KEPT.traceparent)


@pytest.mark.parametrize("on", [True, False])
def test_what_its_client_does_not_keep_is_passed_on_byte_for_byte(request: pytest.FixtureRequest, on: bool) -> None:
    recorded = request.getfixturevalue("spans") if on else None
    before = step(NOT_KEPT if on else KEPT, retries=1)
    root = (before.traceparent, before.tracestate)
    [first] = dispatch(before)
    row = outbox_rows.dispatch(first, clock.now())
    assert (row.traceparent, row.tracestate) == root
    made = job_spans.begin_status(first, message(trace_context(*root)), AttemptStatus(first.id, "h", "w", 1, FAILED))
    assert (made.recording, made.context) == (False, root)
    again = rescue(_dispatched_again(first, made.context))
    result = step_results._row(again, {"event": "evt.printed"}, clock.now())
    assert result is not None
    assert (result.traceparent, result.tracestate, again.ended) == (*root, True)
    _hand_off(rules.taken(first, "n-1", clock.now()), {})
    assert _offer(first).traceparent == root[0]
    assert (recorded.all if recorded is not None else []) == []


def _dispatched_again(before: JobRow, context: TraceContext | None) -> JobRow:
    [again] = dispatch(job_spans.after_end(before, ended(before), context))
    return again


def test_without_spans_nothing_is_made() -> None:
    tx = Commit()
    before = job(retries=1)
    moved = rules.dispatched(before, clock.uuid7(), clock.now())
    [same] = job_spans.dispatch(cast(Transaction, tx), [before], [moved])
    assert same is moved
    [kept], _ = job_spans.redispatch(cast(Transaction, tx), [moved.job], [moved.job])
    assert kept is moved.job
    assert not job_spans.published_again(moved.job, moved.job)
    lost = rules.ended(moved.job, WORKER_SILENT, clock.now(), 0.5)
    assert job_spans.end_attempts(cast(Transaction, tx), [moved.job], [lost]) == [lost]
    assert context_in(_headers(moved.job)) == KEPT
    assert tx._calls == []


def _headers(of: JobRow) -> dict[str, object]:
    row = outbox_rows.dispatch(of, clock.now())
    return {"traceparent": row.traceparent, "tracestate": row.tracestate}
