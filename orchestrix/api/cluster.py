"""Cluster routes: the leader, the nodes and the last hand-overs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from starlette.responses import Response

from orchestrix.api.cluster_schemas import ClusterBody, NodeBody
from orchestrix.api.instance_routes import json_of
from orchestrix.api.problems import Problem
from orchestrix.api.routes import Call, Route
from orchestrix.api.serializers import moment, perhaps
from orchestrix.api.start import JSON
from orchestrix.domain.leases import Lease
from orchestrix.domain.nodes import NodeRow
from orchestrix.errors import ConflictError
from orchestrix.persistence.cluster import leases, nodes
from orchestrix.persistence.cluster.leases import Handover
from orchestrix.persistence.cluster.nodes import WorkerRow
from orchestrix.saga.messages import dump

MOST_NODES: Final = 200
MOST_WORKERS: Final = 200
MOST_HANDOVERS: Final = 20
SHOWN: Final = 600.0
"""Seconds for which a worker is shown that ended without a word."""


async def show(call: Call) -> Response:
    """`GET /cluster`."""
    async with call.context.database.read() as connection:
        lease = await leases.read(connection)
        members = await nodes.listed(connection, MOST_NODES)
        workers = await nodes.listed_workers(connection, MOST_WORKERS, SHOWN)
        now, limit = connection.now(), timedelta(seconds=call.context.silent)
        handovers = await leases.last_handovers(connection, MOST_HANDOVERS)
    leader = lease.holder if lease is not None and not lease.lapsed else None
    body = {
        "leader": leader,
        "term": lease.term if lease is not None else 0,
        "mode": lease.mode.value if lease is not None and leader is not None else None,
        "lease": _lease(lease),
        "nodes": [_node(one, leader) for one in members],
        "workers": [_worker(one, now - one.beat_at, limit) for one in workers],
        "handovers": [_handover(one) for one in handovers],
    }
    return Response(dump(body), media_type=JSON)


async def drain(call: Call) -> Response:
    """`POST /cluster/nodes/{id}/drain`."""
    try:
        node = await call.context.drainer.drain(call.path("node"))
    except ConflictError as refused:
        raise Problem("illegal_transition", f"{str(refused)[:1].upper()}{str(refused)[1:]}.", allowed=[]) from None
    async with call.context.database.read() as connection:
        lease = await leases.read(connection)
    leader = lease.holder if lease is not None and not lease.lapsed else None
    return Response(dump(_node(node, leader)), media_type=JSON)


def _lease(lease: Lease | None) -> dict[str, Any] | None:
    if lease is None:
        return None
    until, gained = moment(lease.lease_until), moment(lease.gained_at)
    return {"until": until, "gainedAt": gained, "resignedAt": perhaps(lease.resigned_at)}


def _node(node: NodeRow, leader: str | None) -> dict[str, Any]:
    return {
        "id": node.id,
        "name": node.name,
        "state": node.state.value,
        "isLeader": node.id == leader,
        "roles": node.roles,
        "jobCount": node.job_count,
        "startedAt": moment(node.started_at),
        "beatAt": moment(node.beat_at),
        "endedAt": perhaps(node.ended_at),
    }


def _worker(worker: WorkerRow, ago: timedelta, limit: timedelta) -> dict[str, Any]:
    """One that was last heard of so long `ago`: it has no jobs any more from the `limit` on, and is silent from half of
    it on, as for those who ask what a job waits for. One that ends says that it has no queue.
    """
    return {
        "id": worker.id,
        "state": "SILENT" if ago >= limit / 2 else "ALIVE" if worker.queues else "DRAINING",
        "queues": list(worker.queues),
        "jobs": 0 if ago >= limit else worker.jobs,
        "lostPlaces": worker.lost_places,
        "startedAt": moment(worker.started_at),
        "beatAt": moment(worker.beat_at),
    }


def _handover(handover: Handover) -> dict[str, Any]:
    took = None if handover.ended_at is None else (handover.ended_at - handover.began_at) / timedelta(milliseconds=1)
    return {
        "term": handover.term,
        "from": handover.from_holder,
        "to": handover.to_holder,
        "mode": handover.mode.value,
        "reason": handover.reason.value,
        "beganAt": moment(handover.began_at),
        "gainedAt": moment(handover.gained_at),
        "endedAt": perhaps(handover.ended_at),
        "tookMs": None if took is None else round(took),
    }


ROUTES: Final = (
    Route(
        "GET",
        "/cluster",
        "getCluster",
        show,
        "Who leads, and who is there?",
        "Read from the database: every node gives the same answer.",
        tag="cluster",
        answers={200: json_of(ClusterBody, "As it is now.")},
        problems=("bad_parameter", "unavailable"),
    ),
    Route(
        "POST",
        "/cluster/nodes/{node}/drain",
        "drainNode",
        drain,
        "Let a node give away its jobs",
        "It takes no more until it is started anew. Asking again changes nothing. By its id, or by a name that no other"
        " living node has.",
        tag="cluster",
        answers={200: json_of(NodeBody, "As it is from now on.")},
        problems=("not_found", "bad_parameter", "illegal_transition", "unavailable"),
    ),
)
