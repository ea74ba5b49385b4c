"""Does time jump, and do processes die and freeze as real ones do?"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from random import Random

import pytest

from orchestrix import clock
from orchestrix.errors import OrchestrixError
from orchestrix.testing.simulation.virtual_time import (
    MOST_CANCELLED,
    START_S,
    LoopStalled,
    ProcessKilled,
    VirtualClock,
    VirtualLoop,
    VirtualProcess,
    current_process,
    elapse,
)


def test_an_hour_passes_at_once(loop: VirtualLoop) -> None:
    begun = time.monotonic()
    loop.run_until_complete(elapse(3600.0))
    assert loop.time() == START_S + 3600.0
    assert time.monotonic() - begun < 5.0


def test_timers_come_in_their_order(loop: VirtualLoop) -> None:
    seen: list[tuple[str, float]] = []

    async def note(name: str, after: float) -> None:
        await elapse(after)
        seen.append((name, loop.time() - START_S))

    async def all_of_them() -> None:
        await asyncio.gather(note("late", 2.0), note("soon", 0.5), note("between", 1.0))

    loop.run_until_complete(all_of_them())
    assert seen == [("soon", 0.5), ("between", 1.0), ("late", 2.0)]


def test_a_timeout_ends_in_time(loop: VirtualLoop) -> None:
    async def wait() -> None:
        async with asyncio.timeout(7.0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        loop.run_until_complete(wait())
    assert loop.time() == START_S + 7.0


def test_waiting_for_nothing_is_an_error(loop: VirtualLoop) -> None:
    with pytest.raises(LoopStalled):
        loop.run_until_complete(asyncio.Event().wait())


def test_threads_are_refused(loop: VirtualLoop) -> None:
    with pytest.raises(OrchestrixError, match="thread"):
        loop.run_until_complete(asyncio.to_thread(print))


def test_the_product_s_clock_follows_the_loop(loop: VirtualLoop) -> None:
    assert clock.now() == datetime(2026, 1, 1, 0, 16, 40, tzinfo=UTC)
    loop.run_until_complete(elapse(60.0))
    assert clock.now() == datetime(2026, 1, 1, 0, 17, 40, tzinfo=UTC)
    assert clock.monotonic() == START_S + 60.0


def test_chance_comes_from_the_dice(loop: VirtualLoop) -> None:
    def draw(seed: int) -> tuple[str, str, float]:
        with clock.use(VirtualClock(loop, Random(seed))):
            return clock.uuid7(), clock.token(), clock.uniform(0.0, 1.0)

    assert draw(5) == draw(5) != draw(6)


# Processes.


class Told:
    """What a task of a process leaves behind."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def count(self) -> None:
        """One line a second, and one in the end, however that comes."""
        try:
            while True:
                self.lines.append("tick")
                await elapse(1.0)
        finally:
            self.lines.append("cleaned up")


async def _live(process: VirtualProcess, told: Told, seconds: float) -> asyncio.Task[None]:
    task = process.spawn(told.count())
    await elapse(seconds)
    return task


def test_the_dead_clean_up_nothing(loop: VirtualLoop) -> None:
    process, told = loop.process("p"), Told()
    called: list[str] = []
    process.on_death.append(lambda: called.append("died"))
    loop.run_until_complete(_live(process, told, 2.5))
    process.kill()
    process.kill()
    loop.run_until_complete(elapse(10.0))
    assert told.lines == ["tick"] * 3
    assert called == ["died"]
    with pytest.raises(ProcessKilled):
        process.spawn(told.count())


def test_what_a_process_starts_dies_with_it(loop: VirtualLoop) -> None:
    process, told = loop.process("p"), Told()
    children: list[asyncio.Task[None]] = []

    async def parent() -> None:
        assert current_process() is process
        children.append(asyncio.create_task(told.count()))
        await elapse(0.5)

    async def days() -> None:
        await process.spawn(parent())
        await elapse(1.0)
        process.kill()
        await elapse(5.0)

    loop.run_until_complete(days())
    assert told.lines == ["tick"] * 2
    assert current_process() is None


def test_others_live_on(loop: VirtualLoop) -> None:
    one, other = loop.process("one"), loop.process("other")
    dead, alive = Told(), Told()

    async def days() -> None:
        one.spawn(dead.count())
        other.spawn(alive.count())
        await elapse(0.5)
        one.kill()
        await elapse(3.0)

    loop.run_until_complete(days())
    assert (len(dead.lines), len(alive.lines)) == (1, 4)


@pytest.mark.parametrize(("steps", "ticks"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_it_dies_at_a_step_that_was_named(loop: VirtualLoop, steps: int, ticks: int) -> None:
    """Its timer is one step, what follows from it the next."""
    process, told = loop.process("p"), Told()
    process.kill_after(steps)
    loop.run_until_complete(_live(process, told, 60.0))
    assert not process.alive
    assert told.lines == ["tick"] * ticks


def test_the_frozen_go_on_later(loop: VirtualLoop) -> None:
    process, told = loop.process("p"), Told()
    loop.run_until_complete(_live(process, told, 1.5))
    process.freeze()
    loop.run_until_complete(elapse(100.0))
    assert process.frozen
    assert told.lines == ["tick"] * 2
    process.unfreeze()
    loop.run_until_complete(elapse(0.1))
    assert told.lines == ["tick"] * 3
    assert not process.frozen


def test_the_frozen_can_be_killed(loop: VirtualLoop) -> None:
    process, told = loop.process("p"), Told()
    loop.run_until_complete(_live(process, told, 0.5))
    process.freeze()
    loop.run_until_complete(elapse(5.0))
    process.kill()
    process.unfreeze()
    loop.run_until_complete(elapse(5.0))
    assert told.lines == ["tick"]


def test_the_end_leaves_no_task_behind() -> None:
    loop, told = VirtualLoop(), Told()
    process = loop.process("p")
    task = loop.run_until_complete(_live(process, told, 1.5))
    process.kill()
    loop.discard()
    loop.close()
    assert task.done()
    assert told.lines == ["tick", "tick", "cleaned up"]


def test_timers_that_were_cancelled_are_forgotten(loop: VirtualLoop) -> None:
    async def days() -> None:
        for _ in range(1000):
            async with asyncio.timeout(3600.0):
                await elapse(0.001)

    loop.run_until_complete(days())
    assert len(loop._scheduled) < 3 * MOST_CANCELLED
    assert START_S + 0.999 < loop.time() < START_S + 1.001
