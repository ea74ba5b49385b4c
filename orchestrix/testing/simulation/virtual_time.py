"""Virtual time: an event loop whose clock jumps to the next timer, so that hours of a system take a second, repeatably.

Computation takes no virtual time, waiting takes no real time: when nothing is ready, the clock jumps to the next timer.
Threads and other processes are not supported.
"""

from __future__ import annotations

import asyncio
import heapq
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import greenlet  # type: ignore[import-untyped] # comes with sqlalchemy[asyncio]

from orchestrix.errors import OrchestrixError
from orchestrix.testing.simulation.rng import Rng

T = TypeVar("T")
Handles = list["asyncio.Handle"]

START_S: Final = 1000.0
"""The initial value of the loop's clock, in seconds."""
EPOCH_S: Final = 1_767_225_600.0
"""The wall clock when the loop's clock is 0: the start of 2026."""
MOST_ROUNDS: Final = 20
MOST_CANCELLED: Final = 100
"""Cancelled timers that are kept until their time, at least: removing them costs a scan."""

_process: ContextVar[VirtualProcess | None] = ContextVar("process", default=None)


class LoopStalled(OrchestrixError):
    """Nothing is ready, no timer is set: what is awaited would never come."""


class ProcessKilled(OrchestrixError):
    """The process was killed."""


class UnsupportedOnVirtualTime(OrchestrixError):
    """A thread, a socket or another process was requested, which run on the machine's own clock."""


class VirtualProcess:
    """Tasks that are killed together, like those of an operating system's process.

    All tasks started by `spawn`, and by those tasks, belong to it. `kill` stops all of them where they are: no
    `finally` and no `except` runs any more. `on_death` are called then, from outside.
    """

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self._loop = loop
        self.alive = True
        self.steps = 0
        self.on_death: list[Callable[[], None]] = []
        self._steps_left: int | None = None
        self._held: Handles | None = None
        self._dropped: Handles = []
        self._context = copy_context()
        self._context.run(_process.set, self)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` as a task of this process. Raises `ProcessKilled`."""
        if not self.alive:
            work.close()
            raise ProcessKilled(f"{self.name} is dead")
        task: asyncio.Task[T] = self._loop.create_task(work, context=self._context.copy())
        return task

    def kill(self) -> None:
        """Ends it now."""
        if self.alive:
            self.alive = False
            self._dropped += self._held or ()
            self._held = None
            for call in self.on_death:
                call()

    def kill_after(self, steps: int) -> None:
        """Ends it instead of its `steps`-th step from now: the code from one suspension to the next is one or two
        steps."""
        self._steps_left = self.steps + steps

    @property
    def frozen(self) -> bool:
        """Whether it is frozen."""
        return self._held is not None

    def freeze(self) -> None:
        """Stops it, as SIGSTOP does, until `unfreeze`. Its timers keep running."""
        if self._held is None and self.alive:
            self._held = []

    def unfreeze(self) -> None:
        """Resumes it; what became due meanwhile comes first."""
        held, self._held = self._held, None
        if held and self.alive:
            self._loop.put_back(held)

    def take(self, handle: asyncio.Handle) -> bool:
        """Whether `handle` is to run now."""
        if not self.alive:
            self._dropped.append(handle)
            return False
        if self._held is not None:
            self._held.append(handle)
            return False
        self.steps += 1
        if self._steps_left is None or self.steps < self._steps_left:
            return True
        self.kill()
        self._dropped.append(handle)
        return False

    def take_handles(self) -> Handles:
        """The handles that would have run, for the loop's end."""
        dropped, self._dropped = self._dropped + (self._held or []), []
        self._held = None
        return dropped


def current_process() -> VirtualProcess | None:
    """The process whose step is running."""
    return _process.get()


class _Abandoned(NamedTuple):
    """A suspended step of a killed process, and its task."""

    stack: greenlet.greenlet
    task: asyncio.Task[Any] | None


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time. `time()` starts at 1000 and jumps to the next timer when nothing is ready.

    If it `abandons`, each step has a stack of its own, so that `abandon` can leave one in the middle.
    """

    def __init__(self) -> None:
        super().__init__(_NoFiles())
        self._now = START_S
        self._processes: list[VirtualProcess] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = 1000
        self._ending = False
        self.abandons = False
        self._abandoned: list[_Abandoned] = []
        self._ready: Any
        self._scheduled: Any
        self._timer_cancelled_count: int

    def process(self, name: str) -> VirtualProcess:
        """A new process on this loop."""
        process = VirtualProcess(name, self)
        self._processes.append(process)
        return process

    def time(self) -> float:
        return self._now

    def create_task(self, *arguments: Any, **options: Any) -> asyncio.Task[Any]:
        # The base class holds tasks weakly: those of a killed process would be collected, and run their clean-up.
        if len(self._tasks) >= self._prune_at:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._prune_at = 1000 + 2 * len(self._tasks)
        task = super().create_task(*arguments, **options)
        self._tasks.append(task)
        return task

    def put_back(self, handles: Handles) -> None:
        """Runs these next, before what is ready already."""
        self._ready.extendleft(reversed(handles))

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> NoReturn:
        raise UnsupportedOnVirtualTime("a thread cannot run on virtual time")

    def subprocess_exec(self, *arguments: Any, **options: Any) -> NoReturn:
        raise UnsupportedOnVirtualTime("another process cannot run on virtual time")

    subprocess_shell = subprocess_exec

    def abandon(self) -> None:
        """Leaves the current step where it is, because its process was killed; `discard` ends it. Does not
        return."""
        here = greenlet.getcurrent()
        assert here.parent is not None, "only a loop that `abandons` can leave a step"
        task = asyncio.current_task(self)
        if task is not None:
            asyncio.tasks._leave_task(self, task)
        self._abandoned.append(_Abandoned(here, task))
        here.parent.switch()

    def discard(self) -> None:
        """Cancels all that is left, of killed processes too, so that nothing warns on garbage collection. Then
        `close`."""
        self._ending, self.abandons = True, False
        self.set_exception_handler(lambda loop, context: None)
        self.call_soon(self._end_abandoned)
        for process in self._processes:
            self._ready.extend(process.take_handles())
        for _ in range(3):  # a task that is cancelled before its first step would skip its clean-up
            self.run_until_complete(asyncio.sleep(0))
        for _ in range(MOST_ROUNDS):
            left = [task for task in self._tasks if not task.done()]
            self._tasks = left
            if not left:
                return
            for task in left:
                task.cancel()
            self.run_until_complete(asyncio.wait(left, timeout=60.0))
        raise OrchestrixError(f"these cannot be cancelled: {self._tasks}")

    def _run_once(self) -> None:
        """Overrides the base class: one iteration over what is ready, without polling any file."""
        self._drop_cancelled()
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise LoopStalled("nothing is ready and no timer runs")
            self._now = max(self._now, self._scheduled[0]._when)
        while self._scheduled and self._scheduled[0]._when <= self._now:
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            self._ready.append(handle)
        for _ in range(len(self._ready)):
            self._step(self._ready.popleft())

    _stopping: bool

    def _drop_cancelled(self) -> None:
        if self._timer_cancelled_count > max(MOST_CANCELLED, len(self._scheduled) // 2):
            self._forget_cancelled()
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False

    def _forget_cancelled(self) -> None:
        for timer in self._scheduled:
            timer._scheduled = not timer._cancelled
        self._scheduled = [timer for timer in self._scheduled if timer._scheduled]
        heapq.heapify(self._scheduled)
        self._timer_cancelled_count = 0

    def _step(self, handle: Any) -> None:
        if handle._cancelled:
            return
        process = handle._context.get(_process)
        if process is None or self._ending or process.take(handle):
            if self.abandons:
                greenlet.greenlet(handle._run).switch()
            else:
                handle._run()

    def _end_abandoned(self) -> None:
        abandoned, self._abandoned = self._abandoned, []
        for stack, task in abandoned:
            if task is not None:
                task.cancel()  # marks the cancellation as not the step's own, for its callbacks
                asyncio.tasks._enter_task(self, task)
            stack.throw(asyncio.CancelledError())


class VirtualClock:
    """Time from the loop, random numbers from the RNG: for `clock.use`."""

    def __init__(self, loop: VirtualLoop, rng: Rng) -> None:
        self._loop = loop
        self._rng = rng

    def wall(self) -> float:
        return EPOCH_S + self._loop.time()

    def monotonic(self) -> float:
        return self._loop.time()

    def boottime(self) -> float:
        return self._loop.time()

    def entropy(self, size: int) -> bytes:
        return self._rng.randbytes(size)

    def uniform(self, low: float, high: float) -> float:
        return self._rng.uniform(low, high)


class _NoFiles(selectors.SelectSelector):
    """A selector with no file that could become ready, except the loop's own, which never does."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self.get_map():
            raise UnsupportedOnVirtualTime("a socket cannot run on virtual time")
        return super().register(fileobj, events, data)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


def outside_context() -> Context:
    """A context that belongs to no process, for what must outlive every kill."""
    outside = copy_context()
    outside.run(_process.set, None)
    return outside


async def elapse(seconds: float) -> None:
    """Returns after so many virtual seconds."""
    await asyncio.sleep(seconds)
