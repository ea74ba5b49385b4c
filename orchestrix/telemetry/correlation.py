"""Correlation: the saga or job to which what happens now belongs, by its correlation id."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_correlation_id: ContextVar[str | None] = ContextVar("orchestrix_correlation_id", default=None)


def correlation_id() -> str | None:
    """The correlation id of the current task, which every line that it logs carries; None outside of any."""
    return _correlation_id.get()


@contextmanager
def correlated(value: str | None) -> Iterator[None]:
    """Everything in the block, and the tasks that it starts, belongs to this correlation id."""
    token = _correlation_id.set(value)
    try:
        yield
    finally:
        _correlation_id.reset(token)
