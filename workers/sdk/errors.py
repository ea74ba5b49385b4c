"""How does a handler say that its step failed, and that its own infrastructure is away?

OrchestrixError       (sagas.engine.errors)
├── StepFailed        the step failed: reported as `evt.stepFailed`; `retryable` says whether another try may help
│   ├── Transient     another try may help
│   ├── Retry         the same, for who has nothing more to say than when
│   └── Permanent     no try will ever help
└── Unavailable       (app.errors, below RetryLater) not the step's fault: the worker keeps the command and waits
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from app.errors import Invalid, RetryLater, SchemaMismatch, Unavailable
from sagas.engine.errors import OrchestrixError
from sagas.engine.wanted import FLAG, SECONDS, Kind, complaint, number, perhaps

__all__ = ["OWN_TROUBLE", "Permanent", "Retry", "StepFailed", "Transient", "Unavailable"]

OWN_TROUBLE: Final = (RetryLater, SchemaMismatch)
"""What says that the worker's own infrastructure cannot be used: never reported, always waited for."""
LONGEST_WAIT: Final = 30 * 86_400
"""Seconds: the longest wait that a worker gets, whatever it asks for."""
_WAIT: Final = Kind(
    lambda value: isinstance(value, int | float) and number(value) and value >= 0,
    "a number of seconds, 0 or more,",
    lambda value: SECONDS.example(value) if isinstance(value, str | timedelta) else "30",
)


class StepFailed(OrchestrixError):
    """The step failed, and why: `type` is one word for programs, `message` a sentence for people.

    Of what is no text its text is taken: a verdict is not lost by how it is explained. `retry_after` is the worker's
    wish in seconds, for the orchestrator alone decides about retries; what is beyond counts as 30 days. Raises
    `Invalid` for what cannot be meant, which then counts as any error that a handler did not foresee.
    """

    def __init__(self, type: str, message: str, *, retryable: bool = True, retry_after: float | None = None) -> None:
        _demand(self, retryable=(retryable, FLAG), retry_after=(retry_after, perhaps(_WAIT)))
        self.type = text_of(type)
        self.message = text_of(message)
        self.retryable = retryable
        self.retry_after = None if retry_after is None else min(retry_after, LONGEST_WAIT)
        super().__init__(self.message)


class Transient(StepFailed):
    """The step failed, but another try may help; `retry_after` in seconds."""

    def __init__(self, type: str, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(type, message, retryable=True, retry_after=retry_after)


class Retry(StepFailed):
    """The step is to be tried again `after` so many seconds; it counts as a failed attempt like any other."""

    def __init__(self, after: float, message: str = "it asks to be tried again later", *, type: str = "Retry") -> None:
        _demand(self, after=(after, _WAIT))
        super().__init__(type, message, retryable=True, retry_after=after)


class Permanent(StepFailed):
    """The step failed and no try will ever help."""

    def __init__(self, type: str, message: str) -> None:
        super().__init__(type, message, retryable=False)


def text_of(value: object) -> str:
    """`value` for people: of a class its name, of an error what it says."""
    try:
        return value.__name__ if isinstance(value, type) else str(value)
    except Exception:
        return "its text cannot be read"


def _demand(failure: StepFailed, **given: tuple[object, Kind]) -> None:
    for name, (value, kind) in given.items():
        if (wrong := complaint(f"{type(failure).__name__}(", name, value, kind)) is not None:
            raise Invalid(wrong)
