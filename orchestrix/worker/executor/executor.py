"""Executor registration: heartbeats while an executor runs, and its deregistration at the end."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from orchestrix import clock
from orchestrix.lifecycle import WakeSignal, ended
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.executor.admins import Admins
from orchestrix.worker.executor.heartbeat_log import HeartbeatLog, sentences
from orchestrix.worker.executor.urls import admin_urls, executor_address
from orchestrix.worker.jobs.messages import moment

REGISTER: Final = "/api/registry"
DEREGISTER: Final = "/api/registryRemove"
MAX_APP_CHARS: Final = 200
TOKEN: Final = re.compile(r"[!-~]+")
MAX_WEIGHT: Final = 1_000_000
MAX_LOAD_TEXT: Final = "1e9"
MAX_LOAD: Final = float(MAX_LOAD_TEXT)
"""What is beyond these is refused by the API, and with it the whole heartbeat."""


class Executor:
    """Registers `address` as an executor of the app `app` while its `async with` block runs.

        async with Executor("shop", "http://10.0.0.7:9999", "http://a:8080,http://b:8080", token) as executor:
            ...
            executor.drain()

    Component ExecutorRegistryThread of S2. It sends a heartbeat at once and every `beat` seconds to one of `admins`,
    the URLs of nodes' APIs: a list, or a text with commas. It stays with the admin that accepted; where that fails, the
    others are tried in the same heartbeat. If all fail this is logged, and tried again at the next heartbeat: entering
    never raises for it. Each admin has `timeout` seconds to answer, so that entering takes that long for each of them
    at most, and leaving that long once more.

    `token`: the registry token. `weight`, and `load`, a function that returns a number from 0 on and must not block,
    are for the routing. Raises ValueError for a wrong argument.
    """

    def __init__(
        self,
        app: str,
        address: str,
        admins: str | Sequence[str],
        token: str | None = None,
        *,
        beat: float = 30.0,
        timeout: float = 3.0,
        weight: int = 1,
        load: Callable[[], float] | None = None,
    ) -> None:
        self.instance: Final = clock.uuid7()
        """Distinguishes this registration from an earlier one of the same address."""
        self._address, self._load, self._load_failed = executor_address(address), _checked_function(load), False
        self._timeout_s, self._heartbeat_s = _seconds("timeout", timeout), _seconds("beat", beat)
        self._admins = Admins(admin_urls(admins), _checked_token(token), self._timeout_s)
        self._key = {"registryGroup": "EXECUTOR", "registryKey": _checked_app(app), "registryValue": self._address}
        self._weight = _checked_weight(weight)
        self._name = f"executor {app} at {self._address}"
        self._log = HeartbeatLog(self._name, self._heartbeat_s)
        self._state: Literal["UP", "DRAINING"] = "UP"
        self._wake, self._first, self._leaving = WakeSignal(), asyncio.Event(), False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Executor:
        """Registers; returns when an admin has accepted, or all have failed. RuntimeError the second time."""
        if self._task is not None:
            raise RuntimeError("an Executor is entered once; make another one")
        self._task = asyncio.create_task(self._run(), name=f"heartbeats of {self._name}")
        try:
            await self._first.wait()
        except BaseException:
            await self._leave(self._task)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Deregisters, after the last heartbeat has ended. A failure is logged: the cluster misses the heartbeats."""
        if self._task is not None:
            await self._leave(self._task)

    def drain(self) -> None:
        """Asks for no more work: says so at once, and in every heartbeat from now on."""
        self._state = "DRAINING"
        self._wake.set()

    async def _run(self) -> None:
        while not self._leaving:
            started = clock.monotonic()
            try:
                await self._send_heartbeat()
            except Exception:
                LOGGER.exception("%s: a heartbeat failed", self._name, extra={"event": log_events.EXECUTOR_FAILED})
            self._first.set()
            await self._wake.wait(max(0.0, started + self._heartbeat_s - clock.monotonic()))

    async def _send_heartbeat(self) -> None:
        result = await self._admins.post(REGISTER, self._heartbeat(), lambda: self._leaving)
        if result.accepted_by is not None or not self._leaving:
            self._log.log(result)

    async def _leave(self, heartbeats: asyncio.Task[None]) -> None:
        # A heartbeat in flight has its time to end: cut off, it could still reach the admin after the deregistration.
        self._leaving = True
        self._wake.set()
        try:
            await asyncio.wait({heartbeats}, timeout=self._timeout_s)
        finally:
            await ended(heartbeats)
        result = await self._admins.post(DEREGISTER, {**self._key, "instance": self.instance})
        if result.accepted_by is None:
            LOGGER.warning(
                "%s: could not be deregistered: %s",
                self._name,
                sentences(result.failures),
                extra={"event": log_events.EXECUTOR_FAILED},
            )

    def _heartbeat(self) -> dict[str, Any]:
        return {
            **self._key,
            "instance": self.instance,
            "state": self._state,
            "weight": self._weight,
            **self._current_load(),
            "runs": [],
            "timestamp": moment(clock.now()),
        }

    def _current_load(self) -> dict[str, float]:
        """The field, if there is a function for it and that works; else a line in the log, once until it works."""
        if self._load is None:
            return {}
        try:
            load = _checked_load(self._load())
        except Exception as error:
            if not self._load_failed:
                LOGGER.warning(
                    "%s: no load in its heartbeats: %s",
                    self._name,
                    error,
                    exc_info=_traceback_of(error),
                    extra={"event": log_events.EXECUTOR_FAILED},
                )
            self._load_failed = True
            return {}
        self._load_failed = False
        return {"load": load}


class _WrongLoadError(ValueError):
    """The function returned what is no load: its message says all, a traceback would show our code alone."""


def _traceback_of(error: Exception) -> Exception | None:
    return None if isinstance(error, _WrongLoadError) else error


def _checked_function(load: Callable[[], float] | None) -> Callable[[], float] | None:
    if inspect.iscoroutinefunction(load):
        raise ValueError("load must be a plain function: it is called before each heartbeat")
    if load is not None and not callable(load):
        raise ValueError(f"load {load!r}: write a function that returns a number from 0 to {MAX_LOAD_TEXT}")
    return load


def _checked_load(load: float) -> float:
    try:
        number = float(load)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number <= MAX_LOAD:  # NaN is not, either
        raise _WrongLoadError(f"load returned {load!r} instead of a number from 0 to {MAX_LOAD_TEXT}")
    return number


def _checked_app(app: str) -> str:
    known = isinstance(app, str) and 0 < len(app) <= MAX_APP_CHARS
    if not known or not app.isprintable() or app != app.strip():
        raise ValueError(f"app {app!r}: write a name of 1 to {MAX_APP_CHARS} characters without spaces around it")
    return app


def _checked_token(token: str | None) -> str | None:
    if token is None or (isinstance(token, str) and TOKEN.fullmatch(token)):
        return token
    raise ValueError("token: write a text of visible ASCII characters, without spaces")  # it must not be shown


def _checked_weight(weight: int) -> int:
    if isinstance(weight, bool) or not isinstance(weight, int) or not 0 <= weight <= MAX_WEIGHT:
        raise ValueError(f"weight {weight!r}: write a whole number from 0 to {MAX_WEIGHT}")
    return weight


def _seconds(name: str, value: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and math.isfinite(value) and value > 0):
        raise ValueError(f"{name} {value!r}: write seconds, more than 0")
    return value
