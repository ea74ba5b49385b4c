"""Does waiting end as soon as the answer is there, and say what was missing when it is not?"""

from __future__ import annotations

import asyncio

import pytest

from tests.support import eventually, eventually_sync, holds


async def test_the_first_true_answer_is_returned() -> None:
    answers = iter([0, "", None, "ready"])
    assert await eventually(lambda: next(answers), deadline=5, every=0) == "ready"


async def test_a_coroutine_function_is_awaited() -> None:
    async def condition() -> int:
        return 7

    assert await eventually(condition, deadline=5) == 7


async def test_a_failed_assertion_means_not_yet() -> None:
    rounds = iter(range(3))

    def condition() -> bool:
        assert next(rounds) == 2
        return True

    assert await eventually(condition, deadline=5, every=0)


async def test_the_deadline_names_the_condition_and_the_last_answer() -> None:
    with pytest.raises(AssertionError, match=r"rows are there: not within 0\.01 s; last answer: \[\]"):
        await eventually(list, deadline=0.01, every=0.001, message="rows are there")


async def test_a_condition_that_hangs_does_not_outlive_the_deadline() -> None:
    with pytest.raises(AssertionError, match="not within"):
        await eventually(asyncio.Event().wait, deadline=0.01)


async def test_other_errors_are_not_hidden() -> None:
    def condition() -> bool:
        raise LookupError("broken test")

    with pytest.raises(LookupError):
        await eventually(condition, deadline=5)


async def test_what_must_not_happen_is_watched_to_the_end() -> None:
    asked = 0

    def condition() -> bool:
        nonlocal asked
        asked += 1
        return asked < 1000

    await holds(condition, during=0.02, every=0.001)
    assert 2 <= asked < 1000
    with pytest.raises(AssertionError, match="quiet: no longer true"):
        await holds(lambda: False, during=5, message="quiet")


def test_without_a_loop_it_does_the_same() -> None:
    answers = iter([0, 3])
    assert eventually_sync(lambda: next(answers), deadline=5, every=0) == 3
    with pytest.raises(AssertionError, match="never: not within"):
        eventually_sync(lambda: False, deadline=0.01, every=0.001, message="never")
