"""Does a job for a group come to an executor, and are its reports followed to the end, also over a drain?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.config.settings import ClusterSettings
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.domain.registry.routing import NoExecutors
from orchestrix.errors import BrokerUnavailable, Unavailable
from orchestrix.jobs import messages
from orchestrix.jobs.executors import own_reports
from orchestrix.jobs.executors.port import CallResult, CallTimings, ExecutorCalls, ExecutorRun
from orchestrix.jobs.executors.reports import ExecutorReports, Reported
from orchestrix.persistence.engine import Transaction
from orchestrix.saga.messages import dump
from tests.conformance.store.test_jobs import inserted, pending
from tests.integration.jobs.plant import HASTY, Plant, callbacks
from tests.support import eventually, holds

HERE = "http://a:1"
TRIES = 20


@dataclass
class Executor:
    """Takes what it is called for, and reports by any node."""

    reports: ExecutorReports
    runs: list[ExecutorRun] = field(default_factory=list)
    answer: CallAnswer = CallAnswer.TAKEN
    missing: Exception | None = None
    tries: int = TRIES

    def by(self, reports: ExecutorReports) -> Executor:
        """The same one, when it reports by another node."""
        return replace(self, reports=reports)

    async def run(self, run: ExecutorRun) -> CallResult:
        self.runs.append(run)
        return CallResult(self.answer, "as told")

    async def has(self, address: str, group: str, history_id: str) -> bool | None:
        return True

    async def cancel(self, address: str, group: str, job_id: str, history_id: str, reason: str) -> None:
        raise AssertionError("nobody cancels")

    async def pick(self, tx: Transaction, job: JobRow) -> Sequence[str]:
        if self.missing is not None:
            raise self.missing
        return [HERE]

    async def status(self, seq: int, status: str, **more: Any) -> str | None:
        return await self._report(status_queue, seq, status=status, **more)

    async def line(self, seq: int) -> str | None:
        return await self._report(logs_queue, seq, message=f"line {seq}")

    async def _report(self, queue: Any, seq: int, **more: Any) -> str | None:
        run = self.runs[0]
        body = dump({"jobId": run.job_id, "historyId": run.history_id, "workerId": HERE, "seq": seq, **more})
        event = messages.read_event(queue(run.job_id), body, self.reports._database.now())
        for _ in range(self.tries - 1):  # as executors do: a queue that was just declared may refuse what is published
            try:
                return await self.reports.take(run.job_id, run.history_id, HERE, [Reported(event, body)])
            except Unavailable:
                await holds(lambda: True, during=0.2)
        return await self.reports.take(run.job_id, run.history_id, HERE, [Reported(event, body)])


async def called(
    plant: Plant, broker: AmqpBroker, *, cluster: ClusterSettings = HASTY, **more: Any
) -> tuple[JobRow, Executor]:
    """A job for a group that its executor is called for; `more` are fields of `Executor`."""
    executor = Executor(ExecutorReports(plant.database, broker, plant.notify_owner))
    plant.executors = ExecutorCalls(executor, executor.pick, CallTimings(1000, 1000), callbacks)
    for name, value in more.items():
        setattr(executor, name, value)
    await broker.start()
    assert await broker.wait_connected(10)
    await plant.node("one", leads=True, cluster=cluster)
    wanted = pending(plant.database, queue=None, executor_group="shop", routing="FIRST", retries=2, payload={"a": 1})
    [job] = await inserted(plant.database, wanted)
    plant.poke()
    if executor.missing is None:
        await eventually(lambda: bool(executor.runs), deadline=10.0)
    return job, executor


async def begun(plant: Plant, broker: AmqpBroker) -> tuple[JobRow, Executor]:
    """A job for a group that its executor has begun."""
    job, executor = await called(plant, broker)
    assert await executor.status(1, "RUNNING") is None
    return await plant.reached(job, "RUNNING"), executor


async def test_a_job_for_a_group_runs_on_an_executor_to_its_end(plant: Plant) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await begun(plant, broker)
    assert await executor.line(2) is None
    assert await executor.status(3, "SUCCEEDED", result={"b": 2}, lastLogSeq=2) is None
    done = await plant.reached(job, "SUCCEEDED")
    await plant.cleared(job)
    assert (done.result, done.worker_id, done.address, len(executor.runs)) == ({"b": 2}, HERE, HERE, 1)
    assert [line.message for line in await plant.logs(job)] == ["line 2"]
    await broker.stop()


@pytest.mark.parametrize("owns", [False, True], ids=["elsewhere", "own"])
@pytest.mark.parametrize("ends", ["stop", "die"])
async def test_it_goes_on_where_its_owner_drains_or_dies(plant: Plant, ends: str, owns: bool) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await begun(plant, broker)
    executor = to_owner(plant, broker, executor) if owns else executor
    first = plant.nodes[0]
    second = await plant.node("two")
    assert (await plant.owned(job)).owner == first.name
    for seq in range(2, 6):
        assert await executor.line(seq) is None
    await getattr(first, ends)()
    plant.nodes.remove(first)
    await second.lead(2)
    for seq in range(6, 10):
        assert await executor.line(seq) is None
    assert await executor.status(10, "SUCCEEDED", lastLogSeq=9) is None
    done = await plant.reached(job, "SUCCEEDED", deadline=20.0)
    assert (done.owner_epoch, done.attempt, len(executor.runs)) == (2, 1, 1)
    await plant.cleared(job, deadline=20.0)
    assert [line.seq for line in await plant.logs(job)] == list(range(2, 10))
    await broker.stop()


def to_owner(plant: Plant, broker: AmqpBroker, executor: Executor) -> Executor:
    """It reports by the very node that owns its jobs."""
    own = plant.nodes[0].signals.own_reports
    return executor.by(ExecutorReports(plant.database, broker, plant.notify_owner, own))


SELDOM = HASTY.model_copy(update={"reconcile": 60.0})
"""The owner reads what it is notified of, and nothing else."""


async def has_queues(broker: AmqpBroker, job: JobRow) -> bool:
    return any([await broker.message_count(queue(job.id)) is not None for queue in (status_queue, logs_queue)])


async def test_its_queues_are_declared_by_its_first_report_of_which_the_owner_is_notified(plant: Plant) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await called(plant, broker, cluster=SELDOM)
    owner = plant.nodes[0]

    async def heard() -> bool:
        return (await plant.now(job)).worker_beat_at is not None

    await eventually(heard, deadline=10.0)
    assert (await has_queues(broker, job), owner.jobs.owned_jobs.epochs, owner.jobs.count) == (False, {}, 1)
    assert await executor.status(1, "RUNNING") is None
    await plant.reached(job, "RUNNING")
    assert plant.noticed == [(owner.name, job.id)]
    assert await executor.status(2, "SUCCEEDED", lastLogSeq=0) is None
    await plant.reached(job, "SUCCEEDED")
    await plant.cleared(job)
    assert not await has_queues(broker, job)
    assert plant.noticed == [(owner.name, job.id)]
    await broker.stop()


async def test_a_lost_notification_is_made_up_for(plant: Plant) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    plant.notices = False
    job, executor = await called(plant, broker)
    assert await executor.status(1, "RUNNING") is None
    await plant.reached(job, "RUNNING")
    await broker.stop()


async def test_a_report_to_a_dead_owner_is_read_by_the_next_one_at_once(plant: Plant) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await called(plant, broker, cluster=SELDOM)
    first = plant.nodes[0]
    await first.die()
    assert await executor.status(1, "RUNNING") is None
    plant.nodes.remove(first)
    second = await plant.node("two", cluster=SELDOM)
    await second.lead(2)
    await plant.reached(job, "RUNNING", deadline=20.0)
    assert [run.history_id for run in executor.runs] == [executor.runs[0].history_id] * 2
    await broker.stop()


@pytest.mark.parametrize(
    ("more", "error"),
    [({"answer": CallAnswer.REFUSED}, "ExecutorRefused"), ({"missing": NoExecutors("none")}, "NoExecutors")],
)
async def test_what_no_executor_takes_makes_no_queues_and_is_cleared_away(
    plant: Plant, more: dict[str, Any], error: str
) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, _ = await called(plant, broker, **more)
    done = await plant.reached(job, "FAILED", deadline=30.0)
    await plant.cleared(job)
    assert (done.error["type"], await has_queues(broker, job)) == (error, False)
    assert plant.nodes[0].jobs.owned_jobs._links == [], "no queue was read"
    await broker.stop()


async def test_a_report_to_the_owner_is_stored_when_it_is_answered_and_makes_no_queues(
    plant: Plant, caplog: pytest.LogCaptureFixture
) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await called(plant, broker, cluster=SELDOM)
    executor = to_owner(plant, broker, executor)
    assert await executor.status(1, "RUNNING") is None
    assert (await plant.now(job)).state == "RUNNING"
    for _ in range(2):  # again, as where the answer was lost
        assert await executor.line(2) is None
    assert [line.message for line in await plant.logs(job)] == ["line 2"]
    assert ((await plant.now(job)).log_lines, await has_queues(broker, job)) == (1, False)
    assert await executor.status(3, "SUCCEEDED", result={"b": 2}, lastLogSeq=2) is None
    done = await plant.now(job)
    assert (done.state, done.result, await has_queues(broker, job)) == ("SUCCEEDED", {"b": 2}, False)
    await plant.cleared(job)
    assert (plant.noticed, await executor.line(4)) == ([], "this attempt has ended")
    assert "cannot be handled" not in caplog.text
    await broker.stop()


async def test_reports_to_the_owner_and_to_others_are_one_log(plant: Plant) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, other = await called(plant, broker)
    owner = to_owner(plant, broker, other)
    assert await owner.status(1, "RUNNING") is None
    for executor, seq in ((other, 2), (owner, 3), (other, 4), (owner, 2), (owner, 5), (other, 5)):
        assert await executor.line(seq) is None
    assert await owner.status(6, "SUCCEEDED", lastLogSeq=5) is None
    await plant.reached(job, "SUCCEEDED")
    await plant.cleared(job)
    assert sorted(line.seq for line in await plant.logs(job)) == [2, 3, 4, 5]
    assert not await has_queues(broker, job)
    await broker.stop()


async def test_what_others_took_before_the_end_is_read_after_it(plant: Plant) -> None:
    """The owner does not know of the queues yet, and stores the end: the job is not cleared away without its lines."""
    broker = AmqpBroker(plant.url, name="reports")
    plant.notices = False
    job, other = await called(plant, broker, cluster=HASTY.model_copy(update={"reconcile": 3.0}))
    owner = to_owner(plant, broker, other)
    assert await owner.status(1, "RUNNING") is None
    assert await other.line(2) is None
    assert await owner.status(3, "SUCCEEDED", lastLogSeq=2) is None
    await plant.cleared(job, deadline=20.0)
    assert [line.seq for line in await plant.logs(job)] == [2]
    assert not await has_queues(broker, job)
    await broker.stop()


async def test_two_reports_of_a_job_at_once_are_stored_one_after_the_other(plant: Plant) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await called(plant, broker, cluster=SELDOM)
    executor = replace(to_owner(plant, broker, executor), tries=1)
    late = executor.status(2, "SUCCEEDED", lastLogSeq=0), executor.status(1, "RUNNING")
    await asyncio.gather(*late)
    assert (await plant.now(job)).state == "SUCCEEDED"
    await broker.stop()


async def test_a_report_is_not_stored_while_the_broker_is_away(plant: Plant) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await called(plant, broker, cluster=SELDOM)
    executor = to_owner(plant, broker, executor)
    await broker.stop()
    with pytest.raises(BrokerUnavailable):
        await executor.status(1, "RUNNING")
    assert (await plant.now(job)).state == "DISPATCHED"


async def test_a_report_that_is_not_stored_in_time_is_sent_again(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await called(plant, broker, cluster=SELDOM)
    executor = to_owner(plant, broker, executor)
    monkeypatch.setattr(own_reports, "STORE_TIMEOUT_S", 0.05)
    events = plant.nodes[0].jobs.events
    await events._loop.stop()
    with pytest.raises(Unavailable, match="could not be stored in time"):
        await executor.status(1, "RUNNING")
    monkeypatch.undo()
    await events.start()
    assert await executor.status(1, "RUNNING") is None
    assert (await plant.now(job)).state == "RUNNING"
    await broker.stop()


async def test_a_report_whose_job_has_another_owner_now_goes_through_the_queues(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await called(plant, broker)
    executor = to_owner(plant, broker, executor)
    look = executor.reports._judge

    async def before(*which: Any) -> Any:  # when the report's look at the job was made
        found, verdict = await look(*which)
        return None if found is None else replace(found, owner_epoch=found.owner_epoch - 1), verdict

    monkeypatch.setattr(executor.reports, "_judge", before)
    assert await executor.status(1, "RUNNING") is None
    assert plant.noticed == [(plant.nodes[0].name, job.id)]
    await plant.reached(job, "RUNNING")
    await broker.stop()


@pytest.mark.parametrize("when", ["beginning", "consumed", "never answered"])
async def test_a_job_that_ends_here_while_its_queues_begin_to_be_read_is_cleared_away(
    plant: Plant, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await called(plant, broker, cluster=SELDOM)
    executor = to_owner(plant, broker, executor)
    assert await executor.status(1, "RUNNING") is None
    own = plant.nodes[0].jobs.owned_jobs
    epoch = (await plant.owned(job)).owner_epoch
    reading: list[asyncio.Task[None]] = []
    handle = plant.nodes[0].jobs.events.handle

    begin, gate = own._begin, asyncio.Event()

    async def held(*which: Any) -> None:
        await gate.wait()
        await begin(*which)

    async def meanwhile(batch: Any) -> Any:
        state = await handle(batch)
        if batch.deliveries and not reading:
            reading.append(asyncio.create_task(own.consume(job.id, epoch, late=True)))
            await asyncio.sleep(0)
            if when == "consumed":
                gate.set()
                await reading[0]
            if when == "never answered":  # the time is over, though the report is stored
                raise TimeoutError
        return state

    monkeypatch.setattr(own, "_begin", held)
    monkeypatch.setattr(plant.nodes[0].jobs.events, "handle", meanwhile)
    if when == "never answered":
        with pytest.raises(Unavailable):
            await replace(executor, tries=1).status(2, "SUCCEEDED", lastLogSeq=0)
    else:
        assert await executor.status(2, "SUCCEEDED", lastLogSeq=0) is None
    gate.set()
    await plant.cleared(job)
    await broker.stop()
