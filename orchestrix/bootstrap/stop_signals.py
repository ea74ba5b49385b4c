"""Stop signals: SIGINT and SIGTERM stop a process cleanly, and a second one ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from orchestrix.lifecycle import ended
from orchestrix.telemetry import sinks
from orchestrix.telemetry.process_stop import ProcessStop

FLUSH_TIMEOUT_S: Final = 0.5
"""Seconds that a process that is cut off has to write its last output."""


class StopSignals:
    """Waits for a stop signal: SIGINT or SIGTERM; a second one ends the process at once, whatever it is doing.

    `last` is called before that, to log what is cut off; it has no time for more. `process_stop` notes
    both signals, and writes the last line. The event loop's own handlers would not do: they wait for a function that
    blocks the loop.
    """

    def __init__(self, last: Callable[[], None] = lambda: None, process_stop: ProcessStop | None = None) -> None:
        self.stop = asyncio.Event()
        self._last, self._process_stop = last, process_stop
        self._logged = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before or signal.SIG_DFL)

    def _received(self, number: int, _: object) -> None:
        if self._logged:
            for one in self._before:
                signal.signal(one, signal.SIG_DFL)  # an exception would wait for tasks and threads, which may hang
            for final in (self._last, partial(self._cut_off, number), partial(sinks.flush, FLUSH_TIMEOUT_S)):
                with contextlib.suppress(Exception):  # whatever it is, the process is to end
                    final()
            signal.raise_signal(number)
        self._logged = True
        if self._process_stop is not None:
            self._process_stop.begin(signal.Signals(number).name)
        self._loop.call_soon_threadsafe(self.stop.set)

    def _cut_off(self, number: int) -> None:
        if self._process_stop is not None:
            self._process_stop.cut_off(signal.Signals(number).name)


async def first_of(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Waits for the stop signal or for `task` to fail; raises what the task raised."""
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            await waiting
    finally:
        waiting.cancel()


async def given_up(beginning: asyncio.Task[None]) -> None:
    """Waits until it has ended. Its error was raised by `first_of`, or results from the cancellation."""
    with contextlib.suppress(Exception):
        await ended(beginning)
