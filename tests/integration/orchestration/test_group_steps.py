"""Keeps a step whose job is for a group what a step of a queue keeps, and waits it while a living node is too old?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text, update

from orchestrix import COMPLETED, Compensation, NothingToUndo, Saga, Step, clock
from orchestrix import Job as Work
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import FAILED, PENDING, RUNNING, SUCCEEDED, AttemptEnding, JobRow
from orchestrix.domain.nodes import FEATURE_LEVEL, NodeState
from orchestrix.domain.registry import executor_calls
from orchestrix.engine.job_steps import MIXED_VERSIONS_POLL_INTERVAL
from orchestrix.engine.redispatch import RedispatchService
from orchestrix.jobs import step_results
from orchestrix.persistence import tables
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.sagas.instances import InstanceFilter
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import JOB_POLL_INTERVAL
from orchestrix.saga.definition import HOLD
from orchestrix.saga.state import DEADLINE, Instance
from tests.integration.orchestration.test_job_steps import DATABASES, Yard
from tests.support import eventually

SEARCH = Saga(
    "search",
    (
        Step("make", "MAKING", "cmd.make", "evt.made", "INDEXING", Compensation("cmd.unmake", "evt.unmade")),
        Step(
            "index",
            "INDEXING",
            job=Work("index", group="{key}", routing="CONSISTENT_HASH", retries=2),
            event="evt.indexed",
            then="WARMING",
            undo=Compensation(event="evt.emptied", job=Work("empty", group="{key}", routing="FAILOVER", retries=1)),
        ),
        Step(
            "warm",
            "WARMING",
            job=Work("warm", group="caches", routing="ADDRESS", address="http://a:1", timeout=timedelta(minutes=5)),
            event="evt.warmed",
            then=COMPLETED,
            undo=NothingToUndo("a cache is no effect"),
            on_failure=HOLD,
        ),
    ),
)
SWEEP = Saga(
    "sweep",
    (
        Step(
            "all",
            "SWEEPING",
            job=Work("sweep", group="shops", routing="SHARDING_BROADCAST", end="any", key="{key}"),
            event="evt.swept",
            then=COMPLETED,
            undo=NothingToUndo("-"),
        ),
    ),
)
BATCH = Saga(
    "batch",
    (Step("crunch", "CRUNCHING", job=Work("crunch"), event="evt.crunched", then=COMPLETED, undo=NothingToUndo("-")),),
)
CATALOG = Catalog([SEARCH, SWEEP, BATCH])
OLD = "old-1"


class GroupYard(Yard):
    """A node that moves sagas with jobs for groups, beside others that may be too old for them."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, CATALOG)
        self.answers_lost = False
        answer = self.desk.answer

        async def perhaps(tx: Transaction, ended: Sequence[JobRow]) -> None:
            if not self.answers_lost:
                await answer(tx, ended)

        self.desk.answer = perhaps  # type: ignore[method-assign]

    async def indexing(self, key: str = "shop") -> Instance:
        """A saga that has come to the step of its group."""
        saga = await self.begin(key, saga="search")
        self.report(saga, "evt.made")
        return await self.reached(saga, "INDEXING")

    async def warming(self) -> Instance:
        """One whose first job has ended well."""
        saga = await self.indexing()
        await self.says(saga, SUCCEEDED)
        await self.word("evt.indexed")
        return await self.reached(saga, "WARMING")

    async def with_old_node(self) -> None:
        """A node of the former release lives beside a new one."""
        async with self.database.begin() as tx:
            assert await nodes.join(tx, "new-1", "new", [], version="0.2", feature_level=FEATURE_LEVEL)
            assert await nodes.join(tx, OLD, "old", [], version="0.1")

    async def old_node_is(self, state: NodeState) -> None:
        """What has become of that node."""
        async with self.database.begin() as tx:
            await tx.execute(update(tables.nodes).where(tables.nodes.c.id == OLD).values(state=state.value))

    async def polls(self, saga: Instance) -> Instance:
        """The saga after its wake-up has come."""
        async with self.database.begin() as tx:
            await tx.execute(text("UPDATE saga_instances SET wake_at = created_at"))
        self.wakeups.expect([await self.now(saga)])

        async def ahead() -> bool:
            at = (await self.now(saga)).wake_at
            return at is None or at > self.database.now()

        await eventually(ahead, deadline=5, message="the next wake-up is ahead")
        return await self.now(saga)

    def wait_of(self, saga: Instance) -> timedelta:
        """How far ahead its next wake-up is."""
        assert saga.wake_at is not None
        return saga.wake_at - self.database.now()


@pytest.fixture(params=DATABASES)
async def yard(request: pytest.FixtureRequest) -> AsyncIterator[GroupYard]:
    """A node over each kind of database."""
    database = Database(request.getfixturevalue(f"{request.param}_store"))
    made = GroupYard(database)
    await made.start()
    yield made
    await made.stop()
    await database.close()


def target_of(job: JobRow) -> tuple[Any, ...]:
    """For whom it is."""
    return job.queue, job.executor_group, job.routing, job.routing_key, job.routing_address, job.broadcast_end


async def test_who_enters_the_step_puts_one_job_down_for_the_group_of_its_key(yard: GroupYard) -> None:
    saga = await yard.begin("läden", saga="search")
    for _ in range(3):
        yard.report(saga, "evt.made")
    indexing = await yard.reached(saga, "INDEXING")
    await yard.broker.settled("evt.made")
    [job] = await yard.all_jobs()
    assert (job.id, job.state, job.handler) == (indexing.command_id, PENDING, "index")
    assert target_of(job) == (None, "läden", "CONSISTENT_HASH", f"search:{saga.id}", None, None)
    assert (job.retries, job.timeout_ms, job.created_by) == (2, 3_600_000, "ada")
    assert (job.saga, job.instance_id, job.step, job.correlation_id) == ("search", saga.id, "index", "c-läden")
    assert (job.payload["event"], job.payload["appName"], job.payload["data"]) == ("evt.indexed", "läden", {})
    assert (indexing.wake_reason, yard.desk.pokes) == ("job", 1)
    assert yard.wait_of(indexing) > MIXED_VERSIONS_POLL_INTERVAL * 2, "it is woken by the end of its job"


async def test_each_step_names_its_own_group_and_routing(yard: GroupYard) -> None:
    warming = await yard.warming()
    job = await yard.job(warming)
    assert target_of(job) == (None, "caches", "ADDRESS", f"search:{warming.id}", "http://a:1", None)
    assert job.timeout_ms == 300_000
    sweep = await yard.begin("all", saga="sweep")
    assert target_of(await yard.job(sweep)) == (None, "shops", "SHARDING_BROADCAST", "all", None, "any")


async def test_its_end_moves_the_saga_and_its_failure_undoes_by_a_job_for_the_group(yard: GroupYard) -> None:
    saga = await yard.indexing()
    await yard.says(saga, RUNNING)
    await yard.says(saga, FAILED, error={"type": "UnknownGroup", "message": "group shop is gone", "retryable": False})
    error = (await yard.word("evt.stepFailed"))["error"]
    assert (error["type"], error["retryable"], error["unsure"]) == ("UnknownGroup", False, False)
    back = await yard.reached(saga, "COMPENSATING")
    assert back.progress.todo == ("make",), "it has said itself that it did nothing"


@pytest.mark.parametrize(
    ("ending", "unsure"),
    [
        (executor_calls.no_group("shop"), False),
        (executor_calls.refused("http://a:1", "unknown handler"), False),
        (executor_calls.not_reached(["http://a:1"], "refused"), False),
        (executor_calls.lost("http://a:1", "has sent nothing for 90 s"), True),
    ],
    ids=lambda one: one.error["type"] if isinstance(one, AttemptEnding) else "",
)
async def test_a_step_whose_executor_may_have_begun_is_undone_too(
    yard: GroupYard, ending: AttemptEnding, unsure: bool
) -> None:
    saga = await yard.indexing()

    async def ended(tx: Transaction) -> None:
        before = (await jobs.lock(tx, [str(saga.command_id)]))[str(saga.command_id)]
        given = executor_calls.called(rules.dispatched(before, clock.uuid7(), tx.now()).job, "http://a:1", tx.now())
        moved = rules.ended(replace(given, retries=0), ending, tx.now(), 0.5)
        await step_results.store_with_results(tx, [(before.version, replace(moved.job, version=before.version + 1))])

    await yard.database.run(ended)
    yard.relay.notify()
    assert (await yard.word("evt.stepFailed"))["error"]["unsure"] is unsure
    back = await yard.reached(saga, "COMPENSATING")
    assert back.progress.todo == (("index", "make") if unsure else ("make",))


async def test_an_undo_is_a_job_for_the_group(yard: GroupYard) -> None:
    warming = await yard.warming()
    await yard.asks(warming, SagaAction.CANCEL)
    await yard.word("evt.stepFailed")
    back = await yard.reached(warming, "COMPENSATING")
    back = await yard.until(back, lambda one: one.progress.awaited is None, message="its undo is made")
    job = await yard.job(back)
    assert (job.handler, job.step, job.payload["undoesAttempt"]) == ("empty", "index:undo", 1)
    assert target_of(job) == (None, "shop", "FAILOVER", f"search:{warming.id}", None, None)
    await yard.says(back, SUCCEEDED)
    await yard.word("evt.emptied")
    await eventually(lambda: yard.sent("cmd.unmake"), deadline=5)


async def test_who_cancels_the_saga_cancels_its_job(yard: GroupYard) -> None:
    saga = await yard.indexing()
    await yard.says(saga, RUNNING)
    await yard.asks(saga, SagaAction.CANCEL)
    job = await yard.job(saga)
    assert (job.state, job.cancel_reason) == (RUNNING, f"search {saga.id}: cancel: because")
    assert (await yard.now(saga)).progress.awaited == "index"
    await yard.outbox_empty()
    assert yard.broker.events("evt.stepFailed") == [], "its executor says how it ended"


async def test_what_failed_with_hold_waits_for_a_person_whose_retry_is_another_job(yard: GroupYard) -> None:
    saga = await yard.warming()
    await yard.says(saga, FAILED, error={"type": "NoExecutors", "message": "none", "retryable": False})
    await yard.word("evt.stepFailed")
    await yard.until(saga, lambda one: one.blocker == "held")
    await yard.asks(saga, SagaAction.RETRY)
    again = await yard.now(saga)
    assert again.command_id != saga.command_id
    assert target_of(await yard.job(again)) == target_of(await yard.job(saga))


# While a living node is too old.


async def test_no_job_is_made_while_a_living_node_is_too_old_and_its_saga_goes_on_by_itself(yard: GroupYard) -> None:
    await yard.with_old_node()
    await yard.wakeups.start()
    saga = await yard.indexing()
    other = await yard.begin("one", saga="batch")
    assert [job.id for job in await yard.all_jobs()] == [other.command_id], "jobs of queues are made"
    assert (saga.wake_reason, saga.blocker) == ("job", None)
    assert timedelta(0) < yard.wait_of(saga) <= MIXED_VERSIONS_POLL_INTERVAL
    for state in (NodeState.ALIVE, NodeState.DRAINING):
        await yard.old_node_is(state)
        polled = await yard.polls(saga)
        assert len(await yard.all_jobs()) == 1
        assert (polled.version, polled.wake_reason) == (saga.version, "job")
        assert yard.wait_of(polled) <= MIXED_VERSIONS_POLL_INTERVAL
    await yard.old_node_is(NodeState.DEAD)
    polled = await yard.polls(saga)
    job = await yard.job(saga)
    assert (job.executor_group, job.state) == ("shop", PENDING)
    assert yard.wait_of(polled) > JOB_POLL_INTERVAL / 2
    await yard.says(saga, SUCCEEDED)
    await yard.word("evt.indexed")
    await yard.reached(saga, "WARMING")


async def test_a_saga_that_begins_with_such_a_job_begins_without_it(yard: GroupYard) -> None:
    await yard.with_old_node()
    saga = await yard.begin("all", saga="sweep")
    assert await yard.all_jobs() == []
    saga = await yard.now(saga)
    assert (saga.wake_reason, yard.wait_of(saga) <= MIXED_VERSIONS_POLL_INTERVAL) == ("job", True)
    again = RedispatchService(yard.database, yard.relay, CATALOG, yard.jobs)
    assert await again.redispatch(["sweep"], None) == 1
    assert await yard.all_jobs() == [], "nor does a person's redispatch make it"
    await yard.old_node_is(NodeState.LEFT)
    assert await again.redispatch(["sweep"], None) == 1
    assert (await yard.job(saga)).executor_group == "shops"


async def test_jobs_of_queues_do_not_wait_with_those_of_groups(yard: GroupYard) -> None:
    await yard.with_old_node()
    sagas = [await yard.begin("all", saga="sweep"), await yard.begin("one", saga="batch")]
    async with yard.database.begin() as tx:
        await tx.execute(text("DELETE FROM jobs"))
        assert await yard.jobs.ensure(tx, sagas) == 2
    assert [job.id for job in await yard.all_jobs()] == [sagas[1].command_id]


async def test_an_older_node_changes_nothing_for_a_job_that_is_there(yard: GroupYard) -> None:
    saga = await yard.indexing()
    await yard.with_old_node()
    await yard.says(saga, SUCCEEDED)
    await yard.word("evt.indexed")
    warming = await yard.reached(saga, "WARMING")
    assert [job.id for job in await yard.all_jobs()] == [saga.command_id]
    assert yard.wait_of(warming) <= MIXED_VERSIONS_POLL_INTERVAL


@pytest.mark.parametrize("lost", [False, True], ids=["at once", "at the next poll"])
async def test_who_cancels_a_saga_whose_job_was_never_made_undoes_the_rest(yard: GroupYard, lost: bool) -> None:
    await yard.with_old_node()
    saga = await yard.indexing()
    yard.answers_lost = lost
    await yard.asks(saga, SagaAction.CANCEL)
    assert ((await yard.now(saga)).progress.awaited, await yard.all_jobs()) == ("index", [])
    if lost:
        await yard.outbox_empty()
        assert yard.broker.events("evt.stepFailed") == []
        yard.answers_lost = False
        await yard.wakeups.start()
        await yard.polls(saga)
    fields = await yard.word("evt.stepFailed")
    assert fields["error"] == {
        "type": "JobCancelled",
        "message": f"cancelled before it was made (job {saga.command_id})",
        "retryable": False,
        "unsure": False,
    }
    await eventually(lambda: yard.sent("cmd.unmake"), deadline=5)
    yard.report(await yard.now(saga), "evt.unmade")
    await yard.reached(saga, "FAILED")
    assert await yard.all_jobs() == []


async def test_why_says_the_group_and_where_its_job_runs(yard: GroupYard) -> None:
    saga = await yard.indexing()
    name = f"Job {saga.command_id} (index, group shop)"
    assert (await yard.why(saga))[0] == f"{name} is PENDING (attempt 1)."
    await yard.says(saga, RUNNING, progress={"percent": 40})
    async with yard.database.begin() as tx:
        job = update(tables.jobs).where(tables.jobs.c.id == saga.command_id)
        await tx.execute(job.values(address="http://a:1", called_at=tx.now()))
    assert (await yard.why(saga))[0] == f"{name} is RUNNING at the executor http://a:1, 40 % (attempt 1)."


async def test_why_names_the_node_that_is_too_old(yard: GroupYard) -> None:
    await yard.with_old_node()
    saga = await yard.indexing()
    assert await yard.why(saga) == (
        f"Job {saga.command_id} is not made yet: jobs for a group of executors need every node to know them, and old "
        "(0.1) is too old: upgrade or stop it.",
        "Do that: the saga continues within 10 s.",
    )
    await yard.old_node_is(NodeState.LEFT)
    assert (await yard.why(saga))[0] == f"Job {saga.command_id} does not exist."


async def test_nobody_asks_the_broker_for_the_queue_of_a_group(yard: GroupYard) -> None:
    saga = await yard.indexing()
    asked: list[str] = []
    count = yard.broker.message_count

    async def message_count(queue: str) -> tuple[int, int] | None:
        asked.append(queue)
        return await count(queue)

    yard.broker.message_count = message_count  # type: ignore[method-assign]
    page = await yard.stuck.page(SEARCH, InstanceFilter(stuck=True), "createdAt", 10, None)
    assert (page, [queue for queue in asked if "dispatch" in queue]) == ([], [])
    assert (await yard.now(saga)).state == "INDEXING"


async def test_a_persons_deadline_is_not_brought_forward(yard: GroupYard) -> None:
    """Woken sooner it would count as over."""
    await yard.with_old_node()
    saga = await yard.indexing()
    async with yard.database.begin() as tx:
        at = tx.now() + timedelta(seconds=14)
        change = update(tables.saga_instances).where(tables.saga_instances.c.id == saga.id)
        await tx.execute(change.values(wake_reason=DEADLINE, wake_at=at))
    given = await yard.now(saga)
    async with yard.database.begin() as tx:
        await yard.jobs.ensure(tx, [given])
    after = await yard.now(saga)
    assert (after.wake_reason, after.wake_at, await yard.all_jobs()) == (DEADLINE, given.wake_at, [])
