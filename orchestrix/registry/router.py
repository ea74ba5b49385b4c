"""Executor router: which executor of a group a strategy picks, on the group's addresses as they are now."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import Final
from weakref import WeakKeyDictionary

from orchestrix import clock
from orchestrix.domain.registry.routing import Candidate, NoExecutors, Pick, Picker, Strategy, UnknownExecutor
from orchestrix.errors import NotFound
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import executor_jobs
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.groups import ExecutorGroup
from orchestrix.registry import suspects
from orchestrix.registry.suspects import CONFIRMED, SuspicionView

_AT_ONCE: Final = 2000
"""Candidates that are looked at before other tasks run: about 2 ms."""


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What to route by: `key` for CONSISTENT_HASH, `address` for ADDRESS. With `count`, so many picks are made; each
    has a key of its own then, `key` followed by a hyphen and its number from 0.
    """

    strategy: Strategy
    key: str = ""
    address: str | None = None
    count: int | None = None


class ExecutorRouter:
    """Picks executors for whoever asks. A pick of ROUND_ROBIN moves the group's turn."""

    def __init__(self, database: Database, seen_by: Callable[[], SuspicionView] = lambda: CONFIRMED) -> None:
        self._database, self._seen_by = database, seen_by
        self._picking = asyncio.Lock()

    async def route(self, app: str, request: RouteRequest) -> list[Pick]:
        """The picks. The transaction is over before they are made, and other tasks run in between.

        Raises `NotFound` if the app has no group, `NoExecutors` if that has no addresses, `UnknownExecutor` if none has
        the named address, and `Unavailable`.
        """
        found, turn = await self._database.run(lambda tx: _taken(tx, app, request, self._seen_by()))
        picker = Picker(request.strategy, found)
        if request.count is None:
            return [_picked(picker, request, request.key, turn)]
        if not picker.varies:
            return [_picked(picker, request, request.key, turn)] * request.count
        picks = []
        async with self._picking:  # one call at a time: several would share out the loop, and others wait for each
            for place in range(request.count):
                picks.append(_picked(picker, request, f"{request.key}-{place}", turn + place))
                if place % max(1, _AT_ONCE // len(found)) == 0:
                    await asyncio.sleep(0)
        return picks


@dataclass(slots=True)
class _Readings:
    """What the picks of one transaction have read, and how many turns they have taken of each group."""

    found: dict[tuple[str, Strategy, str | None, SuspicionView], tuple[Sequence[Candidate], int]] = field(
        default_factory=dict
    )
    turns: dict[str, int] = field(default_factory=dict)


_readings: Final[WeakKeyDictionary[Transaction, _Readings]] = WeakKeyDictionary()


async def pick_in(tx: Transaction, app: str, request: RouteRequest, seen_by: SuspicionView = CONFIRMED) -> Pick:
    """One pick, of which ROUND_ROBIN moves the group's turn in this transaction. Raises as `ExecutorRouter.route`.

    Many picks in one transaction read a group once, and store its turn once, at the end. With LEAST_LOADED the group is
    locked until then, and what is in flight is read each time: the next pick sees the job that this one is for.
    """
    strategy = request.strategy
    readings = _readings.setdefault(tx, _Readings())
    key = app, strategy, request.address, seen_by
    if key not in readings.found:
        lock = strategy in (Strategy.ROUND_ROBIN, Strategy.LEAST_LOADED)
        readings.found[key] = await _read(tx, app, request, seen_by, lock=lock)
    found, turn = readings.found[key]
    if strategy is Strategy.LEAST_LOADED:
        found = await _with_load(tx, app, found)
    if strategy is Strategy.ROUND_ROBIN and found:
        if not readings.turns:
            tx.before_commit(lambda: _store_turns(tx, readings))
        turn += readings.turns.setdefault(app, 0)
        readings.turns[app] += 1
    return _picked(Picker(strategy, found), request, request.key, turn)


async def _store_turns(tx: Transaction, readings: _Readings) -> None:
    for app, count in sorted(readings.turns.items()):
        await groups.take_turns(tx, app, count)


async def _taken(
    tx: Transaction, app: str, request: RouteRequest, seen_by: SuspicionView
) -> tuple[Sequence[Candidate], int]:
    """The candidates, and the first turn, which with those that follow it is taken in this transaction."""
    rotates = request.strategy is Strategy.ROUND_ROBIN
    found, turn = await _read(tx, app, request, seen_by, lock=rotates)
    if rotates and found:
        await groups.take_turns(tx, app, 1 if request.count is None else request.count)
    if request.strategy is Strategy.LEAST_LOADED:
        found = await _with_load(tx, app, found)
    return found, turn


async def _read(
    tx: Transaction, app: str, request: RouteRequest, seen_by: SuspicionView, *, lock: bool
) -> tuple[Sequence[Candidate], int]:
    """The candidates, and the group's next turn."""
    group = await (groups.lock if lock else groups.get)(tx, app)
    if group is None:
        raise NotFound(f"{app!r} has no executor group: make one with `orchestrix registry set {quote(app)} --auto`")
    await _refuse_drained(tx, group, request)
    return await suspects.marked(tx, app, await candidates(tx, group), seen_by), group.turn


async def _with_load(tx: Transaction, app: str, found: Sequence[Candidate]) -> Sequence[Candidate]:
    """The same candidates, with what each has in flight."""
    counts = await executor_jobs.in_flight(tx, app)
    return [replace(one, in_flight=counts[app, one.address]) for one in found]


def _picked(picker: Picker, request: RouteRequest, key: str, turn: int) -> Pick:
    return picker.pick(key=key, turn=turn, chance=clock.uniform(0, 1), address=request.address)


async def candidates(tx: Transaction, group: ExecutorGroup) -> Sequence[Candidate]:
    """The executors at the group's addresses, with what they have reported; none that a person has drained.

    Raises `NoExecutors` where a person has drained all.
    """
    known = await registrations.among(tx, [(group.app_name, address) for address in group.addresses])
    found = [(address, known.get((group.app_name, address))) for address in group.addresses]
    taken = [
        Candidate(address) if one is None else Candidate(address, one.first_seen, one.weight, one.load)
        for address, one in found
        if one is None or one.drained_at is None
    ]
    every = [] if taken else await registrations.of_apps(tx, [group.app_name])
    own = [one for one in every if group.address_type == groups.AUTO or one.address in group.addresses]
    if own and all(one.drained_at is not None for one in own):
        raise NoExecutors(f"no executors available; all {len(own)} are drained: {_include(group, 'ADDRESS')}")
    return taken


async def _refuse_drained(tx: Transaction, group: ExecutorGroup, request: RouteRequest) -> None:
    if request.strategy is Strategy.ADDRESS and request.address is not None:
        (one,) = (await registrations.among(tx, [(group.app_name, request.address)])).values() or (None,)
        if one is not None and one.drained_at is not None:
            raise UnknownExecutor(f"the executor at {one.address} is drained: {_include(group, one.address)}")


def _include(group: ExecutorGroup, address: str) -> str:
    return f"orchestrix registry drain {quote(group.app_name)} {address} --undo"
