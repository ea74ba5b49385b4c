"""Which faults hit which process or server, when and for how long?

A plan follows from its seed alone, so that a run that failed can be had again: `pytest tests/fault/test_nemesis.py
--nemesis-seed N`.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from subprocess import TimeoutExpired
from typing import Final

from sqlalchemy.exc import DBAPIError

from tests.fault.proxy import AtCommit, Proxy, Way
from tests.fault.world import Member, World
from tests.servers.base import Server
from tests.servers.rabbit import RabbitServer
from tests.servers.run import CommandFailed

TERMINATE: Final = {
    "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
}
# How often each fault is drawn, by what it hits. A dead broker costs ten seconds: `heavy` faults are for long runs.
PROCESS: Final = {"kill": 3, "terminate": 2, "freeze": 3}
LINK: Final = {
    "slow": 3,
    "black hole": 1,
    "loss": 4,
    "black hole up": 1,
    "black hole down": 1,
    "half open": 2,
    "reset": 3,
    "cut": 2,
    "refuse": 2,
    "drop": 1,
}
DATABASE_LINK: Final = {**LINK, "commit lost": 2, "commit sent": 2, "commit answered": 2, "commit held": 1}
DATABASE: Final = {"hang up": 3, "kill": 2}
BROKER: Final = {"hang up": 3}
HEAVY: Final = {"kill": 1, "freeze": 1, "alarm": 1}


@dataclass(frozen=True)
class Act:
    """One fault: from `at` on, for so many `seconds`, both from the start of the run."""

    at: float
    target: str
    fault: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.at:5.1f} s  {self.target:<18} {self.fault:<16} for {self.seconds:.1f} s"


def plan(seed: int, seconds: float, *, nodes: int = 2, workers: int = 2, heavy: bool = False) -> list[Act]:
    """Acts in the order of time. Those on one target never overlap; at least one of the nodes is never hit itself."""
    chance = random.Random(seed)
    acts: list[Act] = []
    for target, faults, pause in _targets(nodes, workers, heavy):
        at = chance.uniform(0, pause)
        while at < seconds:
            fault = chance.choices(list(faults), list(faults.values()))[0]
            lasts = min(chance.choice([0.3, 1.0, 2.0, 4.0]), seconds - at)
            acts.append(Act(round(at, 2), target, fault, round(lasts, 2)))
            at += lasts + chance.uniform(0.5, 2 * pause)
    return sorted(acts, key=lambda act: (act.at, act.target))


def _targets(nodes: int, workers: int, heavy: bool) -> list[tuple[str, Mapping[str, int], float]]:
    """(name, its faults, mean seconds between two of them)."""
    names = [f"node {n}" for n in range(nodes)] + [f"worker {n}" for n in range(workers)]
    targets: list[tuple[str, Mapping[str, int], float]] = [(name, PROCESS, 10.0) for name in names if name != "node 0"]
    for name in names:
        targets += [(f"{name} broker", LINK, 8.0), (f"{name} database", DATABASE_LINK, 8.0)]
    rare = HEAVY if heavy else {}
    return [*targets, ("database", DATABASE, 12.0), ("broker", {**BROKER, **rare}, 12.0 if not heavy else 30.0)]


class Nemesis:
    """Carries a plan out on a world and its servers."""

    def __init__(self, world: World, broker: RabbitServer, database: Server, vhost: str) -> None:
        self._world = world
        self._broker = broker
        self._database = database
        self._vhost = vhost
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.done: list[Act] = []

    async def run(self, acts: Sequence[Act]) -> None:
        """Does everything in its time, then heals all and waits until the system is ready again."""
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as group:
                for act in acts:
                    group.create_task(self._do(act, begun))
        finally:
            await self._heal()
        await self._world.ready(deadline=60)

    async def _do(self, act: Act, begun: float) -> None:
        await asyncio.sleep(max(0.0, begun + act.at - asyncio.get_running_loop().time()))
        async with self._turns[act.target]:  # to undo the one before can take longer than the plan knows
            undo = await self._begin(act)
            self.done.append(act)
            await asyncio.sleep(act.seconds)
            await asyncio.to_thread(undo)

    async def _begin(self, act: Act) -> Callable[[], None]:
        """Lets the fault happen; what undoes it."""
        words = act.target.split()
        if words == ["database"]:
            return await self._hit_database(act.fault)
        if words == ["broker"]:
            return await asyncio.to_thread(self._hit_broker, act.fault)
        member = self._member(words[0], int(words[1]))
        if len(words) == 2:
            return _hit_process(member, act.fault)
        return _hit_link(member.broker if words[2] == "broker" else member.database, act.fault)

    def _member(self, role: str, number: int) -> Member:
        return (self._world.nodes if role == "node" else self._world.workers)[number]

    async def _hit_database(self, fault: str) -> Callable[[], None]:
        if fault == "kill":
            await asyncio.to_thread(self._database.kill9)
            return self._database.start
        with suppress(DBAPIError, OSError):  # it may be down at the moment
            kind = self._world.system.database_url.partition("+")[0]
            found = await self._world.sql(TERMINATE[kind])
            if kind == "mysql":
                await self._world.sql(*(f"KILL {row[0]}" for row in found))
        return _nothing

    def _hit_broker(self, fault: str) -> Callable[[], None]:
        if fault == "kill":
            with suppress(CommandFailed):
                self._broker.settle()
            self._broker.kill9()
            return self._broker.start
        if fault == "freeze":
            self._broker.pause()
            return self._broker.resume
        if fault == "alarm":
            self._broker.alarm()
            return self._broker.all_clear
        self._broker.ctl("close_all_connections", "--vhost", self._vhost, "nemesis")
        return _nothing

    async def _heal(self) -> None:
        for server in (self._broker, self._database):
            if server.running:
                server.resume()
            await asyncio.to_thread(server.start)
        for member in self._world.members:
            member.heal()
            if member.alive:
                member.process.resume()
            else:
                member.restart()


def _nothing() -> None:
    return


def _hit_process(member: Member, fault: str) -> Callable[[], None]:
    if fault == "freeze":
        member.process.pause()
        return member.process.resume
    if fault == "kill":
        member.process.kill9()
        return member.restart
    member.process.terminate()
    return lambda: _start_after_its_end(member)


def _start_after_its_end(member: Member) -> None:
    """A process that was asked to end has its time for it; what it cannot finish without its servers is cut short."""
    with suppress(TimeoutExpired):
        member.process.exited_sync(deadline=10)
    member.process.kill9()
    member.restart()


def _hit_link(link: Proxy, fault: str) -> Callable[[], None]:
    begin: dict[str, Callable[[], None]] = {
        "slow": lambda: link.slow(0.1, 0.08),
        "black hole": link.black_hole,
        "black hole up": lambda: link.black_hole(Way.UP),
        "black hole down": lambda: link.black_hole(Way.DOWN),
        "loss": link.black_hole,
        "half open": link.half_open,
        "reset": link.reset,
        "cut": link.cut,
        "refuse": link.refuse,
        "drop": link.drop,
    }
    if fault in begin:
        begin[fault]()
    else:
        link.at_commit(AtCommit(fault.removeprefix("commit ")), times=2)
    return link.lose if fault == "loss" else link.heal
