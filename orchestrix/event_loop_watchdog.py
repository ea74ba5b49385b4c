"""Event loop watchdog: logs which function blocks an event loop, once for each."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from types import CodeType, FrameType
from typing import Final

from orchestrix.clock import SystemSource

log = logging.getLogger("orchestrix.lifecycle")

_CLOCK: Final = SystemSource()
BLOCKED_AFTER_S: Final = 1.0
"""Seconds that one callback may run before the loop counts as blocked."""
CHECK_INTERVAL_S: Final = 0.25
_LOOP: Final = ("asyncio", "contextvars")
OURS: Final = ("orchestrix", "migrations")


class EventLoopWatchdog:
    """A thread that checks four times a second whether the loop has run since.

    It measures by the machine's own clock: the watched code may have replaced every other.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._moved = _CLOCK.monotonic()
        self._thread_id = 0
        self._over = threading.Event()
        self._told: set[CodeType] = set()

    def start(self) -> None:
        """Begins with the loop's next iteration."""
        self._loop.call_soon(self._begin)

    def stop(self) -> None:
        """Ends; the thread may take a quarter of a second more."""
        self._over.set()

    def _begin(self) -> None:
        self._thread_id = threading.get_ident()
        self._beat()
        threading.Thread(target=self._watch, name="orchestrix-stalls", daemon=True).start()

    def _beat(self) -> None:
        self._moved = _CLOCK.monotonic()
        if not self._over.is_set():
            self._loop.call_later(CHECK_INTERVAL_S, self._beat)

    def _watch(self) -> None:
        while not self._over.wait(CHECK_INTERVAL_S):
            lag = _CLOCK.monotonic() - self._moved
            if (
                lag - CHECK_INTERVAL_S > BLOCKED_AFTER_S
                and (frame := sys._current_frames().get(self._thread_id)) is not None
            ):
                self._tell(lag, frame)

    def _tell(self, lag: float, frame: FrameType) -> None:
        guilty = _blocking_frame(frame)
        if guilty is None or guilty.f_code in self._told:
            return
        self._told.add(guilty.f_code)
        where = f"{guilty.f_globals.get('__name__', '?')}.{guilty.f_code.co_qualname}"
        stack = "".join(traceback.format_stack(frame, limit=30))
        log.warning(
            "%s blocked the event loop for %.1f s: await what takes long, or write a def, which runs in a thread",
            where,
            lag,
            extra={"stack": stack},
        )


def _blocking_frame(frame: FrameType | None) -> FrameType | None:
    """The outermost line of what the loop has called that is neither the library's nor the loop's; None while it only
    waits."""
    frames = []
    while frame is not None and not (_module(frame) == "asyncio" and frame.f_code.co_name == "_run"):
        frames.append(frame)
        frame = frame.f_back
    if frame is None or not frames:
        return None  # the loop itself runs, or waits
    others = [one for one in reversed(frames) if _module(one) not in (*_LOOP, *OURS)]
    return others[0] if others else frames[0]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
