"""Is an order that is gone sent again, whoever has deleted, purged or taken it?"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import pytest

from orchestrix.broker.topology import dispatch_queue
from orchestrix.domain.jobs import DISPATCHED, RUNNING, SUCCEEDED, JobRow
from orchestrix.jobs.step_jobs import StepJobs
from orchestrix.persistence.engine import Transaction
from tests.integration.jobs.plant import Hand, Node, Plant
from tests.support import eventually, holds

QUEUE = dispatch_queue("rare")


async def deleted(node: Node) -> None:
    """Somebody deletes the queue."""
    await node.control.delete(QUEUE)


async def stolen(node: Node) -> None:
    """A stranger takes it, and says that it is done."""
    thief = await node.control.consume([QUEUE], 10)
    await thief.acknowledge(await thief.receive(10))
    await thief.close()


async def sent(plant: Plant, node: Node) -> JobRow:
    """A job without a time-out whose order is in its queue."""
    job = await plant.submit(queue="rare")
    await arrived(node)
    return await plant.owned(job)


async def arrived(node: Node, count: int = 1) -> None:
    """Waits until so many orders are in the queue."""

    async def there() -> bool:
        found = await node.control.message_count(QUEUE)
        return found is not None and found[0] == count

    await eventually(there, deadline=15, message="the order is in its queue")


async def finished(plant: Plant, hand: Hand, job: JobRow) -> None:
    """A worker does it, as its first attempt."""
    task = await hand.take()
    assert (task.order["historyId"], task.order["attempt"]) == (job.history_id, 1)
    await task.running()
    await task.succeed()
    await plant.reached(job, SUCCEEDED)


@pytest.mark.parametrize("lose", [deleted, stolen])
async def test_an_order_that_is_lost_is_sent_again_as_it_was(
    plant: Plant, lose: Callable[[Node], Awaitable[None]]
) -> None:
    node = await plant.node(leads=True)
    job = await sent(plant, node)
    await lose(node)
    await arrived(node)
    again = await plant.now(job)
    assert (again.state, again.history_id, again.tries) == (DISPATCHED, job.history_id, 1)
    await holds(lambda: True, during=3.0)
    await arrived(node)  # one copy, for it is not lost any more
    await finished(plant, await plant.worker(queue="rare"), job)
    assert len(await plant.attempts(job)) == 1


async def test_what_a_worker_holds_by_its_beat_is_not_sent_again(plant: Plant) -> None:
    node = await plant.node(leads=True)
    job = await sent(plant, node)
    hand = await plant.worker(queue="rare", beats=True)
    task = await hand.take()
    await holds(lambda: True, during=3.0)
    found = await node.control.message_count(QUEUE)
    assert found is not None
    assert found[0] == 0
    assert (await plant.now(job)).dispatched_at == job.dispatched_at
    await task.running()
    await plant.reached(job, RUNNING)


async def test_a_person_can_have_it_sent_again_at_once(plant: Plant) -> None:
    node = await plant.node()
    steps = StepJobs(lambda: None, stop=lambda stops: None, sent=node.relay.notify, on_change=lambda ids: None)
    await node.lead()
    job = await sent(plant, node)
    await node.resign()
    await stolen(node)

    async def redispatch(tx: Transaction) -> None:
        await steps.redispatch(tx, [job.id, "unknown"])

    await plant.database.run(redispatch)
    await arrived(node)
    task = await (await plant.worker(queue="rare")).take()
    assert task.order["historyId"] == job.history_id
    assert json.dumps(task.order["payload"]) == json.dumps(job.payload)
    await task.running()
    await plant.reached(job, RUNNING)
    await plant.database.run(redispatch)
    assert (await plant.now(job)).state == RUNNING, "it is at work: nothing is to be sent"
