"""Threads: runs an author's function in the event loop, or in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


_awaited: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Functions that do not look like an `async def`, and have returned an awaitable: a decorator may hide one."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether the function runs in the event loop, so that it can be cancelled."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return True
    try:
        return function in _awaited
    except TypeError:  # it is not hashable or weakly referenceable
        return False


Scope = Callable[[], contextlib.AbstractAsyncContextManager[object]]


async def call(function: Callable[..., Any], *arguments: object, scope: Scope = contextlib.nullcontext) -> Any:
    """The answer of `function`: an `async def` runs in the loop, any other in a thread. Raises what it raises.

    Whether a decorated function must be awaited cannot be known in advance: its result is awaited if it can be. All
    awaiting here is done within `scope()`, which can cancel it.
    """
    if is_async(function):
        async with scope():
            answer = function(*arguments)
            return await answer if inspect.isawaitable(answer) else answer
    answer = await in_thread(function, *arguments)
    if not inspect.isawaitable(answer):
        return answer
    with contextlib.suppress(TypeError):
        _awaited.add(function)
    async with scope():
        return await answer


async def in_thread(function: Callable[..., Any], *arguments: object) -> Any:
    """The answer of `function`, run in a thread of its own; raises what it raises.

    The thread cannot be cancelled, and it does not keep the process alive, as a pool's threads would.
    """
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    answer: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def deliver(value: tuple[Any, BaseException | None]) -> None:
        if not answer.done():
            answer.set_result(value)

    def run() -> None:
        value: tuple[Any, BaseException | None]
        try:
            value = context.run(function, *arguments), None
        except BaseException as error:
            value = None, error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: no one awaits the result
            loop.call_soon_threadsafe(deliver, value)

    threading.Thread(target=run, name="orchestrix-handler", daemon=True).start()
    result, error = await answer
    if error is not None:
        raise error
    return result


class CompletedAwaitable(Generic[T]):
    """A result that is there already: `await` returns it at once, and its truth value is the result's."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, T]:
        yield from ()
        return self.value

    def __bool__(self) -> bool:
        return bool(self.value)


def ask(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
    """The result of `work` in `loop`: to be awaited there; any other thread blocks here until it is there.

    Raises what `work` raises, and `asyncio.CancelledError` if the loop has ended.
    """
    if asyncio._get_running_loop() is loop:
        return work()
    if loop.is_closed():
        raise asyncio.CancelledError("the worker has ended")
    try:
        return CompletedAwaitable(asyncio.run_coroutine_threadsafe(work(), loop).result())
    except concurrent.futures.CancelledError:
        raise asyncio.CancelledError("the worker has stopped") from None
