"""How does an author's function run: in the event loop, or beside it in a thread?"""

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
"""What does not look like an `async def`, and has returned something to be awaited: a decorator may hide one."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether the function runs in the event loop, so that it can be cancelled."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
        return True
    try:
        return function in _awaited
    except TypeError:  # nothing can be remembered of it
        return False


Scope = Callable[[], contextlib.AbstractAsyncContextManager[object]]


async def call(function: Callable[..., Any], *arguments: object, scope: Scope = contextlib.nullcontext) -> Any:
    """The answer of `function`: an `async def` runs in the loop, any other in a thread. Raises what it raises.

    Nobody can see of a decorated function whether it is to be awaited: that is done if it returns what can be. Whatever
    is awaited here is so within `scope()`, which can cancel it.
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

    The thread cannot be cancelled, and it does not keep the process from ending: a pool's threads would.
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
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: nobody waits
            loop.call_soon_threadsafe(deliver, value)

    threading.Thread(target=run, name="orchestrix-handler", daemon=True).start()
    result, error = await answer
    if error is not None:
        raise error
    return result


class CompletedAwaitable(Generic[T]):
    """An answer that is there already: `await` returns it at once, and it is as true as the answer."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, Any, T]:
        yield from ()
        return self.value

    def __bool__(self) -> bool:
        return bool(self.value)


def ask(loop: asyncio.AbstractEventLoop, work: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
    """What `work` answers in `loop`: to be awaited there; any other thread waits for it here.

    Raises what `work` raises, and `asyncio.CancelledError` if the loop has ended.
    """
    if asyncio._get_running_loop() is loop:
        return work()
    if loop.is_closed():
        raise asyncio.CancelledError("the worker has ended")
    try:
        return CompletedAwaitable(asyncio.run_coroutine_threadsafe(work(), loop).result())
    except concurrent.futures.CancelledError:
        raise asyncio.CancelledError("the worker does not listen any more") from None
