"""Job context: what a job knows about its attempt, and how it reports logs and progress."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeVar

from orchestrix import clock
from orchestrix.persistence.storable_text import cleaned
from orchestrix.saga.validation.arguments import SECONDS, TEN_YEARS, ArgumentKind, brief, called
from orchestrix.saga.validation.signatures import called_as
from orchestrix.telemetry import log_events, tracing
from orchestrix.worker.context import LOGGER
from orchestrix.worker.errors import BadCall, demand, no_such, text_of
from orchestrix.worker.function_checks import is_ours
from orchestrix.worker.jobs.stop_signal import JobCancelled, StopSignal
from orchestrix.worker.output_validation import carried

from .dispatch import JobDispatch, effect_key_in

T = TypeVar("T")

LEVELS: Final = ("debug", "info", "warning", "error")
MAX_LOG: Final = 8000
"""Characters of a log message; the rest is cut."""
MAX_PROGRESS: Final = 4096
"""Bytes of a progress report in JSON."""
_WAIT: Final = ArgumentKind(
    lambda value: value is None or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0),
    "a number of seconds, 0 or more, or None",
    SECONDS.example,
)
T_co = TypeVar("T_co", covariant=True)


class JobReporter(Protocol):
    """Takes a job's logs and progress."""

    async def log(self, level: str, message: str) -> None:
        """Queues a log line; waits while there is no room for it."""

    async def progress(self, value: Mapping[str, Any]) -> None:
        """Queues a progress report."""


class LoopCaller(Protocol):
    """Runs something in the worker's event loop, called from the loop itself, or from a thread, which blocks."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]], /) -> Awaitable[T]:
        """The result, to be awaited in the loop; there already in a thread."""


class UnawaitedCall(Coroutine[Any, Any, T_co]):
    """A coroutine that raises or warns, with the place, where it is used as its result or never awaited."""

    def __init__(self, work: Coroutine[Any, Any, T_co], call: str) -> None:
        self._work, self._call, self._begun = work, call, False
        self._caller_line = _caller_line()

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
            values = self._call, self._call, self._caller_line
            LOGGER.error(
                "%s(…) was not awaited, and did nothing: write await %s(…) (%s)",
                *values,
                extra={"event": log_events.CALL_NOT_AWAITED},
            )


def pending(asked: Awaitable[T_co], call: str) -> Awaitable[T_co]:
    """`asked` itself, if its result is there already, as in a thread."""
    return UnawaitedCall(asked, call) if isinstance(asked, Coroutine) else asked


def _caller_line() -> str:
    """The author's own line."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"


class JobContext:
    """One attempt of a job. In a job's thread `log`, `progress` and `wait_cancelled` are called without `await`.

    `job_id` is the same over every attempt: key effects by it. `payload` is what the job was submitted with. A job that
    is a saga's step has `effect_key` too, shared with its compensation: key its effects by that. `settings` is what the
    function's module has declared as its `SETTINGS`. `queue` is where it came from: a job queue, or an executor group.
    Of a job that runs on every executor of a group `shard_index` is the number of this one, from 0 on, and
    `shard_total` how many there are; of every other job they are None.
    """

    effect_key: str

    def __init__(
        self,
        dispatch: JobDispatch,
        queue: str,
        reporter: JobReporter,
        stop_signal: StopSignal,
        ask: LoopCaller,
        settings: Any = None,
    ) -> None:
        self.job_id = dispatch.job_id
        self.history_id = dispatch.history_id
        self.name = dispatch.handler
        self.queue = queue
        self.payload: Any = dispatch.payload
        self.attempt = dispatch.attempt
        self.correlation_id = dispatch.correlation_id
        self.timeout = dispatch.timeout
        self.shard_index, self.shard_total = dispatch.shard_index, dispatch.shard_total
        self.settings = settings
        self._ends = math.inf if dispatch.timeout is None else clock.monotonic() + dispatch.timeout
        self._reporter, self._stop_signal, self._ask = reporter, stop_signal, ask
        if (key := effect_key_in(dispatch.payload)) is not None:
            self.effect_key = key
        self._given = frozenset(self.__dict__)

    @property
    def remaining(self) -> float:
        """The seconds that the attempt has left, never below 0; infinite without a time-out."""
        return max(0.0, self._ends - clock.monotonic())

    @property
    def span(self) -> Any:
        """The current span object of OpenTelemetry, that of the attempt unless the job has begun one of its own: for
        attributes and events of one's own. One that keeps nothing where no span is made."""
        return tracing.otel_span()

    @called_as('await context.log("page 3", level="info")', BadCall, "context.log")
    def log(self, message: object, level: str = "info") -> Awaitable[None]:
        """Writes a line into the job's log, which is kept in order; waits while too many are unconfirmed.

        A text of more than 8,000 characters is cut. Raises `BadCall` for a level other than debug, info, warning and
        error, `JobCancelled` once the attempt has ended.
        """
        if level not in LEVELS:
            raise BadCall(f"context.log(level={brief(level)}): unknown level; write {', '.join(LEVELS)}")
        text = _truncated(cleaned(text_of(message)))
        return pending(self._send(lambda: self._reporter.log(level, text)), "context.log")

    @called_as("await context.progress(50)", BadCall, "context.progress")
    def progress(self, done: float | Mapping[str, Any]) -> Awaitable[None]:
        """Reports how far the job is: a percentage, or a JSON object of at most 4 KiB. Only the last report counts.

        Raises `BadCall` for what is neither, `JobCancelled` once the attempt has ended.
        """
        value = _progress(done)
        return pending(self._send(lambda: self._reporter.progress(value)), "context.progress")

    @property
    def cancelled(self) -> bool:
        """Whether the job is to stop: it was cancelled, it timed out, or the worker stops.

        A job that has seen this to be true and then returns counts as stopped, not as done.
        """
        if self._stop_signal.cause is None and not self._stop_signal.over:
            return False
        self._stop_signal.noticed = True
        return True

    @property
    def cancel_reason(self) -> str | None:
        """Why it is to stop; None while it is not."""
        return self._end_reason if self.cancelled else None

    def raise_if_cancelled(self) -> None:
        """Raises `JobCancelled` if the job is to stop."""
        if (reason := self.cancel_reason) is not None:
            raise JobCancelled(reason)

    @called_as("await context.wait_cancelled(timeout=5)", BadCall, "context.wait_cancelled")
    def wait_cancelled(self, timeout: float | None = None) -> Awaitable[bool]:
        """Waits until the job is to stop, at most `timeout` seconds; the answer is `cancelled`.

        Raises `BadCall` for what is no time; infinity means None.
        """
        demand("context.wait_cancelled", timeout=(timeout, _WAIT))
        longest = None if timeout is None else min(timeout, TEN_YEARS)

        async def wait() -> bool:
            try:
                async with asyncio.timeout(longest):
                    await self._stop_signal.wait()
            except TimeoutError:
                pass
            return self.cancelled

        return pending(self._ask(wait), "context.wait_cancelled")

    if not TYPE_CHECKING:  # it would hide from type checkers what is misspelt

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such("a job", self, name)

        def __setattr__(self, name: str, value: object) -> None:
            if name in self.__dict__.get("_given", ()) or hasattr(type(self), name):
                raise BadCall(f"context.{name} cannot be set{_call_of(name)}")
            super().__setattr__(name, value)

    def _send(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Awaitable[None]:
        if self._stop_signal.over:
            raise JobCancelled(self._end_reason)
        try:
            return self._ask(work)
        except asyncio.CancelledError:  # a thread waited for room until the attempt had ended
            raise JobCancelled(self._end_reason) from None

    @property
    def _end_reason(self) -> str:
        return self._stop_signal.reason or "the job has ended"


def _call_of(name: str) -> str:
    """The call to write instead, where one was meant."""
    return f": write await context.{name}(…)" if name in ("log", "progress") else ""


def _truncated(text: str) -> str:
    return text if len(text) <= MAX_LOG else f"{text[:MAX_LOG]}… ({len(text) - MAX_LOG} more characters)"


def _progress(done: float | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(done, Mapping):
        try:
            return carried(done, MAX_PROGRESS)
        except ValueError as refused:
            raise BadCall(f"progress cannot be sent: {refused}") from refused
    if isinstance(done, bool) or not isinstance(done, int | float):
        raise BadCall(f"progress is a percentage or a mapping, not {called(done)}: write await context.progress(50)")
    if not 0 <= done <= 100:
        raise BadCall(f"progress is a percentage from 0 to 100, not {brief(done)}: write await context.progress(50)")
    return {"percent": done}


def _no_logger(level: str) -> Callable[..., NoReturn]:
    """Raises `BadCall` where a job's `log` is used like a step's, which is a logger."""

    def refuse(*_args: object, **_named: object) -> NoReturn:
        raise BadCall(f'context.log.{level}(…) is for steps: a job writes await context.log("…", level="{level}")')

    return refuse


for _level in LEVELS:
    setattr(JobContext.log, _level, _no_logger(_level))
