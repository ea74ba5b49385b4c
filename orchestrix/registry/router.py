"""Executor router: which executor of a group a strategy picks, on the group's addresses as they are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote

from orchestrix import clock
from orchestrix.domain.registry.routing import Candidate, NoExecutors, Pick, Strategy, UnknownExecutor, pick
from orchestrix.errors import NotFound
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.groups import ExecutorGroup


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

    def __init__(self, database: Database) -> None:
        self._database = database

    async def route(self, app: str, request: RouteRequest) -> list[Pick]:
        """The picks.

        Raises `NotFound` if the app has no group, `NoExecutors` if that has no addresses, `UnknownExecutor` if none has
        the named address, and `Unavailable`.
        """
        return await self._database.run(lambda tx: picks(tx, app, request))


async def picks(tx: Transaction, app: str, request: RouteRequest) -> list[Pick]:
    """The picks, of which ROUND_ROBIN moves the group's turn in this transaction. Raises as `ExecutorRouter.route`."""
    rotates = request.strategy is Strategy.ROUND_ROBIN
    group = await (groups.lock if rotates else groups.get)(tx, app)
    if group is None:
        raise NotFound(f"{app!r} has no executor group")
    await _refuse_drained(tx, group, request)
    found = await candidates(tx, group)
    done = [
        pick(
            request.strategy,
            found,
            key=request.key if request.count is None else f"{request.key}-{place}",
            turn=group.turn + place,
            chance=clock.uniform(0, 1),
            address=request.address,
        )
        for place in range(1 if request.count is None else request.count)
    ]
    if rotates:
        await groups.take_turns(tx, app, len(done))
    return done


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
