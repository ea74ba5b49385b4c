"""Executor port: what the owner of an attempt needs of the registry and of the HTTP client that calls executors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrix.domain.jobs import JobRow
from orchestrix.domain.registry.executor_calls import CallAnswer
from orchestrix.persistence.engine import Transaction

PickAddresses = Callable[[Transaction, JobRow], Awaitable[Sequence[str]]]
"""The executors for a job, in the order to try them, as its routing picks in that transaction.

Raises `NotFound` for a group that was deleted, `NoExecutors`, and `UnknownExecutor` for an address that is not there.
"""


Callbacks = Callable[[], Awaitable[Sequence[str]]]
"""The URLs of nodes that take reports, at least one. Raises `Unavailable` where none is known."""


@dataclass(frozen=True, slots=True)
class ExecutorRun:
    """What an executor is called with. Reports go to `callbacks` with the `token`."""

    address: str
    group: str
    job_id: str
    history_id: str
    attempt: int
    handler: str
    payload: Any
    timeout_ms: int | None
    correlation_id: str
    callbacks: Sequence[str]
    token: str
    traceparent: str | None = None
    tracestate: str | None = None
    shard_index: int | None = None
    shard_total: int | None = None


@dataclass(frozen=True, slots=True)
class CallResult:
    """An executor's answer, with its own reason or that of the client."""

    answer: CallAnswer
    detail: str = ""
    status: int | None = None
    """The status of the answer; None without one."""


@dataclass(frozen=True, slots=True)
class CallTimings:
    """Seconds: between two questions whether an executor still has an attempt, and of silence until it is lost."""

    probe: float
    dead: float


class ExecutorCallPort(Protocol):
    """Calls executors, as many at once as it allows. It raises nothing: what goes wrong is a result."""

    async def run(self, run: ExecutorRun) -> CallResult:
        """Gives the attempt to the executor."""

    async def has(self, address: str, group: str, history_id: str) -> bool | None:
        """Whether the executor runs the attempt or has run it; None if it gave no answer."""

    async def cancel(self, address: str, group: str, job_id: str, history_id: str, reason: str) -> None:
        """Asks the executor to stop. A lost request is repeated, and the answer to its next report says the same."""


@dataclass(frozen=True, slots=True)
class ExecutorCalls:
    """What a node calls executors with. `callbacks` gives the URLs of nodes that take reports."""

    client: ExecutorCallPort
    pick: PickAddresses
    timings: CallTimings
    callbacks: Callbacks
