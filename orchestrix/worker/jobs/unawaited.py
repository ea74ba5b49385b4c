"""Unawaited calls: report a call of the job context whose result was used without `await`."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Coroutine, Generator
from types import FrameType
from typing import Any, TypeVar

from orchestrix.worker.context import LOGGER
from orchestrix.worker.errors import BadCall
from orchestrix.worker.function_checks import is_ours

T_co = TypeVar("T_co", covariant=True)


class UnawaitedCall(Coroutine[Any, Any, T_co]):
    """A coroutine that raises or warns, with the place, where it is used as its result or never awaited."""

    def __init__(self, work: Coroutine[Any, Any, T_co], call: str) -> None:
        self._work, self._call, self._begun = work, call, False
        self._place = _place()

    def __await__(self) -> Generator[Any, Any, T_co]:
        self._begun = True
        return self._work.__await__()

    def send(self, value: Any, /) -> Any:
        self._begun = True
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        self._begun = True
        return self._work.throw(*error)

    def close(self) -> None:
        self._begun = True
        self._work.close()

    def __bool__(self) -> bool:
        self.close()
        raise BadCall(f"{self._call}(…) has no answer before it is awaited: write await {self._call}(…)")

    def __del__(self) -> None:
        if not self._begun:
            self._work.close()
            told = self._call, self._call, self._place
            LOGGER.error("%s(…) was not awaited, and did nothing: write await %s(…) (%s)", *told)


def pending(asked: Awaitable[T_co], call: str) -> Awaitable[T_co]:
    """`asked` itself, if its result is there already, as in a thread."""
    return UnawaitedCall(asked, call) if isinstance(asked, Coroutine) else asked


def _place() -> str:
    """The author's own line."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"
