"""Has each connection exclusive queues of its own, though the broker has not missed the former one?"""

from __future__ import annotations

from functools import partial

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import JOB_CANCEL, cancel_queue, jobs_topology, worker_cancel_queue
from orchestrix.clock import uuid7
from tests.conformance.port.rig import Rig, take
from tests.support import eventually


async def is_read(broker: AmqpBroker, queue: str) -> bool:
    """Whether the broker knows a reader of it."""
    found = await broker.message_count(queue)
    return found is not None and found[1] == 1


@pytest.mark.parametrize("exclusive", [True, False])
async def test_a_connection_that_is_not_missed_yet_keeps_nobody_from_hearing(rig: Rig, exclusive: bool) -> None:
    ear, name = worker_cancel_queue("w-1"), cancel_queue("w-1")
    former, fresh = await rig.up(), await rig.up()
    ears = [await one.consume([name], 10, exclusive=exclusive, own_topology=ear) for one in (former, fresh)]
    for one in (former, fresh):
        await eventually(partial(is_read, one, name), deadline=10)
    await fresh.publish([Outgoing(JOB_CANCEL, "x", b"stop", uuid7())])
    for heard in ears:
        assert [(one.body, one.queue) for one in await take(heard, 1)] == [(b"stop", name)]


async def test_a_node_that_reconnects_finds_its_beats_free(rig: Rig) -> None:
    for _ in range(2):
        broker = rig.make()
        broker._topology = jobs_topology("node-1")
        await broker.start()
        assert await broker.wait_connected(10)
        found = [one.name for one in jobs_topology("node-1").queues if one.exclusive and ":" in one.name]
        assert [await broker.message_count(name) for name in found] == [(0, 0)]
