"""Threads: runs blocking functions outside the event loop, in threads that do not keep the process alive."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def in_thread(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `function` returns or raises. Nothing can cancel it; a pool's threads would be waited for at the end."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: T | None = None
        failed: BaseException | None = None
        try:
            value = function(*arguments, **named)
        except BaseException as error:
            failed = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile: no one awaits the result
            loop.call_soon_threadsafe(deliver, value, failed)

    threading.Thread(target=run, name="git", daemon=True).start()
    return await answer
