"""Does the reaper remove who is silent, when he is due, and nobody else, whatever happens to nodes and clocks?"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from sqlalchemy import select

from orchestrix import clock
from orchestrix.config.registry import RegistrySettings
from orchestrix.domain.leases import Fence
from orchestrix.errors import Contention, StaleTermError, Unavailable
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import groups, listeners, registrations
from orchestrix.persistence.registry.registrations import SILENT, Heartbeat, Removal
from orchestrix.registry.reaper import ExecutorReaper
from tests.fakes.time import Shifted
from tests.integration.jobs.rows import leading
from tests.integration.registry.build import (
    ONE,
    SHOP,
    THREE,
    TWO,
    drain,
    group_of,
    listed,
    record,
    registered,
    registrar_of,
    removals,
    watched,
)

FENCE: Final = Fence(1, "leader")
ALIVE: Final = Heartbeat("billing", THREE)
BEAT, DEAD = 30.0, 90.0


class Still(Shifted):
    """A clock that stands still but for what the test adds."""

    def __init__(self) -> None:
        super().__init__()
        self._wall, self._monotonic = super().wall(), super().monotonic()

    def monotonic(self) -> float:
        return self._monotonic + self._ahead

    def wall(self) -> float:
        return self._wall + self._ahead


@pytest.fixture
def time() -> Iterator[Shifted]:
    """Nothing but what the test says takes time."""
    still = Still()
    with clock.use(still):
        yield still


class Watch:
    """A leader with its reaper, and time that passes as the test says."""

    def __init__(self, database: Database, time: Shifted, **settings: float) -> None:
        self.database, self.time = database, time
        self.reaper = ExecutorReaper(database, RegistrySettings(**settings), FENCE)
        self.elapsed = 0.0
        self.check_at = 0.0
        self.waits: list[float] = []

    async def passes(self, seconds: float, *alive: Heartbeat, every: float = BEAT) -> None:
        """So much time, in which these send their heartbeats, the first at once, and the reaper checks when it will."""
        end, beat_at = self.elapsed + seconds, self.elapsed
        while True:
            at = min(end, self.check_at, beat_at if alive else end)
            self.time.advance(max(at - self.elapsed, 0.0))
            self.elapsed = max(at, self.elapsed)
            if alive and beat_at <= self.elapsed:
                await record(self.database, *alive)
                beat_at += every
            elif self.check_at <= self.elapsed:
                self.waits.append(await self.reaper._run_once())
                self.check_at = self.elapsed + self.waits[-1]
            else:
                return

    async def fails(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        """A check in which the database answers so."""

        async def refused(*_: object) -> None:
            raise error

        with monkeypatch.context() as away:
            away.setattr(registrations, "of_apps", refused)
            with pytest.raises(type(error)):
                await self.reaper._run_once()

    async def gone(self) -> set[str]:
        """Who was removed."""
        return {one.address for one in await removals(self.database)}


@pytest.fixture
async def watch(database: Database, time: Shifted) -> Watch:
    await leading(database, FENCE)
    return Watch(database, time)


async def listening(watch: Watch) -> None:
    """It has listened for long, and one executor sends heartbeats all the time."""
    await watch.passes(2 * DEAD, ALIVE)


@pytest.mark.req("S2-3", "S2-10", "S2-25", "S2-28", "S2-48")
async def test_the_silent_are_removed_at_ninety_seconds(watch: Watch) -> None:
    await group_of(watch.database)
    await listening(watch)
    await record(watch.database, Heartbeat(SHOP, ONE, "a"))
    await watch.passes(15, ALIVE)
    await record(watch.database, Heartbeat("billing", TWO))
    await watch.passes(74.9, ALIVE)
    assert await watch.gone() == set()
    await watch.passes(0.3)
    (gone,) = await removals(watch.database)
    assert (gone.app, gone.address, gone.instance, gone.reason) == (SHOP, ONE, "a", SILENT)
    assert gone.last_seen is not None
    assert timedelta(seconds=90) < gone.removed_at - gone.last_seen < timedelta(seconds=91)
    assert await registered(watch.database) == {}
    assert set(await registered(watch.database, "billing")) == {TWO, THREE}


@pytest.mark.req("S2-21", "S2-22", "S2-23", "S2-62")
async def test_the_groups_of_those_removed_change_with_them_and_they_come_back_at_once(watch: Watch) -> None:
    for app in (SHOP, "billing"):
        await group_of(watch.database, app=app)
    await group_of(watch.database, [ONE], "fixed")
    fixed = await listed(watch.database, "fixed")
    async with registrar_of(watch.database) as registrar:
        for heartbeat in (Heartbeat(SHOP, ONE), Heartbeat(SHOP, TWO), Heartbeat("fixed", ONE), ALIVE):
            await registrar.register(heartbeat)
        await watch.passes(2 * DEAD, ALIVE, Heartbeat(SHOP, TWO))
        assert (await listed(watch.database)).addresses == (TWO,)
        assert (await listed(watch.database, "billing")).addresses == (THREE,)
        assert await listed(watch.database, "fixed") == fixed
        await registrar.register(Heartbeat(SHOP, ONE))
        assert (await listed(watch.database)).addresses == (TWO, ONE)


async def test_nobody_is_removed_before_a_new_leader_has_listened(watch: Watch) -> None:
    await record(watch.database, Heartbeat(SHOP, ONE))
    watch.time.advance(3600)
    await watch.passes(DEAD - 1, ALIVE)
    assert await watch.gone() == set()
    await watch.passes(3, ALIVE)
    assert await watch.gone() == {ONE}
    await record(watch.database, Heartbeat(SHOP, TWO))
    await watch.passes(DEAD - 1, ALIVE)
    await watch.reaper.start()
    await watch.reaper.stop()
    await watch.passes(DEAD - 1, ALIVE)
    assert await watch.gone() == {ONE}, "a new term listens anew"


async def test_nobody_is_removed_before_it_has_listened_after_an_outage(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    await listening(watch)
    await record(watch.database, Heartbeat(SHOP, ONE))
    await watch.passes(DEAD - 1, ALIVE)
    await watch.fails(monkeypatch, Unavailable("away"))
    await watch.passes(DEAD - 1, ALIVE)
    assert await watch.gone() == set()
    await watch.passes(3, ALIVE)
    assert await watch.gone() == {ONE}


async def test_a_lock_that_is_not_free_is_no_outage(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    await listening(watch)
    await record(watch.database, Heartbeat(SHOP, ONE))
    await watch.passes(DEAD - 1, ALIVE)
    await watch.fails(monkeypatch, Contention("locked"))
    await watch.passes(3, ALIVE)
    assert await watch.gone() == {ONE}


async def test_a_node_that_was_frozen_has_not_listened(watch: Watch) -> None:
    await listening(watch)
    await record(watch.database, Heartbeat(SHOP, ONE))
    watch.time.advance(4 * DEAD)
    await watch.reaper.check()
    assert await watch.gone() == set()
    await watch.passes(DEAD - 1, ALIVE, Heartbeat(SHOP, ONE))
    await watch.passes(3, ALIVE)
    assert await watch.gone() == set()


async def test_a_silence_of_all_is_that_of_the_nodes_until_twice_the_dead_time(watch: Watch) -> None:
    await listening(watch)
    await record(watch.database, ALIVE, Heartbeat(SHOP, ONE))
    await watch.passes(2 * DEAD - 1)
    assert await watch.gone() == set()
    await watch.passes(BEAT)
    assert await watch.gone() == {ONE, THREE}


async def test_after_a_silence_of_all_it_listens_anew(watch: Watch) -> None:
    """All nodes that take heartbeats are away for two minutes: the first executor that comes back removes nobody."""
    await listening(watch)
    await watch.passes(BEAT, ALIVE, Heartbeat(SHOP, ONE), Heartbeat(SHOP, TWO))
    await watch.passes(120)
    await watch.passes(BEAT, ALIVE)
    assert await watch.gone() == set()
    await watch.passes(DEAD - 2 * BEAT, ALIVE, Heartbeat(SHOP, ONE))
    assert await watch.gone() == set()
    await watch.passes(BEAT + 3, ALIVE, Heartbeat(SHOP, ONE))
    assert await watch.gone() == {TWO}


@pytest.mark.parametrize("sweep", [10.0, 30.0, 90.0])
@pytest.mark.parametrize("phase", [0.0, 0.4])
async def test_one_regular_executor_is_no_end_of_a_silence(
    database: Database, time: Shifted, sweep: float, phase: float
) -> None:
    await leading(database, FENCE)
    watch = Watch(database, time, sweep=sweep)
    await record(database, Heartbeat(SHOP, ONE))
    await watch.passes(phase)
    await watch.passes(DEAD + BEAT, ALIVE, every=BEAT + phase)
    assert await watch.gone() == {ONE}


async def test_a_goodbye_is_no_silence_of_the_others(watch: Watch) -> None:
    await listening(watch)
    await record(watch.database, Heartbeat(SHOP, ONE))
    await watch.passes(25)
    async with registrar_of(watch.database) as registrar:
        await registrar.register(Heartbeat(SHOP, THREE))
        await watch.reaper.check()
        await registrar.deregister((SHOP, THREE), None)
        await watch.reaper.check()
    await watch.passes(11)
    await watch.passes(DEAD - 36 + 1, ALIVE)
    assert ONE in await watch.gone()


@pytest.mark.req("S2-30", "S2-35", "S2-60")
async def test_it_checks_when_the_next_one_is_dead_and_at_least_every_thirty_seconds(watch: Watch) -> None:
    await listening(watch)
    assert max(watch.waits) <= 30
    await record(watch.database, Heartbeat(SHOP, ONE))
    await watch.passes(85, ALIVE)
    assert 4 < await watch.reaper.check() < 5.1


async def test_it_does_not_check_all_the_time_while_it_may_remove_nobody(watch: Watch) -> None:
    await record(watch.database, Heartbeat(SHOP, ONE))
    watch.time.advance(3600)
    await watch.passes(DEAD - 1, ALIVE)
    assert len(watch.waits) < 12
    await watch.passes(2)
    watch.waits.clear()
    await watch.passes(2 * DEAD - 1)
    assert len(watch.waits) < 20


@pytest.mark.req("S2-35")
async def test_one_line_says_who_was_removed(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    await listening(watch)
    await record(watch.database, Heartbeat(SHOP, ONE), Heartbeat(SHOP, TWO))
    with caplog.at_level(logging.INFO, "orchestrix.registry"):
        await watch.passes(DEAD + 1, ALIVE)
    lines = sorted(line.getMessage() for line in caplog.records if "removed" in line.getMessage())
    assert lines == [f"executor {one} of {SHOP} removed: last heartbeat 90 s ago" for one in (ONE, TWO)]


async def test_the_leader_of_an_older_term_writes_nothing(watch: Watch) -> None:
    await listening(watch)
    await group_of(watch.database)
    await record(watch.database, Heartbeat(SHOP, ONE))
    await watch.passes(DEAD - 10, ALIVE)
    watch.time.advance(11)
    await leading(watch.database, Fence(2, "other"))
    group = await listed(watch.database)
    with pytest.raises(StaleTermError):
        await watch.reaper.check()
    assert set(await registered(watch.database)) == {ONE}
    assert (await watch.gone(), await listed(watch.database)) == (set(), group)


async def test_nor_does_it_correct_or_prune(watch: Watch) -> None:
    await group_of(watch.database)
    await record(watch.database, Heartbeat(SHOP, ONE))
    await leading(watch.database, Fence(2, "other"))
    with pytest.raises(StaleTermError):
        await watch.reaper.check()
    assert (await listed(watch.database)).addresses == ()


async def test_a_heartbeat_in_between_saves_the_executor(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    await listening(watch)
    await record(watch.database, Heartbeat(SHOP, ONE), Heartbeat(SHOP, TWO))
    await watch.passes(DEAD - 10, ALIVE)
    watch.time.advance(11)
    outdated = groups.outdated

    async def then_one_beats(connection: Any, registered: Any) -> list[str]:
        found = await outdated(connection, registered)
        await record(watch.database, Heartbeat(SHOP, ONE))
        return found

    monkeypatch.setattr(groups, "outdated", then_one_beats)
    await watch.reaper.check()
    assert set(await registered(watch.database)) == {ONE}
    assert await watch.gone() == {TWO}


async def test_times_of_the_future_and_outdated_lists_are_corrected(watch: Watch) -> None:
    await group_of(watch.database)
    await group_of(watch.database, [THREE], "fixed")
    async with watch.database.begin() as tx:
        later = tx.now() + timedelta(hours=1)
        await registrations.record(tx, [Heartbeat(SHOP, ONE), Heartbeat("fixed", ONE)], later)
    await watch.reaper.check()
    assert (await registered(watch.database))[ONE].last_seen <= watch.database.now()
    assert (await listed(watch.database)).addresses == (ONE,)
    assert (await listed(watch.database, "fixed")).addresses == (THREE,)


async def test_a_clock_that_was_set_back_removes_nobody_who_still_sends(watch: Watch) -> None:
    both = ALIVE, Heartbeat(SHOP, ONE)
    await watch.passes(2 * DEAD, *both)
    watch.time.advance(-3600)
    await watch.passes(3 * DEAD, *both)
    assert await watch.gone() == set()
    await watch.passes(DEAD + 1, ALIVE)
    assert await watch.gone() == {ONE}


async def test_a_clock_that_was_put_forward_removes_nobody_who_still_sends(watch: Watch) -> None:
    both = ALIVE, Heartbeat(SHOP, ONE)
    await watch.passes(2 * DEAD + BEAT / 2, *both)
    watch.time.advance(3600)
    await watch.reaper.check()
    await watch.passes(2 * DEAD, *both)
    assert await watch.gone() == set()


async def test_removals_and_listeners_are_kept_for_a_while(watch: Watch) -> None:
    now = watch.database.now()
    async with watch.database.begin() as tx:
        for place, age in enumerate((590, 610)):
            await registrations.record_removals(
                tx, [Removal(SHOP, f"http://10.0.0.1:{place + 1}", None, SILENT, None, now - timedelta(seconds=age))]
            )
            await listeners.record(tx, f"node-{place}", [("10.0.0.1", age)], now - timedelta(seconds=age - 515))
    await watch.reaper.check()
    assert await watch.gone() == {"http://10.0.0.1:1"}
    async with watch.database.read() as connection:
        assert await listeners.living(connection, now - timedelta(days=1)) == {("10.0.0.1", 590)}


async def test_more_than_a_batch_is_removed_in_one_check(watch: Watch) -> None:
    await group_of(watch.database)
    await listening(watch)
    many = [Heartbeat(SHOP, f"http://10.0.0.1:{1000 + place}") for place in range(510)]
    await record(watch.database, *many)
    await drain(watch.database, many[0].executor)
    await watch.passes(DEAD - 10, ALIVE)
    watch.time.advance(11)
    with watched(watch.database) as sent:
        await watch.reaper.check()
    assert (await registered(watch.database), (await listed(watch.database)).addresses) == ({}, ())
    assert sent.commits >= 2, "each batch is a transaction"


async def test_a_large_group_is_reported_once(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    await record(watch.database, *(Heartbeat(SHOP, f"http://10.0.0.1:{1000 + place}") for place in range(900)))
    for _ in range(2):
        await watch.reaper.check()
    lines = [line.getMessage() for line in caplog.records if "limit" in line.getMessage()]
    assert lines == ["shop has 900 executors; the limit is 1000"]


async def test_a_node_whose_clock_is_an_hour_off_changes_nothing(watch: Watch, url: str) -> None:
    """Heartbeats are noted, and ages counted, by the database's clock."""
    if watch.database.dialect.single_writer:
        return  # the nodes of a file have one clock
    wrong = Shifted()
    wrong.advance(3600)
    with clock.use(wrong):
        stranger = Database(url)
        async with registrar_of(stranger) as registrar:
            await registrar.register(Heartbeat(SHOP, ONE))
        async with stranger.read() as connection:
            real = (await connection.execute(select(stranger.dialect.clock(clock.now())))).scalar_one()
        noted = (await registered(stranger))[ONE].last_seen
        await leading(stranger, FENCE)
        reaper = ExecutorReaper(stranger, RegistrySettings(), FENCE)
        await reaper.check()
        await stranger.close()
    assert abs(real - noted) < timedelta(seconds=30)
    assert await watch.gone() == set()
