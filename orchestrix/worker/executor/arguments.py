"""Executor arguments: checks what an author gives to an executor. Each check raises `ValueError`."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from orchestrix.worker.jobs.functions import JobFunction, JobTable, registered_jobs

MAX_APP_CHARS: Final = 200
TOKEN: Final = re.compile(r"[!-~]+")
MAX_WEIGHT: Final = 1_000_000
MAX_LOAD_TEXT: Final = "1e9"
MAX_LOAD: Final = float(MAX_LOAD_TEXT)
"""What is beyond these is refused by the API, and with it the whole heartbeat."""
MAX_SLOTS: Final = 10_000
"""As many attempts as a heartbeat may name."""
_LISTEN: Final = re.compile(r"(?:([A-Za-z0-9._-]*)|\[([0-9A-Fa-f:.]+)\]):([0-9]{1,5})", re.ASCII)


class WrongLoadError(ValueError):
    """The function returned what is no load: its message says all, a traceback would show our code alone."""


def traceback_of(error: Exception) -> Exception | None:
    return None if isinstance(error, WrongLoadError) else error


def checked_function(load: Callable[[], float] | None) -> Callable[[], float] | None:
    if inspect.iscoroutinefunction(load):
        raise ValueError("load must be a plain function: it is called before each heartbeat")
    if load is not None and not callable(load):
        raise ValueError(f"load {load!r}: write a function that returns a number from 0 to {MAX_LOAD_TEXT}")
    return load


def checked_load(load: float) -> float:
    try:
        number = float(load)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= MAX_LOAD:  # NaN is not, either
        raise WrongLoadError(f"load returned {load!r} instead of a number from 0 to {MAX_LOAD_TEXT}")
    return number


def checked_app(app: str) -> str:
    known = isinstance(app, str) and 0 < len(app) <= MAX_APP_CHARS
    if not known or not app.isprintable() or app != app.strip():
        raise ValueError(f"app {app!r}: write a name of 1 to {MAX_APP_CHARS} characters without spaces around it")
    return app


def checked_token(token: str | None) -> str | None:
    if token is None or (isinstance(token, str) and TOKEN.fullmatch(token)):
        return token
    raise ValueError("token: write a string of visible ASCII characters, without spaces")  # it must not be shown


def checked_weight(weight: int) -> int:
    if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= MAX_WEIGHT:
        raise ValueError(f"weight {weight!r}: write a whole number from 0 to {MAX_WEIGHT}")
    return weight


def seconds(name: str, value: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} {value!r}: write seconds, more than 0")
    return value


def checked_listen(listen: str | None) -> tuple[str, int] | None:
    """The host and the port; an empty host means every interface."""
    if listen is None:
        return None
    found = _LISTEN.fullmatch(listen) if isinstance(listen, str) else None
    if found is None or not 0 < int(found[3]) < 65536:
        raise ValueError(f"listen {listen!r}: write host:port, e.g. 0.0.0.0:9999, or None to register alone")
    return found[1] or found[2] or "0.0.0.0", int(found[3])


def checked_slots(slots: int) -> int:
    """How many attempts may run at once."""
    if isinstance(slots, bool) or not isinstance(slots, int) or not 0 < slots <= MAX_SLOTS:
        raise ValueError(f"slots {slots!r}: write a whole number from 1 to {MAX_SLOTS}")
    return slots


def checked_jobs(jobs: Iterable[Callable[..., Any]] | None) -> list[JobFunction]:
    """The chosen functions with `@job`, else all of this process. `ConfigError` where two run the same job."""
    found = list(registered_jobs) if jobs is None else []
    for function in jobs or ():
        own = [one for one in registered_jobs if one.function is function]
        if not own:
            raise ValueError(f"jobs: {function!r} has no @job above it")
        found += own
    if not found:
        raise ValueError("jobs: there is no function with @job: import its module first")
    return list(JobTable(found).values())
