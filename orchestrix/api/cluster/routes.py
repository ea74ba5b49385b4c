"""Cluster routes: the leader, the nodes and workers, and draining a node."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from orchestrix.api.cluster.models import (
    ClusterBody,
    HandoverBody,
    LeaseBody,
    NodeBody,
    WorkerBody,
    WorkerList,
    WorkerQuery,
)
from orchestrix.api.operations import Call, Operations
from orchestrix.api.problems import Problem, as_sentence
from orchestrix.errors import ConflictError
from orchestrix.persistence.cluster import leases, nodes
from orchestrix.persistence.cluster.nodes import WorkerRow

MOST_NODES: Final = 200
MOST_WORKERS: Final = 200
MOST_SEARCHED: Final = 10_000
"""Workers among which those that are asked for are searched."""
MOST_HANDOVERS: Final = 20
SHOWN_S: Final = 600.0
"""Seconds for which a worker is shown that ended without saying so."""


def _refusal(error: Exception, node: object) -> Problem | None:
    return Problem("illegal_transition", as_sentence(error), allowed=[]) if isinstance(error, ConflictError) else None


operations = Operations("cluster", refusal=_refusal)


@operations.get("/cluster")
async def get_cluster(call: Call) -> ClusterBody:
    """Show the leader, the nodes and the workers.

    Read from the database: every node gives the same answer.
    """
    async with call.context.database.read() as connection:
        lease = await leases.read(connection)
        members = await nodes.listed(connection, MOST_NODES)
        workers = await nodes.listed_workers(connection, MOST_WORKERS, SHOWN_S)
        now, limit = connection.now(), timedelta(seconds=call.context.silent)
        handovers = await leases.last_handovers(connection, MOST_HANDOVERS)
    leader = lease.holder if lease is not None and not lease.lapsed else None
    return ClusterBody(
        leader=leader,
        term=lease.term if lease is not None else 0,
        mode=lease.mode if lease is not None and leader is not None else None,
        lease=None if lease is None else LeaseBody.of(lease),
        nodes=[NodeBody.made(one, leader) for one in members],
        workers=[WorkerBody.made(one, now - one.beat_at, limit) for one in workers],
        handovers=[HandoverBody.made(one) for one in handovers],
    )


@operations.get("/workers")
async def list_workers(call: Call, query: WorkerQuery) -> WorkerList:
    """List the workers.

    Of commands and of jobs, the latest heartbeat first, 200 at most. One that has left is not shown, a silent one for
    10 minutes.
    """
    async with call.context.database.read() as connection:
        workers = await nodes.listed_workers(connection, MOST_SEARCHED, SHOWN_S)
        now = connection.now()
    limit = timedelta(seconds=call.context.silent)
    found = [one for one in workers if _is_wanted(one, query)][:MOST_WORKERS]
    return WorkerList(items=[WorkerBody.made(one, now - one.beat_at, limit) for one in found])


def _is_wanted(worker: WorkerRow, query: WorkerQuery) -> bool:
    kinds = {"jobs": worker.queues, "commands": worker.command_queues}
    served = [queue for kind, queues in kinds.items() if query.kind in (None, kind) for queue in queues]
    return query.queue in served if query.queue is not None else query.kind is None or bool(served)


@operations.post("/cluster/nodes/{node}/drain", problems=("illegal_transition",))
async def drain_node(call: Call) -> NodeBody:
    """Drain a node.

    It hands its jobs off to other nodes and takes no more until it is restarted. Asking again changes nothing. By
    its id, or by a name that no other node which is alive has.
    """
    node = await call.context.drain_requester.drain(call.path("node"), call.actor)
    async with call.context.database.read() as connection:
        lease = await leases.read(connection)
    return NodeBody.made(node, lease.holder if lease is not None and not lease.lapsed else None)
