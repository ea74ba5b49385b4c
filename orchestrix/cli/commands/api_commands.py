"""API commands: `call`, for all that a declaration describes, and those whose request or answer needs more."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_client import ApiClient
from orchestrix.cli.api_request import answer, api_of, body_of, headers_of, query_of
from orchestrix.cli.commands.jobs import refuse_unfit
from orchestrix.cli.display.confirmation import confirmed
from orchestrix.cli.display.views import DisplayOptions, display_options, print_document, print_rows, shown
from orchestrix.cli.instance_names import APP, id_of
from orchestrix.cli.node_phase import phase
from orchestrix.cli.nouns.cluster import WORKER_COLUMNS
from orchestrix.cli.syntax.declarations import columns
from orchestrix.errors import Invalid, NotFound, OrchestrixError, Unavailable

_CLUSTER = {
    "nodes": columns(
        "id=NODE state isLeader=LEADER roles jobCount=JOBS version? host? beatAt=LAST_SEEN startedAt=STARTED"
        " endedAt?=ENDED"
    ),
    "workers": WORKER_COLUMNS,
    "handovers": columns("term from to mode reason gainedAt=AT tookMs=DURATION_(ms)"),
}
_LETTERS = "/dead-letters"
_WHAT_NEXT = (
    "`orchestrix dlq show ID` shows one; correct it with `orchestrix dlq edit ID --body JSON` and send it again with "
    "`orchestrix dlq redrive ID`, or delete it with `orchestrix dlq drop ID`"
)


def call(arguments: argparse.Namespace) -> int:
    """Any command whose declaration says all of it."""
    if question := arguments.declared.question:
        confirmed(arguments, question.format(**vars(arguments)))
    return shown(arguments, answer(arguments))


def create_schedule(arguments: argparse.Namespace) -> int:
    """`schedules create`."""
    refuse_unfit(arguments)
    return call(arguments)


def redispatch(arguments: argparse.Namespace) -> int:
    """`redispatch`: sends commands in flight again, of all sagas, of one, or of some of its instances."""
    if arguments.ids and arguments.saga is None:
        raise Invalid("ids alone do not say whose they are: add --saga, as --saga app")
    if arguments.ids:
        api = api_of(arguments)
        arguments.ids = [id_of(arguments.saga, text, api) for text in arguments.ids]
    confirmed(arguments, _how_many(arguments))
    return shown(arguments, answer(arguments))


def _how_many(arguments: argparse.Namespace) -> str:
    """The question, with the number where it is asked and the API counts."""
    try:
        if arguments.yes or arguments.dry_run or not sys.stdin.isatty():
            return ""
        found = answer(argparse.Namespace(**{**vars(arguments), "dry_run": True, "idempotency_key": None}))
        count = found.get("matched", found.get("redispatched"))
        return f"Send {count} outstanding commands again?"
    except Invalid:
        return "Send all outstanding commands again that match?"


def edit(arguments: argparse.Namespace) -> int:
    """`schedules edit`: changes what is named."""
    if body_of(arguments).keys() == {"reason"}:
        raise Invalid("nothing is to be changed: name what, as --cron, --overlap or --payload")
    return shown(arguments, answer(arguments))


def list_dead_letters(arguments: argparse.Namespace) -> int:
    """`dlq list`: one page; of those with a key, all pages, for the API does not filter by key."""
    _resolve(arguments)
    if arguments.key is None:
        found = answer(arguments)
    else:
        found = {"items": list(_matching(arguments, api_of(arguments))), "nextCursor": None}
    code = shown(arguments, found)
    if found["items"] and arguments.output != "json":
        exit_codes.warn(_WHAT_NEXT, "note")
    return code


def redrive(arguments: argparse.Namespace) -> int:
    """`dlq redrive`: sends one again, or all that match; answers 1 if some of them cannot be sent."""
    _refuse_unclear(arguments)
    if arguments.id is not None:
        return _one(arguments, "POST", f"{_LETTERS}/{arguments.id}/redrive")
    if arguments.key is not None:
        return _each(arguments, "POST", "/redrive", "redriven")
    body = {**body_of(arguments), "filter": query_of(arguments), "dryRun": arguments.dry_run}
    with headers_of(arguments) as headers:
        found = api_of(arguments).send("POST", f"{_LETTERS}/redrive", body, headers)
    shown(arguments, found)
    return exit_codes.FAILED if found.get("refused") else exit_codes.OK


def drop(arguments: argparse.Namespace) -> int:
    """`dlq drop`: deletes one, or all that match; answers 1 if some of them cannot be deleted."""
    _refuse_unclear(arguments)
    if arguments.id is not None:
        confirmed(arguments, f"Delete dead letter {arguments.id}?")
        return _one(arguments, "DELETE", f"{_LETTERS}/{arguments.id}")
    return _each(arguments, "DELETE", "", "dropped")


def _resolve(arguments: argparse.Namespace) -> None:
    """The instance may be named by its name."""
    if arguments.app is not None:
        arguments.app = id_of(arguments.saga or APP, str(arguments.app), api_of(arguments))


def _refuse_unclear(arguments: argparse.Namespace) -> None:
    chosen = query_of(arguments) or arguments.key is not None
    if arguments.id is None and not chosen and not arguments.all:
        raise Invalid("which ones? give an id, or --queue, --key, --saga, --app or --died-of, or --all")
    if arguments.id is not None and (chosen or arguments.all or arguments.dry_run):
        raise Invalid("an id names one dead letter: leave out the filters, --all and --dry-run")
    _resolve(arguments)


def _one(arguments: argparse.Namespace, method: str, path: str) -> int:
    body, arguments.declared = body_of(arguments), arguments.declared._replace(view=None)
    with headers_of(arguments) as headers:
        return shown(arguments, api_of(arguments).send(method, path, body, headers))


def _each(arguments: argparse.Namespace, method: str, end: str, done: str) -> int:
    """Does it to each of those that match, one after the other."""
    api = api_of(arguments)
    found = [one["id"] for one in _matching(arguments, api)]
    texts: dict[str, Any] = {"dryRun": arguments.dry_run, "matched": len(found), done: 0, "refused": []}
    if found and not arguments.dry_run:
        if method == "DELETE":
            confirmed(arguments, f"Delete {len(found)} dead letters?")
        for id in found:
            try:
                api.send(method, f"{_LETTERS}/{id}{end}", body_of(arguments))
                texts[done] += 1
            except Unavailable:
                raise
            except NotFound:  # another request was quicker
                continue
            except OrchestrixError as refused:
                texts["refused"].append({"id": id, "reason": str(refused)})
    shown(arguments, texts)
    return exit_codes.FAILED if texts["refused"] else exit_codes.OK


def _matching(arguments: argparse.Namespace, api: ApiClient) -> Iterator[dict[str, Any]]:
    """All dead letters that the filters let through."""
    query = {name: value for name, value in query_of(arguments).items() if name not in ("limit", "cursor")}
    for one in api.all_items(_LETTERS, {**query, "limit": 200}):
        if arguments.key in (None, one.get("routingKey"), one.get("type")):
            yield one


def cluster_status(arguments: argparse.Namespace) -> int:
    """`cluster status`: the leader, the members, and the last hand-overs; answers 1 while there is no leader.

    Says so where the node that answers is only starting or stopping: it may be the only one.
    """
    found = answer(arguments)
    leader = found.get("leader")
    why = None if leader else phase(api_of(arguments))
    if arguments.output != "json":
        _print(found, leader or (f"nobody (this node is {why})" if why else "nobody"), display_options(arguments))
    else:
        output.print_json(found)
        if why:
            print(f"this node is {why}", file=sys.stderr)
    return exit_codes.OK if leader else exit_codes.FAILED


def _print(found: dict[str, Any], leader: str, options: DisplayOptions) -> None:
    lease = found.get("lease") or {}
    head = {"leader": leader, "term": found.get("term"), "mode": found.get("mode"), "lease until": lease.get("until")}
    print_document(head, options)
    for name, view in _CLUSTER.items():
        if rows := found.get(name):
            print()
            print_rows(view, rows, options)
