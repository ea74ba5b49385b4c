"""Does no order of a heartbeat's and a goodbye's statements, at two nodes, leave a wrong row?

One node is stopped before each of its statements in turn, while the other does its part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pytest

from orchestrix.config.registry import RegistrySettings
from orchestrix.domain.leases import Fence
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry import groups
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.registry.reaper import ExecutorReaper
from orchestrix.registry.registrar import Registrar
from tests.integration.jobs.rows import leading
from tests.integration.registry.build import (
    ONE,
    SHOP,
    Pause,
    group_of,
    listed,
    registered,
    registrar_of,
)

STATEMENTS: Final = 20
"""More than any transaction of a heartbeat or a goodbye has."""
OLD, NEW = "old", "new"
FENCE: Final = Fence(1, "leader")


@pytest.fixture
def url(served_url: str) -> str:
    """Where one transaction does not keep the other from beginning."""
    return served_url


@dataclass
class Stage:
    """Two nodes, and processes that come to and go from one address of an app."""

    database: Database
    app: str
    here: Registrar
    there: Registrar

    async def beat(self, node: Registrar, instance: str) -> None:
        """A heartbeat of the process."""
        await node.register(Heartbeat(self.app, ONE, instance))

    async def goodbye(self, node: Registrar, instance: str = OLD) -> None:
        """Its goodbye."""
        await node.deregister((self.app, ONE), instance)

    async def succession(self, node: Registrar) -> None:
        """The goodbye of the old process, then the first heartbeat of the new one."""
        await self.goodbye(node)
        await self.beat(node, NEW)


Part = Callable[[Stage], Coroutine[Any, Any, None]]


@pytest.fixture
def interleaved(
    database: Database, peer: Database, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Coroutine[Any, Any, None]]:
    """Tries one order after the other: `first`, then `stopped` here, with `other` in the middle of it there."""

    async def tried(first: Part, stopped: Part, other: Part, *left: str, stops: int, places: int = STATEMENTS) -> None:
        async with registrar_of(database) as here, registrar_of(peer) as there:
            reached = 0
            for place in range(places):
                stage = Stage(database, f"shop-{place}", here, there)
                await group_of(database, app=stage.app)
                await first(stage)
                with monkeypatch.context() as patched:
                    in_between = await _in_the_middle(Pause(patched, database, place), stopped(stage), other(stage))
                found = await registered(database, stage.app)
                assert [one.instance for one in found.values()] == list(left), f"before statement {place}"
                assert (await listed(database, stage.app)).addresses == ((ONE,) if left else ())
                if not in_between:
                    break
                reached += 1
            assert stops <= reached < STATEMENTS, "stopped before each of its statements"

    return tried


async def _in_the_middle(pause: Pause, stopped: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> bool:
    first = asyncio.create_task(stopped)
    reached = await pause.during(first)
    second = asyncio.create_task(other)
    if reached:
        await asyncio.wait({second}, timeout=0.3)  # it may have to wait for a lock
    pause.resume()
    await asyncio.gather(first, second)
    return reached


async def nothing(_: Stage) -> None:
    return


Tried = Callable[..., Coroutine[Any, Any, None]]


async def test_a_goodbye_in_the_middle_of_a_heartbeat(interleaved: Tried) -> None:
    await interleaved(
        lambda one: one.beat(one.here, OLD),
        lambda one: one.beat(one.here, OLD),
        lambda one: one.goodbye(one.there),
        stops=3,
    )


async def test_a_goodbye_in_the_middle_of_the_first_heartbeat(interleaved: Tried) -> None:
    await interleaved(nothing, lambda one: one.beat(one.here, OLD), lambda one: one.goodbye(one.there), stops=9)


async def test_a_heartbeat_in_the_middle_of_the_goodbye(interleaved: Tried) -> None:
    await interleaved(
        lambda one: one.beat(one.here, OLD),
        lambda one: one.goodbye(one.here),
        lambda one: one.beat(one.there, OLD),
        stops=8,
    )


async def test_an_old_goodbye_in_the_middle_of_the_new_processs_first_heartbeat(interleaved: Tried) -> None:
    await interleaved(
        lambda one: one.beat(one.here, OLD),
        lambda one: one.beat(one.here, NEW),
        lambda one: one.goodbye(one.there),
        NEW,
        stops=5,
    )


async def test_the_new_processs_first_heartbeat_in_the_middle_of_the_old_goodbye(interleaved: Tried) -> None:
    await interleaved(
        lambda one: one.beat(one.here, OLD),
        lambda one: one.goodbye(one.here),
        lambda one: one.beat(one.there, NEW),
        NEW,
        stops=8,
    )


async def test_the_new_process_registers_in_the_middle_of_a_heartbeat_behind_its_goodbye(interleaved: Tried) -> None:
    async def gone(one: Stage) -> None:
        await one.beat(one.here, OLD)
        await one.goodbye(one.here)

    await interleaved(gone, lambda one: one.beat(one.here, OLD), lambda one: one.beat(one.there, NEW), NEW, stops=2)


@pytest.mark.parametrize("before", [OLD, NEW, None])
async def test_goodbye_and_new_process_in_the_middle_of_a_heartbeat_that_is_not_written_yet(
    before: str | None, interleaved: Tried
) -> None:
    async def first(one: Stage) -> None:
        if before is not None:
            await one.beat(one.there, before)

    unwritten = 2 if before == OLD else 3  # the looks before the write
    await interleaved(
        first,
        lambda one: one.beat(one.here, OLD),
        lambda one: one.succession(one.there),
        NEW,
        stops=unwritten,
        places=unwritten,
    )


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
async def test_a_group_that_is_made_while_an_executor_joins_lists_it_at_once_or_after_one_check_of_the_reaper(
    database: Database, peer: Database, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """Neither transaction sees the other; the node may die before it refreshes the list once more."""
    await leading(peer, FENCE)
    refresh, made = groups.refresh, asyncio.Event()

    async def with_a_group_in_between(tx: Transaction, apps: Collection[str], now: datetime) -> list[str]:
        changed = await refresh(tx, apps, now)
        if tx.database is database and not made.is_set():
            made.set()
            await group_of(peer)
        return changed

    monkeypatch.setattr(groups, "refresh", with_a_group_in_between)
    again = _Again(dead=dies)
    async with registrar_of(database) as registrar:
        monkeypatch.setattr(registrar, "_list_again", again.instead_of(registrar._list_again))
        await registrar.register(Heartbeat(SHOP, ONE))
        await again.over.wait()
    assert set(await registered(peer)) == {ONE}
    assert (await listed(peer)).addresses == (() if dies else (ONE,))
    await ExecutorReaper(peer, RegistrySettings(), FENCE).check()
    assert (await listed(peer)).addresses == (ONE,)


@dataclass
class _Again:
    """The refresh after the commit, which a dead node does not do; and whether it is over."""

    dead: bool
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def instead_of(self, refresh: Callable[[Collection[str]], Coroutine[Any, Any, None]]) -> Any:
        async def refreshed(apps: Collection[str]) -> None:
            if not self.dead:
                await refresh(apps)
            self.over.set()

        return refreshed
