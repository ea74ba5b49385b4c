"""Has a step that is a job one job, and its saga one word of its end, whatever comes twice or is rolled back?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, text, update

from orchestrix import COMPLETED, Compensation, NothingToUndo, Saga, Step, clock
from orchestrix import Job as Work
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import CANCELLED, FAILED, PENDING, RUNNING, SUCCEEDED, AttemptStatus, JobRow, JobTransition
from orchestrix.domain.leases import Fence
from orchestrix.engine.control import Action
from orchestrix.engine.explain import stuck
from orchestrix.engine.redispatch import RedispatchService
from orchestrix.errors import Contention, Unavailable
from orchestrix.jobs import step_results
from orchestrix.jobs.events import StopRequest
from orchestrix.jobs.step_jobs import StepJobs
from orchestrix.persistence import outbox, tables
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.jobs.jobs import JobFilter
from orchestrix.persistence.sagas.instances import InstanceFilter as Live
from orchestrix.saga.actions.apply import apply_action
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import TransitionInputs
from orchestrix.saga.effect_keys import effect_key
from orchestrix.saga.state import Instance
from tests.integration.jobs.rows import leading
from tests.integration.orchestration.rig import Rig
from tests.support import eventually, holds
from tests.tracing import RecordedSpans, context_of, links_of

RELEASE = Saga(
    "release",
    (
        Step("tag", "TAGGING", "cmd.tag", "evt.tagged", "BUILDING", Compensation("cmd.untag", "evt.untagged")),
        Step(
            "build",
            "BUILDING",
            job=Work("build-image", queue="builders", timeout=timedelta(hours=1), retries=2),
            event="evt.built",
            then="SHIPPING",
            undo=Compensation("cmd.drop", "evt.dropped"),
        ),
        Step("ship", "SHIPPING", "cmd.ship", "evt.shipped", COMPLETED, NothingToUndo("it is gone")),
    ),
)
BATCH = Saga(
    "batch",
    (Step("crunch", "CRUNCHING", job=Work("crunch"), event="evt.crunched", then=COMPLETED, undo=NothingToUndo("-")),),
)
PAINT = Saga(
    "paint",
    (
        Step(
            "coat",
            "COATING",
            job=Work("coat"),
            event="evt.coated",
            then="HANGING",
            undo=Compensation(event="evt.stripped", job=Work("strip", retries=1)),
        ),
        Step("hang", "HANGING", "cmd.hang", "evt.hung", COMPLETED, NothingToUndo("it is the last step")),
    ),
)
CATALOG = Catalog([RELEASE, BATCH, PAINT])
DATABASES = ["sqlite", *(pytest.param(name, marks=pytest.mark.servers) for name in ("postgres", "mariadb"))]


class Desk(StepJobs):
    """The product's own, which remembers what it has said, and fails when told to, after it has written."""

    def __init__(self) -> None:
        super().__init__(self._poked, stop=self._stop_told, sent=lambda: self.relay_poke(), on_change=lambda ids: None)
        self.pokes = 0
        self.stopped: list[StopRequest] = []
        self.failures: list[Exception] = []
        self.relay_poke: Any = lambda: None
        self.seen: list[tuple[str, int]] = []

    def _poked(self) -> None:
        self.pokes += 1

    def _stop_told(self, stops: Sequence[StopRequest]) -> None:
        self.stopped += stops

    async def put(self, tx: Transaction, new: Sequence[JobRow]) -> None:
        """Fails behind both writes, while neither is committed."""
        before = (await tx.execute(text("SELECT count(*) FROM jobs"))).scalar_one()
        await super().put(tx, new)
        self.seen.append(("jobs before", before))
        if self.failures:
            raise self.failures.pop(0)


class Yard(Rig):
    """A node that moves sagas with jobs, and a hand that ends those."""

    def __init__(self, database: Database, catalog: Catalog = CATALOG) -> None:
        self.desk = Desk()
        super().__init__(database, catalog=catalog, desk=self.desk)
        self.desk.relay_poke = self.relay.notify

    async def building(self, key: str = "one") -> Instance:
        """A saga whose job has just been put down."""
        saga = await self.begin(key, saga="release")
        self.report(saga, "evt.tagged")
        return await self.reached(saga, "BUILDING")

    async def all_jobs(self) -> list[JobRow]:
        """Every job, with what it is given."""
        async with self.database.read() as connection:
            found = await jobs.page(connection, JobFilter(), 100)
            return [job for one in found if (job := await jobs.get(connection, one.id)) is not None]

    async def job(self, saga: Instance) -> JobRow:
        """The job of a saga's step."""
        [job] = [one for one in await self.all_jobs() if one.id == saga.command_id]
        return job

    async def says(self, saga: Instance, status: str, **more: Any) -> None:
        """A worker says that of the job."""
        await self.database.run(lambda tx: self._say(tx, str(saga.command_id), status, more))
        self.relay.notify()

    async def _say(self, tx: Transaction, id: str, status: str, more: dict[str, Any]) -> None:
        job = (await jobs.lock(tx, [id]))[id]
        if job.state == PENDING:
            sent = rules.dispatched(job, clock.uuid7(), tx.now())
            await jobs.store(tx, [(job.version, sent.job)], [sent.attempt] if sent.attempt else [])
            job = sent.job
        said = AttemptStatus(id, str(job.history_id), "w-1", job.seq + 1, status, **more)
        moved = rules.reported(job, said, tx.now(), 0.5)
        assert isinstance(moved, JobTransition)
        await step_results.store_with_results(tx, [(job.version, moved.job)], [moved.attempt] if moved.attempt else [])

    async def word(self, event: str, count: int = 1) -> dict[str, Any]:
        """The word of a job's end that has left, for the so manieth time; it comes to the listener now."""
        await eventually(lambda: len(self.broker.events(event)) == count, deadline=5, message=f"{event} has left")
        message = self.broker.events(event)[-1]
        self.broker.put(event, message.body, message_id=message.message_id, correlation_id=message.correlation_id)
        fields = json.loads(message.body)
        assert isinstance(fields, dict)
        return fields

    async def why(self, saga: Instance) -> tuple[str, str]:
        """Why it waits, which must be for its job, and what to do."""
        found = await self.explainer.why(saga.saga, saga.id)
        assert found.blocker == "job"
        return found.sentence, found.next_action

    async def beats(self, saga: Instance, ahead: timedelta) -> None:
        """The worker of the job was heard of so long after now."""
        job = update(tables.jobs).where(tables.jobs.c.id == saga.command_id)
        async with self.database.begin() as tx:
            await tx.execute(job.values(worker_beat_at=tx.now() + ahead))

    async def stuck_ones(self) -> tuple[list[int], list[int]]:
        """The ids of the sagas that are stuck, and of those that are not; the same if they are too many to be named."""
        found = [await self._stuck_ones()]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(stuck, "NAMED_INSTANCES_LIMIT", 0)
            found.append(await self._stuck_ones())
        assert found[0] == found[1]
        return found[0]

    async def _stuck_ones(self) -> tuple[list[int], list[int]]:
        pages = [await self.stuck.page(RELEASE, Live(stuck=which), "createdAt", 10, None) for which in (True, False)]
        held, moving = ([one.id for one in page] for page in pages)
        return held, moving

    async def asks(self, saga: Instance, verb: SagaAction) -> None:
        """Ada asks for it."""
        await self.control.act(Action(saga.saga, saga.id, ActionRequest(verb, "ada", "because")))


@pytest.fixture(params=DATABASES)
async def yard(request: pytest.FixtureRequest) -> AsyncIterator[Yard]:
    """A node over each kind of database."""
    database = Database(request.getfixturevalue(f"{request.param}_store"))
    made = Yard(database)
    await made.start()
    yield made
    await made.stop()
    await database.close()


async def test_who_enters_the_step_puts_one_job_down(yard: Yard) -> None:
    saga = await yard.begin("one", saga="release")
    for _ in range(3):
        yard.report(saga, "evt.tagged")
    building = await yard.reached(saga, "BUILDING")
    await yard.broker.settled("evt.tagged")
    [job] = await yard.all_jobs()
    assert (job.id, job.state, job.queue, job.handler) == (building.command_id, PENDING, "builders", "build-image")
    assert (job.retries, job.timeout_ms, job.created_by) == (2, 3_600_000, "ada")
    assert (job.saga, job.instance_id, job.step, job.correlation_id) == ("release", saga.id, "build", "c-one")
    assert job.payload == {
        "saga": "release",
        "appId": saga.id,
        "appName": "one",
        "step": "build",
        "attempt": 1,
        "idempotencyKey": f"release:{saga.id}:build:do",
        "effectKey": effect_key(saga, "build", undoes=False),
        "event": "evt.built",
        "data": {},
    }
    assert (building.version, building.wake_reason, yard.desk.pokes) == (2, "job", 1)
    await yard.outbox_empty()
    assert yard.sent("cmd.tag")
    assert len(yard.broker.published) == 1, "no message leaves for a job"


async def test_a_job_follows_from_the_span_that_issued_it_and_keeps_its_sagas_root(yard: Yard) -> None:
    saga = await yard.begin("traced", saga="release")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    root, issued = f"00-{trace}-00f067aa0ba902b7-03", f"00-{trace}-1111111111111111-03"
    table = tables.saga_instances
    async with yard.database.begin() as tx:
        change = update(table).where(table.c.id == saga.id)
        await tx.execute(change.values(traceparent=root, tracestate="vendor=1", trace_head=issued))
    yard.report(saga, "evt.tagged")
    job = await yard.job(await yard.reached(saga, "BUILDING"))
    assert (job.traceparent, job.tracestate, job.trace_head) == (root, "vendor=1", issued)


async def test_the_jobs_of_one_saga_are_found(yard: Yard) -> None:
    first, other = await yard.building("one"), await yard.building("other")
    await yard.asks(first, SagaAction.PAUSE)
    await yard.control.act(
        Action("release", first.id, ActionRequest(SagaAction.EDIT, "ada", "because", patch={"of": 2}))
    )
    await yard.asks(first, SagaAction.RESUME)
    again = await yard.now(first)
    async with yard.database.read() as connection:
        found = await jobs.page(connection, JobFilter(step_of=("release", first.id)), 10)
        others = await jobs.page(connection, JobFilter(step_of=("release", other.id)), 10)
        none = await jobs.page(connection, JobFilter(step_of=("app", first.id)), 10)
    states = [(job.id, job.state) for job in found]
    assert states == [(again.command_id, PENDING), (first.command_id, CANCELLED)], "other data, another job"
    assert ([job.id for job in others], none) == ([other.command_id], [])


async def test_a_saga_can_begin_with_a_job(yard: Yard) -> None:
    saga = await yard.begin("one", saga="batch")
    [job] = await yard.all_jobs()
    assert (job.id, job.queue, job.timeout_ms, job.payload["appId"]) == (saga.command_id, "default", None, saga.id)
    await yard.says(saga, SUCCEEDED)
    await yard.word("evt.crunched")
    await yard.reached(saga, COMPLETED)


@pytest.mark.parametrize("error", [Contention("a deadlock"), Unavailable("the database is gone")])
async def test_neither_move_nor_job_is_there_without_the_other(yard: Yard, error: Exception) -> None:
    saga = await yard.begin("one", saga="release")
    yard.desk.failures.append(error)
    yard.report(saga, "evt.tagged")
    building = await yard.reached(saga, "BUILDING")
    assert [job.id for job in await yard.all_jobs()] == [building.command_id]
    assert (building.version, yard.desk.pokes) == (2, 1)
    assert yard.desk.seen == [("jobs before", 0), ("jobs before", 0)], "the first time was undone as a whole"


async def test_the_end_of_a_job_moves_its_saga_once(yard: Yard) -> None:
    saga = await yard.building()
    await yard.says(saga, SUCCEEDED, result={"image": "sha256:1"})
    fields = await yard.word("evt.built")
    assert fields == {
        "id": fields["id"],
        "type": "evt.built",
        "saga": "release",
        "appId": saga.id,
        "correlationId": "c-one",
        "causationId": saga.command_id,
        "data": {"image": "sha256:1"},
    }
    shipping = await yard.reached(saga, "SHIPPING")
    assert shipping.data == {"image": "sha256:1"}
    await yard.word("evt.built")
    await yard.broker.settled("evt.built")
    assert await yard.ignored(saga) == {"repeated": 1}
    assert (await yard.now(saga)).version == 3
    assert (await yard.job(saga)).state == SUCCEEDED


async def test_neither_the_end_nor_the_word_of_it_is_there_without_the_other(yard: Yard) -> None:
    saga = await yard.building()
    await yard.outbox_empty()

    async def interrupted(tx: Transaction) -> None:
        await yard._say(tx, str(saga.command_id), SUCCEEDED, {})
        raise RuntimeError("the process ends here")

    with pytest.raises(RuntimeError):
        await yard.database.run(interrupted)
    assert ((await yard.job(saga)).state, await yard.in_outbox()) == (PENDING, 0)
    await yard.says(saga, SUCCEEDED)
    await yard.word("evt.built")
    await yard.reached(saga, "SHIPPING")


async def test_a_job_that_has_failed_for_good_fails_its_step(yard: Yard) -> None:
    saga = await yard.building()
    await yard.says(saga, FAILED, error={"type": "NoSpace", "message": "disk full", "retryable": False})
    fields = await yard.word("evt.stepFailed")
    text = f"disk full (job {saga.command_id})"
    assert fields["error"] == {"type": "NoSpace", "message": text, "retryable": False, "unsure": False}
    back = await yard.reached(saga, "COMPENSATING")
    assert back.progress.todo == ("tag",), "it has said itself that it did nothing"
    assert (await yard.history(saga))[-1].reason == f"evt.stepFailed: NoSpace: {text}"


async def test_a_failure_that_will_be_tried_again_is_no_news(yard: Yard) -> None:
    saga = await yard.building()
    await yard.outbox_empty()
    await yard.says(saga, FAILED, error={"type": "NoSpace", "message": "disk full"})
    assert ((await yard.job(saga)).state, await yard.in_outbox()) == (PENDING, 0)
    await yard.says(saga, FAILED, error={"type": "Broken", "message": "no", "retryable": False})
    assert (await yard.word("evt.stepFailed"))["error"]["unsure"] is True


@pytest.mark.parametrize("result", [["a", "list"], {"much": "x" * 70_000}])
async def test_a_result_that_no_saga_can_take_fails_the_step(yard: Yard, result: Any) -> None:
    saga = await yard.building()
    await yard.says(saga, SUCCEEDED, result=result)
    assert (await yard.word("evt.stepFailed"))["error"]["type"] == "BadOutput"
    assert (await yard.reached(saga, "COMPENSATING")).progress.todo == ("build", "tag")


async def test_who_cancels_the_saga_cancels_its_job_and_then_undoes(yard: Yard) -> None:
    saga = await yard.building()
    await yard.says(saga, RUNNING)
    await yard.asks(saga, SagaAction.CANCEL)
    job = await yard.job(saga)
    reason = f"release {saga.id}: cancel: because"
    assert (job.state, job.cancel_reason) == (RUNNING, reason)
    assert [(stop.history_id, stop.reason) for stop in yard.desk.stopped] == [(job.history_id, reason)]
    assert (await yard.now(saga)).progress.awaited == "build"
    await yard.says(saga, CANCELLED, error={"type": "Cancelled", "message": reason})
    assert (await yard.word("evt.stepFailed"))["error"]["type"] == "JobCancelled"
    await eventually(lambda: yard.sent("cmd.drop"), deadline=5)
    back = await yard.now(saga)
    yard.report(back, "evt.dropped")
    await eventually(lambda: yard.sent("cmd.untag"), deadline=5)
    yard.report(await yard.now(saga), "evt.untagged")
    await yard.reached(saga, "FAILED")


async def test_a_job_that_nobody_has_begun_ends_with_its_saga_s_cancel(yard: Yard) -> None:
    saga = await yard.building()
    await yard.asks(saga, SagaAction.CANCEL)
    assert (await yard.job(saga)).state == CANCELLED
    assert (await yard.word("evt.stepFailed"))["error"]["unsure"] is False
    await eventually(lambda: yard.sent("cmd.untag"), deadline=5)
    assert yard.sent("cmd.drop") == []


async def test_jobs_are_let_go_in_the_order_in_which_all_lock_them(yard: Yard) -> None:
    first, other = await yard.building("one"), await yard.building("other")
    await yard.asks(first, SagaAction.PAUSE)
    await yard.control.act(
        Action("release", first.id, ActionRequest(SagaAction.EDIT, "ada", "because", patch={"of": 2}))
    )
    await yard.asks(first, SagaAction.RESUME)
    first = await yard.now(first)
    low, high = str(other.command_id), str(first.command_id)
    assert first.id < other.id
    assert low < high, "the first saga has the later job"
    tick = TransitionInputs(yard.database.now(), clock.uuid7())
    moves = [
        (one, apply_action(RELEASE, one, ActionRequest(SagaAction.TERMINATE, "ada", "because"), tick))
        for one in (first, other)
    ]

    async def let_go() -> None:
        async with yard.database.begin() as tx:
            await yard.jobs.follow(tx, moves)

    async with yard.database.begin() as words:  # as those write who hear what workers say
        await jobs.lock(words, [low])
        following = asyncio.create_task(let_go())
        await holds(lambda: not following.done(), during=0.3)
        await jobs.lock(words, [high])
    await following
    states = {job.id: (job.state, job.cancel_reason) for job in await yard.all_jobs()}
    assert [states[one] for one in (low, high)] == [
        (CANCELLED, f"release {saga.id}: terminate: because") for saga in (other, first)
    ]


@pytest.mark.parametrize(("verb", "state"), [(SagaAction.TERMINATE, "FAILED"), (SagaAction.SKIP, "SHIPPING")])
async def test_a_job_that_is_passed_over_is_cancelled(yard: Yard, verb: SagaAction, state: str) -> None:
    saga = await yard.building()
    await yard.asks(saga, verb)
    assert ((await yard.job(saga)).state, (await yard.now(saga)).state) == (CANCELLED, state)
    await yard.word("evt.stepFailed")
    await yard.broker.settled("evt.stepFailed")
    assert (await yard.now(saga)).state == state


async def test_a_saga_is_stuck_while_nobody_does_its_job(yard: Yard) -> None:
    saga, other = await yard.building("one"), await yard.building("other")
    for one in (saga, other):
        await yard.says(one, RUNNING)
        await yard.beats(one, timedelta(hours=1))  # so that it is in time, however long this takes
    assert await yard.stuck_ones() == ([], [saga.id, other.id])
    await yard.beats(saga, timedelta(minutes=-5))
    assert await yard.stuck_ones() == ([saga.id], [other.id]), "nobody leads"
    await leading(yard.database, Fence(1, "node-1"))
    assert await yard.stuck_ones() == ([saga.id], [other.id]), "no worker serves its queue"
    async with yard.database.begin() as tx:
        now = tx.now()
        row = {"id": "w-2", "queues": ["builders"], "jobs": 0, "started_at": now, "beat_at": now}
        await tx.execute(insert(tables.workers).values(row))
    assert await yard.stuck_ones() == ([], [saga.id, other.id]), "the machine will have it done by another"


async def test_what_waits_for_many_jobs_that_nobody_does_is_stuck_without_a_limit(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stuck, "NAMED_INSTANCES_LIMIT", 2)
    sagas = [await yard.building(name) for name in "abcd"]
    for one in sagas:
        await yard.says(one, RUNNING)
        await yard.beats(one, timedelta(hours=1) if one is sagas[-1] else timedelta(minutes=-5))
    held: list[int] = []
    after = None
    while found := await yard.stuck.page(RELEASE, Live(stuck=True), "createdAt", 1, after):
        held += [one.id for one in found]
        after = found[-1].created_at, found[-1].id
    assert held == [one.id for one in sagas[:3]]
    moving = await yard.stuck.page(RELEASE, Live(stuck=False), "createdAt", 10, None)
    assert [one.id for one in moving] == [sagas[-1].id]


async def test_a_dry_run_leaves_the_job_alone(yard: Yard) -> None:
    saga = await yard.building()
    ask = ActionRequest(SagaAction.TERMINATE, "ada", "because")
    await yard.control.act(Action(saga.saga, saga.id, ask, dry_run=True))
    assert (await yard.job(saga)).cancel_reason is None


async def test_a_paused_saga_keeps_its_job_and_puts_none_down_twice(yard: Yard) -> None:
    saga = await yard.building()
    await yard.asks(saga, SagaAction.PAUSE)
    await yard.asks(saga, SagaAction.RESUME)
    assert [job.state for job in await yard.all_jobs()] == [PENDING]


async def test_a_word_that_was_lost_is_said_again_by_redispatch(yard: Yard) -> None:
    saga = await yard.building()
    again = RedispatchService(yard.database, yard.relay, CATALOG, yard.jobs)
    assert await again.redispatch(["release"], None) == 1
    assert len(await yard.all_jobs()) == 1
    await yard.says(saga, SUCCEEDED)
    await eventually(lambda: yard.broker.events("evt.built"), deadline=5)
    await yard.outbox_empty()
    assert await again.redispatch(["release"], None) == 1
    await yard.word("evt.built", 2)
    first, second = yard.broker.events("evt.built")
    assert (first.message_id, first.body) == (second.message_id, second.body)
    await yard.reached(saga, "SHIPPING")


@pytest.mark.parametrize("limited", [False, True], ids=["its own time", "a person's deadline"])
async def test_a_word_that_was_lost_is_said_again_at_the_next_look(yard: Yard, limited: bool) -> None:
    saga = await yard.building()
    if limited:
        ask = ActionRequest(SagaAction.SET_DEADLINE, "ada", "because", at=yard.database.now() + timedelta(hours=1))
        await yard.control.act(Action("release", saga.id, ask))
        assert ((await yard.now(saga)).wake_reason, (await yard.now(saga)).limit) == ("job", ask.at)
    await yard.says(saga, SUCCEEDED)
    await eventually(lambda: yard.broker.events("evt.built"), deadline=5)
    await yard.outbox_empty()
    await _due(yard, saga)
    await yard.wakeups.start()
    await yard.word("evt.built", 2)
    await yard.reached(saga, "SHIPPING")


async def test_a_job_that_is_at_work_is_left_alone_by_the_look(yard: Yard) -> None:
    saga = await yard.building()
    await yard.says(saga, RUNNING)
    await _due(yard, saga)
    await yard.wakeups.start()

    async def looked() -> bool:
        at = (await yard.now(saga)).wake_at
        return at is not None and at > yard.database.now()

    await eventually(looked, deadline=5, message="the next look is ahead")
    now = await yard.now(saga)
    assert (now.state, now.wake_reason, now.version) == ("BUILDING", "job", saga.version)
    assert (await yard.job(saga)).state == RUNNING


async def _due(yard: Yard, saga: Instance) -> None:
    change = text("UPDATE saga_instances SET wake_at = created_at WHERE id = :id")
    async with yard.database.begin() as tx:
        await tx.execute(change, {"id": saga.id})


async def test_the_end_of_the_run_s_own_time_cancels_the_job(yard: Yard) -> None:
    saga = await yard.building()
    await yard.wakeups.start()
    yard.wakeups._listening_since = yard.database.now() - timedelta(hours=1)
    change = text("UPDATE saga_instances SET wake_at = created_at, deadline_at = created_at WHERE id = :id")
    async with yard.database.begin() as tx:
        await tx.execute(change, {"id": saga.id})
    yard.wakeups.expect([await yard.now(saga)])
    back = await yard.reached(saga, "COMPENSATING")
    job = await yard.job(saga)
    assert (job.state, job.cancel_reason) == (CANCELLED, f"release {saga.id}: deadline")
    assert back.progress.todo == ("build", "tag")


async def test_an_undo_that_is_a_job(yard: Yard) -> None:
    saga = await yard.begin("one", saga="paint")
    await yard.says(saga, SUCCEEDED)
    await yard.word("evt.coated")
    hanging = await yard.reached(saga, "HANGING")
    yard.report(hanging, "evt.stepFailed", error={"type": "NoHook", "message": "no hook", "retryable": False})
    back = await yard.reached(saga, "COMPENSATING")
    job = await yard.job(back)
    assert (job.handler, job.step, job.retries, job.payload["undoesAttempt"]) == ("strip", "coat:undo", 1, 1)
    await yard.says(back, SUCCEEDED, result={"is": "left alone"})
    await yard.word("evt.stripped")
    assert (await yard.reached(saga, "FAILED")).progress.undone == ("coat",)
    assert len(await yard.all_jobs()) == 2


async def test_why_tells_how_it_stands_with_the_job(yard: Yard) -> None:
    saga = await yard.building()
    name = f"Job {saga.command_id} (build-image)"
    assert await yard.why(saga) == (f"{name} is PENDING (attempt 1).", _follow(saga))
    await yard.says(saga, RUNNING, progress={"percent": 40})
    assert await yard.why(saga) == (f"{name} is RUNNING on worker w-1, 40 % (attempt 1).", _follow(saga))
    await yard.asks(saga, SagaAction.CANCEL)
    sentence, _ = await yard.why(saga)
    assert sentence == (
        "Cancelled; waiting for its job to stop, then it undoes build (unless it failed), tag."
        f" {name} is RUNNING on worker w-1, 40 % (attempt 1); stopping (release {saga.id}: cancel: because)."
    )


async def test_why_tells_what_a_job_waits_for_that_nobody_takes(yard: Yard) -> None:
    await leading(yard.database, Fence(1, "node-1"))
    saga = await yard.building()
    long_ago = yard.database.now() - timedelta(minutes=1)
    change = update(tables.jobs).where(tables.jobs.c.id == saga.command_id)
    async with yard.database.begin() as tx:
        await tx.execute(change.values(state="DISPATCHED", dispatched_at=long_ago))
    sentence, action = await yard.why(saga)
    assert sentence.endswith("start one with `orchestrix worker --job-queue builders`.")
    assert f"orchestrix jobs cancel {saga.command_id}" in action


async def test_why_tells_that_a_job_has_ended_or_is_gone(yard: Yard) -> None:
    saga = await yard.building()
    await yard.says(saga, SUCCEEDED)
    assert "ended SUCCEEDED; its result is on its way to the saga" in (await yard.why(saga))[0]
    async with yard.database.begin() as tx:
        await tx.execute(text("DELETE FROM jobs"))
    assert await yard.why(saga) == (
        f"Job {saga.command_id} does not exist.",
        "Wait: it is submitted again; `redispatch` submits it now.",
    )
    assert await RedispatchService(yard.database, yard.relay, CATALOG, yard.jobs).redispatch(["release"], None) == 1
    assert [job.id for job in await yard.all_jobs()] == [saga.command_id]


def _follow(saga: Instance) -> str:
    return f"Wait, or follow it with `orchestrix jobs logs {saga.command_id} -f`."


async def test_a_result_that_is_published_again_has_a_span_of_its_own(yard: Yard, spans: RecordedSpans) -> None:
    """It has the id of the first, and so has the span that publishes a message of that id first."""
    saga = await yard.building()
    await yard.says(saga, SUCCEEDED)
    name = "publish orchestrator.events:evt.built"
    for count in (1, 2, 3):
        await eventually(lambda count=count: len(spans.named(name)) == count, deadline=5)  # type: ignore[misc]
        await eventually(lambda: no_rows(yard), deadline=5)
        await yard.database.run(lambda tx: yard.jobs.ensure(tx, [saga]))
        yard.relay.notify()
    first, *others = (context_of(one) for one in spans.named(name))
    assert len({first.span_id, *(one.span_id for one in others)}) == 3
    assert [links_of(one) for one in spans.named(name)[1:]] == [[("retry", first.trace_id, first.span_id)]] * 2


async def no_rows(yard: Yard) -> bool:
    """Whether the outbox is empty."""
    async with yard.database.read() as connection:
        return await outbox.pending(connection) == 0
