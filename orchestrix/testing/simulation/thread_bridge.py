"""Thread bridge: runs a function that is not a coroutine on virtual time, in turns with the loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable, Coroutine
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from orchestrix.testing.simulation.virtual_time import UnsupportedOnVirtualTime
from orchestrix.worker.threads import CompletedAwaitable, is_async

T = TypeVar("T")


class _Outcome(NamedTuple):
    value: Any = None
    error: BaseException | None = None


class ThreadBridge:
    """Runs one function. In a thread of its own it blocks while the loop runs what it calls for, and while it runs, the
    loop blocks, and with it virtual time."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._requests: SimpleQueue[Callable[[], Coroutine[Any, Any, Any]] | _Outcome] = SimpleQueue()
        self._answers: SimpleQueue[_Outcome] = SimpleQueue()
        self._ended = False

    async def call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """The result of the function; raises what it raises. See `orchestrix.worker.threads.call`."""
        if is_async(function):
            return await function(*arguments)
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=self._run, args=(run, function, *arguments), daemon=True)
        self._thread.start()
        try:
            return await self._serve()
        finally:
            self._ended = True
            self._answers.put(_Outcome(error=asyncio.CancelledError("the story has ended")))

    def ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Runs something in the loop, called from the loop itself or from the function. Raises
        `UnsupportedOnVirtualTime` elsewhere.
        """
        if threading.current_thread() is not self._thread:
            if asyncio._get_running_loop() is None:
                raise UnsupportedOnVirtualTime("the job started a thread, which cannot run on virtual time")
            return work()
        if self._ended:
            raise asyncio.CancelledError("the story has ended")
        self._requests.put(work)
        value, error = self._answers.get()
        if error is not None:
            raise error
        return CompletedAwaitable(value)

    async def _serve(self) -> Any:
        while True:
            asked = self._requests.get()
            if isinstance(asked, _Outcome):
                if asked.error is not None:
                    raise asked.error
                return asked.value
            self._answers.put(await _outcome(asked))

    def _run(self, run: Callable[..., Any], function: Callable[..., Any], *arguments: object) -> None:
        try:
            outcome = _Outcome(run(function, *arguments))
        except BaseException as error:
            outcome = _Outcome(error=error)
        self._requests.put(outcome)


async def _outcome(work: Callable[[], Coroutine[Any, Any, Any]]) -> _Outcome:
    task = asyncio.current_task()
    try:
        return _Outcome(await work())
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        return _Outcome(error=error)
    except Exception as error:
        return _Outcome(error=error)
