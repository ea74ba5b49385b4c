"""Guarded coroutine: an author's coroutine of which no step begins before it was checked whether it still may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


@coroutine
def guarded(work: Coroutine[Any, Any, T], must_stop: Callable[[], bool]) -> Generator[Any, Any, T]:
    """What `work` returns. `must_stop` is called before each of its steps, that is after each of its waits: one that
    returns True has cancelled the task, and `asyncio.CancelledError` is raised where `work` waits, in place of the
    step.

    A process that stood still continues with steps that were due before; without this they would run.
    """
    error: BaseException | None = None
    value: Any = None
    try:
        while True:
            if must_stop() and not isinstance(error, asyncio.CancelledError):
                value, error = yield from _resumed(None)  # by the cancellation, which the loop delivers at once
            try:
                waits_for = work.send(value) if error is None else work.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            value, error = yield from _resumed(waits_for)
    finally:
        work.close()


def _resumed(waits_for: object) -> Generator[Any, Any, tuple[Any, BaseException | None]]:
    """With what the loop resumes the task that waits for this."""
    try:
        return (yield waits_for), None
    except GeneratorExit:
        raise
    except BaseException as error:
        return None, error
