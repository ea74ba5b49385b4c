"""Lifecycle: how the parts of a process start, stop and report their health."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from orchestrix import clock, fork_safety
from orchestrix.errors import RetryableError, StaleTermError
from orchestrix.quantities import counted

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("orchestrix.lifecycle")

RECANCEL_INTERVAL_S: Final = 3.0
"""Seconds after which a task that was cancelled and still runs is cancelled again."""
ABANDON_AFTER_S: Final = 60.0
"""Seconds after which it is abandoned: longer than any wait for a database or a broker that hangs."""
CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds to close connections and their readers, where nothing has to be handed off."""
YOUNG_OBJECTS: Final = 5_000
"""New containers, a megabyte or so, after which the garbage collector looks for cycles among them; 700 by default."""
EXIT_GRACE_S: Final = 3.0
"""Seconds that abandoned work has to end before its process exits."""
_left: set[object] = set()
"""Abandoned work that may still run: no other reference to it exists."""


def backoff(failures: int, first: float = 0.1, max_s: float = 5.0) -> float:
    """Seconds to wait after that many failures in a row: `first`, doubled up to `max_s`, with jitter."""
    return clock.uniform(first / 2, min(max_s, first * 2 ** min(failures, 6)))


def settle_memory() -> None:
    """Freezes the garbage collector for the objects of the start, which live as long as the process.

    Otherwise it scans all modules, routes and schemas now and then, which pauses the process for 80 ms each time. What
    is made later it scans less often than by default: nearly all of that is freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])


class Service(Protocol):
    """A part that runs from `start` to `stop`. `stop` may be called at any time, also twice or after a failed start."""

    async def start(self) -> None:
        """Begins; returns when the part can do its work or does so in the background."""

    async def stop(self) -> None:
        """Stops; returns when nothing of it runs any more."""


class Services:
    """Parts that start in order and stop in the reverse order."""

    def __init__(self, parts: Sequence[Service]) -> None:
        self._parts = list(parts)
        self._started: list[Service] = []

    async def start(self) -> None:
        """Starts all; if one fails, those already started are stopped and the error is raised."""
        try:
            for part in self._parts:
                self._started.append(part)
                await part.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stops all; an error in one does not keep the others running."""
        while self._started:
            part = self._started.pop()
            try:
                await part.stop()
            except Exception:
                log.exception("stopping %s failed", type(part).__name__)


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancels what still runs, and waits until it has ended; raises what one of them has failed with.

    It cancels again now and then: a driver that is closing a connection may swallow the first cancellation. What does
    not end within a minute is logged and abandoned.
    """
    until = clock.monotonic() + ABANDON_AFTER_S
    while running := [task for task in tasks if not task.done()]:
        if clock.monotonic() >= until:
            log.error("tasks did not stop within %g s; abandoned: %s", ABANDON_AFTER_S, _names(running))
            abandon(*running)
            break
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=RECANCEL_INTERVAL_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


def abandon(*tasks: asyncio.Future[Any]) -> None:
    """Continues without them: they are kept until they have ended, and their errors are ignored."""
    for task in tasks:
        _left.add(task)
        task.add_done_callback(_forgotten)


async def shielded(work: Awaitable[T]) -> T:
    """What `work` returns. It continues if the caller is cancelled, and its errors are ignored then."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        abandon(task)
        raise


def _forgotten(task: asyncio.Future[Any]) -> None:
    _left.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.debug("abandoned work failed", exc_info=error)


async def stop_stage(doing: str, work: Awaitable[None], timeout_s: float) -> None:
    """A stage of a shutdown: neither an error nor a hang in it keeps the next stages from running. Both are logged;
    what has not ended `timeout_s` so many seconds is cancelled and abandoned.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        task.cancel()
        abandon(task)
        raise
    if not task.done():
        log.error("%s did not finish within %g s; abandoned", doing, timeout_s)
        task.cancel()
        abandon(task)
    elif not task.cancelled() and (error := task.exception()) is not None:
        if not isinstance(error, Exception):
            raise error
        log.error("%s failed", doing, exc_info=error)


def run_to_the_end(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run`, but it does not wait for tasks that outlive `main` and ignore their cancellation, as a user's
    function may.
    """
    runner = asyncio.Runner()
    runner.get_loop().set_default_executor(DaemonThreadPool())
    fork_safety.set_process_loop(runner.get_loop())
    try:
        runner.run(main)
    finally:
        fork_safety.set_process_loop(None)
        if runner.run(_all_ended()):
            runner.close()
        else:
            _left.add(runner)  # closing its loop would wait


async def _all_ended() -> bool:
    """Cancels whatever still runs; whether all of it ended in time."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    if rest:
        await asyncio.wait(rest, timeout=EXIT_GRACE_S)
    stubborn = [task for task in rest if not task.done()]
    if stubborn:
        log.error("tasks did not stop in time; abandoned until process exit: %s", _names(stubborn))
    return not stubborn


def _names(tasks: Collection[asyncio.Future[Any]]) -> str:
    return ", ".join(sorted(task.get_name() if isinstance(task, asyncio.Task) else repr(task) for task in tasks))


class DaemonThreadPool(ThreadPoolExecutor):
    """The threads of a loop (`asyncio.to_thread`): at most `limit` at once, as in a pool, but they do not keep the
    process alive. A subclass of the pool because a loop accepts nothing else.
    """

    def __init__(self, limit: int = min(32, (os.cpu_count() or 1) + 4)) -> None:
        super().__init__()
        self._limit, self._running = limit, 0
        self._calls: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls it as soon as a thread is free."""
        answer: Future[T] = Future()
        with self._changed:
            if self._running < self._limit:
                threading.Thread(target=self._work, name="orchestrix-beside", daemon=True).start()
                self._running += 1
            self._calls.append(lambda: _answer(answer, lambda: fn(*args, **kwargs)))
        return answer

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Waits for `EXIT_GRACE_S` seconds; what still runs then is logged, and ends with the process."""
        with self._changed:
            if wait and not self._changed.wait_for(lambda: not self._running, EXIT_GRACE_S):
                log.error("%s did not stop in time; abandoned until process exit", counted(self._running, "thread"))

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._calls:
                    self._running -= 1
                    self._changed.notify_all()
                    return
                call = self._calls.popleft()
            call()


def _answer(future: Future[T], call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)


class Loop:
    """One background task that runs `work` over and over until stopped.

    `work` is one round and does its own waiting. A round that fails is logged, then tried again after 0.1 s, doubled up
    to 5 s, with jitter: `RetryableError`, and `StaleTermError` of a leader's duty, in one line, once per outage;
    anything else with its stack trace, as a bug.
    """

    def __init__(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            await ended(task)

    async def _run(self) -> None:
        failures = 0
        while self._task is asyncio.current_task():
            try:
                await self._work()
                if failures:
                    log.warning("%s resumed", self._name)
                failures = 0
            except Exception as error:
                self._report(error, failures)
                failures += 1
                await asyncio.sleep(backoff(failures))

    def _report(self, error: Exception, failures: int) -> None:
        if not isinstance(error, RetryableError | StaleTermError):
            log.error("%s failed; retrying", self._name, exc_info=error)
        elif failures == 0:
            log.warning("%s paused: %s", self._name, error)


class DelayedService:
    """A part that begins so many seconds after its `start`, so that other parts start first.

    A start that fails is logged under `name`, and retried like a round of a `Loop`.
    """

    def __init__(self, name: str, part: Service, seconds: float) -> None:
        self._part = part
        self._seconds = seconds
        self._loop = Loop(f"start of {name}", self._round)

    async def start(self) -> None:
        """Begins to wait."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops the part, or its delay."""
        try:
            await self._loop.stop()
        finally:
            await self._part.stop()

    async def _round(self) -> None:
        await asyncio.sleep(self._seconds)
        await self._part.start()
        await asyncio.Event().wait()


class WakeSignal:
    """Lets one task sleep until another notifies it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Ends the current or the next `wait`."""
        self._event.set()

    async def wait(self, timeout: float | None) -> bool:
        """True when set; False when `timeout` seconds have passed. Clears the signal."""
        try:
            async with asyncio.timeout(timeout):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class DrainSignal:
    """Whether a node takes nothing new any more: set by whoever begins its drain, and published by its membership."""

    def __init__(self) -> None:
        self.begun = False
        self.wake = WakeSignal()
        """Wakes the membership."""

    def begin(self) -> None:
        """The node drains from now on."""
        self.begun = True
        self.wake.set()


@dataclass(frozen=True, slots=True)
class Check:
    """How one component is; `reason` says what is wrong with it."""

    component: str
    healthy: bool
    reason: str | None = None


class Health:
    """What the health pages read: a component is healthy while its probe returns None, or if it is not vital.

    `needs` are the components without which no work can be taken; None: all.
    """

    FIRST: Final = "Coordinator"
    """The component that is listed first (S1)."""

    def __init__(self, needs: frozenset[str] | None = None) -> None:
        self._probes: dict[str, tuple[Callable[[], str | None], bool]] = {}
        self.started = False
        self.stopping = False
        self.needs = needs

    def watch(self, component: str, probe: Callable[[], str | None], *, critical: bool = True) -> None:
        """`probe` returns what is wrong, in a sentence without secrets, or None. Must not block.

        A problem of a component that is not vital is shown, but work is accepted all the same.
        """
        self._probes[component] = probe, critical

    def checks(self) -> list[Check]:
        """Every component, as it is now."""
        found = [(name, probe(), critical) for name, (probe, critical) in self._probes.items()]
        found.sort(key=lambda one: one[0] != self.FIRST)
        return [Check(name, reason is None or not critical, reason) for name, reason, critical in found]

    def needed(self) -> list[Check]:
        """Those of `checks` that decide whether new work can be taken."""
        return [check for check in self.checks() if self.needs is None or check.component in self.needs]

    @property
    def phase(self) -> str | None:
        """`starting` or `stopping`; None in between."""
        return "stopping" if self.stopping else None if self.started else "starting"

    @property
    def ready(self) -> bool:
        """Whether new work can be taken."""
        return self.started and not self.stopping and all(check.healthy for check in self.needed())
