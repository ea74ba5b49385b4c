"""Control commands: those whose request or answer depends on more than a declaration says."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_request import answer, api_of, body_of, headers_of, query_of
from orchestrix.cli.commands.call import call
from orchestrix.cli.node_phase import phase
from orchestrix.cli.syntax.declarations import columns
from orchestrix.cli.views import print_rows, shown
from orchestrix.errors import Invalid

_CLUSTER = {
    "nodes": columns("id=NODE state isLeader=LEADER jobCount=JOBS beatAt=HEARD_OF startedAt=STARTED endedAt=ENDED"),
    "workers": columns("id=WORKER state queues jobs lostPlaces=LOST_PLACES beatAt=HEARD_OF startedAt=STARTED"),
    "handovers": columns("term from to mode reason gainedAt=AT tookMs=TOOK_MS"),
}


def redispatch(arguments: argparse.Namespace) -> int:
    """`redispatch`: sends commands in flight again, of all sagas, of one, or of some of its instances."""
    if arguments.ids and arguments.saga is None:
        raise Invalid("ids alone do not say whose they are: add --saga, as --saga app")
    return call(arguments)


def edit(arguments: argparse.Namespace) -> int:
    """`schedules edit`: changes what is named."""
    if body_of(arguments).keys() == {"reason"}:
        raise Invalid("nothing is to be changed: name what, as --cron, --overlap or --payload")
    return call(arguments)


def redrive(arguments: argparse.Namespace) -> int:
    """`dlq redrive`: sends one again, or all that match; answers 1 if some of them cannot be sent."""
    chosen = query_of(arguments)
    if arguments.id is None and not chosen and not arguments.all:
        raise Invalid("which ones? give an id, or --queue, --saga, --app or --died-of, or --all")
    body, api = body_of(arguments), api_of(arguments)
    with headers_of(arguments) as headers:
        if arguments.id is None:
            body |= {"filter": chosen, "dryRun": arguments.dry_run}
            found = api.send("POST", "/dead-letters/redrive", body, headers)
        elif chosen or arguments.all or arguments.dry_run:
            raise Invalid("an id names one dead letter: leave out the filters, --all and --dry-run")
        else:
            arguments.declared = arguments.declared._replace(view=None)
            found = api.send("POST", f"/dead-letters/{arguments.id}/redrive", body, headers)
    shown(arguments, found)
    return exit_codes.FAILED if found.get("refused") else exit_codes.OK


def cluster_status(arguments: argparse.Namespace) -> int:
    """`cluster status`: the leader, the members, and the last hand-overs; answers 1 while nobody leads.

    Says so where the node that answers is only starting or stopping: it may be the only one.
    """
    found = answer(arguments)
    leader = found.get("leader")
    why = None if leader else phase(api_of(arguments))
    if arguments.output != "json":
        _tell(found, leader or (f"nobody (this node is {why})" if why else "nobody"))
    else:
        output.print_json(found)
        if why:
            print(f"this node is {why}", file=sys.stderr)
    return exit_codes.OK if leader else exit_codes.FAILED


def _tell(found: dict[str, Any], leader: str) -> None:
    lease = found.get("lease") or {}
    head = {"leader": leader, "term": found.get("term"), "mode": found.get("mode"), "lease until": lease.get("until")}
    output.print_fields(head)
    for name, view in _CLUSTER.items():
        if rows := found.get(name):
            print()
            print_rows(view, rows)
