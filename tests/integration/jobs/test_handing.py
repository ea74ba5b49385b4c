"""Does every job have an owner, whatever becomes of nodes, and is nothing lost or applied twice?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrix.broker.topology import JOB_ASSIGNED, job_channels, logs_queue, status_queue
from orchestrix.cluster.drain_requests import DrainRequester
from orchestrix.config.settings import ClusterSettings, JobsSettings
from orchestrix.domain import jobs as rules
from orchestrix.domain.handoff import REBALANCE, SHUTDOWN
from orchestrix.domain.jobs import HANDING_OFF, ORPHAN_PENDING, OWNED, RUNNING, SUCCEEDED, JobRow
from orchestrix.errors import ConflictError, NotFound, Unavailable
from orchestrix.jobs.ownership import reconciler
from orchestrix.jobs.ownership.self_fencing import SelfFencing
from orchestrix.persistence.jobs import jobs
from tests.integration.jobs.plant import HASTY, Hand, Node, Plant, Task, queues_gone
from tests.support import eventually

CALM = JobsSettings(beat=2.0, silent=20.0)
LAZY = ClusterSettings(handoff_ack=0.4, handoff_hard=3.0, orphan_check=20.0, reconcile=20.0, heartbeat=1.0, dead=5.0)


async def started(plant: Plant, hand: Hand, count: int) -> list[tuple[JobRow, Task]]:
    """So many jobs that run."""
    begun = []
    for _ in range(count):
        await plant.submit()
        task = await hand.take()
        await task.running()
        begun.append(task)
    found = []
    for task in begun:
        async with plant.database.read() as connection:
            job = await jobs.get(connection, task.order["jobId"])
        assert job is not None
        await plant.reached(job, RUNNING)
        found.append((job, task))
    return found


async def talk(task: Task, stop: asyncio.Event) -> None:
    """Logs and tells its progress without a pause."""
    while not stop.is_set():
        await task.log(f"line {task.seq + 1}")
        await task.running({"percent": task.seq % 100})


async def checked(plant: Plant, pairs: Sequence[tuple[JobRow, Task]]) -> None:
    """Every line is there once and in order, and the end is the one that was told."""
    for job, task in pairs:
        await task.log("last line")
        await task.succeed({"said": task.seq})
        done = await plant.reached(job, SUCCEEDED)
        assert (done.result, done.seq) == ({"said": task.seq - 1}, task.seq)
        await plant.cleared(job)
        lines = await plant.logs(job)
        assert [one.message for one in lines] == [f"line {one.seq}" for one in lines[:-1]] + ["last line"]
        assert [one.seq for one in lines] == task.logged


@pytest.mark.req("S0-38", "S0-40", "S0-41", "S0-42", "S0-43", "S0-44", "S0-45", "S0-46", "S0-47")
async def test_a_node_that_stops_hands_its_jobs_over_and_nothing_is_lost(plant: Plant) -> None:
    leader = await plant.node("leader", leads=True, tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    pairs = await started(plant, hand, 6)
    other = await plant.node("other", tuned=CALM, cluster=LAZY)
    stop = asyncio.Event()
    talking = [asyncio.create_task(talk(task, stop)) for _, task in pairs]
    await eventually(lambda: min(task.seq for _, task in pairs) > 20, deadline=10)
    async with asyncio.timeout(5):
        await leader.jobs.drain()
    assert leader.jobs.count == 0
    for job, _ in pairs:
        now = await plant.owned(job, other)
        assert (now.owner_epoch, now.ownership) == (2, OWNED)
    said = [task.seq for _, task in pairs]
    await eventually(
        lambda: all(task.seq > before + 20 for (_, task), before in zip(pairs, said, strict=True)), deadline=10
    )
    stop.set()
    await asyncio.gather(*talking)
    await checked(plant, pairs)


@pytest.mark.req("S0-49", "S0-51", "S0-53")
async def test_jobs_that_nobody_takes_are_taken_when_somebody_comes(plant: Plant) -> None:
    leader = await plant.node("leader", leads=True, tuned=CALM)
    hand = await plant.worker()
    pairs = await started(plant, hand, 2)
    before = asyncio.get_running_loop().time()
    draining = asyncio.create_task(leader.jobs.drain())
    marked = [await ownership(plant, job, ORPHAN_PENDING) for job, _ in pairs]
    assert asyncio.get_running_loop().time() - before >= 1.2
    assert {job.handoff_reason for job in marked} <= {SHUTDOWN, "NodeCrash"}
    late = await plant.node("late", tuned=CALM)
    for job, _ in pairs:
        await plant.owned(job, late)
    async with asyncio.timeout(2):
        await draining
    assert leader.jobs.count == 0
    await checked(plant, pairs)


async def ownership(plant: Plant, job: JobRow, wanted: str) -> JobRow:
    """Waits until it stands so with the job."""

    async def there() -> bool:
        return (await plant.now(job)).ownership == wanted

    await eventually(there, deadline=5, message=f"the job is {wanted}")
    return await plant.now(job)


@pytest.mark.req("S0-52")
async def test_a_node_that_is_alone_ends_at_the_hard_limit(plant: Plant) -> None:
    leader = await plant.node("leader", tuned=CALM, cluster=LAZY)
    await leader.lead()
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    before = asyncio.get_running_loop().time()
    await leader.stop()
    assert 2.9 <= asyncio.get_running_loop().time() - before < 6
    plant.nodes.remove(leader)
    assert (await plant.now(job)).ownership == ORPHAN_PENDING
    await task.log("nobody hears")
    heir = await plant.node("heir", tuned=CALM)
    await heir.lead(2)
    await plant.owned(job, heir)
    await task.succeed()
    await plant.reached(job, SUCCEEDED)
    await plant.cleared(job)
    assert [one.message for one in await plant.logs(job)] == ["nobody hears"]


@pytest.mark.req("S0-55", "S0-56", "S0-57", "S0-74")
async def test_the_jobs_of_a_dead_node_are_offered_to_the_others(plant: Plant) -> None:
    victim = await plant.node("victim", tuned=CALM)
    leader = await plant.node("leader", tuned=CALM)
    await leader.jobs.handoff_subscriber.stop()
    await leader.lead()
    hand = await plant.worker()
    pairs = await started(plant, hand, 4)
    for job, _ in pairs:
        await plant.owned(job, victim)
    peers = [await plant.node(name, tuned=CALM) for name in ("one", "two")]
    await victim.die()
    plant.nodes.remove(victim)
    for _, task in pairs:
        await task.log("in between")
    leader.signals.orphaned.set()
    owners = {(await _other(plant, job, victim)).owner for job, _ in pairs}
    assert owners == {peer.name for peer in peers}
    await eventually(lambda: peers[0].jobs.count + peers[1].jobs.count == 4, deadline=5)
    for job, task in pairs:
        await task.succeed()
        await plant.reached(job, SUCCEEDED)
        await plant.cleared(job)
        assert [one.message for one in await plant.logs(job)] == ["in between"]


async def _other(plant: Plant, job: JobRow, node: Node) -> JobRow:
    async def there() -> bool:
        now = await plant.now(job)
        return now.owner not in (None, node.name) and now.ownership == OWNED

    await eventually(there, deadline=10, message="another node owns it")
    return await plant.now(job)


async def test_a_node_that_was_given_up_writes_nothing_more(plant: Plant) -> None:
    """It does not know that another one owns its job, and gets a message before it hears of it."""
    frozen = await plant.node("frozen", leads=True, tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    other = await plant.node("other", tuned=CALM)
    await _stolen(plant, job, other)
    await task.log("for the new owner")
    await plant.reached(job, RUNNING)
    await task.succeed()
    await plant.reached(job, SUCCEEDED)
    await plant.cleared(job)
    assert frozen.jobs.count == 0
    assert [one.message for one in await plant.logs(job)] == ["for the new owner"]


async def _stolen(plant: Plant, job: JobRow, node: Node) -> None:
    async with plant.database.begin() as tx:
        found = (await jobs.lock(tx, [job.id]))[job.id]
        await jobs.store(tx, [(found.version, rules.taken(found, node.name, tx.now()))])


async def test_what_a_node_owns_and_does_not_read_is_mended(plant: Plant) -> None:
    node = await plant.node("node", leads=True, tuned=CALM)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    await node.jobs.owned_jobs.leave([job.id])
    await task.log("late")
    await eventually(lambda: node.jobs.count == 1, deadline=5, message="it reads again what it owns")
    await task.succeed()
    await plant.reached(job, SUCCEEDED)
    await plant.cleared(job)
    assert [one.message for one in await plant.logs(job)] == ["late"]


async def test_a_job_that_has_said_all_to_the_owner_before_is_cleared_away_by_the_next(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await plant.node("first", leads=True, tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)

    async def dies_before(job_id: str) -> None:
        return

    monkeypatch.setattr(first.jobs.owned_jobs, "delete_channels", dies_before)
    await task.log("last line")
    await task.succeed()
    await plant.reached(job, SUCCEEDED)
    await plant.node("other", tuned=CALM, cluster=LAZY)
    await first.jobs.drain()
    await plant.cleared(job, deadline=reconciler.LAST_LINES_TIMEOUT_S / 3)
    assert [one.message for one in await plant.logs(job)] == ["last line"]


async def test_lines_that_waited_for_a_reader_are_read_however_long_ago_the_job_ended(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.jobs.ownership.reconciler.LAST_LINES_TIMEOUT_S", 1.0)
    node = await plant.node("node", leads=True, tuned=CALM)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    await task.say("SUCCEEDED", seq=60, lastLogSeq=59)
    await plant.reached(job, SUCCEEDED)
    await node.jobs.reconcile.stop()
    await node.jobs.owned_jobs.leave([job.id])
    task.seq = 1
    await task.log(*(f"line {number}" for number in range(50)))
    await ended_long_ago(plant, job)
    await node.jobs.reconcile.start()
    await plant.cleared(job)
    assert len(await plant.logs(job)) == 50, "and the last one never came"


async def ended_long_ago(plant: Plant, job: JobRow) -> None:
    async with plant.database.begin() as tx:
        found = (await jobs.lock(tx, [job.id]))[job.id]
        then = tx.now() - timedelta(hours=1)
        await jobs.store(tx, [(found.version, replace(found, finished_at=then, version=found.version + 1))])


async def test_a_job_without_an_owner_gets_one(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message that asks for one is lost."""
    monkeypatch.setattr("orchestrix.jobs.rescue.orphan_detector.UNOWNED_TIMEOUT_S", 1.0)
    node = await plant.node("node", tuned=CALM)
    await node.jobs.handoff_subscriber.stop()
    await node.lead()
    hand = await plant.worker()
    job = await plant.submit()
    task = await hand.take()
    await eventually(lambda: _lost(node), deadline=5)
    other = await plant.node("other", tuned=CALM)
    await plant.owned(job, other)
    await task.running()
    await plant.reached(job, RUNNING)


async def _lost(node: Node) -> bool:
    found = await node.control.message_count("orchestrix.job.assigned")
    if found is None or found[0] == 0:
        return False
    consumer = await node.control.consume(["orchestrix.job.assigned"], 1)
    await consumer.acknowledge(await consumer.receive(1))
    await node.control.message_count("orchestrix.job.assigned")
    await consumer.close()
    return True


@pytest.mark.req("S0-33")
async def test_an_overloaded_node_hands_half_of_the_difference_over(plant: Plant) -> None:
    loaded = await plant.node("loaded", leads=True, tuned=CALM)
    hand = await plant.worker()
    many = [await plant.submit() for _ in range(24)]
    await eventually(lambda: loaded.jobs.count == 24, deadline=20)
    other = await plant.node("other", tuned=CALM)
    await eventually(lambda: (loaded.jobs.count, other.jobs.count) == (12, 12), deadline=20)
    assert {(await plant.now(job)).ownership for job in many} == {OWNED}
    assert hand.name


async def test_what_nobody_takes_of_too_many_is_kept(plant: Plant) -> None:
    node = await plant.node("node", leads=True, tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    await node.jobs.handoff_subscriber.decline()
    giving = asyncio.create_task(node.jobs.handoff_publisher.hand_off(REBALANCE))
    await ownership(plant, job, HANDING_OFF)
    assert await giving == 0
    now = await plant.now(job)
    assert (now.ownership, now.owner, now.owner_epoch, node.jobs.count) == (OWNED, node.name, 1, 1)
    await task.succeed()
    await plant.reached(job, SUCCEEDED)
    assert HASTY


@pytest.mark.req("S0-29", "S0-31", "S0-72")
async def test_jobs_are_spread_over_the_nodes_and_a_new_leader_goes_on(plant: Plant) -> None:
    nodes = [await plant.node(name, tuned=CALM) for name in ("a", "b", "c")]
    await nodes[0].lead(1)
    hand = await plant.worker()
    first = [await plant.submit() for _ in range(12)]
    await eventually(lambda: sum(node.jobs.count for node in nodes) == 12, deadline=20)
    assert min(node.jobs.count for node in nodes) >= 1
    await nodes[0].resign()
    job = await plant.submit()
    await nodes[1].lead(2)
    await plant.owned(job)
    assert len([await hand.take() for _ in range(13)]) == len(first) + 1


async def test_a_node_that_is_told_to_drain_does(plant: Plant) -> None:
    node = await plant.node("node", leads=True, tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    other = await plant.node("other", tuned=CALM, cluster=LAZY)
    drain_requester = DrainRequester(plant.database, plant.nodes[0].control)
    assert (await drain_requester.drain(node.name, "ada")).state == "DRAINING"
    node.signals.drain_requested.set()
    await plant.owned(job, other)
    assert node.draining.count == 1
    more = await plant.submit()
    await plant.owned(more, other)
    assert (await drain_requester.drain(node.name, "ada")).state == "DRAINING"
    await task.succeed()
    await plant.reached(job, SUCCEEDED)
    with pytest.raises(NotFound):
        await drain_requester.drain("nobody", "ada")
    await other.stop()
    plant.nodes.remove(other)
    with pytest.raises(ConflictError):
        await drain_requester.drain(other.name, "ada")


async def test_queues_that_were_deleted_are_not_made_anew_by_a_former_owner(plant: Plant) -> None:
    """It has not heard that it owns the job no more, and reads again when its link comes back."""
    former = await plant.node("former", leads=True, tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    [(job, _)] = await started(plant, hand, 1)
    async with plant.database.begin() as tx:
        found = (await jobs.lock(tx, [job.id]))[job.id]
        ended = rules.ended(rules.taken(found, "another", tx.now()), rules.ATTEMPT_TIMED_OUT, tx.now(), 0.5).job
        await jobs.store(tx, [(found.version, replace(rules.closed(ended, tx.now()), version=found.version + 1))])
    for queue in (status_queue(job.id), logs_queue(job.id)):
        await former.control.delete(queue)
    await queues_gone(plant, job)

    async def still_gone() -> bool:
        return await former.control.message_count(status_queue(job.id)) is None

    for _ in range(10):
        assert await still_gone()
        await former.control.message_count(JOB_ASSIGNED)
    await former.jobs.reconcile.run_once()
    assert former.jobs.count == 0


async def test_queues_that_come_back_after_the_end_are_swept(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrix.jobs.rescue.queue_cleaner.QUEUE_CLEANER_AGE_S", 0.5)
    monkeypatch.setattr("orchestrix.jobs.rescue.queue_cleaner.QUEUE_CLEANER_INTERVAL_S", 0.2)
    node = await plant.node("node", leads=True, tuned=CALM)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    await task.succeed()
    await plant.cleared(job)
    await node.control.declare(job_channels(job.id))
    await queues_gone(plant, job)


async def test_a_node_without_database_keeps_nothing_from_others_and_goes_on_when_it_is_back(plant: Plant) -> None:
    node = await plant.node("cut off", leads=True, tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    away = True

    async def ping() -> None:
        if away:
            raise Unavailable("the database is away")

    parts = node.jobs
    footing = SelfFencing(ping, parts.handoff_subscriber, parts.owned_jobs, parts.reconcile, limit=0.3)
    await footing.start()
    await eventually(lambda: parts.count == 0, deadline=5, message="it lets go of the job")
    await task.log("while nobody listens")
    other = await plant.node("other", tuned=CALM, cluster=LAZY)
    new = await plant.submit()
    await plant.owned(new, other)
    assert await plant.logs(job) == []
    away = False
    await eventually(lambda: parts.count == 1, deadline=5, message="it reads the job again")

    async def heard() -> bool:
        return [line.message for line in await plant.logs(job)] == ["while nobody listens"]

    await eventually(heard, deadline=5, message="the line is there")
    await footing.stop()
