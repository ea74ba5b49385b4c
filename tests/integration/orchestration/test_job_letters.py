"""Do dead letters about jobs come to people, and do the jobs go on?"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrix import clock
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.broker.topology import (
    DISPATCH_QUEUE_PREFIX,
    JOB_ASSIGNED,
    JOB_HANDOFF,
    SHARD_COORDINATOR,
    job_dispatch,
    queue_of_work,
)
from orchestrix.dead_letters import job_dead_letters
from orchestrix.dead_letters.service import NotSendable
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import (
    DISPATCHED,
    FAILED,
    LOST,
    PENDING,
    RUNNING,
    AttemptStatus,
    JobAttempt,
    JobRow,
    JobTransition,
)
from orchestrix.jobs import messages, outbox_rows
from orchestrix.jobs.rescue.dead_dispatches import DeadDispatchHandler
from orchestrix.persistence import outbox
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.saga.messages import dump, load
from tests.integration.orchestration.house import ADA, House
from tests.servers import templates
from tests.support import eventually

QUEUE = f"{DISPATCH_QUEUE_PREFIX}reports"


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with nothing but the schema, to be copied."""
    path = tmp_path_factory.mktemp("letters") / "empty.db"
    templates.upgraded(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture(params=["embedded", pytest.param("rabbitmq", marks=pytest.mark.servers)])
async def house(
    request: pytest.FixtureRequest, upgraded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[House]:
    """An orchestrator over SQLite and each kind of broker, which has the queues of jobs."""
    monkeypatch.setattr(job_dead_letters, "QUEUE_POLL_INTERVAL_S", 0.1)
    copy = shutil.copy(upgraded, tmp_path / "test.db")
    database, server = Database(f"sqlite+aiosqlite:///{copy}"), EmbeddedBroker()
    url = str(request.getfixturevalue("rabbitmq_url")) if request.param == "rabbitmq" else ""
    if not url:
        await server.start()
    made = House(database, url or server.url)
    await made.open({})
    for queue in (JOB_ASSIGNED, JOB_HANDOFF, SHARD_COORDINATOR):
        await made.hand.declare(queue_of_work(queue))
    yield made
    await made.close()
    await database.close()
    if not url:
        await server.stop()


async def dispatched(house: House, **more: Any) -> JobRow:
    """A job that was sent to a worker, by the way that all messages go."""
    now = house.database.now()
    who = {"created_by": "ada", "correlation_id": "c", "created_at": now, "updated_at": now, "wake_at": now}
    job = JobRow(**{"id": clock.uuid7(), "queue": "reports", "handler": "monthly", **who, **more})
    out = rules.dispatched(job, clock.uuid7(), now)

    async def write(tx: Transaction) -> None:
        await jobs.insert(tx, [job])
        assert out.attempt is not None
        await jobs.store(tx, [(job.version, out.job)], [out.attempt])
        await outbox.insert(tx, [outbox_rows.dispatch(out.job, now)], claimed_by=None, lease_s=0.0)

    await house.database.run(write)
    house.relay.notify()
    return out.job


async def arrived(house: House) -> None:
    """Waits until the order is in its queue, and takes it out."""
    await house.hand.declare(job_dispatch("reports"))
    await house.take(QUEUE)


async def now(house: House, job: JobRow) -> tuple[JobRow, list[JobAttempt]]:
    """The job and its attempts as the database has them."""
    async with house.database.read() as connection:
        found = await jobs.get(connection, job.id)
        assert found is not None
        return found, await jobs.attempts(connection, job.id)


async def reached(house: House, job: JobRow, state: str) -> tuple[JobRow, list[JobAttempt]]:
    """Waits until the job is in that state."""

    async def there() -> bool:
        return (await now(house, job))[0].state == state

    await eventually(there, deadline=10, message=f"the job is {state}")
    return await now(house, job)


async def test_a_job_whose_order_wears_its_workers_out_is_tried_again(house: House) -> None:
    await house.serve()
    job = await dispatched(house, retries=1)
    await arrived(house)
    await house.bury(QUEUE, messages.dispatch(job), "delivery_limit", id=str(job.history_id))
    (letter,) = await house.kept()
    assert (letter.queue, letter.reason, letter.message_id) == (QUEUE, "delivery_limit", job.history_id)
    waiting, [attempt] = await reached(house, job, PENDING)
    assert (attempt.state, attempt.error, waiting.tries) == (LOST, waiting.error, 1)
    assert waiting.error["type"] == "WorkerLost"
    assert waiting.error["message"].startswith("its dispatch in queue reports exceeded the delivery limit (worker died")
    assert letter.id in waiting.error["message"]
    with pytest.raises(NotSendable, match="jobs show"):
        await house.letters.redrive(letter.id, ADA)


async def test_a_job_without_tries_left_fails_with_the_reason_that_its_order_died_of(house: House) -> None:
    await house.serve()
    job = await dispatched(house)
    await arrived(house)
    await house.bury(QUEUE, messages.dispatch(job), "not-json", id=str(job.history_id))
    ended, _ = await reached(house, job, FAILED)
    assert ended.error["type"] == "DispatchRefused"
    assert "was dead-lettered: not-json" in ended.error["message"]


@pytest.mark.parametrize(
    "change",
    [{"payload": {"of": "a stranger"}}, {"channels": {"status": "x", "logs": "x"}}, {"handler": "other"}, None],
    ids=["payload", "channels", "handler", "no JSON"],
)
async def test_a_forged_or_garbled_copy_is_kept_and_ends_nothing(house: House, change: dict[str, Any] | None) -> None:
    await house.serve()
    job = await dispatched(house, payload={"month": 3})
    await arrived(house)
    body = b"{" if change is None else dump({**load(messages.dispatch(job)), **change})
    await house.bury(QUEUE, body, "refused", id=str(job.history_id))
    (letter,) = await house.kept()
    assert letter.queue == QUEUE
    assert (await now(house, job))[0].state == DISPATCHED


@pytest.mark.parametrize("first", [True, False], ids=["the true one first", "the true one last"])
async def test_a_forged_copy_hides_no_true_order_that_has_died_beside_it(house: House, first: bool) -> None:
    job = await dispatched(house)
    await arrived(house)
    true = messages.dispatch(job)
    forged = dump({**load(true), "handler": "other"})
    told = DeadDispatchHandler(
        house.database, notify_leader=lambda: None, sent=lambda: None, on_change=lambda ids: None
    )
    both = [(true, "delivery_limit"), (forged, "not-json")]
    letters = [
        (cast(DeadLetter, SimpleNamespace(id="1", queue=QUEUE, reason=reason)), body)
        for body, reason in (both if first else both[::-1])
    ]
    await house.database.run(lambda tx: told.died(tx, letters))
    ended, _ = await reached(house, job, FAILED)
    assert ended.error["type"] == "WorkerLost"


async def test_an_order_under_another_id_is_known_by_what_it_says(house: House) -> None:
    await house.serve()
    job = await dispatched(house)
    await arrived(house)
    await house.bury(QUEUE, messages.dispatch(job), "rejected", id="m-1")
    await reached(house, job, FAILED)


async def test_a_copy_that_dies_while_a_worker_is_at_it_changes_nothing(house: House) -> None:
    await house.serve()
    job = await dispatched(house)
    await arrived(house)
    begun = rules.reported(
        job, AttemptStatus(job.id, str(job.history_id), "w", 1, "RUNNING"), house.database.now(), 0.5
    )
    assert isinstance(begun, JobTransition)
    await house.database.run(lambda tx: jobs.store(tx, [(job.version, begun.job)], []))
    await house.bury(QUEUE, messages.dispatch(job), "delivery_limit", id=str(job.history_id))
    await house.kept()
    assert (await now(house, job))[0].state == RUNNING


async def test_queues_that_come_later_are_read_too(house: House) -> None:
    await house.serve()
    for queue in ("reports", "letters"):
        job = await dispatched(house, queue=queue)
        await house.hand.declare(job_dispatch(queue))
        await house.bury(f"{DISPATCH_QUEUE_PREFIX}{queue}", messages.dispatch(job), id=str(job.history_id))
        await reached(house, job, FAILED)
    assert {letter.queue for letter in await house.kept(2)} == {QUEUE, f"{DISPATCH_QUEUE_PREFIX}letters"}


@pytest.mark.parametrize("queue", [JOB_ASSIGNED, JOB_HANDOFF, SHARD_COORDINATOR])
async def test_a_question_between_nodes_can_be_asked_again(house: House, queue: str) -> None:
    await house.serve()
    await house.bury(queue, b'{"jobId": "j"}', "delivery_limit", reply_to="orchestrix.shard.member.w-1")
    (letter,) = await house.kept()
    assert (letter.queue, letter.exchange) == (queue, "")
    await house.letters.redrive(letter.id, ADA)
    (again,) = await house.take(queue)
    assert (again.body, again.reply_to) == (b'{"jobId": "j"}', "orchestrix.shard.member.w-1")


async def test_a_job_whose_order_the_broker_refuses_fails_with_its_words(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = house.broker.publish

    async def refusing(sent: Sequence[Outgoing], timeout: float = 10.0) -> list[Published]:
        if all(one.type == "job.dispatch" for one in sent):
            return [Published(Outcome.REFUSED, "PRECONDITION_FAILED - too large") for _ in sent]
        return await publish(sent, timeout)

    monkeypatch.setattr(house.broker, "publish", refusing)
    await house.serve()
    job = await dispatched(house, retries=3)
    ended, [attempt] = await reached(house, job, FAILED)
    error = {
        "type": "Unsendable",
        "message": "the broker rejected the dispatch: PRECONDITION_FAILED - too large",
    }
    assert (ended.error, attempt.state) == (error, FAILED)
    async with house.database.read() as connection:
        assert await outbox.still_stored(connection, [str(job.history_id)]) == set()
