"""Job scenario: tests one attempt of a job by its input, requests to stop, and expectations.

    story = given_job(reindex, payload={"pages": 3})
    story.cancel(after="page 2")
    story.run()
    story.expect(status="CANCELLED", logs=["page 1", "page 2"])

The worker's own code runs it, on virtual time, without a broker: it behaves here as in production.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypedDict, Unpack

from orchestrix import clock
from orchestrix.domain.jobs import TIMED_OUT, TIMEOUT
from orchestrix.errors import ConfigError
from orchestrix.saga.messages import dump, load
from orchestrix.saga.validation.arguments import brief
from orchestrix.saga.validation.signatures import called_as
from orchestrix.testing import open_scenarios
from orchestrix.testing.arguments import (
    COUNT,
    NAME,
    OBJECT,
    PERCENT,
    REASON,
    SECTIONS,
    TEXT,
    WHOLE,
    demand,
    perhaps,
    plain,
)
from orchestrix.testing.author_settings import Given, check_sections, settings_of
from orchestrix.testing.durations import Between, Span, seconds_of
from orchestrix.testing.environment import StoryError
from orchestrix.testing.expectations import SEVERAL, differ, differ_in_time
from orchestrix.testing.simulation.rng import SeededRng
from orchestrix.testing.simulation.thread_bridge import ThreadBridge
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop
from orchestrix.worker.jobs.context import JobContext
from orchestrix.worker.jobs.dispatch import JobDispatch
from orchestrix.worker.jobs.execution import JobExecution
from orchestrix.worker.jobs.functions import Function, JobFunction, registered_jobs
from orchestrix.worker.jobs.outcome import AttemptOutcome
from orchestrix.worker.jobs.stop_signal import StopCause, StopSignal

StopCall = Callable[[StopSignal], None]


class JobExpected(TypedDict, total=False):
    """What can be expected.

    `status`: SUCCEEDED, FAILED, CANCELLED or TIMED_OUT. `error`: part of its type and text; `retryable`: whether
    another attempt may help. `progress`: the last one. `logs`: all lines. `elapsed`: a time, or `between(...)`.
    """

    status: str
    result: Mapping[str, Any] | None
    error: str
    retryable: bool | None
    progress: Mapping[str, Any] | None
    logs: Sequence[str]
    elapsed: Span | Between


@dataclass(frozen=True, slots=True)
class JobLine:
    """A line of the job's log, so many seconds after its start."""

    at: float
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class _StopRequest:
    """A request to stop the job: at a time, or when it has logged or reported something."""

    stop: StopCall
    at: float | None = None
    after: str | None = None
    percent: float | None = None


class _JobRecorder(logging.Handler):
    """What the job has reported so far (see `context.JobReporter`), and what the worker has logged about it.

    `on_log` is called with the requests to stop that a report has made due.
    """

    def __init__(self, now: Callable[[], float], on_log: Callable[[Callable[[_StopRequest], bool]], None]) -> None:
        super().__init__(logging.WARNING)
        self._now, self._on_log = now, on_log
        self.lines: list[JobLine] = []
        self.records: list[Mapping[str, Any]] = []
        self.table: list[tuple[float, str, str]] = []

    async def log(self, level: str, message: str) -> None:
        self.lines.append(JobLine(self._now(), level, message))
        self.note(level, message)
        self._on_log(lambda call: call.after is not None and call.after in message)

    async def progress(self, value: Mapping[str, Any]) -> None:
        self.records.append(value)
        self.note("progress", str(value))
        percent = value.get("percent")
        if isinstance(percent, int | float):
            self._on_log(lambda call: call.percent is not None and percent >= call.percent)

    def emit(self, record: logging.LogRecord) -> None:
        """Records a warning of the worker, with its cause."""
        error = record.exc_info[1] if record.exc_info else None
        self.note("worker", record.getMessage() + (f": {error!r}" if error is not None else ""))

    def note(self, what: str, text: str) -> None:
        """Adds an entry to the trace."""
        self.table.append((self._now(), what, text))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Records what the product logs."""
        log = logging.getLogger("orchestrix")
        log.addHandler(self)
        try:
            yield
        finally:
            log.removeHandler(self)


@called_as('given_job(reindex, payload={"pages": 3}, timeout="5m")', ConfigError)
def given_job(
    job: Function,
    *,
    payload: Mapping[str, Any] | None = None,
    attempt: int = 1,
    timeout: Span | None = None,
    settings: Given | None = None,
    key: str = "story",
    seed: int = 0,
) -> JobStory:
    """A scenario of one attempt of a job. `job` is a function with `@job`; `key` its job id, the same over all
    attempts.

    `settings` are those of its module, by section and name. `seed` is the seed of all random decisions. Raises
    `ConfigError` for a function without `@job`, and for settings that its module rejects.
    """
    known = [one for one in registered_jobs if one.function is job]
    if not known:
        name = getattr(job, "__qualname__", brief(job))
        raise ConfigError(f'{name} is not a job: write @job("…") above it')
    demand(
        "given_job", payload=(payload, perhaps(OBJECT)), attempt=(attempt, COUNT), key=(key, NAME), seed=(seed, WHOLE)
    )
    demand("given_job", settings=(settings, perhaps(SECTIONS)))
    check_sections([job], settings)
    plain("given_job", payload=payload)
    milliseconds = None if timeout is None else max(1, round(seconds_of(timeout) * 1000))
    order = JobDispatch(
        job_id=key,
        history_id=f"{key}-{attempt}",
        handler=known[0].name,
        payload=load(dump(dict(payload or {}))),
        attempt=attempt,
        timeout_ms=milliseconds,
        correlation_id=f"story-{key}",
        status="status",
        logs="logs",
    )
    return JobStory(replace(known[0], settings=settings_of(job, settings)), order, seed)


class JobStory:
    """One attempt of a job: add requests to stop, `run` it, `expect` its outcome. Virtual minutes take no time."""

    def __init__(self, function: JobFunction, order: JobDispatch, seed: int) -> None:
        self._function, self._order, self._seed = function, order, seed
        self._calls: list[_StopRequest] = []
        self._recorded: _JobRecorder | None = None
        self._ending: AttemptOutcome | None = None
        self._status = ""
        self._elapsed = 0.0
        open_scenarios.add(self)

    def cancel(
        self,
        reason: str = "requested by the story",
        *,
        at: Span | None = None,
        after: str | None = None,
        percent: float | None = None,
    ) -> JobStory:
        """Cancels the job: `at` a time after its start, `after` it has logged a line that contains this text, or when
        its progress has reached `percent`. Raises `ConfigError` unless one of them is given."""
        demand("cancel", reason=(reason, REASON))
        return self._stop(
            "cancel", lambda stop_signal: stop_signal.set(StopCause.CANCELLED, reason), at, after, percent
        )

    def worker_stops(
        self, *, at: Span | None = None, after: str | None = None, percent: float | None = None
    ) -> JobStory:
        """Stops the worker after its usual wait for the job; the point is given as in `cancel`."""

        def stop(stop_signal: StopSignal) -> None:
            stop_signal.set(StopCause.WORKER_STOPPED, "the worker stopped before the job ended")
            stop_signal.set_urgent()

        return self._stop("worker_stops", stop, at, after, percent)

    def run(self, *, limit: Span = "1h") -> JobStory:
        """Runs the attempt to its end. Raises `StoryError` if it does not end within `limit`."""
        if asyncio._get_running_loop() is not None:
            raise StoryError("a story has its own event loop: run it in a plain function, not in an `async def`")
        loop = VirtualLoop()
        with clock.use(VirtualClock(loop, SeededRng(f"{self._seed}:job"))):
            try:
                loop.run_until_complete(self._run(loop, seconds_of(limit)))
            finally:
                loop.discard()
                loop.close()
        return self

    def expect(self, **expected: Unpack[JobExpected]) -> None:
        """Raises `AssertionError`, with all that happened, if the attempt ended otherwise."""
        __tracebackhide__ = True
        wrong = list(self._differences(expected))
        if wrong:
            raise AssertionError("\n".join([*wrong, "", self.table()]))

    @property
    def ending(self) -> AttemptOutcome:
        """The attempt's final status, result and error. Raises `StoryError` before `run`."""
        if self._ending is None:
            raise StoryError("the story has not run yet: call run() first")
        return self._ending

    @property
    def logs(self) -> list[JobLine]:
        """Its log."""
        return list(self._recorded.lines) if self._recorded is not None else []

    @property
    def progress(self) -> list[Mapping[str, Any]]:
        """Each progress that it reported."""
        return list(self._recorded.records) if self._recorded is not None else []

    def table(self) -> str:
        """All that happened, by time."""
        rows = self._recorded.table if self._recorded is not None else []
        lines = [f"{at:10.3f}  {what:<8}  {text}" for at, what, text in rows]
        return "\n".join([f"{'seconds':>10}  what", *lines])

    # Execution.

    def _stop(self, call: str, stop: StopCall, at: Span | None, after: str | None, percent: float | None) -> JobStory:
        if sum(one is not None for one in (at, after, percent)) != 1:
            raise ConfigError("give one of at= (a time), after= (a line of its log) or percent= (of its progress)")
        demand(call, after=(after, perhaps(TEXT)), percent=(percent, perhaps(PERCENT)))
        self._calls.append(_StopRequest(stop, None if at is None else seconds_of(at), after, percent))
        return self

    async def _run(self, loop: VirtualLoop, limit: float) -> None:
        stop_signal, thread_bridge, began = StopSignal(), ThreadBridge(), loop.time()

        def on_log(fits: Callable[[_StopRequest], bool]) -> None:
            for call in self._calls:
                if fits(call):
                    call.stop(stop_signal)

        self._recorded = heard = _JobRecorder(lambda: loop.time() - began, on_log)
        context = JobContext(
            self._order, self._function.queue, heard, stop_signal, thread_bridge.ask, self._function.settings
        )
        for call in self._calls:
            if call.at is not None:
                loop.call_later(call.at, call.stop, stop_signal)
        over = self._times_out(loop, stop_signal)
        performance = JobExecution(self._function, context, stop_signal, self._order.log_fields, thread_bridge.call)
        try:
            with heard.listening():
                async with asyncio.timeout(limit):
                    ending = await performance.run()
        except TimeoutError:
            raise StoryError(f"the job did not end within {limit:g} s\n\n{self.table()}") from None
        finally:
            stop_signal.over, self._elapsed = True, loop.time() - began
        self._ending, self._status = ending, TIMED_OUT if over() or _is_timeout(ending) else ending.status
        heard.note("ends", f"{self._status} {_error(ending)}".rstrip())

    def _times_out(self, loop: VirtualLoop, stop_signal: StopSignal) -> Callable[[], bool]:
        """Simulates the coordinator's time-out; the result says whether it came first."""
        expired: list[bool] = []

        def expire() -> None:
            if stop_signal.cause is None:
                expired.append(True)
                stop_signal.set(StopCause.CANCELLED, "timed out")

        if self._order.timeout is not None:
            loop.call_later(self._order.timeout, expire)
        return lambda: bool(expired)

    def _differences(self, expected: JobExpected) -> Iterator[str]:
        ending = self.ending
        error = ending.error
        found: dict[str, Any] = {
            "status": self._status,
            "result": ending.result,
            "retryable": None if error is None else error.retryable,
            "progress": self.progress[-1] if self.progress else None,
            "logs": [line.message for line in self.logs],
        }
        for name, wanted in expected.items():
            if name == "error":
                yield from [] if str(wanted) in _error(ending) else [f"error: {wanted!r} is not in {_error(ending)!r}"]
            elif name == "elapsed":
                yield from differ_in_time(self._elapsed, wanted)
            elif name in found:
                if name == "logs":
                    demand("expect", logs=(wanted, SEVERAL))
                yield from differ(name, found[name], wanted)
            else:
                raise TypeError(f"{name!r} cannot be expected: known are {', '.join(JobExpected.__annotations__)}")


def _is_timeout(ending: AttemptOutcome) -> bool:
    """Whether the outcome is a time-out, whichever side detected it."""
    return ending.status == "FAILED" and ending.error is not None and ending.error.type == TIMEOUT


def _error(ending: AttemptOutcome | None) -> str:
    error = ending.error if ending is not None else None
    return f"{error.type}: {error.message}" if error is not None else ""
