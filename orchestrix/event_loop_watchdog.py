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
        self._progress_at = _CLOCK.monotonic()
        self._thread_id = 0
        self._over = threading.Event()
        self._logged: set[CodeType] = set()

    def start(self) -> None:
        """Begins with the loop's next iteration."""
        self._loop.call_soon(self._begin)

    def stop(self) -> None:
        """Ends; the thread may take a quarter of a second more."""
        self._over.set()

    def _begin(self) -> None:
        self._thread_id = threading.get_ident()
        self._note_progress()
        threading.Thread(target=self._watch, name="orchestrix-stalls", daemon=True).start()

    def _note_progress(self) -> None:
        self._progress_at = _CLOCK.monotonic()
        if not self._over.is_set():
            self._loop.call_later(CHECK_INTERVAL_S, self._note_progress)

    def _watch(self) -> None:
        while not self._over.wait(CHECK_INTERVAL_S):
            stall_s = _CLOCK.monotonic() - self._progress_at
            if (
                stall_s - CHECK_INTERVAL_S > BLOCKED_AFTER_S
                and (frame := sys._current_frames().get(self._thread_id)) is not None
            ):
                self._log_stall(stall_s, frame)

    def _log_stall(self, stall_s: float, frame: FrameType) -> None:
        blocking = _blocking_frame(frame)
        if blocking is None or blocking.f_code in self._logged:
            return
        self._logged.add(blocking.f_code)
        where = f"{blocking.f_globals.get('__name__', '?')}.{blocking.f_code.co_qualname}"
        stack = "".join(traceback.format_stack(frame, limit=30))
        log.warning(
            "%s blocked the event loop for %.1f s: await what takes long, or write a def, which runs in a thread",
            where,
            stall_s,
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
