"""Is a job one trace from its submission to its result, whoever owns it and however often it is tried?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from orchestrix import COMPLETED, Job, NothingToUndo, Saga, Step
from orchestrix.broker.port import Consumer
from orchestrix.broker.topology import saga_topology
from orchestrix.config.settings import JobsSettings
from orchestrix.domain.jobs import DISPATCHED, LOST, PENDING, RUNNING, SUCCEEDED, JobRow
from orchestrix.domain.schedules import Overlap
from orchestrix.persistence.jobs import jobs
from orchestrix.saga.catalog import Catalog
from orchestrix.schedules.service import ScheduleRequester, ScheduleService
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import TraceContext, context_in, published_context, trace_context
from tests.integration.jobs.plant import QUEUE, Hand, Plant, Task
from tests.support import eventually
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id

CALM: Final = JobsSettings(beat=2.0, silent=20.0)
ADA: Final = ScheduleRequester("ada", "to see it")
ROOT: Final = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", "vendor=1")
NOT_KEPT: Final = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02", "vendor=1")
STATUS: Final = "process job.{jobId}.status"
REPORT: Final = Step(
    "report", "REPORTING", job=Job("report"), event="evt.reported", then=COMPLETED, undo=NothingToUndo("it is paper")
)
CATALOG: Final = Catalog([Saga("accounts", (REPORT,))])


async def step(plant: Plant, hand: Hand, context: TraceContext, **more: Any) -> tuple[JobRow, Consumer]:
    """A job that is the step of a saga, asked for in that context, and who hears that saga's events."""
    await hand.broker.declare(saga_topology(CATALOG))
    ear = await hand.broker.consume(CATALOG.events, 10)
    given = {"payload": {"event": "evt.reported", "data": {}}, "saga": "accounts", "instance_id": 7, "step": "report"}
    asked = {"traceparent": context.traceparent, "tracestate": context.tracestate}
    return await plant.submit(**given, **asked, **more), ear


async def begun(hand: Hand) -> Task:
    """The next attempt, of a worker that makes no spans and copies headers."""
    task = await hand.take()
    task.context = {name: str(task.headers[name]) for name in ("traceparent", "tracestate") if name in task.headers}
    return task


async def maker(spans: RecordedSpans, headers: Mapping[str, object]) -> str | None:
    """The id of the span that made a message, the parent of the one that published it: that ends by the confirm."""
    [found] = await eventually(lambda: publishing(spans, headers), deadline=10, message="it is confirmed")
    return parent_id(found)


def publishing(spans: RecordedSpans, headers: Mapping[str, object]) -> list[ReadableSpan]:
    """The span that published a message."""
    context = context_in(headers)
    assert context is not None
    return [one for one in spans.all if context_of(one).traceparent == context.traceparent]


async def head(plant: Plant, job: JobRow) -> TraceContext | None:
    """The span from which the job's next part follows, by its row."""
    return trace_context((await plant.now(job)).trace_head)


async def several(spans: RecordedSpans, name: str, count: int) -> Sequence[ReadableSpan]:
    """Waits for so many spans of that name."""
    await eventually(lambda: len(spans.named(name)) >= count, deadline=10, message=f"{count} of {name}")
    return spans.named(name)


async def test_a_job_is_one_chain_from_its_submission_to_its_result(plant: Plant, spans: RecordedSpans) -> None:
    await plant.node(leads=True, tuned=CALM)
    hand = await plant.worker()
    job, ear = await step(plant, hand, ROOT, retries=1)
    task = await begun(hand)
    [dispatch] = await several(spans, "dispatch job", 1)
    assert parent_id(dispatch) == ROOT.span_id
    assert await maker(spans, task.headers) == context_of(dispatch).span_id
    assert task.headers["tracestate"] == "vendor=1"
    assert await head(plant, job) == context_of(dispatch)
    await task.running()
    [running] = await several(spans, STATUS, 1)
    assert parent_id(running) == str(task.headers["traceparent"])[36:52]
    assert (attribute(running, "orchestrix.job.status"), attribute(running, "orchestrix.job.state")) == ("RUNNING",) * 2
    assert await head(plant, job) == context_of(dispatch), "what its worker sends next follows from the dispatch"
    history = (await plant.now(job)).history_id
    await task.fail(retryAfterMs=1)
    second = await begun(hand)
    failed = (await several(spans, STATUS, 2))[1]
    again = (await several(spans, "dispatch job", 2))[1]
    assert parent_id(again) == context_of(failed).span_id
    tried = published_context(context_of(dispatch), str(history))
    assert links_of(again) == [("retry", tried.trace_id, tried.span_id)]
    assert await head(plant, job) == context_of(again)
    await second.succeed({"pages": 7})
    [event] = await ear.receive(1)
    last = (await several(spans, STATUS, 3))[2]
    assert await maker(spans, event.headers) == context_of(last).span_id
    assert (event.headers["tracestate"], await head(plant, job)) == ("vendor=1", context_of(last))
    assert {context_of(one).trace_id for one in spans.all if one.name != "commit"} == {ROOT.trace_id}
    commits = [one for one in spans.named("commit") if parent_id(one) == context_of(last).span_id]
    assert (len(commits), attribute(commits[0], "messaging.batch.message_count")) == (1, 1)
    ours = [one for one in spans.all if one.name in ("dispatch job", STATUS)]
    assert {attribute(one, "saga.id") for one in ours} == {7}
    assert {attribute(one, "orchestrix.correlation_id") for one in ours} == {job.correlation_id}


async def test_a_status_that_changes_nothing_says_why(plant: Plant, spans: RecordedSpans) -> None:
    await plant.node(leads=True, tuned=CALM)
    hand = await plant.worker()
    job = await plant.submit()
    task = await hand.take()
    await task.running()
    await plant.reached(job, RUNNING)
    await task.say("RUNNING", seq=1)
    repeated = (await several(spans, STATUS, 2))[1]
    assert attribute(repeated, "orchestrix.ignored") == "repeated"
    assert attribute(repeated, "orchestrix.job.state") is None
    dispatch = spans.one("dispatch job")
    assert parent_id(repeated) == context_of(dispatch).span_id, "its worker copies no headers"
    await task.log("one", "two")
    await task.succeed()
    await plant.reached(job, SUCCEEDED)
    await eventually(lambda: len(spans.named(STATUS)) == 3, deadline=10)
    assert len(await plant.logs(job)) == 2, "lines have no spans"


async def test_a_worker_that_is_silent_is_in_the_trace(plant: Plant, spans: RecordedSpans) -> None:
    await plant.node(leads=True)
    hand = await plant.worker()
    job = await plant.submit(retries=1, traceparent=ROOT.traceparent)
    task = await begun(hand)
    await task.running()
    await begun(hand)
    [ended] = await several(spans, "end job attempt", 1)
    first, second = await several(spans, "dispatch job", 2)
    assert (parent_id(ended), attribute(ended, "error.type")) == (context_of(first).span_id, "WorkerLost")
    assert parent_id(second) == context_of(ended).span_id
    lost = next(one for one in await plant.attempts(job) if one.state == LOST)
    tried = published_context(context_of(first), lost.history_id)
    assert links_of(second) == [("retry", tried.trace_id, tried.span_id)]


async def test_a_hand_off_is_in_the_trace(plant: Plant, spans: RecordedSpans) -> None:
    leader = await plant.node("leader", leads=True, tuned=CALM)
    hand = await plant.worker()
    job, ear = await step(plant, hand, ROOT)
    task = await begun(hand)
    await task.running()
    await plant.reached(job, RUNNING)
    await plant.owned(job, leader)
    other = await plant.node("other", tuned=CALM)
    await leader.jobs.drain()
    await plant.owned(job, other)
    [given] = await several(spans, "hand off job", 1)
    dispatch = spans.one("dispatch job")
    assert (context_of(given).trace_id, parent_id(given)) == (ROOT.trace_id, context_of(dispatch).span_id)
    ends = attribute(given, "orchestrix.node.from"), attribute(given, "orchestrix.node.to")
    assert (ends, attribute(given, "orchestrix.job.handoff_reason")) == ((leader.name, other.name), "Shutdown")
    await task.succeed({})
    [event] = await ear.receive(1)
    assert await maker(spans, event.headers) == context_of((await several(spans, STATUS, 2))[1]).span_id


async def test_jobs_of_a_dead_node_are_taken_over_in_their_traces(plant: Plant, spans: RecordedSpans) -> None:
    first = await plant.node("first", tuned=CALM)
    leader = await plant.node("leader", leads=True, tuned=CALM)
    await leader.jobs.handoff_subscriber.release()
    hand = await plant.worker()
    job = await plant.submit(traceparent=ROOT.traceparent)
    task = await begun(hand)
    await task.running()
    await plant.owned(job, first)
    await leader.jobs.handoff_subscriber.start()
    await first.die()
    await plant.owned(job, leader)
    offer = (await several(spans, "offer job", 1))[0]
    taken = (await several(spans, "hand off job", 1))[0]
    assert parent_id(offer) == context_of(spans.one("dispatch job")).span_id
    assert links_of(taken) == [("message", ROOT.trace_id, str(parent_id(taken)))]
    offers = {context_of(one).span_id for one in spans.named("offer job")}
    publishing = {context_of(one).span_id: parent_id(one) for one in spans.all if one.name.startswith("publish")}
    assert publishing.get(str(parent_id(taken)), parent_id(taken)) in offers
    assert attribute(taken, "orchestrix.node.to") == leader.name


async def test_each_run_of_a_schedule_is_a_trace_of_its_own(plant: Plant, spans: RecordedSpans) -> None:
    await plant.node(leads=True, tuned=CALM)
    hand = await plant.worker()
    service = ScheduleService(plant.database, plant.poke, lambda stops: None)
    work = {"queue": QUEUE, "handler": "report", "payload": None, "retries": 0, "timeout_ms": None}
    every = {"interval_ms": 1000, "missed_after_ms": 60_000, "overlap": Overlap.QUEUE}
    schedule = await service.create({"name": "often", "job": work, **every}, ADA)
    tasks = [await hand.take()]
    await tasks[0].running()
    await tasks[0].succeed()
    tasks.append(await hand.take())
    roots = (await several(spans, "schedule run", 2))[:2]
    dispatched = (await several(spans, "dispatch job", 2))[:2]
    assert [(parent_id(one), links_of(one)) for one in roots] == [(None, [])] * 2
    assert [parent_id(one) for one in dispatched] == [context_of(one).span_id for one in roots]
    assert len({context_of(one).trace_id for one in roots}) == 2
    assert [attribute(one, "orchestrix.job.id") for one in roots] == [one.order["jobId"] for one in tasks]
    assert {attribute(one, "orchestrix.schedule.id") for one in (*roots, *dispatched)} == {schedule.id}
    await service.pause(schedule.id, ADA)
    spans.clear()
    with tracing.active(tracing.begin("POST")) as request:
        run = await service.run(schedule.id, ADA)
    assert request.context is not None
    assert parent_id(spans.one("schedule run")) == request.context.span_id
    assert (await plant.now(run)).traceparent == context_of(spans.one("schedule run")).traceparent


@pytest.mark.parametrize("on", [True, False])
async def test_what_is_not_kept_reaches_the_saga_byte_for_byte(
    plant: Plant, request: pytest.FixtureRequest, on: bool
) -> None:
    recorded = request.getfixturevalue("spans") if on else None
    context = NOT_KEPT if on else ROOT
    await plant.node(leads=True, tuned=CALM)
    hand = await plant.worker()
    job, ear = await step(plant, hand, context, retries=1)
    task = await begun(hand)
    assert {name: task.headers[name] for name in context.headers} == context.headers
    await task.running()
    await task.fail(retryAfterMs=1)
    second = await begun(hand)
    assert {name: second.headers[name] for name in context.headers} == context.headers
    await second.succeed({})
    [event] = await ear.receive(1)
    assert {name: event.headers[name] for name in context.headers} == context.headers
    now = await plant.now(job)
    assert (now.traceparent, now.tracestate, now.trace_head) == (*context, context.traceparent)
    assert recorded is None or recorded.all == []


async def test_a_dispatch_that_was_lost_is_sent_again_in_its_trace(plant: Plant, spans: RecordedSpans) -> None:
    await plant.node(leads=True)
    hand = await plant.worker(beats=True)
    job = await plant.submit(traceparent=ROOT.traceparent)
    task = await hand.take()  # and says nothing of it
    hand.held.clear()
    again = await hand.take()
    assert (again.order, (await plant.now(job)).state) == (task.order, DISPATCHED)
    first, second = (await several(spans, "dispatch job", 2))[:2]
    tried = published_context(context_of(first), str((await plant.now(job)).history_id))
    assert (parent_id(second), links_of(second)) == (
        context_of(first).span_id,
        [("retry", tried.trace_id, tried.span_id)],
    )
    assert await maker(spans, again.headers) == context_of(second).span_id
    once, twice = [one for one in spans.all if one.name.startswith("publish ") and "dispatch" in one.name]
    assert (context_of(once), context_of(twice) == tried) == (tried, False), "no two spans have one id"
    assert links_of(twice) == [("retry", tried.trace_id, tried.span_id)]


async def test_a_job_that_waits_for_long_begins_a_trace(plant: Plant, spans: RecordedSpans) -> None:
    job = await plant.submit(traceparent=ROOT.traceparent, tracestate=ROOT.tracestate)
    async with plant.database.begin() as tx:
        found = (await jobs.lock(tx, [job.id]))[job.id]
        await jobs.store(tx, [(found.version, _older(found))])
    assert (await plant.now(job)).state == PENDING
    await plant.node(leads=True, tuned=CALM)
    hand = await plant.worker()
    task = await hand.take()
    [dispatch] = await several(spans, "dispatch job", 1)
    assert (parent_id(dispatch), links_of(dispatch)) == (None, [("continued", ROOT.trace_id, ROOT.span_id)])
    assert await maker(spans, task.headers) == context_of(dispatch).span_id
    assert "tracestate" not in task.headers


def _older(job: JobRow) -> JobRow:
    return replace(job, updated_at=job.updated_at - timedelta(hours=1))
