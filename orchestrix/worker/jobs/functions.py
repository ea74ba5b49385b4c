"""Job functions: registers which function runs which job, and the queue that it comes from."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, TypeVar

from orchestrix.errors import ConfigError
from orchestrix.saga.validation.arguments import SECONDS, brief, type_problem
from orchestrix.saga.validation.names import normal
from orchestrix.saga.validation.signatures import called_as
from orchestrix.worker.function_checks import checked, describe_function

from .context import JobContext

Result: TypeAlias = Mapping[str, Any] | None
Function: TypeAlias = Callable[[JobContext], Result | Awaitable[Result]]
F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_QUEUE: Final = "default"
_QUEUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class JobFunction:
    """A function that runs the jobs of a name. `grace` is how many seconds it has to stop when it is asked to."""

    name: str
    queue: str
    function: Function
    grace: float
    settings: object = None
    """The `settings` of its context."""
    more_queues: tuple[str, ...] = ()
    """Those of further `@job` of the same name above the function."""

    @property
    def queues(self) -> tuple[str, ...]:
        """Every queue that it is for."""
        return (self.queue, *self.more_queues)

    @property
    def place(self) -> str:
        """The function, for people."""
        return describe_function(self.function)


registered_jobs: list[JobFunction] = []


@called_as('@job("reindex", queue="search", grace=10)', ConfigError, "@job")
def job(name: str, *, queue: str = DEFAULT_QUEUE, grace: float = 10.0) -> Callable[[F], F]:
    """Makes a function run the jobs called `name`; workers that have it serve `queue`. Write it once for each queue.

    It is called with the `JobContext`, and the mapping that it returns, or None, is the job's result: JSON of at most
    64 KiB. An `async def` runs in the worker's event loop; asked to stop, it has `grace` seconds before it is
    cancelled. A `def` runs in a thread of its own, which nothing can cancel: it asks `context.cancelled`. `Permanent`,
    `Transient` and `Retry` classify a failure; any other error is retryable. Raises `ConfigError`.
    """
    called = _name(name)
    check_queue(queue)
    _check_grace(called, grace)

    def register(function: F) -> F:
        checked(function, 1, "one argument, the context")
        registered_jobs.append(JobFunction(called, queue, function, float(grace)))
        return function

    return register


def _check_grace(name: str, grace: float) -> None:
    if (wrong := type_problem(f"@job({brief(name)}, ", "grace", grace, SECONDS)) is not None:
        raise ConfigError(wrong)


def _name(name: object) -> str:
    """The name in NFC, as in a submitted job. Raises `ConfigError`."""
    if not isinstance(name, str):
        what = describe_function(name) if callable(name) else brief(name)
        raise ConfigError(f'@job({what}): write the job\'s name, as in @job("reindex")')
    try:
        return normal(name)
    except ValueError as wrong:
        raise ConfigError(f"@job({brief(name)}): a job's name {wrong}") from None


def check_queue(queue: str) -> None:
    """Raises `ConfigError` for what cannot be a job queue's name."""
    if not isinstance(queue, str) or not _QUEUE.fullmatch(queue):
        raise ConfigError(f"{brief(queue)} cannot be a job queue: write 1 to 100 letters, digits, dots, - or _")


class JobTable(Mapping[str, JobFunction]):
    """One function per job."""

    def __init__(self, functions: Iterable[JobFunction] = ()) -> None:
        self._functions: dict[str, JobFunction] = {}
        for one in functions:
            self.add(one)

    def add(self, one: JobFunction) -> None:
        """Raises `ConfigError` if another function runs these jobs already."""
        known = self._functions.setdefault(one.name, one)
        if known.function is not one.function:
            raise ConfigError(f"job {one.name!r} has two functions, {known.place} and {one.place}: remove one")
        more = [queue for queue in one.queues if queue not in known.queues]
        if more:
            self._functions[one.name] = replace(known, more_queues=(*known.more_queues, *more))

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues that its functions name."""
        return tuple(dict.fromkeys(queue for one in self._functions.values() for queue in one.queues))

    def __getitem__(self, name: str) -> JobFunction:
        return self._functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)
