"""Which function does which job, and from which queue does it come?"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

from app.errors import ConfigError

from .context import JobContext

Result: TypeAlias = Mapping[str, Any] | None
Function: TypeAlias = Callable[[JobContext], Result | Awaitable[Result]]
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_QUEUE: Final = "default"
_QUEUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,99}")


@dataclass(frozen=True, slots=True)
class JobFunction:
    """A function that does the jobs of a name. `grace` is how many seconds it has to stop when it is told to."""

    name: str
    queue: str
    function: Function
    grace: float

    @property
    def place(self) -> str:
        """The function, for people."""
        home = getattr(self.function, "__module__", "?")
        return f"{home}.{getattr(self.function, '__qualname__', repr(self.function))}"


registered_jobs: list[JobFunction] = []


def job(name: str, *, queue: str = DEFAULT_QUEUE, grace: float = 10.0) -> Callable[[F], F]:
    """Makes a function do the jobs called `name`; workers that have it serve `queue`.

    It is called with the `JobContext`, and the mapping that it returns, or None, is the job's result: JSON of at most
    64 KiB. An `async def` runs in the worker's event loop; told to stop, it has `grace` seconds before it is cancelled.
    A `def` runs in a thread of its own, which nothing can cancel: it asks `context.cancelled`. `Permanent`, `Transient`
    and `Retry` say what a failure is; any other error is one that another attempt may mend. Raises `ConfigError`.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f'@job({name!r}): write a name as in @job("reindex"), of 1 to 100 letters, digits or _.:/-')
    check_queue(queue)
    if not grace >= 0:
        raise ConfigError(f"@job({name!r}, grace={grace!r}): write the seconds that it has to stop, 0 or more")

    def register(function: F) -> F:
        found = JobFunction(name, queue, function, float(grace))
        _check(found)
        registered_jobs.append(found)
        return function

    return register


def check_queue(queue: str) -> None:
    """Raises `ConfigError` for what cannot be a job queue's name."""
    if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
        raise ConfigError(f"{queue!r} cannot be a job queue: write 1 to 100 letters, digits, dots, - or _")


class JobTable(Mapping[str, JobFunction]):
    """One function a job."""

    def __init__(self, functions: Iterable[JobFunction] = ()) -> None:
        self._functions: dict[str, JobFunction] = {}
        for one in functions:
            self.add(one)

    def add(self, one: JobFunction) -> None:
        """Raises `ConfigError` if another function does these jobs already."""
        known = self._functions.setdefault(one.name, one)
        if known.function is not one.function:
            raise ConfigError(f"job {one.name!r} has two functions, {known.place} and {one.place}: remove one")

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that its functions name."""
        return tuple(dict.fromkeys(one.queue for one in self._functions.values()))

    def __getitem__(self, name: str) -> JobFunction:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


def _check(one: JobFunction) -> None:
    try:
        inspect.signature(one.function).bind(None)
    except TypeError:
        raise ConfigError(f"{one.place} must take one argument, the context") from None
