"""Step time limit: cancels a step's work when its timeout has passed, unless its saga was given more time meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

from orchestrix.errors import OrchestrixError
from orchestrix.telemetry import log_events
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.context import LOGGER

MAX_RECHECK_INTERVAL_S: Final = 3600.0
"""Seconds after which a saga that has no deadline is checked again."""

RECHECK_INTERVAL_S: Final = 1.0
"""Seconds until the next check where the database is unavailable: an outage alone ends no step."""

MoreTime = Callable[[CommandDelivery], Awaitable[float]]
"""The seconds that the saga still waits for the command; 0 if it does not. May raise `Unavailable`."""


async def no_extension(command: CommandDelivery) -> float:
    """The time of a step is what its command says: no more is granted."""
    return 0.0


class StepTimeLimit:
    """Cancels the body with `TimeoutError` when the time of its step is over, unless the saga's row then grants more.

    The row is read only then, so that a step that is done in time costs no extra read.
    """

    def __init__(self, command: CommandDelivery, seconds: float, more: MoreTime) -> None:
        self._command = command
        self._seconds = seconds
        self._more = more
        self._scope = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self._lookup: asyncio.Task[None] | None = None

    @property
    def expired(self) -> bool:
        """Whether this limit has ended the body."""
        return self._scope.expired()

    async def __aenter__(self) -> StepTimeLimit:
        await self._scope.__aenter__()
        self._wait(self._seconds)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._lookup is not None:
            self._lookup.cancel()
        await self._scope.__aexit__(kind, error, trace)

    def _wait(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(seconds, MAX_RECHECK_INTERVAL_S), self._ask)

    def _ask(self) -> None:
        self._lookup = asyncio.create_task(self._decide(), name="step deadline")

    async def _decide(self) -> None:
        try:
            left = await self._more(self._command)
        except OrchestrixError as error:
            LOGGER.debug(
                "cannot check the deadline of %s: %s", self._command.what, error, extra=self._command.log_fields()
            )
            left = RECHECK_INTERVAL_S
        except Exception:
            LOGGER.exception(
                "cannot check the deadline of %s",
                self._command.what,
                extra=self._command.log_fields(log_events.WORKER_ERROR),
            )
            left = 0.0
        self._lookup = None
        if left > 0:
            self._wait(left)
        else:
            self._scope.reschedule(asyncio.get_running_loop().time())
