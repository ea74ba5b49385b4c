"""What follows when a worker is not heard any more, or says that it is gone?"""

from __future__ import annotations

from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.cluster.nodes import WorkerHeartbeatRow
from tests.integration.jobs.plant import QUEUE, Plant
from tests.support import eventually


async def test_a_worker_that_leaves_is_gone_whoever_leads(plant: Plant) -> None:
    await plant.node()
    hand = await plant.worker()
    beat = WorkerHeartbeatRow(hand.name, [QUEUE], 0)
    await plant.database.run(lambda tx: nodes.record_worker_heartbeats(tx, [beat]))
    fields = {"workerId": hand.name, "queues": [], "jobs": [], "timestamp": "2026-01-31T12:00:00Z", "state": "LEFT"}

    async def gone() -> bool:
        await hand.send("orchestrix.worker.heartbeat", hand.name, fields)
        async with plant.database.read() as connection:
            return not await nodes.listed_workers(connection, 10, 60.0)

    await eventually(gone, deadline=10, every=0.2, message="the worker is not listed any more")
