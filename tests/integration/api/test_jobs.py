"""What does the API do with jobs?"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from orchestrix import clock
from orchestrix.api.jobs.models import JobBody, JobPage, JobSummary, LogPage
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import AttemptStatus, JobAttempt, JobRow, JobTransition
from orchestrix.domain.nodes import NodeState
from orchestrix.jobs.submission import JobRequest, job_of
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.jobs import job_logs, jobs
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.saga.job_targets import JobTarget
from tests.integration.jobs.rows import joined, stopped
from tests.support import eventually

from .answers import problem
from .world import Exchange, World

BODY = {"queue": "reports", "handler": "monthly"}
UNKNOWN = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"


async def submitted(world: World, **more: Any) -> dict[str, Any]:
    """A job that was put down."""
    answer = await world.client.post("/jobs", json={**BODY, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def changed(world: World, id: str, change: Any) -> JobRow:
    """What has become of a job, written and told."""
    async with world.database.begin() as tx:
        job = (await jobs.lock(tx, [id]))[id]
        found = change(job)
        after, attempts = (found.job, [found.attempt]) if isinstance(found, JobTransition) else (found, [])
        await jobs.store(tx, [(job.version, after)], [one for one in attempts if one])
    world.job_watch.notify([id])
    return after


async def running(world: World, **more: Any) -> JobRow:
    """One that a worker is at."""
    id = (await submitted(world, **more))["id"]
    now = world.database.now()
    job = await changed(world, id, lambda job: rules.dispatched(job, clock.uuid7(), now))
    return await said(world, job, "RUNNING", 1)


async def said(world: World, job: JobRow, status: str, seq: int, **more: Any) -> JobRow:
    """What a worker has said is written."""
    told = AttemptStatus(job.id, str(job.history_id), "w-1", seq, status, **more)
    return await changed(world, job.id, lambda job: rules.reported(job, told, world.database.now(), 0.5))


async def logged(world: World, job: JobRow, *numbers: int) -> None:
    """Lines of its log are written."""
    at = world.database.now()
    async with world.database.begin() as tx:
        name = str(job.history_id)
        lines = [JobLogLine(name, seq, job.id, "w-1", "info", f"line {seq}", at, job.attempt) for seq in numbers]
        await job_logs.insert(tx, lines)
    world.job_watch.notify([job.id])


def pointers(body: dict[str, Any]) -> list[str]:
    return [error["pointer"] for error in body["errors"]]


async def test_the_answer_is_201_with_the_new_job(world: World) -> None:
    wish = {**BODY, "payload": {"month": 3}, "timeout": "10m", "retries": 2, "createdBy": "ada"}
    answer = await world.client.post("/jobs", json=wish, headers={"X-Correlation-ID": "c-7"})
    assert answer.status_code == 201
    body = answer.json()
    JobBody.model_validate_json(answer.content)
    expected = {**BODY, "payload": {"month": 3}, "timeoutMs": 600_000, "retries": 2, "createdBy": "ada"}
    assert {name: body[name] for name in expected} == expected
    assert (body["state"], body["attempt"], body["owner"], body["attempts"]) == ("PENDING", 0, None, [])
    assert (body["correlationId"], answer.headers["x-correlation-id"]) == ("c-7", "c-7")
    assert (answer.headers["location"], answer.headers["etag"]) == (f"/jobs/{body['id']}", '"1"')
    assert UUID(body["id"]).version == 7
    assert (await world.client.get(answer.headers["location"])).json() == body
    assert world.due == [None], "the leader hears of it"


async def test_the_trace_of_whoever_asks_is_kept_if_it_is_one(world: World) -> None:
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    kept = []
    for said in (parent, "rubbish"):
        answer = await world.client.post("/jobs", json=BODY, headers={"traceparent": said, "tracestate": "a=1"})
        async with world.database.read() as connection:
            job = await jobs.get(connection, answer.json()["id"])
        assert job is not None
        kept.append((job.traceparent, job.tracestate))
    assert kept == [(parent, "a=1"), (None, None)]


async def test_little_need_be_said(world: World) -> None:
    body = await submitted(world)
    assert (body["payload"], body["timeoutMs"], body["retries"], body["createdBy"]) == ({}, None, 0, "anonymous")
    assert UUID(body["correlationId"])


async def test_a_payload_may_hold_any_json(world: World) -> None:
    payload = {"é": "😀", "a": [1, {"b": None}], "c": False}
    body = await submitted(world, payload=payload)
    assert (await world.client.get(f"/jobs/{body['id']}")).json()["payload"] == payload


@pytest.mark.parametrize("payload", [None, 1, "x", [1, {"a": None}], False])
async def test_a_payload_is_an_object(world: World, payload: object) -> None:
    answer = await world.client.post("/jobs", json={**BODY, "payload": payload})
    body = problem(answer, 422, "invalid_body")
    assert body["errors"] == [{"pointer": "/payload", "detail": "must be an object"}]
    assert body["detail"] == "payload must be an object."


async def test_a_number_that_is_too_long_is_refused_in_plain_words(world: World) -> None:
    text = b'{"queue": "reports", "handler": "monthly", "payload": {"x": ' + b"9" * 5000 + b"}}"
    answer = await world.client.post("/jobs", content=text, headers={"Content-Type": "application/json"})
    body = problem(answer, 400, "malformed_json")
    assert body["detail"] == "The body is not strict JSON: a number has more than 4300 digits."


@pytest.mark.parametrize(
    ("wish", "wrong"),
    [
        ({"queue": "a b"}, ["/queue"]),
        ({"queue": ""}, ["/queue"]),
        ({"queue": "q" * 101}, ["/queue"]),
        ({"queue": "reports\n"}, ["/queue"]),
        ({"handler": " x"}, ["/handler"]),
        ({"retries": -1}, ["/retries"]),
        ({"retries": 1001}, ["/retries"]),
        ({"retries": True}, ["/retries"]),
        ({"timeout": 0}, ["/timeout"]),
        ({"timeout": "soon"}, ["/timeout"]),
        ({"createdBy": ""}, ["/createdBy"]),
        ({"priority": 5}, ["/priority"]),
        ({"payload": {"x": "\0"}}, ["/payload/x"]),
    ],
)
async def test_a_wrong_field_is_named(world: World, wish: dict[str, Any], wrong: list[str]) -> None:
    answer = await world.client.post("/jobs", json={**BODY, **wish})
    assert pointers(problem(answer, 422, "invalid_body")) == wrong


async def test_the_same_key_gives_the_stored_answer_and_no_second_job(world: World) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = await world.client.post("/jobs", json=BODY, headers=headers)
    again = await world.client.post("/jobs", json=dict(reversed(BODY.items())), headers=headers)
    assert (again.status_code, again.json(), again.headers["location"]) == (
        201,
        first.json(),
        first.headers["location"],
    )
    assert again.headers["idempotent-replayed"] == "true"
    assert len((await world.client.get("/jobs")).json()["items"]) == 1
    other = await world.client.post("/jobs", json={**BODY, "retries": 1}, headers=headers)
    problem(other, 422, "idempotency_key_reused")
    answers = await asyncio.gather(
        *(world.client.post("/jobs", json=BODY, headers={"Idempotency-Key": "k-2"}) for _ in range(5))
    )
    ids = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(ids) == 1
    assert {answer.status_code for answer in answers} <= {201, 409}


async def test_a_job_shows_its_attempts(world: World) -> None:
    job = await running(world, retries=1)
    error = {"type": "Broken", "message": "no paper"}
    await said(world, job, "FAILED", 2, error=error, last_log_seq=0, progress={"percent": 40})
    answer = await world.client.get(f"/jobs/{job.id}")
    JobBody.model_validate_json(answer.content)
    body = answer.json()
    assert body["progress"] is None, "the attempt that is to come has made none"
    assert (body["state"], body["error"]["message"], body["version"]) == ("PENDING", "no paper", 4)
    [tried] = body["attempts"]
    assert (tried["attempt"], tried["state"], tried["workerId"], tried["historyId"]) == (
        1,
        "FAILED",
        "w-1",
        job.history_id,
    )
    assert (await world.client.get(f"/jobs/{job.id}", headers={"If-None-Match": '"4"'})).status_code == 304
    assert (await world.client.get(f"/jobs/{job.id}", headers={"If-None-Match": '"3"'})).status_code == 200


@pytest.mark.parametrize("path", ["x", UNKNOWN, "1", "%00"])
@pytest.mark.parametrize("suffix", ["", "/logs"])
async def test_what_is_not_there_is_404(world: World, path: str, suffix: str) -> None:
    problem(await world.client.get(f"/jobs/{path}{suffix}"), 404, "not_found")
    problem(await world.client.post(f"/jobs/{path}/cancel", json={"reason": "x"}), 404, "not_found")


async def test_the_list_is_paged_and_filtered(world: World) -> None:
    ids = [(await submitted(world, queue="a" if n % 2 else "b", createdBy="ada"))["id"] for n in range(5)]
    page = (await world.client.get("/jobs?limit=2")).json()
    JobPage.model_validate_json((await world.client.get("/jobs?limit=2")).content)
    seen = [item["id"] for item in page["items"]]
    while page["nextCursor"]:
        answer = await world.client.get(f"/jobs?limit=2&cursor={page['nextCursor']}")
        page = answer.json()
        seen += [item["id"] for item in page["items"]]
    assert seen == ids[::-1]
    assert "payload" not in page["items"][0]
    assert [item["id"] for item in (await world.client.get("/jobs?queue=a")).json()["items"]] == [ids[3], ids[1]]
    assert (await world.client.get("/jobs?createdBy=bob")).json()["items"] == []
    await world.client.post(f"/jobs/{ids[0]}/cancel", json={"reason": "x"})
    ended = (await world.client.get("/jobs?state=CANCELLED&state=FAILED")).json()["items"]
    assert [item["id"] for item in ended] == [ids[0]]


@pytest.mark.parametrize("query", ["handler=", "state=BORED", "limit=201", "cursor=x", "sort=id", "queue="])
async def test_a_wrong_parameter_is_400(world: World, query: str) -> None:
    problem(await world.client.get(f"/jobs?{query}"), 400, "bad_parameter")


async def test_a_cursor_of_another_list_is_refused(world: World) -> None:
    await world.started("one")
    await world.started("two")
    cursor = (await world.client.get("/apps?limit=1")).json()["nextCursor"]
    problem(await world.client.get(f"/jobs?cursor={cursor}"), 400, "bad_parameter")


async def test_cancel(world: World) -> None:
    waiting, busy = await submitted(world), await running(world)
    answer = await world.client.post(f"/jobs/{waiting['id']}/cancel", json={"reason": "not wanted"})
    JobSummary.model_validate_json(answer.content)
    assert (answer.status_code, answer.json()["state"], answer.json()["cancelReason"]) == (
        200,
        "CANCELLED",
        "not wanted",
    )
    assert world.stops == []
    answer = await world.client.post(f"/jobs/{busy.id}/cancel", json={"reason": "not wanted"})
    assert (answer.status_code, answer.json()["state"]) == (200, "RUNNING")
    assert [(stop.history_id, stop.reason) for stop in world.stops] == [(busy.history_id, "not wanted")]
    again = await world.client.post(f"/jobs/{waiting['id']}/cancel", json={"reason": "again"})
    assert (again.status_code, again.json()["cancelReason"], again.headers["etag"]) == (200, "not wanted", '"2"')
    done = await said(world, await running(world), "SUCCEEDED", 2, last_log_seq=0)
    refused = problem(
        await world.client.post(f"/jobs/{done.id}/cancel", json={"reason": "late"}), 409, "illegal_transition"
    )
    assert "SUCCEEDED" in refused["detail"]
    problem(await world.client.post(f"/jobs/{busy.id}/cancel", json={}), 422, "invalid_body")


async def failed(world: World, **more: Any) -> JobRow:
    """One that has failed for good."""
    error = {"type": "Broken", "message": "no paper"}
    return await said(world, await running(world, **more), "FAILED", 2, error=error, last_log_seq=0)


async def test_retry_of_a_failed_job(world: World) -> None:
    job = await failed(world)
    world.due.clear()
    answer = await world.client.post(f"/jobs/{job.id}/retry", json={"reason": "there is paper"})
    body = answer.json()
    JobSummary.model_validate_json(answer.content)
    assert (answer.status_code, answer.headers["etag"]) == (200, f'"{job.version + 1}"')
    assert (body["state"], body["attempt"], body["error"], body["finishedAt"]) == ("PENDING", 1, None, None)
    assert world.due == [None], "the leader hears of it"
    whole = (await world.client.get(f"/jobs/{job.id}")).json()
    assert [(one["attempt"], one["error"]["message"]) for one in whole["attempts"]] == [(1, "no paper")]
    again = await world.client.post(f"/jobs/{job.id}/retry", json={"reason": "once more"})
    assert (again.status_code, again.json()) == (200, body)
    rows = [one for one in await audited(world) if one[1] == "retry-job"]
    assert rows == [("anonymous", "retry-job", "there is paper", {"job": job.id, "state": "FAILED", "attempt": 1})]


async def test_a_retry_without_a_reason_or_of_a_job_that_was_cancelled(world: World) -> None:
    job = await submitted(world)
    await world.client.post(f"/jobs/{job['id']}/cancel", json={"reason": "not wanted"})
    answer = await world.client.post(f"/jobs/{job['id']}/retry", json={})
    assert (answer.status_code, answer.json()["state"], answer.json()["cancelReason"]) == (200, "PENDING", None)
    assert (await audited(world))[-1][1:3] == ("retry-job", "no reason was given")


@pytest.mark.parametrize(
    ("state", "sentence", "allowed"),
    [
        ("PENDING", "The job is PENDING; its next attempt begins by itself.", ["cancel"]),
        ("RUNNING", "The job is RUNNING; wait for its end, or cancel it first.", ["cancel"]),
        ("SUCCEEDED", "The job is SUCCEEDED; submit another one to do the work again.", []),
    ],
)
async def test_a_retry_of_a_job_in_another_state_is_refused(
    world: World, state: str, sentence: str, allowed: list[str]
) -> None:
    job = (await submitted(world))["id"] if state == "PENDING" else (busy := await running(world)).id
    if state == "SUCCEEDED":
        await said(world, busy, state, 2, last_log_seq=0)
    before = (await world.client.get(f"/jobs/{job}")).json()
    answer = await world.client.post(f"/jobs/{job}/retry", json={"reason": "x"})
    refused = problem(answer, 409, "illegal_transition")
    assert (refused["detail"], refused["allowed"]) == (sentence, allowed)
    assert (await world.client.get(f"/jobs/{job}")).json()["version"] == before["version"]
    assert [one for one in await audited(world) if one[1] == "retry-job"] == []


@pytest.mark.parametrize(("saga", "command"), [("release", "sagas retry release 7"), ("app", "apps retry 7")])
async def test_a_retry_of_a_step_names_the_retry_of_the_saga(world: World, saga: str, command: str) -> None:
    wanted = JobRequest(JobTarget("q"), "weekly", saga=saga, instance_id=7, step="build")
    step = rules.cancelled(job_of(wanted, world.database.now()), "x", world.database.now()).job
    await world.database.run(lambda tx: jobs.insert(tx, [step]))
    refused = problem(await world.client.post(f"/jobs/{step.id}/retry", json={}), 409, "illegal_transition")
    assert refused["detail"].endswith(f"retry the saga with `orchestrix {command}`.")


async def test_a_retry_of_no_job(world: World) -> None:
    for path in (UNKNOWN, "7"):
        problem(await world.client.post(f"/jobs/{path}/retry", json={"reason": "x"}), 404, "not_found")
    shown = problem(await world.client.get(f"/jobs/{UNKNOWN}"), 404, "not_found")["detail"]
    for verb in ("retry", "cancel"):
        answer = await world.client.post(f"/jobs/{UNKNOWN}/{verb}", json={"reason": "x"})
        assert problem(answer, 404, "not_found")["detail"] == shown


async def test_logs_are_paged_in_order(world: World) -> None:
    job = await running(world)
    await logged(world, job, 5, 2, 4, 3, 9)
    page = (await world.client.get(f"/jobs/{job.id}/logs?limit=2")).json()
    LogPage.model_validate_json((await world.client.get(f"/jobs/{job.id}/logs")).content)
    seen = [item["message"] for item in page["items"]]
    while page["nextCursor"]:
        page = (await world.client.get(f"/jobs/{job.id}/logs?limit=2&cursor={page['nextCursor']}")).json()
        seen += [item["message"] for item in page["items"]]
    assert seen == ["line 2", "line 3", "line 4", "line 5", "line 9"]
    problem(await world.client.get(f"/jobs/{job.id}/logs?cursor=x"), 400, "bad_parameter")


async def test_logs_are_followed_until_the_last_line(world: World) -> None:
    job = await running(world)
    await logged(world, job, 2, 3)
    async with Exchange(world.app, f"/jobs/{job.id}/logs?follow=true") as exchange:
        exchange.give()
        await eventually(lambda: len(exchange.events) == 2, deadline=5)
        await logged(world, job, 4)
        await eventually(lambda: len(exchange.events) == 3, deadline=5)
        await said(world, job, "SUCCEEDED", 6, last_log_seq=5)
        await logged(world, job, 5)
        await exchange.done()
        assert [event["event"] for event in exchange.events] == ["log"] * 4 + ["end"]
        assert exchange.events[-1]["data"] == '{"state":"SUCCEEDED","logsComplete":true,"logCut":false}'
        assert [event["id"] for event in exchange.events[:-1]] == [f"{job.history_id}:{seq}" for seq in (2, 3, 4, 5)]
    last = exchange.events[1]["id"]
    async with Exchange(world.app, f"/jobs/{job.id}/logs?follow=true", headers={"Last-Event-ID": last}) as resumed:
        resumed.give()
        await resumed.done()
        assert [event["event"] for event in resumed.events] == ["log", "log", "end"]


async def test_lines_of_an_earlier_attempt_are_followed_too_after_one_that_logs_nothing(world: World) -> None:
    first = await running(world, retries=1)
    failed = await said(world, first, "FAILED", 3, error={"type": "Broken", "message": ""}, last_log_seq=2)
    now = world.database.now()
    second = await changed(world, failed.id, lambda job: rules.dispatched(job, clock.uuid7(), now))
    await said(world, second, "SUCCEEDED", 1, last_log_seq=0)
    async with Exchange(world.app, f"/jobs/{first.id}/logs?follow=true") as exchange:
        exchange.give()
        await logged(world, first, 2)
        await exchange.done()
        assert [event["event"] for event in exchange.events] == ["log", "end"]


FIRST, SECOND = "ffffffff-0000-7000-8000-000000000000", "00000000-0000-7000-8000-000000000000"
"""The ids of two attempts: the clock of the node that made the second one was behind."""


async def test_a_follower_loses_no_line_of_a_later_attempt_whose_id_is_smaller(world: World) -> None:
    job = await running(world, retries=1)
    now = world.database.now()
    async with world.database.begin() as tx:
        found = (await jobs.lock(tx, [job.id]))[job.id]
        sent = replace(rules.dispatched(found, FIRST, now).job, attempt=1, tries=1)
        await jobs.store(tx, [(found.version, sent)], [JobAttempt(FIRST, job.id, 1, "w-1", "DISPATCHED", now)])
    first = await said(world, sent, "RUNNING", 1)
    await logged(world, first, 2, 3)
    async with Exchange(world.app, f"/jobs/{job.id}/logs?follow=true") as exchange:
        exchange.give()
        await eventually(lambda: len(exchange.events) == 2, deadline=5)
        await said(world, first, "FAILED", 4, error={"type": "Broken", "message": ""}, last_log_seq=3)
        second = await changed(world, job.id, lambda job: rules.dispatched(job, SECOND, now))
        await said(world, second, "RUNNING", 1)
        await logged(world, second, 2)
        await eventually(lambda: len(exchange.events) == 3, deadline=5)
        await said(world, second, "SUCCEEDED", 3, last_log_seq=2)
        await exchange.done()
        assert [event["event"] for event in exchange.events] == ["log"] * 3 + ["end"]
        ids = [event["id"] for event in exchange.events[:-1]]
    assert ids == [f"{FIRST}:2", f"{FIRST}:3", f"{SECOND}:2"]
    async with Exchange(world.app, f"/jobs/{job.id}/logs?follow=true", headers={"Last-Event-ID": ids[1]}) as resumed:
        resumed.give()
        await resumed.done()
        assert [event.get("id") for event in resumed.events[:-1]] == ids[2:]
    page = (await world.client.get(f"/jobs/{job.id}/logs?limit=2")).json()
    rest = (await world.client.get(f"/jobs/{job.id}/logs?limit=2&cursor={page['nextCursor']}")).json()
    assert [(item["attempt"], item["seq"]) for item in page["items"] + rest["items"]] == [(1, 2), (1, 3), (2, 2)]
    stranger = await world.client.get(f"/jobs/{job.id}/logs?follow=true", headers={"Last-Event-ID": "\x7f:2"})
    problem(stranger, 400, "bad_header")
    other = {"Last-Event-ID": f"{UNKNOWN}:2"}
    problem(await world.client.get(f"/jobs/{job.id}/logs?follow=true", headers=other), 400, "bad_header")


async def test_a_job_says_whether_its_log_is_there(world: World) -> None:
    job = await running(world)

    async def told() -> tuple[bool, bool]:
        answer = await world.client.get(f"/jobs/{job.id}")
        again = await world.client.get(f"/jobs/{job.id}", headers={"If-None-Match": answer.headers["etag"]})
        [item] = (await world.client.get("/jobs")).json()["items"]
        body = answer.json()
        assert item["logsComplete"] == body["logsComplete"]
        assert again.status_code == (304 if body["state"] == "RUNNING" or not job.channels else 200)
        return body["logsComplete"], body["logCut"]

    assert await told() == (False, False)
    job = await said(world, job, "SUCCEEDED", 9, last_log_seq=8)
    assert await told() == (False, False)
    await logged(world, job, *range(2, 9))
    assert await told() == (True, False)
    job = await changed(world, job.id, lambda job: replace(rules.closed(job, world.database.now()), log_cut=1))
    assert await told() == (True, True)


async def test_where_nothing_can_follow_the_answer_is_204(world: World) -> None:
    job = await running(world)
    await logged(world, job, 2)
    await said(world, job, "SUCCEEDED", 3, last_log_seq=2)
    await changed(world, job.id, lambda job: rules.closed(job, world.database.now()))
    headers = {"Last-Event-ID": f"{job.history_id}:2"}
    answer = await world.client.get(f"/jobs/{job.id}/logs?follow=true", headers=headers)
    assert answer.status_code == 204
    answer = await world.client.get(f"/jobs/{job.id}/logs?follow=true", headers={"Last-Event-ID": "x"})
    problem(answer, 400, "bad_header")


@pytest.mark.parametrize("closed", [True, False], ids=["queues gone", "queues there"])
async def test_who_follows_a_job_without_lines_comes_back_no_third_time(world: World, closed: bool) -> None:
    job = await running(world)
    await said(world, job, "SUCCEEDED", 2, last_log_seq=0)
    if closed:
        await changed(world, job.id, lambda job: rules.closed(job, world.database.now()))
    path = f"/jobs/{job.id}/logs?follow=true"
    async with Exchange(world.app, path) as first:
        first.give()
        await first.done()
    [end] = first.events
    assert (end["event"], end["data"]) == (
        "end",
        '{"state":"SUCCEEDED","logsComplete":true,"logCut":false}',
    )
    answer = await world.client.get(path, headers={"Last-Event-ID": end["id"]})  # what an EventSource does by itself
    assert answer.status_code == 204


async def test_who_came_back_hears_what_a_job_logs_later(world: World) -> None:
    job = await running(world)
    await logged(world, job, 2)
    async with Exchange(world.app, f"/jobs/{job.id}/logs?follow=true", headers={"Last-Event-ID": "none"}) as exchange:
        exchange.give()
        await eventually(lambda: len(exchange.events) == 1, deadline=5)


async def test_a_token_names_who_asks(world: World) -> None:
    import httpx

    app = world.built(ada="s3cret")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        problem(await client.post("/jobs", json=BODY), 401, "unauthorized")
        answer = await client.post("/jobs", json=BODY, headers={"Authorization": "Bearer s3cret"})
        assert answer.json()["createdBy"] == "ada"


async def test_a_node_is_told_to_drain(world: World) -> None:
    await joined(world.database, "node-1")
    await joined(world.database, "node-2")
    answer = await world.client.post("/cluster/nodes/node-1/drain")
    assert (answer.status_code, answer.json()["id"], answer.json()["state"]) == (200, "node-1", "DRAINING")
    assert [message.routing_key for message in world.broker.published] == ["orchestrix.node.node-1"]
    assert (await world.client.post("/cluster/nodes/node-1/drain")).json()["state"] == "DRAINING"
    states = {node["id"]: node["state"] for node in (await world.client.get("/cluster")).json()["nodes"]}
    assert states == {"node-1": "DRAINING", "node-2": "ALIVE"}
    async with world.database.begin() as tx:
        assert await nodes.record_heartbeat(tx, "node-1", NodeState.ALIVE, 3)
    states = {node["id"]: node["state"] for node in (await world.client.get("/cluster")).json()["nodes"]}
    assert states["node-1"] == "DRAINING", "a beat does not undo it"
    problem(await world.client.post("/cluster/nodes/nobody/drain"), 404, "not_found")
    await stopped(world.database, "node-2", "LEFT")
    problem(await world.client.post("/cluster/nodes/node-2/drain"), 409, "illegal_transition")


async def audited(world: World) -> list[tuple[str, str, str, Any]]:
    """Actor, action, reason and detail of the audit's rows, the oldest first."""
    items = (await world.client.get("/audit")).json()["items"]
    return [(one["actor"], one["action"], one["reason"], one["detail"]) for one in reversed(items)]


async def test_submits_and_cancels_are_in_the_audit_under_the_tokens_name(world: World) -> None:
    import httpx

    app, who = world.built(ada="s3cret"), {"Authorization": "Bearer s3cret"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", headers=who) as client:
        job = (await client.post("/jobs", json={**BODY, "createdBy": "bob"})).json()
        assert job["createdBy"] == "bob"
        await client.post(f"/jobs/{job['id']}/cancel", json={"reason": "not wanted"})
        await client.post(f"/jobs/{job['id']}/cancel", json={"reason": "again"})
    assert await audited(world) == [
        ("ada", "submit-job", "submitted", {"job": job["id"], "queue": job["queue"], "handler": job["handler"]}),
        ("ada", "cancel-job", "not wanted", {"job": job["id"], "state": "PENDING"}),
    ], "what changes nothing leaves no row"


async def test_without_tokens_the_audit_names_who_is_given(world: World) -> None:
    await world.client.post("/jobs", json={**BODY, "createdBy": "bob"})
    assert [(actor, action) for actor, action, *_ in await audited(world)] == [("bob", "submit-job")]


async def test_a_repeated_key_is_in_the_audit_once(world: World) -> None:
    for _ in range(2):
        await world.client.post("/jobs", json=BODY, headers={"Idempotency-Key": "k"})
    assert [action for _, action, *_ in await audited(world)] == ["submit-job"]


async def test_a_drain_is_in_the_audit_once(world: World) -> None:
    await joined(world.database, "node-1")
    for _ in range(2):
        await world.client.post("/cluster/nodes/node-1/drain")
    assert await audited(world) == [("anonymous", "drain-node", "drain", {"node": "node-1"})]


async def test_jobs_are_filtered_by_handler_and_by_saga(world: World) -> None:
    ids = [(await submitted(world, handler=name))["id"] for name in ("weekly", "monthly")]
    wanted = JobRequest(JobTarget("q"), "weekly", saga="release", instance_id=7, step="build")
    step = job_of(wanted, world.database.now())
    await world.database.run(lambda tx: jobs.insert(tx, [step]))

    async def found(query: str) -> set[str]:
        return {one["id"] for one in (await world.client.get(f"/jobs?{query}")).json()["items"]}

    assert await found("handler=weekly") == {ids[0], step.id}
    assert await found("saga=release") == {step.id}
    assert await found("saga=release&handler=monthly") == set()


async def test_every_shape_that_the_document_names_is_in_it(world: World) -> None:
    document = (await world.client.get("/openapi.json")).json()
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert "JobSummary" in named
    assert named - document["components"]["schemas"].keys() == set()
