"""Does every answer say to which trace it belongs, does it lead there, and are kept traces shown?"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from opentelemetry.trace import SpanKind

from orchestrix.api.guards.origin_guard import OriginGuard
from orchestrix.api.traces.links import LinkTemplates
from orchestrix.api.traces.models import TraceBody
from orchestrix.engine.requests import InFlight
from orchestrix.errors import Unavailable
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from tests.support import eventually
from tests.tracing import RecordedSpans, attribute

from .answers import BODY, problem
from .world import Because, Exchange, World

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
OTHER = "0af7651916cd43dd8448eb211c80319c"
JOB = {"queue": "reports", "handler": "monthly"}
TRACE_URL = "https://traces.example/trace/{trace_id}?view=tree"
LOGS_URL = "https://logs.example/?query={correlation_id}&of={trace_id}"


def client(world: World, trace_url: str | None = None, logs_url: str | None = None) -> httpx.AsyncClient:
    """A client of the API whose answers lead there."""
    world.links = LinkTemplates(trace_url, logs_url)
    return httpx.AsyncClient(transport=httpx.ASGITransport(world.built()), base_url="http://test")


# The trace id


async def test_an_app_says_in_which_trace_it_began(world: World) -> None:
    started = (await world.client.post("/apps", json=BODY, headers=PARENT)).json()
    id = started["id"]
    world.explainer.known["app", id] = Because("working", "It works.", "Wait.")
    assert started["traceId"] == TRACE
    for path in (f"/apps/{id}", f"/sagas/app/{id}", f"/apps/{id}/why"):
        assert (await world.client.get(path, headers={"traceparent": f"00-{OTHER}-00f067aa0ba902b7-01"})).json()[
            "traceId"
        ] == TRACE, path
    for path in ("/apps", "/sagas/app", f"/apps/{id}/history"):
        assert [one["traceId"] for one in (await world.client.get(path)).json()["items"]] == [TRACE], path


async def test_history_and_messages_have_the_traces_of_their_events(world: World) -> None:
    await world.client.post("/apps", json=BODY, headers=PARENT)
    async with world.database.read() as connection:
        instance = await instances.by_key(connection, saga_tables_of("app"), "app", "billing")
    assert instance is not None
    await world.advance(instance, "evt.gitRepoCreated", trace_id=OTHER)
    history = (await world.client.get(f"/apps/{instance.id}/history")).json()["items"]
    assert [one["traceId"] for one in history] == [TRACE, OTHER, OTHER]
    messages = (await world.client.get(f"/apps/{instance.id}/messages")).json()["items"]
    assert [(one["type"], one["traceId"]) for one in messages] == [
        ("cmd.createGitRepo", TRACE),
        ("evt.gitRepoCreated", OTHER),
        ("cmd.registerApp", OTHER),
    ]
    assert (await world.client.get(f"/apps/{instance.id}")).json()["traceId"] == TRACE, "that of its root"


async def test_a_job_says_in_which_trace_it_was_asked_for(world: World) -> None:
    job = (await world.client.post("/jobs", json=JOB, headers=PARENT)).json()
    one, why = f"/jobs/{job['id']}", f"/jobs/{job['id']}/why"
    shown = [job, *[(await world.client.get(path)).json() for path in (one, why)]]
    shown += (await world.client.get("/jobs")).json()["items"]
    shown.append((await world.client.post(f"{one}/cancel", json={"reason": "x"})).json())
    assert [each["traceId"] for each in shown] == [TRACE] * 5


async def test_without_a_trace_there_is_no_id(world: World) -> None:
    assert (await world.client.post("/apps", json=BODY)).json()["traceId"] is None
    assert (await world.client.post("/jobs", json=JOB)).json()["traceId"] is None
    assert "traceId" not in problem(await world.client.get("/apps/9"), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "more", "status"),
    [
        ("GET", "/apps/9", {}, 404),
        ("GET", "/nowhere", {}, 404),
        ("PUT", "/apps", {}, 405),
        ("GET", "/apps?x=1", {}, 400),
        ("POST", "/apps", {"content": b"{"}, 415),
        ("POST", "/apps", {"json": {}}, 422),
        ("POST", "/apps", {"json": {"appName": "x" * 300_000}}, 413),
        ("GET", "/apps", {"headers": {"X-Correlation-ID": "a b"}}, 400),
    ],
)
@pytest.mark.parametrize("kept", [True, False])
async def test_every_problem_names_the_trace_of_its_request(
    world: World, request: pytest.FixtureRequest, method: str, path: str, more: dict[str, Any], status: int, kept: bool
) -> None:
    if kept:
        request.getfixturevalue("spans")
    sent = {**more, "headers": {**more.get("headers", {}), **PARENT}}
    answer = await world.client.request(method, path, **sent)
    assert (answer.status_code, answer.json()["traceId"], answer.headers["x-trace-id"]) == (status, TRACE, TRACE)


@pytest.mark.parametrize(("answer", "status"), [(Unavailable("x"), 503), (ValueError("x"), 500), (InFlight(), 409)])
async def test_errors_of_the_server_name_it_too(world: World, answer: Any, status: int) -> None:
    world.starter.answer = answer
    found = await world.client.post("/apps", json=BODY, headers=PARENT)
    assert (found.status_code, found.json()["traceId"], found.headers["x-trace-id"]) == (status, TRACE, TRACE)


async def test_a_start_that_is_cut_short_names_it_too(world: World) -> None:
    world.starter.hold = asyncio.Event()
    body = b'{"appName": "billing", "createdBy": "ada"}'
    headers = {**PARENT, "Content-Type": "application/json"}
    async with Exchange(world.app, "/apps", "POST", headers) as exchange:
        exchange.give(body)
        await eventually(lambda: world.starter.requests, deadline=5)
    assert (exchange.status, exchange.headers["x-trace-id"]) == (503, TRACE)
    assert f'"traceId":"{TRACE}"'.encode() in exchange.body


async def test_a_stored_answer_has_the_trace_of_the_first_and_its_own_header(world: World) -> None:
    key = {"Idempotency-Key": "k"}
    await world.client.post("/apps", json=BODY, headers={**PARENT, **key})
    mine = {"traceparent": f"00-{OTHER}-00f067aa0ba902b7-00"}
    again = await world.client.post("/apps", json=BODY, headers={**mine, **key})
    assert again.headers["idempotent-replayed"] == "true"
    assert (again.json()["traceId"], again.headers["x-trace-id"]) == (TRACE, OTHER)


async def test_pages_of_other_sites_may_read_the_header(world: World) -> None:
    app = world.built(OriginGuard(origins=["https://ops.example"]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as other:
        answer = await other.get("/apps", headers={**PARENT, "Origin": "https://ops.example"})
    assert "X-Trace-Id" in answer.headers["access-control-expose-headers"].split(", ")


# What spans say of it


async def test_a_span_names_the_instance_that_its_request_is_about(world: World, spans: RecordedSpans) -> None:
    started = (await world.client.post("/apps", json=BODY)).json()
    await world.client.get(f"/apps/{started['id']}/history")
    assert [one.name for one in spans.all] == ["POST /apps", "GET /apps/{id}/history"]
    for span in spans.all:
        about = [attribute(span, name) for name in ("saga.name", "saga.id", "orchestrix.correlation_id")]
        assert about == ["app", started["id"], started["correlationId"]]


async def test_a_span_names_the_job_that_its_request_is_about(world: World, spans: RecordedSpans) -> None:
    job = (await world.client.post("/jobs", json=JOB)).json()
    await world.client.get(f"/jobs/{job['id']}")
    await world.client.post(f"/jobs/{job['id']}/cancel", json={"reason": "x"})
    requests = [span for span in spans.all if span.kind is SpanKind.SERVER]
    assert [span.name for span in requests] == ["POST /jobs", "GET /jobs/{job}", "POST /jobs/{job}/cancel"]
    for span in requests:
        about = [attribute(span, name) for name in ("orchestrix.job.id", "orchestrix.correlation_id")]
        assert about == [job["id"], job["correlationId"]]


# Links


async def test_answers_lead_to_the_trace_and_the_logs(world: World) -> None:
    async with client(world, TRACE_URL, LOGS_URL) as linked:
        headers = {**PARENT, "X-Correlation-ID": "c/1&x"}
        started = (await linked.post("/apps", json=BODY, headers=headers)).json()
        job = (await linked.post("/jobs", json=JOB, headers=headers)).json()
        world.explainer.known["app", started["id"]] = Because("working", "It works.", "Wait.")
        expected = {
            "trace": f"https://traces.example/trace/{TRACE}?view=tree",
            "logs": f"https://logs.example/?query=c%2F1%26x&of={TRACE}",
        }
        assert [started["links"], job["links"]] == [expected] * 2
        for path in (
            f"/apps/{started['id']}",
            f"/sagas/app/{started['id']}",
            f"/apps/{started['id']}/why",
            f"/jobs/{job['id']}",
            f"/jobs/{job['id']}/why",
        ):
            assert (await linked.get(path)).json()["links"] == expected, path
        (row,) = (await linked.get(f"/apps/{started['id']}/history")).json()["items"]
        assert row["links"] == expected


async def test_a_link_is_there_only_where_its_ids_are(world: World) -> None:
    async with client(world, TRACE_URL, "https://logs.example/{correlation_id}") as linked:
        started = (await linked.post("/apps", json=BODY, headers={"X-Correlation-ID": "c-1"})).json()
    assert started["links"] == {"logs": "https://logs.example/c-1"}
    async with client(world, TRACE_URL) as linked:
        assert "links" not in (await linked.get(f"/apps/{started['id']}")).json()
    assert "links" not in (await world.client.get(f"/apps/{started['id']}")).json()


async def test_the_document_knows_the_links(world: World) -> None:
    schemas = (await world.client.get("/openapi.json")).json()["components"]["schemas"]
    for name in ("AppBody", "SagaBody", "JobBody", "WhyBody", "JobWhyBody", "ChangeBody"):
        assert "links" in schemas[name]["properties"], name
        assert "links" not in schemas[name].get("required", ()), name
        assert "traceId" in schemas[name]["properties"], name
    assert "traceId" in schemas["ProblemBody"]["properties"]


# Kept traces


def span(id: str, begins: str, **more: Any) -> dict[str, Any]:
    """A span as the store gives it."""
    return {
        "spanId": id,
        "parentSpanId": None,
        "name": "POST /apps",
        "kind": "SERVER",
        "service": "orchestrix-api",
        "node": "node-1",
        "startTime": f"2026-01-31T12:00:{begins}Z",
        "endTime": "2026-01-31T12:00:09.500000Z",
        "durationMs": 1.5,
        "status": {"code": "UNSET", "message": None},
        "attributes": {"saga.id": 1},
        "links": [],
        "events": [],
        **more,
    }


class FakeReader:
    """Knows one trace."""

    def spans(self, trace_id: str) -> list[dict[str, Any]] | None:
        """Its spans, in no order."""
        link = {"traceId": OTHER, "spanId": "0" * 15 + "1", "kind": "retry"}
        later = span("2" * 16, "02.000000", parentSpanId="1" * 16, links=[link])
        return [later, span("1" * 16, "01.250000")] if trace_id == TRACE else None


async def test_a_kept_trace_is_shown_from_its_beginning(world: World) -> None:
    world.trace_reader = FakeReader()
    async with client(world) as reading:
        found = (await reading.get(f"/traces/{TRACE}")).json()
        TraceBody.model_validate(found)
        assert (found["traceId"], [one["spanId"] for one in found["spans"]]) == (TRACE, ["1" * 16, "2" * 16])
        assert found["spans"][0] == span("1" * 16, "01.250000")
        assert found["spans"][1]["links"] == [{"traceId": OTHER, "spanId": "0" * 15 + "1", "kind": "retry"}]
        said = problem(await reading.get(f"/traces/{OTHER}"), 404, "not_found")["detail"]
    assert said.startswith(f"There is no trace {OTHER} here: it is not sampled")


@pytest.mark.parametrize("id", ["1", TRACE.upper(), TRACE[:-1] + "g", TRACE + "0"])
async def test_what_is_no_id_is_not_looked_for(world: World, id: str) -> None:
    world.trace_reader = FakeReader()
    async with client(world) as reading:
        said = problem(await reading.get(f"/traces/{id}"), 404, "not_found")["detail"]
    assert "32 hexadecimal digits" in said


async def test_where_no_traces_are_kept_it_says_where_they_go(world: World, spans: RecordedSpans) -> None:
    world.trace_endpoint = "http://me:secret@collector.example:4318/?key=secret"
    async with client(world) as elsewhere:
        said = problem(await elsewhere.get(f"/traces/{TRACE}"), 404, "not_found")["detail"]
    assert said == (
        "This node keeps no traces: traces are sent to http://collector.example:4318/. Set ORCHESTRIX_UI__TRACE_URL to "
        "the address of a trace there, and answers link to it."
    )
    async with client(world, TRACE_URL) as elsewhere:
        said = problem(await elsewhere.get(f"/traces/{TRACE}"), 404, "not_found")["detail"]
    assert said == f"This node keeps no traces: look at https://traces.example/trace/{TRACE}?view=tree."


async def test_where_tracing_is_off_it_says_what_is_missing(world: World) -> None:
    world.trace_endpoint = "http://collector.example:4318"
    async with client(world) as elsewhere:
        said = problem(await elsewhere.get(f"/traces/{TRACE}"), 404, "not_found")["detail"]
    assert said == ("Tracing is off: `orchestrix dev` keeps traces by itself, others need OTEL_EXPORTER_OTLP_ENDPOINT.")
