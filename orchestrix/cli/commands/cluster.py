"""Cluster commands: show the cluster, and drain a node."""

from __future__ import annotations

import argparse
import sys
from typing import Any
from urllib.parse import quote

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_request import api_of
from orchestrix.cli.node_phase import phase
from orchestrix.errors import Invalid

_NODES = ("id", "state", "isLeader", "jobCount", "beatAt", "startedAt", "endedAt")
_NODE_HEADS = ("NODE", "STATE", "LEADER", "JOBS", "HEARD OF", "STARTED", "ENDED")
_HANDOVERS = ("term", "from", "to", "mode", "reason", "gainedAt", "tookMs")
_HANDOVER_HEADS = ("TERM", "FROM", "TO", "MODE", "REASON", "AT", "TOOK MS")
_WORKERS = ("id", "state", "queues", "jobs", "lostPlaces", "beatAt", "startedAt")
_WORKER_HEADS = ("WORKER", "STATE", "QUEUES", "JOBS", "LOST PLACES", "HEARD OF", "STARTED")


def status(arguments: argparse.Namespace) -> int:
    """`cluster status`: the leader, the members, and the last hand-overs; answers 1 while nobody leads.

    Says so where the node that answers is only starting or stopping: it may be the only one.
    """
    api = api_of(arguments)
    found = api.document("/cluster")
    why = None if found.get("leader") else phase(api)
    if arguments.output == "json":
        output.print_json(found)
        if why:
            print(f"this node is {why}", file=sys.stderr)
    else:
        _tell(found, why)
    return exit_codes.OK if found.get("leader") else exit_codes.FAILED


def drain(arguments: argparse.Namespace) -> int:
    """`cluster drain`: lets a node hand its jobs off, and take no more."""
    try:
        part = quote(arguments.node, safe="")
    except UnicodeEncodeError as wrong:
        raise Invalid("the node's name is not valid text: write it in UTF-8") from wrong
    node = api_of(arguments).send("POST", f"/cluster/nodes/{part}/drain", {})
    if arguments.output == "json":
        output.print_json(node)
    else:
        output.print_fields(node)
    return exit_codes.OK


def _tell(found: dict[str, Any], why: str | None) -> None:
    lease = found.get("lease") or {}
    nobody = f"nobody (this node is {why})" if why else "nobody"
    output.print_fields(
        {
            "leader": found.get("leader") or nobody,
            "term": found.get("term"),
            "mode": found.get("mode"),
            "lease until": lease.get("until"),
        }
    )
    for heads, columns, rows in (
        (_NODE_HEADS, _NODES, found.get("nodes")),
        (_WORKER_HEADS, _WORKERS, found.get("workers")),
        (_HANDOVER_HEADS, _HANDOVERS, found.get("handovers")),
    ):
        if rows:
            print()
            output.print_table(heads, [[row.get(name) for name in columns] for row in rows])
