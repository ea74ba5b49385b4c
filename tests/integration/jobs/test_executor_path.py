"""Does a job for a group come to an executor, and are its reports followed to the end, also over a drain?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.topology import logs_queue, status_queue
from orchestrix.config.settings import ClusterSettings
from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.domain.registry.routing import NoExecutors
from orchestrix.errors import Unavailable
from orchestrix.jobs import messages
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
        for _ in range(TRIES - 1):  # as executors do: a queue that was just declared may refuse what is published
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


@pytest.mark.parametrize("ends", ["stop", "die"])
async def test_it_goes_on_where_its_owner_drains_or_dies(plant: Plant, ends: str) -> None:
    broker = AmqpBroker(plant.url, name="reports")
    job, executor = await begun(plant, broker)
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
