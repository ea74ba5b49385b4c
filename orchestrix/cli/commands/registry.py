"""Registry commands: executor groups as tables, and the picks of a strategy."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any, Final

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_request import answer, api_of
from orchestrix.cli.display.ages import moment_of, utc
from orchestrix.cli.display.confirmation import confirmed
from orchestrix.cli.display.views import Document, display_options, print_document, print_items, print_rows
from orchestrix.cli.instance_names import quoted
from orchestrix.cli.syntax.declarations import Column, columns
from orchestrix.quantities import counted

_LEAVING: Final = "DEREGISTERING"
_REMOVED: Final = "REMOVED"
_GROUPS: Final = columns(
    "appName=APP addressType=TYPE addresses executors oldest=OLDEST_LAST_SEEN addressList+=ADDRESS_LIST"
    " createdAt+ updatedAt+"
)
_EXECUTORS: Final = columns("address state since lastSeen weight load? inFlight? drained? suspectedBy? suspectedSince?")
_SHARDS: Final = columns("shard address")
_SPREAD: Final = columns("address picks share")


def list_groups(arguments: argparse.Namespace) -> int:
    """`registry list`: one page of groups."""
    found = answer(arguments)
    if arguments.output == "json":
        output.print_json(found)
        return exit_codes.OK
    _print_as_of(found)
    print_items(_GROUPS, {**found, "items": [_row(one) for one in found["items"]]}, display_options(arguments))
    return exit_codes.OK


def _row(group: Document) -> Document:
    executors = group["executors"]
    states = ", ".join(f"{count} {state}" for state, count in Counter(one["state"] for one in executors).items())
    notes = [
        f"{count} {what}"
        for what, count in (
            ("drained", sum(one["drained"] for one in executors)),
            ("without an answer", sum(bool(one.get("suspectedBy")) for one in executors)),
        )
        if count
    ]
    seen = [one["lastSeen"] for one in executors if one["lastSeen"] and one["state"] != _REMOVED]
    return {
        **group,
        "addresses": len(group["addressList"]),
        "executors": f"{states} ({', '.join(notes)})" if notes else states or None,
        "oldest": min(seen, default=None),
    }


def _print_as_of(found: Document) -> None:
    """Says so where the answer is that of an earlier reading."""
    if (at := moment_of(found.get("asOf"))) is not None:
        print(f"as of {utc(at)} (the database is away)")


def group(arguments: argparse.Namespace) -> int:
    """`registry show`, and what changes a group and shows it."""
    return _show(arguments, answer(arguments))


def drain(arguments: argparse.Namespace) -> int:
    """`registry drain`: of `--undo` it also says where that gives the executor no jobs, or has changed nothing."""
    before = {}
    if getattr(arguments, "undo", None) is False:
        before = api_of(arguments).document(f"/registry/groups/{quoted(arguments.app, 'app')}")
    found = answer(arguments)
    was = {one["address"]: one["drained"] for one in before.get("executors", ())}
    for one in found["executors"]:
        if one["address"] == arguments.address.lower() and one["address"] in was:
            if one["state"] == _LEAVING:
                exit_codes.warn(f"{one['address']} drains itself: it takes no jobs until it says otherwise", "note")
            elif not was[one["address"]]:
                exit_codes.warn(f"{one['address']} was not drained: nothing has changed", "note")
    return _show(arguments, found)


def delete(arguments: argparse.Namespace) -> int:
    """`registry delete`: asks, and then says what is left."""
    confirmed(arguments, arguments.declared.question.format(app=arguments.app))
    found = answer(arguments)
    if arguments.output == "json":
        return _show(arguments, found)
    registered = sum(one["state"] != _REMOVED for one in found["executors"])
    name = output.visible(str(found["appName"]))
    print(f"the group of {name} is deleted; {counted(registered, 'executor')} of {name} registered, without a group")
    return exit_codes.OK


def _show(arguments: argparse.Namespace, found: Document) -> int:
    if arguments.output == "json":
        output.print_json(found)
        return exit_codes.OK
    options = display_options(arguments)
    _print_as_of(found)
    head = {"app": found["appName"], "type": found["addressType"] or "-"}
    print_document({**head, "created": found["createdAt"], "updated": found["updatedAt"]}, options)
    executors = tuple(Column(one.fields, one.head, perhaps=one.perhaps and not options.wide) for one in _EXECUTORS)
    print("executors:")
    print_rows(executors, found["executors"], options)
    print("addresses:")
    print("\n".join(output.visible(one) for one in found["addressList"]) or "none")
    return exit_codes.OK


def route(arguments: argparse.Namespace) -> int:
    """`registry route`: the executor that is picked, all of them, or how the picks are spread."""
    found, options = answer(arguments), display_options(arguments)
    if arguments.output == "json":
        output.print_json(found)
    elif spread := found["spread"]:
        total = sum(spread.values())
        most = sorted(spread.items(), key=lambda pair: (-pair[1], pair[0]))
        rows = [{"address": one, "picks": count, "share": f"{100 * count / total:.1f} %"} for one, count in most]
        print_rows(_SPREAD, rows, options)
    else:
        print_document({"address": found["address"], "reason": found["reason"]}, options)
        _print_all(found, arguments)
    return exit_codes.OK


def _print_all(found: Document, arguments: argparse.Namespace) -> None:
    """Several addresses: by the index of the shard where each of them is picked, else in the order to try them."""
    addresses: list[Any] = found["addresses"] or []
    numbered = [{"shard": place, "order": place + 1, "address": one} for place, one in enumerate(addresses)]
    if numbered:
        view = columns("order address") if found["address"] else _SHARDS
        print_rows(view, numbered, display_options(arguments))
