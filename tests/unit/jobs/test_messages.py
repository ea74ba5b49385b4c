"""Is what is said of jobs on the wire read as it is meant, and refused where it means nothing?"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrix.domain.jobs import AttemptStatus, JobRow
from orchestrix.jobs import messages, outbox_rows
from orchestrix.jobs.dispatch import dispatch_messages
from orchestrix.jobs.messages import HandoffOffer, WorkerHeartbeat
from orchestrix.persistence.cluster.nodes import UNTOLD, WorkerFacts
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.saga.messages import UnreadableMessage

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ID, HISTORY = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11", "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d12"
STATUS, LOGS = f"orchestrix.job.{ID}.status", f"orchestrix.job.{ID}.logs"
WHO = {"jobId": ID, "historyId": HISTORY, "workerId": "w", "seq": 3}
JOB = JobRow(
    id=ID,
    queue="reports",
    handler="monthly",
    payload={"month": 3},
    history_id=HISTORY,
    attempt=2,
    owner="n-1",
    owner_epoch=4,
    created_by="ada",
    correlation_id="c-1",
    created_at=NOW,
    updated_at=NOW,
)


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_the_order_for_a_worker() -> None:
    assert json.loads(messages.dispatch(JOB)) == {
        "jobId": ID,
        "historyId": HISTORY,
        "handler": "monthly",
        "payload": {"month": 3},
        "attempt": 2,
        "timeoutMs": None,
        "correlationId": "c-1",
        "channels": {"status": STATUS, "logs": LOGS},
    }


@pytest.mark.req("S0-22")
def test_the_question_who_owns_a_job() -> None:
    row = outbox_rows.assigned(JOB, NOW)
    assert (row.exchange, row.routing_key) == ("", "orchestrix.job.assigned")
    assert json.loads(row.body) == {"jobId": ID, "historyId": HISTORY}
    assert messages.read_job_id(row.body) == ID


@pytest.mark.req("S0-16")
def test_an_offer_and_its_answer() -> None:
    row = outbox_rows.offer(JOB, "NodeCrash", NOW)
    assert (row.exchange, row.routing_key) == ("", "orchestrix.job.handoff")
    offer = {"jobId": ID, "reason": "NodeCrash", "fromNode": "n-1", "ownerEpoch": 4}
    assert json.loads(row.body) == offer
    own = outbox_rows.handoff(ID, "n-1", 4, "NodeCrash")
    assert (own.exchange, own.routing_key, json.loads(own.body)) == ("", "orchestrix.job.handoff", offer)
    assert messages.read_offer(own.body) == HandoffOffer(ID, "NodeCrash", "n-1", 4)
    answer = outbox_rows.ack("orchestrix.job.handoff.ack.n-1", ID, "n-2", 5)
    assert json.loads(answer.body) == {"jobId": ID, "newOwner": "n-2", "ownerEpoch": 5}
    assert messages.read_taken(answer.body) == (ID, 5)


def test_the_word_to_stop() -> None:
    word = outbox_rows.stop(JOB, HISTORY, "not wanted")
    assert (word.exchange, word.routing_key) == ("orchestrix.job.cancel", "reports")
    assert json.loads(word.body) == {"jobId": ID, "historyId": HISTORY, "reason": "not wanted"}


def test_rows_of_jobs_wait_for_nobody() -> None:
    rows = [outbox_rows.dispatch(JOB, NOW), outbox_rows.assigned(JOB, NOW), outbox_rows.offer(JOB, "NodeCrash", NOW)]
    assert len({(row.saga, row.instance_id, row.version, row.n) for row in rows}) == 3
    assert all(0 <= row.instance_id < 2**63 for row in rows)
    assert rows[0].id == HISTORY, "however often it is sent, it is the same order"


def test_a_status() -> None:
    found = messages.read_event(STATUS, body(**WHO, status="RUNNING", progress={"percent": 4}), NOW)
    assert found == AttemptStatus(ID, HISTORY, "w", 3, "RUNNING", {"percent": 4})
    error = {"type": "X", "message": "y"}
    ended = messages.read_event(STATUS, body(**WHO, status="FAILED", error=error, lastLogSeq=2, more=1), NOW)
    assert ended == AttemptStatus(ID, HISTORY, "w", 3, "FAILED", error=error, last_log_seq=2)
    bare = messages.read_event(STATUS, body(**WHO, status="SUCCEEDED"), NOW)
    assert bare == AttemptStatus(ID, HISTORY, "w", 3, "SUCCEEDED")


@pytest.mark.parametrize(
    ("at", "read"),
    [
        ("2026-01-31T13:00:00.5+01:00", NOW.replace(microsecond=500_000)),
        ("2026-01-31T12:00:00Z", NOW),
        ("2026-01-31T12:00:00", NOW),
        ("yesterday", NOW),
        (None, NOW),
        (5, NOW),
        ("0001-01-01T00:00:00+23:00", NOW),
        ("9999-12-31T23:59:59Z", NOW),
    ],
)
def test_a_line(at: object, read: datetime) -> None:
    found = messages.read_event(LOGS, body(**WHO, level="warning", message="no paper", at=at), NOW)
    assert found == JobLogLine(HISTORY, 3, ID, "w", "warning", "no paper", read)


def test_a_line_without_a_level_is_information() -> None:
    found = messages.read_event(LOGS, body(**WHO, message="x"), NOW)
    assert isinstance(found, JobLogLine)
    assert found.level == "info"


@pytest.mark.parametrize(
    ("queue", "fields", "word"),
    [
        (STATUS, {**WHO, "status": "BORED"}, "status"),
        (STATUS, {**WHO, "status": "DISPATCHED"}, "status"),
        (STATUS, {**WHO}, "status"),
        (STATUS, {**WHO, "status": "RUNNING", "jobId": "another"}, "jobId"),
        (STATUS, {**WHO, "status": "RUNNING", "seq": 0}, "seq"),
        (STATUS, {**WHO, "status": "RUNNING", "seq": "3"}, "seq"),
        (STATUS, {**WHO, "status": "RUNNING", "seq": True}, "seq"),
        (STATUS, {**WHO, "status": "RUNNING", "seq": 2**53}, "seq"),
        (STATUS, {**WHO, "status": "RUNNING", "historyId": None}, "historyId"),
        (STATUS, {**WHO, "status": "RUNNING", "historyId": "h" * 37}, "historyId"),
        (STATUS, {**WHO, "status": "RUNNING", "workerId": ""}, "workerId"),
        (STATUS, {**WHO, "status": "FAILED", "error": "broken"}, "error"),
        (STATUS, {**WHO, "status": "FAILED", "lastLogSeq": -1}, "lastLogSeq"),
        (LOGS, {**WHO, "message": 5}, "message"),
        (LOGS, {**WHO, "level": 5, "message": "x"}, "level"),
    ],
)
def test_what_cannot_be_read_is_named(queue: str, fields: dict[str, Any], word: str) -> None:
    with pytest.raises(UnreadableMessage, match=word):
        messages.read_event(queue, body(**fields), NOW)


@pytest.mark.parametrize(
    ("jobs", "histories"),
    [
        ([{"jobId": ID, "historyId": HISTORY}], (HISTORY,)),
        ([HISTORY], (HISTORY,)),
        ([], ()),
        ([{"jobId": ID}, 5, None, "h" * 40], ()),
    ],
)
def test_a_beat(jobs: list[Any], histories: tuple[str, ...]) -> None:
    found = messages.read_heartbeat(body(workerId="w", queues=["reports", 5], jobs=jobs, timestamp="x"))
    assert found == WorkerHeartbeat("w", histories, ("reports",), len(jobs))
    assert messages.read_heartbeat(body(workerId="w", jobs=[], timestamp="2026-01-31T13:00:00+01:00")).said_at == NOW


@pytest.mark.parametrize(("said", "lost"), [(2, 2), (0, 0), (-1, 0), ("2", 0), (2**40, 0), (None, 0)])
def test_a_beat_tells_of_lost_places(said: object, lost: int) -> None:
    body = json.dumps({"workerId": "w", "jobs": [], "lostPlaces": said}).encode()
    assert messages.read_heartbeat(body).lost_places == lost


@pytest.mark.parametrize(("state", "left"), [("LEFT", True), ("DRAINING", False), ("x", False), (5, False)])
def test_a_beat_of_a_worker_that_tells_its_state(state: object, left: bool) -> None:
    assert messages.read_heartbeat(body(workerId="w", jobs=[], state=state)).left is left


@pytest.mark.parametrize("wrong", [b"{", b"[]", b'{"workerId":"w","jobs":5}', b'{"jobs":[]}'])
def test_a_beat_that_means_nothing(wrong: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        messages.read_heartbeat(wrong)


def test_a_beat_tells_of_its_process() -> None:
    told = {"host": "h-1", "version": "1.2.3", "commandQueues": ["cmd.a"], "commands": 3, "handlers": ["monthly"]}
    found = messages.read_heartbeat(body(workerId="w", jobs=[], **told))
    assert found.facts == WorkerFacts("h-1", "1.2.3", ("cmd.a",), 3, ("monthly",))
    assert (found.queues, found.serves) == ((), True)
    assert not messages.read_heartbeat(body(workerId="w", jobs=[], **{**told, "commandQueues": []})).serves


def test_what_a_beat_tells_wrongly_of_its_process_is_not_believed_and_fits_its_columns() -> None:
    wrong = {
        "host": 5,
        "version": "v" * 50,
        "commandQueues": "cmd.a",
        "commands": True,
        "handlers": ["a", 5, "x" * 300],
    }
    assert messages.read_heartbeat(body(workerId="w", jobs=[], **wrong)).facts == WorkerFacts(
        None, "v" * 40, None, None, ("a", "x" * 255)
    )
    for commands in (-1, 2**31, "3", None, 1.5):
        assert messages.read_heartbeat(body(workerId="w", jobs=[], commands=commands)).facts == UNTOLD


def test_a_beat_of_a_former_release_tells_nothing_of_its_process() -> None:
    assert messages.read_heartbeat(body(workerId="w", queues=["reports"], jobs=[])).facts == UNTOLD


def test_a_job_for_a_group_has_an_owner_and_no_dispatch() -> None:
    unowned = replace(JOB, owner=None)
    routed = replace(unowned, queue=None, executor_group="shop")
    queues = [[row.routing_key for row in dispatch_messages(job, NOW)] for job in (unowned, routed)]
    assert queues == [["orchestrix.job.dispatch.reports", "orchestrix.job.assigned"], ["orchestrix.job.assigned"]]
    assert dispatch_messages(replace(routed, owner="n-1"), NOW) == []
