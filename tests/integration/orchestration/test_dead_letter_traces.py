"""Does what is sent again begin a trace that links back, and is what nobody keeps passed on as it came?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.port import Delivery
from orchestrix.dead_letters.parse import parse
from orchestrix.dead_letters.service import DeadLetterFilter
from orchestrix.persistence.engine import Database
from orchestrix.saga.definition import STEP_FAILED
from orchestrix.telemetry.trace_context import TraceContext, context_in
from tests.integration.orchestration.house import ADA, CATALOG, CREATE, CREATED, House, report
from tests.servers import templates
from tests.support import eventually
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id

KEPT: Final = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-03", "vendor=1")
NOT_KEPT: Final = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02", "vendor=1")
BACK: Final = [("redrive", KEPT.trace_id, KEPT.span_id)]


@pytest.fixture
async def house(sqlite_url: str) -> AsyncIterator[House]:
    """An orchestrator; two of the queues let a message come back twice."""
    templates.upgraded(sqlite_url)
    database, server = Database(sqlite_url), EmbeddedBroker()
    await server.start()
    made = House(database, server.url)
    await made.open({CREATE: 2, CREATED: 2})
    yield made
    await made.close()
    await database.close()
    await server.stop()


async def maker(spans: RecordedSpans, headers: Mapping[str, object]) -> tuple[str, str | None]:
    """The trace of a message and the id of the span that made it: the parent of the one that published it."""
    context = context_in(headers)
    assert context is not None

    def published() -> list[ReadableSpan]:
        return [one for one in spans.all if context_of(one).traceparent == context.traceparent]

    [found] = await eventually(published, deadline=10, message="it is confirmed")
    return context.trace_id, parent_id(found)


async def test_what_a_person_sends_again_begins_a_trace_that_links_back(house: House, spans: RecordedSpans) -> None:
    app = await house.begin()
    await house.bury(CREATED, report(app), id="m-1", correlation_id="c-9", headers=KEPT.headers)
    await house.mover.start()
    (letter,) = await house.kept()
    await house.letters.redrive(letter.id, ADA)
    (event,) = await house.take(CREATED)
    span = spans.one("redrive")
    assert (parent_id(span), links_of(span), span.kind.name) == (None, BACK, "INTERNAL")
    assert dict(span.attributes or {}) == {
        "orchestrix.dead_letter.id": letter.id,
        "orchestrix.dead_letter.queue": CREATED,
        "messaging.message.id": "m-1",
        "orchestrix.correlation_id": "c-9",
        "saga.name": "app",
        "saga.id": app.id,
    }
    assert context_of(span).trace_id != KEPT.trace_id
    assert await maker(spans, event.headers) == (context_of(span).trace_id, context_of(span).span_id)
    assert "tracestate" not in event.headers, "that is of the other trace"


async def test_all_that_fit_have_a_trace_each_and_one_commit(house: House, spans: RecordedSpans) -> None:
    for name in ("a", "b"):
        await house.bury(CREATED, name.encode(), headers=KEPT.headers if name == "a" else {})
    await house.mover.start()
    await house.kept(2)
    spans.clear()
    done = await house.letters.redrive_all(DeadLetterFilter(), ADA)
    assert done.redriven == 2
    roots = spans.named("redrive")
    assert sorted(links_of(one) for one in roots) == [[], BACK]
    [commit] = [one for one in spans.named("commit") if attribute(one, "messaging.batch.message_count") == 2]
    assert {link[2] for link in links_of(commit)} == {context_of(one).span_id for one in roots}


async def test_what_is_sent_again_by_itself_begins_a_trace_too(house: House, spans: RecordedSpans) -> None:
    app = await house.begin()
    await house.send(CREATED, report(app), id="m-1", headers=KEPT.headers)
    await house.kill(CREATED)
    await house.mover.start()
    (event,) = await house.take(CREATED)
    span = spans.one("redrive")
    assert (parent_id(span), links_of(span)) == (None, BACK)
    assert await maker(spans, event.headers) == (context_of(span).trace_id, context_of(span).span_id)


async def test_the_failure_of_a_dead_command_follows_from_it(house: House, spans: RecordedSpans) -> None:
    await house.begin()
    (command,) = await house.take(CREATE)
    await house.send(CREATE, command.body, id=command.message_id or "", headers=KEPT.headers)
    await house.kill(CREATE)
    await house.mover.start()
    (event,) = await house.take(STEP_FAILED)
    assert await maker(spans, event.headers) == (KEPT.trace_id, KEPT.span_id)
    assert event.headers["tracestate"] == "vendor=1"
    assert spans.named("redrive") == []


@pytest.mark.parametrize("on", [True, False])
async def test_what_is_not_kept_goes_on_byte_for_byte(house: House, request: pytest.FixtureRequest, on: bool) -> None:
    recorded = request.getfixturevalue("spans") if on else None
    context = NOT_KEPT if on else KEPT
    await house.bury(CREATED, b"{", headers=context.headers)
    await house.mover.start()
    (letter,) = await house.kept()
    await house.letters.redrive(letter.id, ADA)
    (event,) = await house.take(CREATED)
    assert {name: event.headers[name] for name in context.headers} == context.headers
    assert recorded is None or recorded.named("redrive") == []


async def test_the_context_is_kept_where_other_headers_are_too_many(house: House) -> None:
    headers = {**KEPT.headers, "x-reason": "not-json", "x-long": "x" * 20_000}
    found = parse(_delivery(headers), CATALOG, house.database.now())
    assert found.dead_letter.headers == {**KEPT.headers, "x-reason": "not-json"}


def _delivery(headers: Mapping[str, object]) -> Delivery:
    return Delivery(b"{", f"{CREATED}.dead", "", CREATED, "m-1", None, None, headers, False, 0, 1, 1)
