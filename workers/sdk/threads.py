"""How does a handler that is no coroutine run beside the event loop?"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any


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
