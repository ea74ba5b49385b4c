"""What does a node take from the queue that only it has?"""

from __future__ import annotations

from random import Random
from typing import Any

from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import REPORTS_KIND, SHARD_PUSHES_KIND, cluster_topology, node_queue
from orchestrix.clock import uuid7
from orchestrix.cluster.presence import NodePresence
from orchestrix.saga.messages import dump
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.server import MemoryServer
from tests.support import eventually

NODE = "n-1"


async def test_each_kind_of_message_goes_to_who_waits_for_it() -> None:
    broker = MemoryBroker(MemoryServer(Random(1)), topology=cluster_topology(NODE))
    await broker.start()
    assert await broker.wait_connected(10)
    kinds, reports, pushes = list[str](), set[str](), set[str]()
    presence = NodePresence(broker, NODE, kinds.append, reports.update, pushes.update)
    await presence.start()
    sent: list[dict[str, Any]] = [
        {"kind": "jobs"},
        {"kind": REPORTS_KIND, "jobs": ["j-1", 2]},
        {"kind": SHARD_PUSHES_KIND, "to": ["zmq:01", "zmq:02"]},
        {"kind": SHARD_PUSHES_KIND, "to": "junk"},
        {"kind": SHARD_PUSHES_KIND, "to": [7, "zmq:03"]},
        {"kind": 7},
        {"kind": "drain"},
    ]
    await broker.publish([Outgoing("", node_queue(NODE), dump(one), uuid7()) for one in sent])
    await eventually(lambda: "drain" in kinds, deadline=10)
    await presence.stop()
    assert (sorted(kinds), reports) == (["drain", "jobs"], {"j-1"})
    assert pushes == {"zmq:01", "zmq:02", "zmq:03"}
