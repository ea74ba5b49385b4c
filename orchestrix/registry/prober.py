"""Executor prober: asks executors that are silent whether they are there, and keeps who of them gives no answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orchestrix import clock
from orchestrix.config.registry import RegistrySettings
from orchestrix.domain.nodes import NodeState
from orchestrix.domain.registry.addresses import ExecutorAddress, parse_address
from orchestrix.domain.registry.executors import LATE_FACTOR
from orchestrix.domain.registry.suspicion import KEPT_PROBES, Executor, Suspicion, probes
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Connection, Database, Transaction
from orchestrix.persistence.jobs import executor_jobs
from orchestrix.persistence.jobs.executor_jobs import ExecutorWork
from orchestrix.persistence.registry import groups, registrations, suspicions
from orchestrix.persistence.registry.registrations import RegisteredExecutor

log = logging.getLogger("orchestrix.registry")

LONGEST_PAUSE_S: Final = 3.0
SHORTEST_PAUSE_S: Final = 0.2
"""Seconds between two looks: a tenth of the heartbeat interval within these, so that a late one is soon asked."""
MOST_ASKED: Final = 2_000
"""Silent executors that are looked at: those that became silent last."""
AT_ONCE: Final = 20
COORDINATOR: Final = "coordinator"

HealthCheck = Callable[[str, ExecutorAddress], Awaitable[str | None]]
"""Asks the executor of an app at an address; None if it answers, else why not. As `ExecutorClient.healthy`."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the database says of those that may have to be asked; only those that are registered or listed. `late` are
    those without a heartbeat, report or answer for so long that they have missed one.
    """

    asked: Collection[Executor]
    late: Collection[Executor]
    suspicions: Sequence[Suspicion]
    registered: Mapping[Executor, RegisteredExecutor]
    work: Mapping[Executor, ExecutorWork]
    coordinators: Collection[str]
    living: Collection[str]

    def has_ended(self, one: Suspicion) -> bool:
        """Whether there was a sign of life since, or the executor is none any more."""
        row, work = self.registered.get(one.executor), self.work.get(one.executor)
        signs = row.last_seen if row is not None else None, work.heard_at if work is not None else None
        return one.executor not in self.asked or one.has_ended(*signs)

    def owners(self, executor: Executor) -> Collection[str]:
        """The live nodes that own work of it."""
        work = self.work.get(executor)
        return frozenset() if work is None else work.owners.intersection(self.coordinators)


class ExecutorProber:
    """A node's part in finding executors that give no answer; it ends no attempt and removes none of them.

    It asks (`GET /health`) who missed a heartbeat, who did not answer a call, and who is a suspect, every
    `settings.probe` seconds; of all nodes, those do that `suspicion.probes` names. Its own suspicions are rows in the
    database, so that another node confirms them. A suspicion ends by an answer, a heartbeat or a report.
    `node` is the present id of this node in the cluster; while it has none it asks none.
    """

    def __init__(
        self, database: Database, settings: RegistrySettings, healthy: HealthCheck, node: Callable[[], str | None]
    ) -> None:
        self._database, self._healthy, self._node = database, healthy, node
        self._late_s, self._probe_s = LATE_FACTOR * settings.beat, settings.probe
        self._pause_s = min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, settings.beat / 10))
        self._doubted: set[Executor] = set()
        self._answered: set[Executor] = set()
        self._silent: dict[Executor, Suspicion] = {}
        self._suspects: Collection[Executor] = ()
        self._asked_at: dict[Executor, float] = {}
        self._asking: dict[Executor, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._wake = WakeSignal()
        self._loop = Loop("executor prober", self._round)

    def doubt(self, app: str, address: str) -> None:
        """The executor did not answer a call: it is asked at once, unless it is a suspect already."""
        if (app, address) not in self._suspects:
            self._doubted.add((app, address))
            self._wake.set()

    def answered(self, app: str, address: str) -> None:
        """The executor answered a call."""
        if (app, address) in self._suspects:
            self._answered.add((app, address))
            self._wake.set()

    async def start(self) -> None:
        """Begins to ask."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops. What it suspects is stored until others find that this node is gone."""
        await self._loop.stop()
        for task in (tasks := list(self._asking.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _round(self) -> None:
        await self.check()
        await self._wake.wait(self._pause_s)

    async def check(self) -> None:
        """Stores what was found, and begins to ask whoever is due. Raises `Contention` and `Unavailable`."""
        if (node := self._node()) is None:
            return
        doubted = frozenset(self._doubted)
        async with self._database.read() as connection:
            found = await self._read(connection, {*doubted, *self._silent})
        await self._write(node, found)
        self._doubted -= doubted
        for executor in found.asked:
            if self._is_due(executor, executor in doubted) and self._is_mine(node, executor, found, doubted):
                self._ask(node, executor)
        self._asked_at = {one: at for one, at in self._asked_at.items() if one in found.asked}

    async def asked(self) -> None:
        """Returns when no executor is being asked."""
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _is_due(self, executor: Executor, doubted: bool) -> bool:
        last = self._asked_at.get(executor)
        rested = last is None or clock.monotonic() - last >= self._probe_s
        return executor not in self._asking and (doubted or rested)

    def _is_mine(self, node: str, executor: Executor, found: _Reading, doubted: Collection[Executor]) -> bool:
        suspecting = {
            one.node
            for one in found.suspicions
            if one.executor == executor and one.node in found.living and not found.has_ended(one)
        }
        if executor in doubted:
            return True
        if executor not in found.late and not suspecting:
            return False
        owners, coordinators = found.owners(executor), found.coordinators
        return probes(node, executor, owners=owners, coordinators=coordinators, suspecting=suspecting)

    def _ask(self, node: str, executor: Executor) -> None:
        self._asked_at[executor] = clock.monotonic()
        name = f"probe of {executor[1]}"
        self._asking[executor] = asyncio.create_task(self._probe(node, executor), name=name)

    async def _probe(self, node: str, executor: Executor) -> None:
        app, address = executor
        try:
            async with self._slots:
                began = self._database.now()
                why = await self._healthy(app, parse_address(address))
        finally:
            self._asking.pop(executor, None)
        if why is None:
            self._silent.pop(executor, None)
            self.answered(app, address)
            return
        if executor not in self._suspects:
            log.warning("executor %s of %s is suspected: %s", address, app, why)
        self._silent[executor] = Suspicion(app, address, node, began, self._database.now())
        self._wake.set()

    async def _write(self, node: str, found: _Reading) -> None:
        """Deletes this node's suspicions that have ended, and those of nodes that are gone; then stores its new ones.

        In this order, so that one which begins again after a sign of life counts from then on.
        """
        answered, silent = frozenset(self._answered), dict(self._silent)
        over = [
            one
            for one in found.suspicions
            if one.node not in found.living or (one.node == node and (one.executor in answered or found.has_ended(one)))
        ]
        new = [one for one in silent.values() if one.node == node and not found.has_ended(one)]
        now = self._database.now()
        stale = now - timedelta(seconds=KEPT_PROBES * self._probe_s)
        if over or new or any(one.probed_at < stale for one in found.suspicions):
            await self._database.run(lambda tx: _store(tx, over, new, stale))
        for one in over:
            if one.node == node:
                log.info("executor %s of %s is not suspected any more", one.address, one.app)
        self._answered -= answered
        self._silent = {executor: one for executor, one in self._silent.items() if silent.get(executor) is not one}
        left = {one.executor for one in found.suspicions if one.node == node and one not in over}
        self._suspects = left.union(one.executor for one in new)

    async def _read(self, connection: Connection, doubted: Collection[Executor]) -> _Reading:
        before = connection.now() - timedelta(seconds=self._late_s)
        late = await registrations.late(connection, before, MOST_ASKED)
        rows = await suspicions.listed(connection)
        wanted = {*late, *doubted, *(one.executor for one in rows)}
        if not wanted:
            return _Reading((), (), (), {}, {}, (), ())
        registered = await registrations.among(connection, wanted)
        there = {*registered, *await _listed(connection, wanted - registered.keys())}
        living = (await nodes.living(connection)).nodes
        coordinators = {one.id for one in living if one.state is NodeState.ALIVE and COORDINATOR in one.roles}
        work = await executor_jobs.work_of(connection, there)
        heard = {one for one, its in work.items() if its.heard_at is not None and its.heard_at >= before}
        return _Reading(
            there, frozenset(late) - heard, rows, registered, work, coordinators, {one.id for one in living}
        )


async def _store(tx: Transaction, over: Sequence[Suspicion], new: Sequence[Suspicion], stale: datetime) -> None:
    await suspicions.end(tx, over)
    await suspicions.record(tx, new)
    await suspicions.prune(tx, stale)


async def _listed(connection: Connection, executors: Collection[Executor]) -> list[Executor]:
    """Those that are not registered, but that a person has put on the list of a group."""
    lists = {app: await groups.get(connection, app) for app in sorted({app for app, _ in executors})}
    return [
        (app, address) for app, address in executors if (group := lists[app]) is not None and address in group.addresses
    ]
