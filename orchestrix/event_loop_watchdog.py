"""Event loop watchdog: logs which function blocks an event loop, once for each."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Final, Self

from orchestrix.clock import SystemSource

log = logging.getLogger("orchestrix.lifecycle")

_CLOCK: Final = SystemSource()
BLOCKED_AFTER_S: Final = 1.0
"""Seconds that one callback may run before the loop counts as blocked."""
CHECK_INTERVAL_S: Final = 0.25
_NOT_THE_AUTHORS: Final = sys.stdlib_module_names | {"orchestrix", "migrations"}
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
"""Folders of installed packages: an author's own code is rarely there."""
_ADVICE: Final = "await what takes long, or write a def, which runs in a thread"
_ADVICE_IF_YOURS: Final = f"if a function of yours calls this, {_ADVICE}; else the machine is overloaded"


class EventLoopWatchdog:
    """A thread that checks four times a second whether the loop has run since.

    It watches from `start` to `stop`, or to the end of its `with` block: `start` once the process is ready, because its
    own start blocks the loop too, as does the import of an author's modules, and nothing waits for it then. It measures
    by the machine's own clock: the watched code may have replaced every other.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._progress_at = _CLOCK.monotonic()
        self._thread_id = 0
        self._over = threading.Event()
        self._logged: set[CodeType] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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
        called = _called_by_the_loop(frame)
        if not called:
            return
        candidates, advice = _authors_frames(called)
        first, innermost = candidates[0], candidates[-1]
        if first.f_code in self._logged:  # by the first one: what it calls differs from one look to the next
            return
        self._logged.add(first.f_code)
        log.warning(
            "%s:%d (%s) blocked the event loop for %.1f s: %s",
            innermost.f_code.co_filename,
            innermost.f_lineno,
            innermost.f_code.co_qualname,
            stall_s,
            advice,
            extra={"stack": "".join(traceback.format_stack(frame, limit=30))},
        )


def _called_by_the_loop(frame: FrameType | None) -> list[FrameType]:
    """The frames of the callback that the loop runs, outermost first; none while the loop itself runs, or waits."""
    frames: list[FrameType] = []
    while frame is not None and not (_module(frame) == "asyncio" and frame.f_code.co_name == "_run"):
        frames.append(frame)
        frame = frame.f_back
    return [] if frame is None else frames[::-1]


def _authors_frames(called: list[FrameType]) -> tuple[list[FrameType], str]:
    """Those of the author's own files and the advice for the author. Without any: those of installed packages, or all,
    and an advice that leaves open whose fault it is.
    """
    others = [one for one in called if _module(one) not in _NOT_THE_AUTHORS]
    own = [one for one in others if _INSTALLED.isdisjoint(PurePath(one.f_code.co_filename).parts)]
    return (own, _ADVICE) if own else (others or called, _ADVICE_IF_YOURS)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
