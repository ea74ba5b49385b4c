"""Drain requester: requests that a node hand its jobs off."""

from __future__ import annotations

from typing import Final

from orchestrix import clock
from orchestrix.broker.port import Broker, Outgoing
from orchestrix.broker.topology import node_queue
from orchestrix.domain.nodes import LIVE, NodeRow
from orchestrix.errors import ConflictError, NotFound
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.saga.messages import dump

DRAIN_KIND: Final = "drain"
DRAIN: Final = "drain-node"
"""The verb of drained nodes in the audit."""
NOTIFY_TIMEOUT_S: Final = 1.0


class DrainRequester:
    """Marks a node's row, which the node follows, and notifies it, so that it reads the row at once."""

    def __init__(self, database: Database, broker: Broker) -> None:
        self._database, self._broker = database, broker

    async def drain(self, node_id: str, actor: str) -> NodeRow:
        """The node from now on; `node_id` may also be its name, where one live node has it.

        The call that changes it is in the audit.

        Raises `NotFound`, `ConflictError` for one that has ended and for the name of several, and `Unavailable`.
        """
        node = await self._database.run(lambda tx: self._write(tx, node_id, actor))
        message = Outgoing("", node_queue(node.id), dump({"kind": DRAIN_KIND}), clock.uuid7(), type="node.poke")
        await self._broker.publish([message], timeout=NOTIFY_TIMEOUT_S)
        return node

    @staticmethod
    async def _write(tx: Transaction, node_id: str, actor: str) -> NodeRow:
        changed = await nodes.mark_draining(tx, node_id)  # before any read: what is read then is what it has found
        node = await nodes.get(tx, node_id)
        if node is None:
            node_id = await _called(tx, node_id)
            changed = await nodes.mark_draining(tx, node_id)
            node = await nodes.get(tx, node_id)
        assert node is not None, "it was read in this transaction"
        if node.state not in LIVE:
            raise ConflictError(f"node {node_id} is already {node.state.value}: nothing to drain")
        if changed:
            row = AuditRow(at=tx.now(), actor=actor, verb=DRAIN, reason="drain", detail={"node": node.id})
            await audit.insert(tx, [row])
        return node


async def _called(tx: Transaction, name: str) -> str:
    """The id of the one node of that name."""
    found = await nodes.living_called(tx, name)
    if not found:
        raise NotFound(f"unknown node {name[:100]!r}: `orchestrix cluster status` lists the ids")
    if len(found) > 1:
        ids = ", ".join(node.id for node in found[:10])
        raise ConflictError(f"{len(found)} nodes are named {name}; give the id of one: {ids}")
    return found[0].id
