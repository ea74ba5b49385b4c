"""Worker errors: how a handler reports that its step failed, or that its own infrastructure is unavailable.

OrchestrixError       (orchestrix.saga.errors)
├── StepFailed        the step failed: reported as `evt.stepFailed`; `retryable` says whether another try may help
│   ├── Transient     another try may help
│   ├── Retry         the same, where only the delay is to be given
│   ├── Permanent     no try will ever help
│   └── Hold          a person has to look first: the step waits for one
├── BadCall           (below Invalid) the handler calls a function of ours wrongly: no try will help
└── Unavailable       (orchestrix.errors, below RetryableError) not the step's fault: the worker keeps the command
"""

from __future__ import annotations

import copyreg
import re
from collections.abc import Callable
from datetime import timedelta
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final, ParamSpec

from orchestrix.errors import Invalid, RetryableError, SchemaMismatch, Unavailable
from orchestrix.quantities import duration
from orchestrix.saga.errors import OrchestrixError
from orchestrix.saga.validation.arguments import FLAG, SECONDS, ArgumentKind, number, perhaps, type_problem
from orchestrix.saga.validation.signatures import made_as

__all__ = ["INFRASTRUCTURE_ERRORS", "BadCall", "Hold", "Permanent", "Retry", "StepFailed", "Transient", "Unavailable"]

P = ParamSpec("P")

INFRASTRUCTURE_ERRORS: Final = (RetryableError, SchemaMismatch)
"""Errors of the worker's own infrastructure: never reported, always waited for."""
MAX_RETRY_AFTER_S: Final = 30 * 86_400
"""Seconds: the upper limit of the wait that a worker may request."""
NO_REASON_GIVEN: Final = "no reason given"
RETRY_REQUESTED: Final = "the handler asked for a retry"
_NUMBER: Final = re.compile(r"\s*[-+]?[0-9.,]+\s*(?:s|sec|seconds)?\s*")
"""A text that was meant as a number of seconds."""
_WAIT: Final = ArgumentKind(
    lambda value: isinstance(value, int | float) and number(value) and value >= 0,
    "a number of seconds, 0 or more,",
    lambda value: SECONDS.example(value) if isinstance(value, str | timedelta) else "30",
)
_ELSEWHERE: Final = {
    "sleep": "write await asyncio.sleep(…), or time.sleep(…) in a thread",
    "progress": "only a job reports progress",
    "payload": "a step's input is command.data",
    "data": "a job's input is context.payload",
    "effect_key": "a job that is not a step of a saga keys its effects by context.job_id",
    "idempotency_key": "a job keys its effects by context.job_id",
}
"""What the context of a step has and that of a job lacks, or the other way round."""


class BadCall(Invalid, AttributeError, TypeError, ValueError):
    """A function of ours was called with what it does not take; the message says what to write instead.

    A handler or a job that does not catch it has failed permanently: the next try would make the same call.
    """


@made_as('StepFailed("SoldOut", "no seat is left")', BadCall)
class StepFailed(OrchestrixError):
    """The step failed, and why: `type` is one word for programs, `message` a sentence for people.

    A single text is the message, and the name of the class is the type. What is not a string is converted to one.
    `retry_after` is the requested delay in seconds, at most 30 days; the orchestrator alone decides about retries.
    Raises `BadCall` for arguments without a meaning.
    """

    retryable: bool = True
    retry_after: float | None = None
    hold: bool = False
    unsure: bool = False

    def __init__(
        self,
        type: str = NO_REASON_GIVEN,
        message: str = NO_REASON_GIVEN,
        *,
        retryable: bool = True,
        retry_after: float | None = None,
    ) -> None:
        demand(self.__class__.__name__, retryable=(retryable, FLAG), retry_after=(retry_after, perhaps(_WAIT)))
        if message is NO_REASON_GIVEN:
            type, message = NO_REASON_GIVEN, type
        if type is NO_REASON_GIVEN:
            type = self.__class__.__name__
        self.type = text_of(type)
        self.message = text_of(message)
        self.retryable = retryable
        self.retry_after = None if retry_after is None else min(retry_after, MAX_RETRY_AFTER_S)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or one from another process, does not call `__init__`, whose arguments are not kept."""
        return copyreg.__newobj__, (self.__class__, *self.args), self.__dict__  # type: ignore[attr-defined]


@made_as('Transient("Busy", "503 from the agency", retry_after=30)', BadCall)
class Transient(StepFailed):
    """The step failed, but another try may help; `retry_after` in seconds."""

    def __init__(
        self, type: str = NO_REASON_GIVEN, message: str = NO_REASON_GIVEN, *, retry_after: float | None = None
    ) -> None:
        super().__init__(type, message, retryable=True, retry_after=retry_after)


def _named_after(init: Callable[P, None]) -> Callable[P, None]:
    """`after` given by name means seconds: only a positional text can be the message."""

    @wraps(init)
    def call(*args: P.args, **named: P.kwargs) -> None:
        demand(args[0].__class__.__name__, after=(named.get("after"), perhaps(_WAIT)))
        init(*args, **named)

    return call


@made_as('Retry(after=30, message="503 from the agency")', BadCall)
class Retry(StepFailed):
    """The step is to be tried again `after` so many seconds; it counts as a failed attempt.

    Without `after` the wait is that of the step's policy; a text in its place is the message,
    unless it is called `after`.
    """

    @_named_after
    def __init__(self, after: float | None = None, message: str = RETRY_REQUESTED, *, type: str = "Retry") -> None:
        wait: Any = after
        if isinstance(wait, str) and message is RETRY_REQUESTED and not _NUMBER.fullmatch(wait):
            wait, message = None, wait
        demand(self.__class__.__name__, after=(wait, perhaps(_WAIT)))
        if message is RETRY_REQUESTED and wait:
            message = f"{RETRY_REQUESTED} in {duration(wait)}"
        super().__init__(type, message, retryable=True, retry_after=wait)


@made_as('Permanent("SoldOut", "no seat is left")', BadCall)
class Permanent(StepFailed):
    """The step failed and no try will ever help."""

    retryable = False

    def __init__(self, type: str = NO_REASON_GIVEN, message: str = NO_REASON_GIVEN) -> None:
        super().__init__(type, message, retryable=False)


@made_as('Hold("the amount is over the limit: look at it, then retry")', BadCall)
class Hold(StepFailed):
    """A person has to look at it first: the step waits until a person decides, and the saga's own deadline is stopped.

    `retry` tries it again, with other data if need be; `skip`, `cancel` and `terminate` are there too. `unsure` says
    that the step may have done something all the same, so that a cancel undoes it. Raised by a compensation, the
    compensation has failed; raised by a job, the job has failed, and its step waits.
    """

    retryable = False
    hold = True

    def __init__(self, type: str = NO_REASON_GIVEN, message: str = NO_REASON_GIVEN, *, unsure: bool = False) -> None:
        demand(self.__class__.__name__, unsure=(unsure, FLAG))
        super().__init__(type, message, retryable=False)
        self.unsure = unsure


def text_of(value: object) -> str:
    """`value` for people: of a class its name, of an error what it says."""
    try:
        return value.__name__ if isinstance(value, type) else str(value)
    except BaseException:
        return "its text cannot be read"


def demand(call: str, **given: tuple[object, ArgumentKind]) -> None:
    """Raises `BadCall` for the first of these parameters of `call` that is not of its kind."""
    for name, (value, kind) in given.items():
        if (wrong := type_problem(f"{call}(", name, value, kind)) is not None:
            raise BadCall(wrong)


def no_such(who: str, context: object, name: str) -> BadCall:
    """The error that says that the context of `who` has no `name`, and what to use instead."""
    lacks = f"the context of {who} has no {name}"
    if name.startswith("_"):  # looked up by Python itself
        return BadCall(lacks)
    known = sorted(one for one in {*dir(type(context)), *getattr(context, "__dict__", ())} if not one.startswith("_"))
    near = get_close_matches(name, known, 1)
    meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
    return BadCall(f"{lacks}: {_ELSEWHERE.get(name, meant)}")
