"""Does no step of a guarded coroutine begin once it must stop?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from orchestrix.worker.shards.guarded import guarded

pytestmark = pytest.mark.virtual_time


class Limit:
    """Cancels the current task from the n-th check on."""

    def __init__(self, at: int, *, always: bool = False) -> None:
        self.left, self.always = at, always

    def __call__(self) -> bool:
        self.left -= 1
        if self.left > 0 or (self.left < 0 and not self.always):
            return False
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return True


def never() -> bool:
    return False


async def run(steps: list[int], result: str = "done") -> str:
    for step in range(5):
        steps.append(step)
        await asyncio.sleep(1)
    return result


async def test_what_may_run_runs_as_if_it_were_not_guarded() -> None:
    steps: list[int] = []
    assert await guarded(run(steps), never) == "done"
    assert steps == [0, 1, 2, 3, 4]

    async def fails() -> None:
        async with asyncio.timeout(1):
            await asyncio.sleep(5)

    with pytest.raises(TimeoutError):
        await guarded(fails(), never)

    async def several() -> list[int]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(1, n)) for n in range(3)]
        return [task.result() for task in tasks]

    assert await guarded(several(), never) == [0, 1, 2]


@pytest.mark.parametrize(("at", "expected"), [(1, []), (2, [0]), (4, [0, 1, 2])])
async def test_no_step_begins_after_the_check_says_so(at: int, expected: list[int]) -> None:
    steps: list[int] = []
    task = asyncio.create_task(_awaiting(lambda: run(steps), Limit(at)))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == expected
    assert task.cancelled()


async def test_its_end_may_wait_unless_that_must_stop_too() -> None:
    ends: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(1)
        finally:
            ends.append("begins")
            await asyncio.sleep(1)
            ends.append("waited")

    for always, expected in ((False, ["begins", "waited"]), (True, ["begins"])):
        ends.clear()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(_awaiting(work, Limit(2, always=always)))
        assert ends == expected


async def test_a_cancellation_from_outside_arrives() -> None:
    steps: list[int] = []
    task = asyncio.create_task(_awaiting(lambda: run(steps), never))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == [0]


async def test_a_timeout_around_it_is_no_matter_of_the_check() -> None:
    steps: list[int] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.5):
            await guarded(run(steps), never)
    assert steps == [0, 1, 2]


async def _awaiting(work: Callable[[], object], check: Callable[[], bool]) -> object:
    return await guarded(work(), check)  # type: ignore[arg-type]
