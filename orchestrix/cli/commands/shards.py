"""Shard commands: services as a table, one with a strip of who has what, and what a change would move."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.cli import exit_codes, output
from orchestrix.cli.api_request import answer, api_of
from orchestrix.cli.display.shard_strip import MemberShards, strip
from orchestrix.cli.display.views import (
    DisplayOptions,
    Document,
    display_options,
    print_document,
    print_items,
    print_rows,
    text_of,
)
from orchestrix.cli.instance_names import quoted
from orchestrix.cli.syntax.declarations import columns
from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.members import MOST_MEMBERS
from orchestrix.domain.shards.preview import SharePreview
from orchestrix.domain.shards.preview import preview as previewed
from orchestrix.domain.shards.ranges import NO_SHARDS, ShardRanges, union
from orchestrix.errors import ConflictError, Invalid, NotFound

MOST_NAMED: Final = 10
"""Members that an error names, and ranges that a table shows of each without `-o wide`."""
_SERVICES: Final = columns(
    "service=SERVICE shardCount=SHARDS members away? waiting? generation active=SINCE pending? unowned?=WITHOUT_MEMBER"
    " unownedSince?=WITHOUT_SINCE revoking? revokingSince?=REVOKING_SINCE unrevocable?"
)
_MEMBERS: Final = columns(
    "workerId=MEMBER mark=MARK state share count=HAS shards=SHARDS revoking? away? weight generation"
    " lastSeen revokingSince+=REVOKING_SINCE via+ graceMs+=GRACE_MS shardCount+ instance+ joinedAt+=JOINED"
)
_GENERATIONS: Final = columns(
    "number=GENERATION state cause shardCount=SHARDS members moved beganAt=BEGAN activatedAt=ACTIVE endedAt=ENDED"
    " leader+ closesAt+=WINDOW_ENDED"
)
_CHANGES: Final = columns("workerId=MEMBER now then change shards=SHARDS")


def show(arguments: argparse.Namespace) -> int:
    """`shards show`: the services, or one of them."""
    if arguments.service is not None:
        return _show_one(arguments)
    found = {"items": api_of(arguments).all_items("/shards")}
    if arguments.output == "json":
        output.print_json(found)
        return exit_codes.OK
    rows = [
        {
            **one,
            "generation": (one["active"] or {}).get("number"),
            "active": (one["active"] or {}).get("activatedAt"),
            "pending": (one["pending"] or {}).get("number"),
            **{name: one[name] or None for name in ("away", "waiting", "unowned", "revoking", "unrevocable")},
        }
        for one in found["items"]
    ]
    print_items(_SERVICES, {"items": rows}, display_options(arguments))
    return exit_codes.OK


def history(arguments: argparse.Namespace) -> int:
    """`shards history`: one page of generations."""
    found = answer(arguments)
    if arguments.output == "json":
        output.print_json({"items": found["history"], "nextCursor": found["nextCursor"]})
        return exit_codes.OK
    rows = [_generation(one) for one in found["history"]]
    print_items(_GENERATIONS, {"items": rows, "nextCursor": found["nextCursor"]}, display_options(arguments))
    return exit_codes.OK


def _service(arguments: argparse.Namespace) -> Document:
    return api_of(arguments).document(f"/shards/{quoted(arguments.service, 'service of shards')}")


def _show_one(arguments: argparse.Namespace) -> int:
    found, options = _service(arguments), display_options(arguments)
    if arguments.output == "json":
        output.print_json(found)
        return exit_codes.OK
    print_document(_head(found, options), options)
    count = (found["active"] or {}).get("shardCount") or found["shardCount"]
    having = {one["workerId"]: _shards_of(one) for one in found["members"] if one["state"] != "WAITING"}
    drawn = strip(count, having, output.terminal_columns())
    print(f"\n{drawn.line}")
    if drawn.notes:
        print("; ".join(drawn.notes))
    print()
    print_rows(_MEMBERS, [_member(one, drawn.marks, options) for one in found["members"]], options)
    if found["why"]:
        print("\nwhy:")
        print("\n".join(f"  {output.visible(one)}" for one in found["why"]))
    print("\ngenerations:")
    print_rows(_GENERATIONS, [_generation(one) for one in found["history"]], options)
    return exit_codes.OK


def _head(found: Document, options: DisplayOptions) -> Document:
    active, pending, unowned = found["active"], found["pending"], found["unowned"]
    states = [one["state"] for one in found["members"]]
    others = ", ".join(f"{states.count(one)} {one}" for one in ("LEAVING", "AWAY") if one in states)
    waiting = states.count("WAITING")  # they are no members yet
    members = (
        f"{len(states) - waiting:,}{f' ({others})' if others else ''}{f', and {waiting:,} WAITING' if waiting else ''}"
    )
    free = f"{unowned['count']:,}, the first {_time(unowned['since'], options)}" if unowned else "none"
    return {
        "service": found["service"],
        "shards": f"{found['shardCount']:,}, by {found['allocation']} allocation",
        "members": members,
        "active": _about(active, "activatedAt", options) or "none yet",
        "pending": _about(pending, "beganAt", options),
        "without a member": free,
    }


def _about(generation: Document | None, time: str, options: DisplayOptions) -> str | None:
    if generation is None:
        return None
    shards = f", {_many(generation['moved'])} moved" if generation["moved"] is not None else ""
    return f"generation {generation['number']}, {_time(generation[time], options)} ({_cause(generation)}){shards}"


def _many(count: int) -> str:
    return f"{count:,} shard{'' if count == 1 else 's'}"


def _time(value: Any, options: DisplayOptions) -> str:
    return str(text_of(value, options))


def _cause(generation: Document) -> str:
    cause = generation["cause"]
    return " ".join(one for one in (cause["kind"], cause["workerId"]) if one)


def _generation(one: Document) -> Document:
    """With the shard count before, where it has changed: the cause is only the first change of a window."""
    count, before = one["shardCount"], one.get("shardCountBefore")
    shards = count if before in (None, count) else f"{count:,} (was {before:,})"
    return {**one, "cause": _cause(one), "shardCount": shards}


def _shards_of(member: Document) -> MemberShards:
    return MemberShards(member["shards"], [part for one in member["revoking"] for part in one["shards"]])


def _member(one: Document, marks: Mapping[str, str], options: DisplayOptions) -> Document:
    away = one["away"]
    waits = one["state"] == "WAITING"
    return {
        **one,
        "mark": None if waits or not one["count"] else marks[one["workerId"]],
        "shards": _ranges(_joined(one["shards"]), options) or None,
        "revoking": sum(each["count"] for each in one["revoking"]) or None,
        "revokingSince": min((each["since"] for each in one["revoking"]), default=None),
        "away": f"{away['reason']}, grace ends {_time(away['until'], options)}" if away else None,
    }


def _joined(ranges: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    """The same shards with as few ranges as can be: neighbouring ones can have been granted under several epochs."""
    return ShardRanges.of((first, last) for first, last in ranges).ranges


def _ranges(ranges: Sequence[Sequence[int]], options: DisplayOptions) -> str:
    shown = ranges if options.wide else ranges[:MOST_NAMED]
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in shown]
    more = len(ranges) - len(shown)
    return ", ".join([*texts, *([f"and {more} more ranges"] if more else [])])


@dataclass(frozen=True, slots=True)
class _Change:
    """What is asked for: the members and the shard count that would be, and how that reads in a sentence."""

    weights: dict[str, int]
    count: int
    condition: str


def preview(arguments: argparse.Namespace) -> int:
    """`shards preview`: computed here, from what the API says of the service."""
    if arguments.weight is not None and arguments.join is None:
        raise Invalid("--weight is for --join: it says how much the new member takes beside the others")
    found, options = _service(arguments), display_options(arguments)
    rule = Allocation(arguments.allocation or found["allocation"])
    current = {worker: ShardRanges.of((a, b) for a, b in one) for worker, one in found["shares"].items()}
    change = _change(arguments, found)
    made = previewed(rule, change.count, change.weights, current)
    rows = _rows(made, current, change)
    _note(arguments, found, rule)
    sentence = _sentence(made, current, change)
    if arguments.output == "json":
        members = [{**one, "shards": [list(part) for part in made.share(one["workerId"]).ranges]} for one in rows]
        output.print_json({
            "service": found["service"], "allocation": rule.value, "shardCount": change.count, "moved": made.moved,
            "fewest": made.fewest, "sentence": sentence, "members": members,
        })  # fmt: skip
        return exit_codes.OK
    print(output.visible(sentence))
    shown = [{**one, "shards": _ranges(made.share(one["workerId"]).ranges, options) or None} for one in rows]
    print_rows(_CHANGES, [{**one, "change": f"{one['change']:+d}" if one["change"] else "0"} for one in shown], options)
    return exit_codes.OK


def _change(arguments: argparse.Namespace, found: Document) -> _Change:
    service = found["service"]
    weights = {one["workerId"]: one["weight"] for one in found["members"] if one["state"] != "WAITING"}
    if (worker := arguments.leave) is not None:
        if worker not in weights:
            raise NotFound(f"{worker[:100]!r} is no member of {service}: {_named(weights)}")
        rest = {one: weight for one, weight in weights.items() if one != worker}
        return _Change(rest, found["shardCount"], f"if {worker} left {service}")
    if (worker := arguments.join) is not None:
        _check_joining(worker, service, weights)
        weight = 1 if arguments.weight is None else arguments.weight
        return _Change({**weights, worker: weight}, found["shardCount"], f"if {worker} joined {service}")
    return _Change(weights, arguments.shards, f"if {service} had {_many(arguments.shards)}")


def _check_joining(worker: str, service: str, weights: Mapping[str, int]) -> None:
    from orchestrix.saga.validation.names import normal

    try:
        normal(worker)
    except ValueError as wrong:
        raise Invalid(f"--join {wrong}") from None
    if worker in weights:
        raise ConflictError(f"{worker!r} is a member of {service} already: name another one, or use --leave")
    if len(weights) >= MOST_MEMBERS:
        raise ConflictError(f"{service} has {MOST_MEMBERS:,} members, and can have no more: another one is refused")


def _named(weights: Mapping[str, int]) -> str:
    if not weights:
        return "it has none"
    more = len(weights) - MOST_NAMED
    return f"its members are {', '.join(sorted(weights)[:MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"


def _note(arguments: argparse.Namespace, found: Document, rule: Allocation) -> None:
    """What has to be known of the figures."""
    if found["active"] is None:
        exit_codes.warn("no generation is active yet: nobody has a share that could move", "note")
    elif found["pending"] is not None:
        number = found["pending"]["number"]
        exit_codes.warn(f"generation {number} is pending: the shares until now are those of the one before", "note")
    if arguments.weight and rule is Allocation.EVEN:  # 0 gets none by both
        exit_codes.warn("even allocation knows no weights: --weight changes nothing", "note")


def _sentence(made: SharePreview, current: Mapping[str, ShardRanges], change: _Change) -> str:
    everything = ShardRanges.up_to(change.count)
    if not made.shares:
        return f"{change.condition}, none of its {_many(change.count)} would have a member: none takes shards"
    had = union(current.values())
    new, ended = (everything - had).size, (had - everything).size
    fewest = "no fewer could" if made.moved == made.fewest else f"{made.fewest:,} is the fewest for shares this even"
    parts = [f"{change.condition}, {made.moved:,} of {_many(change.count)} would move ({fewest})"]
    parts += [f"{_many(new)} without a member would get one"] if new else []
    parts += [f"{ended:,} would end"] if ended else []
    return "; ".join(parts)


def _rows(made: SharePreview, current: Mapping[str, ShardRanges], change: _Change) -> list[Document]:
    """Each member of now and then: how many shards it has a share of."""
    rows = []
    for worker in sorted({*change.weights, *current}):
        now, then = current.get(worker, NO_SHARDS).size, made.share(worker).size
        rows.append({"workerId": worker, "now": now, "then": then, "change": then - now})
    return rows
