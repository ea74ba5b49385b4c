"""How is a node told to give away what it has?"""

from __future__ import annotations

from typing import Final

from app import clock
from app.broker.port import Broker, Outgoing
from app.broker.topology import node_queue
from app.domain.nodes import LIVE, Node
from app.errors import Conflict, NotFound
from app.persistence import nodes
from app.persistence.engine import Database, Transaction
from sagas.engine.messages import dump

KIND: Final = "drain"
POKE: Final = 1.0


class Drainer:
    """Marks a node's row, which the node obeys, and pokes it, so that it looks at once."""

    def __init__(self, database: Database, broker: Broker) -> None:
        self._database, self._broker = database, broker

    async def drain(self, node_id: str) -> Node:
        """The node from now on. Raises `NotFound`, `Conflict` for one that has ended, and `Unavailable`."""
        node = await self._database.run(lambda tx: self._write(tx, node_id))
        poke = Outgoing("", node_queue(node_id), dump({"kind": KIND}), clock.uuid7(), type="node.poke")
        await self._broker.publish([poke], timeout=POKE)
        return node

    @staticmethod
    async def _write(tx: Transaction, node_id: str) -> Node:
        node = await nodes.drain(tx, node_id)
        if node is None:
            raise NotFound(f"there is no node {node_id[:100]!r}")
        if node.state not in LIVE:
            raise Conflict(f"node {node_id} has ended: {node.state.value}")
        return node
