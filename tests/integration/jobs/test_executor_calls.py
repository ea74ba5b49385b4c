"""Does the owner of a job for a group call executors as the rules say, whatever they answer?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import AttemptEnding, AttemptStatus, JobRow, JobTransition
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.domain.registry.routing import NoExecutors
from orchestrix.errors import Contention, NotFound, Unavailable
from orchestrix.jobs.executors.attempt_tokens import is_attempt_token
from orchestrix.jobs.executors.caller import CALLS_PER_TRANSACTION, ExecutorCaller
from orchestrix.jobs.executors.port import CallResult, CallTimings, ExecutorCalls, ExecutorRun
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import executor_jobs, jobs
from orchestrix.persistence.registry import registrations
from orchestrix.persistence.registry.registrations import Heartbeat
from tests.conformance.store.test_jobs import dispatched, now, owned, stored
from tests.fakes.time import Shifted
from tests.integration.jobs.plant import callbacks
from tests.servers import templates
from tests.support import eventually

A, B, C = "http://a:1", "http://b:1", "http://c:1"


@dataclass
class Executors:
    """Answers as it is told, and takes what it is not told about."""

    database: Database
    answers: list[tuple[str, CallAnswer]] = field(default_factory=list)
    runs: list[ExecutorRun] = field(default_factory=list)
    stored: list[str | None] = field(default_factory=list)
    """The address that was in the database at each call."""
    known: dict[str, bool | None] = field(default_factory=dict)
    cancelled: list[tuple[str, str]] = field(default_factory=list)
    asked: int = 0

    async def run(self, run: ExecutorRun) -> CallResult:
        async with self.database.read() as connection:
            job = await jobs.get(connection, run.job_id)
        self.stored.append(None if job is None else job.address)
        self.runs.append(run)
        found = next((one for one in self.answers if one[0] == run.address), None)
        if found is not None:
            self.answers.remove(found)
        return CallResult(CallAnswer.TAKEN if found is None else found[1], "as told")

    async def has(self, address: str, group: str, history_id: str) -> bool | None:
        self.asked += 1
        return self.known.get(address, True)

    async def cancel(self, address: str, group: str, job_id: str, history_id: str, reason: str) -> None:
        self.cancelled.append((address, reason))

    @property
    def called(self) -> list[str]:
        return [one.address for one in self.runs]


@dataclass
class Owner:
    """A node that owns jobs for a group with these addresses."""

    database: Database
    executors: Executors
    addresses: Sequence[str] = (A, B, C)
    missing: Exception | None = None
    nowhere: bool = False
    """Whether no node takes reports."""
    connected: bool = True
    """Whether the node has a connection to the broker."""
    consumed: list[tuple[str, int]] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    """Of each pick, that in which it was made."""

    def node(self, name: str = "n", probe: float = 1000.0, dead: float = 1000.0) -> ExecutorCaller:
        return ExecutorCaller(
            self.database,
            name,
            ExecutorCalls(self.executors, self.pick, CallTimings(probe, dead), self.callbacks),
            consume=self.consume,
            listens=lambda: self.connected,
            notify_leader=lambda: None,
            on_change=self.changed.extend,
            sent=lambda: None,
        )

    async def pick(self, tx: Transaction, job: JobRow) -> Sequence[str]:
        self.transactions.append(tx)
        if job.handler == "unpickable":
            raise ValueError("a strategy that this node does not know")
        if self.missing is not None:
            raise self.missing
        return self.addresses

    async def callbacks(self) -> Sequence[str]:
        if self.nowhere:
            raise Unavailable("nobody takes reports")
        return await callbacks()

    async def consume(self, job_id: str, epoch: int) -> None:
        self.consumed.append((job_id, epoch))

    async def job(self, node: str = "n", routing: str = "FIRST", **more: Any) -> JobRow:
        group = {"queue": None, "executor_group": "shop", "routing": routing}
        return await owned(self.database, node, await dispatched(self.database, **group, payload={"a": 1}, **more))

    async def until(self, caller: ExecutorCaller, done: Callable[[], bool]) -> None:
        await caller.start()
        await eventually(done, deadline=10.0)
        await caller.stop()


@pytest.fixture
def time() -> Iterator[Shifted]:
    """The clock of the node and of its database."""
    shifted = Shifted()
    with clock.use(shifted):
        yield shifted


@pytest.fixture
async def owner(sqlite_url: str) -> AsyncIterator[Owner]:
    templates.upgraded(sqlite_url)
    database = Database(sqlite_url)
    yield Owner(database, Executors(database))
    await database.close()


async def test_an_executor_is_called_with_all_it_needs_after_its_address_is_stored(owner: Owner) -> None:
    job = await owner.job(timeout_ms=5000)
    await owner.until(owner.node(), lambda: bool(owner.executors.runs))
    [run] = owner.executors.runs
    assert (run.address, run.group, run.job_id, run.history_id) == (A, "shop", job.id, job.history_id)
    assert (run.attempt, run.payload, run.timeout_ms) == (1, {"a": 1}, 5000)
    assert run.callbacks == [f"http://node:8080/jobs/{job.id}/attempts/{job.history_id}"]
    key = await installation.report_key(owner.database)
    assert is_attempt_token(key, run.history_id, run.token)
    assert owner.executors.stored == [A]
    assert owner.consumed == []  # it is notified of the first report, which makes the queues


async def test_what_was_taken_is_called_once_and_then_asked_about(owner: Owner) -> None:
    await owner.job()
    await owner.until(owner.node(probe=0.05), lambda: owner.executors.asked >= 2)
    assert owner.executors.called == [A]


async def test_the_next_owner_calls_the_same_address_again(owner: Owner) -> None:
    job = await owner.job()
    await owner.until(owner.node(), lambda: bool(owner.executors.runs))
    await owned(owner.database, "other", await now(owner.database, job))
    owner.addresses = (C, B)
    await owner.until(owner.node("other"), lambda: len(owner.executors.runs) == 2)
    assert owner.executors.called == [A, A]
    assert owner.consumed == [(job.id, 2)]  # the owner before may have been notified of a report
    assert owner.executors.runs[0].history_id == owner.executors.runs[1].history_id


async def test_the_next_owner_does_not_move_on_from_what_the_last_one_may_have_begun(owner: Owner) -> None:
    job = await owner.job(routing="FAILOVER")
    await owner.until(owner.node(), lambda: bool(owner.executors.runs))
    await owned(owner.database, "other", await now(owner.database, job))
    owner.executors.answers = [(A, CallAnswer.NOT_REACHED)]
    await owner.until(owner.node("other"), lambda: len(owner.executors.runs) == 3)
    assert owner.executors.called == [A, A, A]


async def test_an_unknown_outcome_is_asked_for_at_the_same_address(owner: Owner) -> None:
    owner.executors.answers = [(A, CallAnswer.UNKNOWN), (A, CallAnswer.NOT_REACHED)]
    await owner.job(routing="FAILOVER")
    await owner.until(owner.node(), lambda: len(owner.executors.runs) == 3)
    assert owner.executors.called == [A, A, A]


@pytest.mark.req("S2-41")
async def test_failover_tries_each_until_one_takes_it(owner: Owner) -> None:
    owner.executors.answers = [(A, CallAnswer.NOT_REACHED), (B, CallAnswer.BUSY)]
    job = await owner.job(routing="FAILOVER")
    await owner.until(owner.node(), lambda: len(owner.executors.runs) == 3)
    assert owner.executors.called == owner.executors.stored == [A, B, C]
    assert (await now(owner.database, job)).attempt == 1


async def test_where_all_were_busy_it_waits_though_the_transaction_is_repeated(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.executors.answers, owner.addresses = [(A, CallAnswer.BUSY)], (A,)
    busy, node = await owner.job(routing="FAILOVER"), owner.node()
    await node.run_once()
    await eventually(lambda: len(owner.executors.runs) == 1, deadline=10.0)
    await settled(node)
    [call] = node._calls.values()
    call.next_at = 0.0
    other = await owner.job(routing="FAILOVER")
    give, repeated = executor_jobs.give, list[bool]()

    async def contended(tx: Transaction, given: Sequence[tuple[JobRow, JobRow]]) -> None:
        if not repeated:
            repeated.append(True)
            raise Contention("locked by another transaction")
        await give(tx, given)

    monkeypatch.setattr(executor_jobs, "give", contended)
    await node.run_once()
    await eventually(lambda: len(owner.executors.runs) == 2, deadline=10.0)
    await settled(node)
    await node.stop()
    assert [run.job_id for run in owner.executors.runs] == [busy.id, other.id]


async def test_one_that_has_no_place_for_a_call_is_tried_again_when_all_others_are_gone(owner: Owner) -> None:
    owner.executors.answers = [(A, CallAnswer.NOT_CALLED), (B, CallAnswer.NOT_REACHED)]
    owner.addresses = (A, B)
    job = await owner.job(routing="FAILOVER")
    await owner.until(owner.node(), lambda: len(owner.executors.runs) == 3)
    assert owner.executors.called == owner.executors.stored == [A, B, A]
    assert (await now(owner.database, job)).attempt == 1


@pytest.mark.parametrize(
    ("answer", "state", "error"),
    [(CallAnswer.REFUSED, "FAILED", "ExecutorRefused"), (CallAnswer.NOT_REACHED, "PENDING", "ExecutorNotReached")],
)
async def test_an_attempt_that_no_executor_takes_ends(owner: Owner, answer: CallAnswer, state: str, error: str) -> None:
    owner.executors.answers = [(A, answer)]
    job = await owner.job(retries=3)
    await owner.until(owner.node(), lambda: job.id in owner.changed)
    after = await now(owner.database, job)
    assert (after.state, after.error["type"]) == (state, error)
    assert owner.executors.called == [A]


@pytest.mark.parametrize(
    ("missing", "state", "error"),
    [(NoExecutors("no executors available"), "PENDING", "NoExecutors"), (NotFound("gone"), "FAILED", "NoGroup")],
)
async def test_a_group_without_executors_is_tried_again_and_a_deleted_one_is_not(
    owner: Owner, missing: Exception, state: str, error: str
) -> None:
    owner.missing = missing
    job = await owner.job(retries=3)
    await owner.until(owner.node(), lambda: job.id in owner.changed)
    after = await now(owner.database, job)
    assert (after.state, after.error["type"], owner.executors.runs) == (state, error, [])


async def running(owner: Owner) -> JobRow:
    job = await owner.job(retries=1)
    await owner.until(owner.node(), lambda: bool(owner.executors.runs))
    job = await now(owner.database, job)
    status = AttemptStatus(job.id, str(job.history_id), A, 1, "RUNNING")
    moved = rules.reported(job, status, owner.database.now(), 0.5)
    assert isinstance(moved, JobTransition)
    return await stored(owner.database, job, moved)


async def test_an_attempt_that_its_executor_denies_is_lost(owner: Owner) -> None:
    job = await running(owner)
    owner.executors.known[A] = False
    await owner.until(owner.node(), lambda: bool(owner.executors.cancelled))
    after = await now(owner.database, job)
    assert (after.state, after.error["type"]) == ("PENDING", "ExecutorLost")
    assert owner.executors.asked == 2  # not at the first answer: its last report may be on its way
    assert [address for address, _ in owner.executors.cancelled] == [A]


async def test_an_attempt_that_is_not_heard_of_is_lost(owner: Owner) -> None:
    job = await running(owner)
    owner.executors.known[A] = None
    await owner.until(owner.node(probe=0.1, dead=0.5), lambda: job.id in owner.changed)
    assert (await now(owner.database, job)).error["type"] == "ExecutorLost"


async def beats(owner: Owner, instance: str | None, address: str = A) -> None:
    one = Heartbeat("shop", address, instance)
    async with owner.database.begin() as tx:
        before = await registrations.among(tx, [one.executor])
        await registrations.record(tx, [one], tx.now(), before)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_where_another_process_registers_it_is_asked_at_once(owner: Owner, cancelled: bool) -> None:
    await beats(owner, "first")
    job = await running(owner)
    if cancelled:  # the new process takes the request to stop too, as one that it does not know
        job = await stored(owner.database, job, rules.cancelled(job, "not needed", owner.database.now()))
    node = owner.node()
    await node.start()
    await eventually(lambda: owner.executors.asked == 1, deadline=10.0)
    await beats(owner, "first")
    await beats(owner, "elsewhere", B)
    node.wake()
    await node.run_once()
    assert owner.executors.asked == 1
    owner.executors.known[A] = False
    await beats(owner, "second")
    await eventually(lambda: job.id in owner.changed, deadline=10.0)
    await node.stop()
    assert owner.executors.asked == 3
    after = await now(owner.database, job)
    assert (after.state, after.error["type"]) == ("CANCELLED" if cancelled else "PENDING", "ExecutorLost")


async def test_an_outage_of_the_database_is_no_silence_of_an_executor(
    owner: Owner, time: Shifted, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await running(owner)
    owner.executors.known[A] = None
    node = owner.node(probe=60.0, dead=90.0)
    await node.run_once()
    with monkeypatch.context() as away:

        async def refused(*_: object) -> None:
            raise Unavailable("the database is away")

        away.setattr(executor_jobs, "owned", refused)
        for _ in range(40):  # each time it tries again within seconds, and what executors report is not stored
            time.advance(4.0)
            with pytest.raises(Unavailable):
                await node.run_once()
    await node.run_once()
    await eventually(lambda: all(call.task is None for call in node._calls.values()), deadline=10.0)
    assert (await now(owner.database, job)).state == "RUNNING"
    for _ in range(24):
        time.advance(4.0)
        await node.run_once()
    await eventually(lambda: job.id in owner.changed, deadline=10.0)
    await node.stop()
    assert (await now(owner.database, job)).error["type"] == "ExecutorLost"


async def settled(node: ExecutorCaller) -> None:
    """Waits until the node does nothing for any attempt."""
    await eventually(lambda: all(call.task is None for call in node._calls.values()), deadline=10.0)


async def test_a_new_owner_asks_before_it_gives_up_what_the_last_one_has_not_heard_of(
    owner: Owner, time: Shifted
) -> None:
    job = await running(owner)
    node = owner.node("other", probe=30.0, dead=90.0)
    await node.run_once()  # it has listened for long, but not for this attempt
    for _ in range(30):
        time.advance(4.0)
        await node.run_once()
    await owned(owner.database, "other", job)
    await node.run_once()
    await settled(node)
    await node.run_once()  # the sign of life that its question has found is noted
    await settled(node)
    assert (owner.executors.asked, (await now(owner.database, job)).state) == (1, "RUNNING")
    owner.executors.known[A] = None
    for _ in range(24):
        time.advance(4.0)
        await node.run_once()
        await settled(node)
    await node.stop()
    assert (await now(owner.database, job)).error["type"] == "ExecutorLost"


async def test_a_denial_counts_once_what_was_reported_before_could_be_read(owner: Owner, time: Shifted) -> None:
    job = await running(owner)
    owner.executors.known[A] = False
    owner.connected = False
    node = owner.node(probe=30.0)
    for _ in range(6):  # its last report waits in a queue that this node cannot read
        time.advance(3.0)
        await node.run_once()
        await settled(node)
    assert owner.executors.asked == 6
    assert (await now(owner.database, job)).state == "RUNNING"
    owner.connected = True
    for _ in range(2):
        time.advance(3.0)
        await node.run_once()
        await settled(node)
    await node.stop()
    assert (await now(owner.database, job)).error["type"] == "ExecutorLost"


@pytest.mark.parametrize("ending", [rules.ATTEMPT_TIMED_OUT, rules.WORKER_SILENT])
async def test_the_next_owner_stops_what_was_ended_when_the_last_one_was_gone(
    owner: Owner, ending: AttemptEnding
) -> None:
    job = await running(owner)
    other = await owner.job("other")
    ended = await stored(owner.database, job, rules.ended(job, ending, owner.database.now(), 0.5))
    await owned(owner.database, "other", ended)
    node = owner.node("other")
    node.taken([job.id, other.id])
    await node.run_once()
    await eventually(lambda: bool(owner.executors.cancelled), deadline=10.0)
    await node.run_once()
    await settled(node)
    await node.stop()
    assert owner.executors.cancelled == [(A, ending.error["message"])]


async def test_what_ended_long_ago_is_not_stopped_by_the_next_owner(owner: Owner, time: Shifted) -> None:
    job = await running(owner)
    await stored(owner.database, job, rules.ended(job, rules.WORKER_SILENT, owner.database.now(), 0.5))
    time.advance(601.0)
    node = owner.node("other")
    node.taken([job.id])
    await node.run_once()
    assert node._ended._calling == set()
    await node.stop()


async def test_a_locked_job_keeps_no_other_from_its_executor(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    first, node = await owner.job(), owner.node()
    heard = executor_jobs.heard
    noted: list[str] = []

    async def busy(*_: object) -> set[str]:
        raise Contention("locked by another transaction")

    async def note(tx: Transaction, history_ids: Sequence[str], at: datetime) -> set[str]:
        noted.extend(history_ids)
        return await heard(tx, history_ids, at)

    await node.run_once()
    await eventually(lambda: len(owner.executors.runs) == 1, deadline=10.0)
    await settled(node)
    monkeypatch.setattr(executor_jobs, "heard", busy)
    await owner.job()
    await node.run_once()
    await eventually(lambda: len(owner.executors.runs) == 2, deadline=10.0)
    await settled(node)
    monkeypatch.setattr(executor_jobs, "heard", note)
    await node.run_once()
    await node.stop()
    assert first.history_id in noted  # the sign of life was kept


async def test_a_call_that_fails_is_logged_and_made_again(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, node = await owner.job(), owner.node(probe=0.05)

    async def broken(run: ExecutorRun) -> CallResult:
        raise ValueError("a fault of the client")

    with monkeypatch.context() as patch:
        patch.setattr(owner.executors, "run", broken)
        await node.run_once()
        await eventually(lambda: f"an executor call for job {job.id} failed" in caplog.text, deadline=10.0)
        await settled(node)
    await owner.until(node, lambda: bool(owner.executors.runs))
    assert owner.executors.called == [A]


async def test_a_cancel_reaches_the_executor(owner: Owner) -> None:
    job = await running(owner)
    await stored(owner.database, job, rules.cancelled(job, "not needed", owner.database.now()))
    await owner.until(owner.node(), lambda: bool(owner.executors.cancelled))
    assert owner.executors.cancelled == [(A, "not needed")]


@asynccontextmanager
async def followed(owner: Owner) -> AsyncIterator[ExecutorCaller]:
    """A node that has looked at the attempt, and by itself looks again only after a long time."""
    caller = owner.node()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrix.jobs.executors.caller.POLL_INTERVAL_S", 1000.0)
        await caller.start()
        await eventually(lambda: owner.executors.asked == 1, deadline=10.0)
        yield caller
        await caller.stop()


async def test_a_cancel_does_not_wait_for_the_next_question_to_the_executor(owner: Owner) -> None:
    job = await running(owner)
    async with followed(owner) as caller:
        await stored(owner.database, job, rules.cancelled(job, "not needed", owner.database.now()))
        caller.wake()
        await eventually(lambda: bool(owner.executors.cancelled), deadline=10.0)
        caller.wake()
        caller.wake()
    assert owner.executors.cancelled == [(A, "not needed")]


@pytest.mark.parametrize("ending", [rules.ATTEMPT_TIMED_OUT, rules.WORKER_SILENT])
async def test_an_attempt_that_the_leader_has_ended_is_stopped_once(owner: Owner, ending: AttemptEnding) -> None:
    job = await running(owner)
    async with followed(owner) as caller:
        await stored(owner.database, job, rules.ended(job, ending, owner.database.now(), 0.5))
        caller.wake()
        await eventually(lambda: bool(owner.executors.cancelled), deadline=10.0)
        await caller.run_once()
    assert owner.executors.cancelled == [(A, ending.error["message"])]


async def test_an_attempt_that_is_cancelled_before_it_was_begun_is_stopped(owner: Owner) -> None:
    job = await owner.job()
    await owner.until(owner.node(), lambda: bool(owner.executors.runs))
    job, caller = await now(owner.database, job), owner.node()
    await caller.run_once()
    await eventually(lambda: len(owner.executors.runs) == 2, deadline=10.0)
    await eventually(lambda: not any(one.task for one in caller._calls.values()), deadline=10.0)
    await stored(owner.database, job, rules.cancelled(job, "not needed", owner.database.now()))
    await caller.run_once()
    await eventually(lambda: bool(owner.executors.cancelled), deadline=10.0)
    assert owner.executors.cancelled == [(A, "not needed")]
    await caller.stop()


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED", "CANCELLED"])
async def test_one_that_has_reported_its_end_is_left_alone(owner: Owner, status: str) -> None:
    job = await running(owner)
    async with followed(owner) as caller:
        last = AttemptStatus(job.id, str(job.history_id), A, 2, status, last_log_seq=0)
        moved = rules.reported(job, last, owner.database.now(), 0.5)
        assert isinstance(moved, JobTransition)
        await stored(owner.database, job, moved)
        await caller.run_once()
        assert caller._ended._calling == set()
    assert owner.executors.cancelled == []


async def test_what_this_node_has_ended_is_stopped_once(owner: Owner) -> None:
    job = await running(owner)
    async with followed(owner) as caller:
        [call] = caller._calls.values()
        await caller._end(call, rules.WORKER_SILENT)
        assert (await now(owner.database, job)).state == "PENDING"
        await caller.run_once()
        assert (caller._ended._calling, len(owner.executors.cancelled)) == (set(), 1)


async def test_what_another_node_owns_now_is_not_stopped(owner: Owner) -> None:
    job = await running(owner)
    async with followed(owner) as caller:
        await owned(owner.database, "other", job)
        await caller.run_once()
        assert caller._ended._calling == set()
    assert owner.executors.cancelled == []


async def test_nothing_is_called_or_given_away_while_no_node_takes_reports(owner: Owner) -> None:
    job = await owner.job()
    owner.nowhere = True
    caller = owner.node()
    await caller.run_once()
    await eventually(lambda: not any(one.task for one in caller._calls.values()), deadline=10.0)
    assert ((await now(owner.database, job)).address, owner.executors.runs, owner.consumed) == (None, [], [])
    owner.nowhere = False
    await owner.until(caller, lambda: bool(owner.executors.runs))


async def test_what_another_node_owns_is_not_called(owner: Owner) -> None:
    await owner.job("other")
    mine = await owner.job()
    await owner.until(owner.node(), lambda: bool(owner.executors.runs))
    assert [run.job_id for run in owner.executors.runs] == [mine.id]


async def test_many_are_assigned_in_few_transactions_and_called_without_one(owner: Owner) -> None:
    count = 2 * CALLS_PER_TRANSACTION
    for _ in range(count):
        await owner.job()
    await owner.until(owner.node(), lambda: len(owner.executors.runs) == count)
    assert len({id(tx) for tx in owner.transactions}) == 2
    assert owner.executors.stored == [A] * count
    assert len({run.history_id for run in owner.executors.runs}) == count


async def test_one_that_cannot_be_assigned_keeps_no_other_from_its_executor(
    owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    bad = await owner.job(handler="unpickable")
    good = [await owner.job() for _ in range(3)]
    await owner.until(owner.node(), lambda: len(owner.executors.runs) == len(good))
    assert {run.job_id for run in owner.executors.runs} == {job.id for job in good}
    assert (await now(owner.database, bad)).state == "DISPATCHED"
    assert f"job {bad.id} cannot be given to an executor" in caplog.text
