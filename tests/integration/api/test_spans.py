"""Is every request one span, within the trace of its client, and what follows from it within the span?"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from orchestrix.errors import Unavailable
from orchestrix.telemetry import tracing
from orchestrix.telemetry.trace_context import TraceContext
from tests.support import eventually
from tests.tracing import RecordedSpans, context_of, parent_id

from .answers import BODY, JSON, problem
from .world import Exchange, World

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
KEPT = f"00-{TRACE}-{SPAN}-01"
NOT_KEPT = f"00-{TRACE}-{SPAN}-00"
JOB = {"queue": "reports", "handler": "monthly"}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def asked(world: World) -> TraceContext | None:
    """The context that the last start was given."""
    start = world.starter.requests[-1].start
    return None if start.traceparent is None else TraceContext(start.traceparent, start.tracestate)


async def test_a_start_is_a_span_of_the_server(world: World, spans: RecordedSpans) -> None:
    headers = {"User-Agent": "curl/8", "X-Correlation-ID": "c-9", "Host": "api.example:8080"}
    answer = await world.client.post("/apps", json=BODY, headers=headers)
    (span,) = spans.all
    assert (span.name, span.kind, span.parent) == ("POST /apps", SpanKind.SERVER, None)
    assert (span.status.status_code, span.links, span.events) == (StatusCode.UNSET, (), ())
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.route": "/apps",
        "url.path": "/apps",
        "url.scheme": "http",
        "http.response.status_code": 200,
        "server.address": "api.example",
        "server.port": 8080,
        "client.address": "127.0.0.1",
        "user_agent.original": "curl/8",
        "orchestrix.correlation_id": "c-9",
        "saga.name": "app",
        "saga.id": answer.json()["id"],
    }
    assert asked(world) == context_of(span), "the instance begins in the span"
    assert answer.headers["x-trace-id"] == context_of(span).trace_id


async def test_a_client_is_the_parent(world: World, spans: RecordedSpans) -> None:
    answer = await world.client.post("/jobs", json=JOB, headers={"traceparent": KEPT, "tracestate": "a=1"})
    span = spans.one("POST /jobs")
    assert (context_of(span).trace_id, parent_id(span)) == (TRACE, SPAN)
    assert answer.headers["x-trace-id"] == TRACE
    job = (await world.client.get(f"/jobs/{answer.json()['id']}")).json()
    assert job["correlationId"] == attributes(span)["orchestrix.correlation_id"]


async def test_what_a_client_does_not_keep_is_passed_on_as_it_came(world: World, spans: RecordedSpans) -> None:
    answer = await world.client.post("/apps", json=BODY, headers={"traceparent": NOT_KEPT, "tracestate": "a=1"})
    assert (answer.headers["x-trace-id"], asked(world)) == (TRACE, TraceContext(NOT_KEPT, "a=1"))
    assert spans.all == []


async def test_without_spans_a_client_s_context_is_passed_on_as_it_came(world: World) -> None:
    answer = await world.client.post("/apps", json=BODY, headers={"traceparent": KEPT, "tracestate": "a=1"})
    assert (answer.headers["x-trace-id"], asked(world)) == (TRACE, TraceContext(KEPT, "a=1"))


async def test_without_spans_and_a_client_s_context_there_is_no_trace(world: World) -> None:
    answer = await world.client.post("/apps", json=BODY)
    assert "x-trace-id" not in answer.headers
    assert asked(world) is None


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/docs", "/openapi.json", "/metrics"])
async def test_probes_and_documents_are_not_traced(world: World, spans: RecordedSpans, path: str) -> None:
    answer = await world.client.get(path, headers={"traceparent": KEPT})
    assert "x-trace-id" not in answer.headers
    assert spans.all == []


@pytest.mark.parametrize(
    ("method", "path", "name", "status"),
    [
        ("GET", "/apps/7", "GET /apps/{id}", 404),
        ("HEAD", "/apps/7", "HEAD /apps/{id}", 404),
        ("GET", "/healthy", "GET", 404),
        ("PUT", "/apps", "PUT /apps", 405),
        ("POST", "/apps", "POST /apps", 415),
        ("GET", "/registry/groups/a/b", "GET /registry/groups/{app}", 404),
        ("BREW", "/apps", "HTTP /apps", 405),
    ],
)
async def test_a_mistake_of_the_client_is_no_error_of_the_server(
    world: World, spans: RecordedSpans, method: str, path: str, name: str, status: int
) -> None:
    assert (await world.client.request(method, path)).status_code == status
    (span,) = spans.all
    assert (span.name, attributes(span)["http.response.status_code"]) == (name, status)
    assert attributes(span)["http.request.method"] == (method if method != "BREW" else "_OTHER")
    assert (span.status.status_code, attributes(span).get("error.type")) == (StatusCode.UNSET, None)


@pytest.mark.parametrize(("error", "status"), [(Unavailable("no database"), 503), (ValueError("a defect"), 500)])
async def test_an_error_of_the_server_is_one(world: World, spans: RecordedSpans, error: Exception, status: int) -> None:
    world.starter.answer = error
    problem(await world.client.post("/apps", json=BODY), status, "unavailable" if status == 503 else "internal_error")
    span = spans.one("POST /apps")
    assert (span.status.status_code, attributes(span)["error.type"]) == (StatusCode.ERROR, str(status))
    assert span.status.description is None, "nothing of the cause"


async def test_a_stream_is_one_span_until_its_end(world: World, spans: RecordedSpans) -> None:
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}/events", headers={"traceparent": KEPT}) as exchange:
        await eventually(lambda: exchange.events and world.watch.waiting, deadline=5)
        assert (exchange.headers["x-trace-id"], spans.all) == (TRACE, [])
        moved = await world.advance(instance, "evt.gitRepoCreated")
        await world.advance(moved, "evt.appRegistered")
        await exchange.done()
    span = spans.one("GET /apps/{id}/events")
    assert (parent_id(span), attributes(span)["http.response.status_code"]) == (SPAN, 200)


async def test_a_long_poll_is_one_span_until_its_answer(world: World, spans: RecordedSpans) -> None:
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}?wait=20s") as exchange:
        await eventually(lambda: world.watch.waiting, deadline=5)
        assert spans.all == []
        await world.advance(instance, "evt.gitRepoCreated")
        await exchange.done()
    assert spans.one("GET /apps/{id}").status.status_code is StatusCode.UNSET


async def test_an_answer_that_breaks_off_is_an_error(
    world: World, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await world.started()

    async def broken(*_: object) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(world.watch, "changed", broken)
    with pytest.raises(KeyError):  # by which the server cuts it off
        async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
            await exchange.done()
    span = spans.one("GET /apps/{id}/events")
    assert (span.status.status_code, attributes(span)["error.type"]) == (StatusCode.ERROR, "KeyError")


async def test_the_span_of_the_request_is_the_current_one_and_no_other_request_s(
    world: World, spans: RecordedSpans
) -> None:
    seen: list[TraceContext | None] = []

    async def look(scope: Any, receive: Any, send: Any) -> None:
        seen.append(tracing.current_context())

    app: FastAPI = world.built()
    app.router.default = look
    async with Exchange(app, "/nowhere", headers={**JSON, "traceparent": KEPT}) as exchange:
        await exchange.done()
    assert seen == [context_of(spans.one("GET"))]
    assert tracing.current_context() is None
