"""Do traces show each call to an executor, and does what follows from it follow from its span?"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrix.domain import jobs as rules
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.jobs.executors.port import CallResult, ExecutorRun
from orchestrix.persistence.engine import Database
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import TraceContext, published_context
from tests.conformance.store.test_jobs import now, owned, stored
from tests.integration.jobs.test_executor_calls import A, B, Executors, Owner, running
from tests.servers import templates
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id

KEPT = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=1")
TRACED: dict[str, Any] = {
    "traceparent": KEPT.traceparent,
    "tracestate": KEPT.tracestate,
    "trace_head": KEPT.traceparent,
}
UNKEPT = KEPT._replace(traceparent=KEPT.traceparent[:-1] + "0")


@dataclass
class Asked(Executors):
    """Says with which status it answers, and in which context it is asked to stop."""

    contexts: list[TraceContext | None] = field(default_factory=list)

    async def run(self, run: ExecutorRun) -> CallResult:
        status = {CallAnswer.TAKEN: 200, CallAnswer.REFUSED: 422}
        result = await super().run(run)
        return replace(result, status=status.get(result.answer))

    async def cancel(self, address: str, group: str, job_id: str, history_id: str, reason: str) -> None:
        self.contexts.append(tracing.current_context())
        await super().cancel(address, group, job_id, history_id, reason)


@pytest.fixture
async def owner(sqlite_url: str) -> AsyncIterator[Owner]:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    executors = Asked(database)
    yield Owner(database, executors)
    await database.close()


async def test_the_call_follows_from_the_dispatch_and_the_executor_from_the_call(
    owner: Owner, spans: RecordedSpans
) -> None:
    job = await owner.job(**TRACED)
    await owner.until(owner.node(), lambda: bool(spans.named("POST /run")))
    span, [run] = spans.one("POST /run"), owner.executors.runs
    assert (span.kind.name, parent_id(span), links_of(span)) == ("CLIENT", KEPT.span_id, [])
    assert context_of(span).span_id == published_context(KEPT, str(job.history_id)).span_id
    assert (run.traceparent, run.tracestate) == (context_of(span).traceparent, "vendor=1")
    expected = {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "url.full": f"{A}/run",
        "url.template": "/run",
        "server.address": "a",
        "server.port": 1,
        "orchestrix.job.id": job.id,
        "orchestrix.job.group": "shop",
        "orchestrix.worker.id": A,
    }
    assert {name: attribute(span, name) for name in expected} == expected
    assert span.status.status_code.name == "UNSET"


async def test_another_call_links_to_the_first_one_whichever_node_makes_it(owner: Owner, spans: RecordedSpans) -> None:
    owner.executors.answers = [(A, CallAnswer.NOT_REACHED)]
    job = await owner.job(routing="FAILOVER", **TRACED)
    await owner.until(owner.node(), lambda: len(spans.named("POST /run")) == 2)
    await owned(owner.database, "other", await now(owner.database, job))
    await owner.until(owner.node("other"), lambda: len(spans.named("POST /run")) == 3)
    first, *others = spans.named("POST /run")
    link = ("retry", KEPT.trace_id, context_of(first).span_id)
    assert [(links_of(one), parent_id(one)) for one in others] == [([link], KEPT.span_id)] * 2
    assert [attribute(one, "server.address") for one in (first, *others)] == ["a", "b", "b"]
    assert (first.status.status_code.name, attribute(first, "error.type")) == ("ERROR", "NotReached")
    assert owner.executors.called == [A, B, B]


async def test_a_refusal_is_an_error_with_its_status(owner: Owner, spans: RecordedSpans) -> None:
    owner.executors.answers = [(A, CallAnswer.REFUSED)]
    await owner.job(**TRACED)
    await owner.until(owner.node(), lambda: bool(spans.named("end job attempt")))
    span = spans.one("POST /run")
    assert (attribute(span, "http.response.status_code"), attribute(span, "error.type")) == (422, "422")


async def test_of_probes_those_are_shown_that_deny_the_attempt(owner: Owner, spans: RecordedSpans) -> None:
    job = await running(owner)
    await owner.until(owner.node(probe=0.05), lambda: owner.executors.asked >= 2)
    assert spans.named("GET /runs/{historyId}") == []
    owner.executors.known[A] = False
    await owner.until(owner.node(), lambda: job.id in owner.changed)
    for span in spans.named("GET /runs/{historyId}"):
        assert (attribute(span, "error.type"), attribute(span, "http.response.status_code")) == ("404", 404)
    assert len(spans.named("GET /runs/{historyId}")) == 2


async def test_an_executor_is_asked_to_stop_in_a_span(owner: Owner, spans: RecordedSpans) -> None:
    job = await running(owner)
    await stored(owner.database, job, rules.cancelled(job, "not needed", owner.database.now()))
    await owner.until(owner.node(), lambda: bool(spans.named("POST /cancel")))
    span = spans.one("POST /cancel")
    assert span.kind.name == "CLIENT"
    assert isinstance(owner.executors, Asked)
    assert owner.executors.contexts == [context_of(span)]


@pytest.mark.parametrize("context", [KEPT, UNKEPT])
async def test_without_spans_the_context_is_passed_on_as_it_came(owner: Owner, context: TraceContext) -> None:
    await owner.job(**{**TRACED, "traceparent": context.traceparent, "trace_head": context.traceparent})
    await owner.until(owner.node(), lambda: bool(owner.executors.runs))
    [run] = owner.executors.runs
    assert (run.traceparent, run.tracestate) == tuple(context)


async def test_nothing_is_made_in_a_trace_that_is_not_kept(owner: Owner, spans: RecordedSpans) -> None:
    await owner.job(**{**TRACED, "traceparent": UNKEPT.traceparent, "trace_head": UNKEPT.traceparent})
    await owner.until(owner.node(), lambda: bool(owner.executors.runs))
    assert (spans.all, owner.executors.runs[0].traceparent) == ([], UNKEPT.traceparent)
