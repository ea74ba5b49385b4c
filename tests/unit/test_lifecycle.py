"""Does a part of a process end when it is told to?"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

import pytest

from orchestrix import lifecycle
from orchestrix.errors import Unavailable
from orchestrix.lifecycle import (
    DaemonThreadPool,
    DelayedService,
    Loop,
    Services,
    WakeSignal,
    ended,
    run_to_the_end,
    shielded,
    stop_stage,
)
from tests.support import eventually, holds

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "RECANCEL_INTERVAL_S", 0.05)


async def _deaf() -> None:
    """Loses one cancellation, as a driver does that meets it while it gives up a connection."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0)


async def _begun(round: Callable[[], Awaitable[None]]) -> Loop:
    loop = Loop("test", round)
    await loop.start()
    await asyncio.sleep(0)
    return loop


async def test_a_loop_ends_whose_round_has_lost_its_cancellation() -> None:
    rounds = 0

    async def once() -> None:
        nonlocal rounds
        rounds += 1
        await _deaf()

    loop = await _begun(once)
    await asyncio.wait_for(loop.stop(), 5)
    assert rounds == 1


async def test_a_loop_ends_that_waits_on_after_it_has_lost_its_cancellation() -> None:
    waits = 0

    async def once() -> None:
        nonlocal waits
        await _deaf()
        waits += 1
        await WakeSignal().wait(None)

    loop = await _begun(once)
    await asyncio.wait_for(loop.stop(), 5)
    assert waits == 1, "the first cancellation was lost"


async def test_what_a_task_has_failed_with_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    with pytest.raises(ValueError, match="broken"):
        await ended(task)


class Stubborn:
    """Something that does not end, whatever is done to it, before it is let."""

    def __init__(self) -> None:
        self.let, self.asked = asyncio.Event(), 0

    async def run(self) -> None:
        while not self.let.is_set():
            try:
                await self.let.wait()
            except asyncio.CancelledError:
                self.asked += 1


async def test_what_does_not_end_at_all_is_told_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "ABANDON_AFTER_S", 0.15)
    part = Stubborn()
    loop = await _begun(part.run)
    await asyncio.wait_for(loop.stop(), 5)
    assert part.asked >= 2
    assert "abandoned: test" in caplog.text
    part.let.set()


async def test_a_part_of_an_end_that_hangs_or_fails_is_told_and_keeps_nobody(caplog: pytest.LogCaptureFixture) -> None:
    part = Stubborn()
    await asyncio.wait_for(stop_stage("waiting for it", part.run(), 0.01), 5)
    assert "waiting for it did not finish within 0.01 s" in caplog.text
    await eventually(lambda: part.asked == 1, deadline=5, message="it was asked to end nevertheless")
    part.let.set()

    async def fail() -> None:
        raise ValueError("broken")

    await stop_stage("failing", fail(), 5.0)
    assert "failing failed" in caplog.text


async def test_who_is_cancelled_at_a_part_of_an_end_does_not_wait_for_it() -> None:
    part = Stubborn()
    waiting = asyncio.create_task(stop_stage("waiting for it", part.run(), 60.0))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 5)
    await eventually(lambda: part.asked == 1, deadline=5, message="it was asked to end")
    part.let.set()


async def test_the_parts_behind_one_that_was_given_up_are_stopped_later() -> None:
    class Part:
        def __init__(self, end: Callable[[], Awaitable[None]]) -> None:
            self.end = end

        async def start(self) -> None:
            return

        async def stop(self) -> None:
            await self.end()

    stopped: list[str] = []
    stubborn = Stubborn()

    async def note() -> None:
        stopped.append("first")

    services = Services([Part(note), Part(stubborn.run)])
    await services.start()
    await stop_stage("stopping", services.stop(), 0.01)
    assert stopped == []
    await services.stop()
    assert stopped == ["first"]
    stubborn.let.set()


async def test_what_nobody_waits_for_any_more_goes_on_and_may_fail_in_silence() -> None:
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    begun, may_end, ends = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        await may_end.wait()
        ends.set()
        raise Unavailable("too late")

    caller = asyncio.create_task(shielded(work()))
    await begun.wait()
    caller.cancel()
    assert (await asyncio.gather(caller, return_exceptions=True))[0].__class__ is asyncio.CancelledError
    may_end.set()
    await ends.wait()
    await asyncio.sleep(0)
    del caller
    gc.collect()
    assert told == []


async def test_what_somebody_waits_for_is_answered() -> None:
    async def seven() -> int:
        return 7

    async def fails() -> None:
        raise Unavailable("not now")

    assert await shielded(seven()) == 7
    with pytest.raises(Unavailable, match="not now"):
        await shielded(fails())


class Noting:
    """A part that notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def start(self) -> None:
        self.asked.append("start")

    async def stop(self) -> None:
        self.asked.append("stop")


async def test_a_part_that_is_to_begin_later_leaves_the_machine_to_others_until_then() -> None:
    part = Noting()
    later = DelayedService("test", part, 0.05)
    await later.start()
    await asyncio.sleep(0)
    assert part.asked == []
    await eventually(lambda: part.asked == ["start"], deadline=5)
    await later.stop()
    assert part.asked == ["start", "stop"]


async def test_a_part_that_is_stopped_before_it_was_to_begin_never_begins() -> None:
    part = Noting()
    later = DelayedService("test", part, 0.02)
    await later.stop()
    await later.start()
    await asyncio.sleep(0)
    await later.stop()
    await later.stop()
    await holds(lambda: "start" not in part.asked, during=0.1)


async def test_a_beginning_that_fails_is_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Reluctant(Noting):
        async def start(self) -> None:
            await super().start()
            if len(self.asked) == 1:
                raise Unavailable("not now")

    part = Reluctant()
    later = DelayedService("something", part, 0.0)
    await later.start()
    await eventually(lambda: part.asked == ["start", "start"], deadline=5)
    await later.stop()
    assert part.asked == ["start", "start", "stop"]
    assert "start of something paused: not now" in caplog.text


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_process_ends_though_a_task_of_somebody_else_does_not(
    error: type[BaseException] | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lifecycle, "EXIT_GRACE_S", 0.05)
    left: list[object] = []
    monkeypatch.setattr(lifecycle, "_left", SimpleNamespace(add=left.append))
    part, begun = Stubborn(), []

    async def main() -> None:
        begun.append(asyncio.create_task(part.run(), name="stubborn"))
        await asyncio.sleep(0)
        if error is not None:
            raise error

    if error is None:
        run_to_the_end(main())
    else:
        with pytest.raises(error):
            run_to_the_end(main())
    assert "did not stop in time; abandoned until process exit: stubborn" in caplog.text
    (runner,) = left
    assert isinstance(runner, asyncio.Runner)
    part.let.set()
    runner.get_loop().run_until_complete(begun[0])
    runner.close()


def test_a_process_with_nothing_left_behind_closes_its_loop() -> None:
    ends = []

    async def behind() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("behind")

    loops = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        kept.append(asyncio.create_task(behind()))
        await asyncio.sleep(0)

    kept: list[asyncio.Task[None]] = []
    run_to_the_end(main())
    assert (ends, loops[0].is_closed()) == (["behind"], True)


def test_a_thread_that_does_not_end_keeps_no_process() -> None:
    code = (
        "import asyncio, threading\n"
        "from orchestrix import lifecycle\n"
        "lifecycle.EXIT_GRACE_S = 0.1\n"
        "begun = threading.Event()\n"
        "def hang():\n"
        "    begun.set()\n"
        "    threading.Event().wait()\n"
        "async def main():\n"
        "    hangs = asyncio.create_task(asyncio.to_thread(hang))\n"
        "    assert await asyncio.to_thread(begun.wait, 10)\n"
        "lifecycle.run_to_the_end(main())\n"
        "print('ended')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (ended.returncode, ended.stdout) == (0, "ended\n")
    assert ended.stderr == "1 thread did not stop in time; abandoned until process exit\n"


def test_what_runs_in_threads_is_waited_for() -> None:
    done: list[bool] = []

    async def main() -> None:
        asyncio.get_running_loop().run_in_executor(None, lambda: done.append(let.wait(10)))
        asyncio.get_running_loop().call_soon(let.set)

    let = threading.Event()
    run_to_the_end(main())
    assert done == [True]


@pytest.mark.virtual_time(False)
async def test_no_more_threads_run_at_once_than_may_and_each_call_has_its_answer() -> None:
    pool, loop, both = DaemonThreadPool(2), asyncio.get_running_loop(), threading.Barrier(2)
    inside: set[int] = set()
    at_once: list[int] = []

    def call(number: int) -> int:
        inside.add(number)
        both.wait(10)
        at_once.append(len(inside))
        both.wait(10)
        inside.remove(number)
        if number == 5:
            raise ZeroDivisionError
        return number

    calls = [loop.run_in_executor(pool, call, number) for number in range(6)]
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert found[:5] == list(range(5))
    assert isinstance(found[5], ZeroDivisionError)
    assert at_once == [2] * 6
