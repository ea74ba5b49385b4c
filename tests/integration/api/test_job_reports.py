"""Are the reports of executors taken into the job's queues, and nobody else's?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from orchestrix import clock
from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import AttemptStatus, JobRow, JobTransition
from orchestrix.domain.registry.executor_reports import ENDED_ATTEMPT, FOREIGN_ATTEMPT, UNKNOWN_ATTEMPT
from orchestrix.jobs.executors.attempt_tokens import attempt_token
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.jobs import executor_jobs, jobs
from orchestrix.saga.messages import load
from tests.conformance.store.test_jobs import inserted, pending
from tests.integration.api.world import World
from tests.tracing import RecordedSpans, attribute, context_of, parent_id

HERE = "http://10.0.0.7:9999"


@dataclass
class Attempt:
    """An attempt that an executor was called for."""

    world: World
    job: JobRow
    token: str

    async def report(self, kind: str, body: Any, **more: Any) -> httpx.Response:
        path = f"/jobs/{self.job.id}/attempts/{self.job.history_id}/{kind}"
        headers = {"authorization": f"Bearer {more.get('token', self.token)}", **more.get("headers", {})}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/json", **headers}
        return await self.world.client.post(more.get("path", path), content=content, headers=headers)

    def status(self, seq: int = 1, status: str = "RUNNING", **more: Any) -> dict[str, Any]:
        who = {"jobId": self.job.id, "historyId": self.job.history_id, "workerId": HERE, "seq": seq}
        return {**who, "status": status, **more}

    def line(self, seq: int, **more: Any) -> dict[str, Any]:
        who = {"jobId": self.job.id, "historyId": self.job.history_id, "workerId": HERE, "seq": seq}
        return {**who, "level": "info", "message": f"line {seq}", **more}

    def published(self) -> list[tuple[str, int]]:
        """The queue and the number of each report that the broker has."""
        queues = (status_queue(self.job.id), logs_queue(self.job.id))
        return [(name, load(one.body)["seq"]) for name in queues for one in self.world.broker.queue(name).ready]

    async def becomes(self, moved: JobTransition) -> None:
        async with self.world.database.begin() as tx:
            await jobs.store(tx, [(self.job.version, moved.job)], [moved.attempt] if moved.attempt else [])
        self.job = moved.job


@pytest.fixture
async def attempt(world: World) -> Attempt:
    database = world.database
    [job] = await inserted(database, pending(database, queue=None, executor_group="shop"))
    sent = rules.dispatched(job, clock.uuid7(), database.now())
    made = Attempt(world, job, "")
    await made.becomes(sent)
    called = replace(made.job, address=HERE, called_at=database.now(), version=made.job.version + 1)
    running = rules.reported(
        called, AttemptStatus(job.id, str(called.history_id), HERE, 1, "RUNNING"), database.now(), 0
    )
    assert isinstance(running, JobTransition)
    await made.becomes(replace(running, job=replace(running.job, version=made.job.version + 1)))
    made.token = attempt_token(await installation.report_key(database), str(made.job.history_id))
    return made


def answer(given: httpx.Response) -> Any:
    assert given.status_code == 200, given.text
    return given.json()


async def test_reports_are_in_the_queues_when_they_are_answered(attempt: Attempt) -> None:
    assert answer(await attempt.report("status", attempt.status(progress={"percent": 4}))) == {"cancel": None}
    assert answer(await attempt.report("logs", [attempt.line(2), attempt.line(3)])) == {"cancel": None}
    status, logs = status_queue(attempt.job.id), logs_queue(attempt.job.id)
    assert attempt.published() == [(status, 1), (logs, 2), (logs, 3)]
    assert answer(await attempt.report("logs", [])) == {"cancel": None}


async def test_a_token_opens_its_own_attempt_alone(attempt: Attempt) -> None:
    key = await installation.report_key(attempt.world.database)
    for token in ("", "x", attempt_token(key, clock.uuid7()), attempt.token[:-1]):
        refused = await attempt.report("status", attempt.status(), token=token)
        assert (refused.status_code, refused.json()["code"]) == (401, "unauthorized")
    other = f"/jobs/{attempt.job.id}/attempts/{clock.uuid7()}/status"
    assert (await attempt.report("status", attempt.status(), path=other)).status_code == 401
    assert attempt.published() == []


async def test_path_and_body_must_agree(attempt: Attempt) -> None:
    for field in ("jobId", "historyId"):
        wrong = await attempt.report("status", {**attempt.status(), field: clock.uuid7()})
        assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, f"/{field}")
    wrong = await attempt.report("logs", [attempt.line(2), attempt.line(3, historyId=clock.uuid7())])
    assert (wrong.status_code, wrong.json()["errors"][0]["pointer"]) == (422, "/1/historyId")
    foreign = f"/jobs/{clock.uuid7()}/attempts/{attempt.job.history_id}/status"
    assert (await attempt.report("status", attempt.status(), path=foreign)).status_code == 422
    assert attempt.published() == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("status", {}),
        ("status", []),
        ("logs", {}),
        ("logs", [1]),
        ("logs", [{"seq": 1}]),
        ("logs", [{}] * 501),
    ],
)
async def test_what_cannot_be_read_is_refused_with_a_sentence(attempt: Attempt, kind: str, body: Any) -> None:
    refused = await attempt.report(kind, body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_body"), refused.text
    assert attempt.published() == []


async def test_a_stranger_and_one_that_was_passed_over_must_not_begin(attempt: Attempt) -> None:
    stranger = attempt.status(workerId="http://10.0.0.8:9999")
    assert answer(await attempt.report("status", stranger)) == {"cancel": FOREIGN_ATTEMPT}
    unknown = clock.uuid7()
    token = attempt_token(await installation.report_key(attempt.world.database), unknown)
    path = f"/jobs/{attempt.job.id}/attempts/{unknown}/status"
    body = attempt.status(historyId=unknown)
    assert answer(await attempt.report("status", body, path=path, token=token)) == {"cancel": UNKNOWN_ATTEMPT}
    assert attempt.published() == []


async def test_a_cancel_is_answered_and_the_report_counts(attempt: Attempt) -> None:
    await attempt.becomes(rules.cancelled(attempt.job, "not needed", attempt.world.database.now()))
    assert answer(await attempt.report("status", attempt.status(2))) == {"cancel": "not needed"}
    assert attempt.published() == [(status_queue(attempt.job.id), 2)]


async def test_after_the_end_only_the_announced_lines_are_published(attempt: Attempt) -> None:
    failure = replace(rules.WORKER_SILENT, last_log_seq=3)
    await attempt.becomes(rules.ended(attempt.job, failure, attempt.world.database.now(), 0.5))
    assert answer(await attempt.report("status", attempt.status(9, "SUCCEEDED"))) == {"cancel": ENDED_ATTEMPT}
    lines = [attempt.line(seq) for seq in (2, 3, 4)]
    assert answer(await attempt.report("logs", lines)) == {"cancel": ENDED_ATTEMPT}
    assert attempt.published() == [(logs_queue(attempt.job.id), 2), (logs_queue(attempt.job.id), 3)]


async def test_each_owner_is_notified_of_the_first_report(attempt: Attempt) -> None:
    running = attempt.job
    first = replace(running, state="DISPATCHED", started_at=None, worker_id=None, seq=0, owner="ada-1")
    await attempt.becomes(JobTransition(replace(first, version=running.version + 1)))
    for _ in range(2):
        answer(await attempt.report("status", attempt.status()))
    assert attempt.world.noticed == [("ada-1", attempt.job.id)]
    assert attempt.world.broker.declared == 1
    moved = replace(attempt.job, owner="bob-1", version=attempt.job.version + 1)
    await attempt.becomes(JobTransition(moved))
    answer(await attempt.report("status", attempt.status()))
    assert attempt.world.noticed[1:] == [("bob-1", attempt.job.id)], "another owner does not know"
    await attempt.becomes(JobTransition(replace(running, owner="ada-1", version=attempt.job.version + 1)))
    answer(await attempt.report("logs", [attempt.line(2)]))
    assert len(attempt.world.noticed) == 2
    attempt.world.broker.judge = Breaking(Outcome.RETURNED)
    answer(await attempt.report("logs", [attempt.line(3)]))
    assert len(attempt.world.noticed) == 3, "its queues were missing, and no node reads them"


async def test_a_report_follows_from_the_executors_span_and_its_message_from_the_report(
    attempt: Attempt, spans: RecordedSpans
) -> None:
    trace, span_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    headers = {"traceparent": f"00-{trace}-{span_id}-01"}
    answer(await attempt.report("status", attempt.status(), headers=headers))
    answer(await attempt.report("logs", [attempt.line(2)], headers=headers))
    path = "POST /jobs/{job}/attempts/{history}"
    status, lines, published = (
        spans.one(f"{path}/status"),
        spans.one(f"{path}/logs"),
        spans.one("publish job.{jobId}.status"),
    )
    assert [parent_id(one) for one in (status, lines, published)] == [span_id, span_id, context_of(status).span_id]
    assert {attribute(one, "orchestrix.job.id") for one in (status, lines, published)} == {attempt.job.id}
    sent = [one.headers["traceparent"] for one in attempt.world.broker.published]
    assert sent == [context_of(published).traceparent, context_of(lines).traceparent]
    assert len(spans.named("publish job.{jobId}.status")) == 1, "lines have none"


async def test_reports_that_come_at_once_are_looked_up_together(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []

    async def attempts_of(connection: Any, wanted: Any) -> Any:
        reads.append(len(wanted))
        return await real(connection, wanted)

    real = executor_jobs.attempts_of
    monkeypatch.setattr(executor_jobs, "attempts_of", attempts_of)
    answers = await asyncio.gather(*(attempt.report("logs", [attempt.line(seq)]) for seq in range(2, 22)))
    assert [answer(one) for one in answers] == [{"cancel": None}] * 20
    assert len(reads) < 20
    assert sorted(seq for _, seq in attempt.published()) == list(range(2, 22))


class Breaking:
    """Refuses the first publications in one way."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)

    def __call__(self, message: Outgoing) -> Published:
        return Published(self.outcomes.pop(0) if self.outcomes else Outcome.CONFIRMED, "a reason")


def break_broker(attempt: Attempt, outcomes: Sequence[Outcome]) -> None:
    attempt.world.broker.judge = Breaking(*outcomes)


async def test_missing_queues_of_a_live_job_are_declared_and_the_report_is_sent_again(attempt: Attempt) -> None:
    break_broker(attempt, [Outcome.CONFIRMED, Outcome.RETURNED, Outcome.CONFIRMED])
    answer(await attempt.report("logs", [attempt.line(seq) for seq in (2, 3, 4)]))
    assert attempt.world.broker.declared == 1
    sent = [load(one.body)["seq"] for one in attempt.world.broker.tried]
    assert sent == [2, 3, 4, 3, 4]  # the line behind the one that was returned must not overtake it


async def test_the_queues_of_a_job_that_was_cleared_away_are_not_made_again(attempt: Attempt) -> None:
    failure = replace(rules.WORKER_SILENT, last_log_seq=3)
    await attempt.becomes(rules.ended(attempt.job, failure, attempt.world.database.now(), 0.5))
    closed = rules.closed(attempt.job, attempt.world.database.now())
    await attempt.becomes(JobTransition(closed))
    break_broker(attempt, [Outcome.RETURNED])
    assert answer(await attempt.report("logs", [attempt.line(3)])) == {"cancel": ENDED_ATTEMPT}
    assert attempt.world.broker.declared == 0


@pytest.mark.parametrize("outcomes", [[Outcome.UNKNOWN], [Outcome.RETURNED] * 5])
async def test_without_the_broker_it_is_to_be_sent_again(attempt: Attempt, outcomes: list[Outcome]) -> None:
    break_broker(attempt, outcomes)
    away = await attempt.report("status", attempt.status(2))
    assert (away.status_code, away.headers["retry-after"].isdigit()) == (503, True)
    assert away.json()["detail"].startswith("The broker is unavailable")


@pytest.mark.parametrize(
    ("kind", "body", "status", "detail"),
    [
        ("status", "[]", 422, "the body must be an object."),
        ("status", "{", 400, "The body is not strict JSON: line 1, column 2"),
        ("status", "", 400, "The body is empty"),
        ("status", '{"jobId": "\\u0000"}', 422, "jobId must not have the NUL character"),
        ("logs", '[{"a": 1', 400, "The body is not strict JSON: line 1, column 9"),
        ("logs", '[{"message": "\\u0000"}]', 422, "0/message must not have the NUL character"),
        ("logs", "[1]", 422, "0 must be an object."),
    ],
)
async def test_a_refusal_is_a_sentence_about_the_body_as_it_came(
    attempt: Attempt, kind: str, body: str, status: int, detail: str
) -> None:
    refused = await attempt.report(kind, body.encode())
    assert refused.status_code == status, refused.text
    assert refused.json()["detail"].startswith(detail), refused.text
