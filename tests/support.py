"""How does a test wait for something that other tasks, threads or processes do?"""

from __future__ import annotations

import asyncio
import inspect
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, overload

import pytest

from orchestrix.telemetry import logs
from tests.servers.ports import free_port

__all__ = ["NO_TLS", "eventually", "eventually_sync", "free_port", "holds", "logged", "stand_still"]

NO_TLS: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For HTTP clients of addresses without TLS. One that makes its own reads all certificates of the machine: 15 ms."""

T = TypeVar("T")


@overload
async def eventually(
    condition: Callable[[], Awaitable[T]], *, deadline: float, every: float = 0.02, message: str = ""
) -> T: ...


@overload
async def eventually(condition: Callable[[], T], *, deadline: float, every: float = 0.02, message: str = "") -> T: ...


async def eventually(
    condition: Callable[[], object], *, deadline: float, every: float = 0.02, message: str = ""
) -> object:
    """The first true answer of `condition`, which may be a coroutine function.

    `deadline` and `every` are seconds on the running loop's clock, so that virtual time works. A condition that raises
    AssertionError counts as not yet true. Raises AssertionError with `message` and the last answer at the deadline.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline
    last: object = "no answer yet"
    while True:
        try:
            async with asyncio.timeout_at(end):
                answer = condition()
                last = await answer if inspect.isawaitable(answer) else answer
            if last:
                return last
        except AssertionError as error:
            last = error
        except TimeoutError:
            if loop.time() < end:
                raise  # the condition's own
        if loop.time() >= end:
            raise AssertionError(_too_late(condition, deadline, message, last))
        await asyncio.sleep(every)


async def holds(condition: Callable[[], object], *, during: float, every: float = 0.02, message: str = "") -> None:
    """Asserts that `condition` stays true for `during` seconds of the loop's clock: that something does not happen."""
    loop = asyncio.get_running_loop()
    end = loop.time() + during
    while True:
        assert condition(), f"{message or repr(condition)}: no longer true {end - loop.time():.2f} s before the end"
        if loop.time() >= end:
            return
        await asyncio.sleep(every)


def eventually_sync(condition: Callable[[], T], *, deadline: float, every: float = 0.02, message: str = "") -> T:
    """`eventually` for tests and fixtures without an event loop."""
    end = time.monotonic() + deadline
    while True:
        last: object
        try:
            last = value = condition()
            if value:
                return value
        except AssertionError as error:
            last = error
        if time.monotonic() >= end:
            raise AssertionError(_too_late(condition, deadline, message, last))
        time.sleep(every)


def _too_late(condition: Callable[[], object], deadline: float, message: str, last: object) -> str:
    what = message or getattr(condition, "__qualname__", repr(condition))
    return f"{what}: not within {deadline:g} s; last answer: {last!r}"


def stand_still(seconds: float) -> None:
    """Lets the thread do nothing, its event loop with all tasks included, as a process that is stopped does nothing."""
    time.sleep(seconds)


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The level and the fields of the lines that name this event."""
    return [
        {"level": record.levelname, **logs.extras_of(record)}
        for record in caplog.records
        if vars(record).get("event") == event
    ]
