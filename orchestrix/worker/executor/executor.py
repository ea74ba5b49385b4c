"""Executor: serves jobs over HTTP, with heartbeats while it runs and its deregistration at the end."""

from __future__ import annotations

import asyncio
import signal
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from orchestrix import clock
from orchestrix.lifecycle import WakeSignal, ended
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.executor.admins import Admins
from orchestrix.worker.executor.arguments import (
    checked_app,
    checked_function,
    checked_jobs,
    checked_listen,
    checked_load,
    checked_slots,
    checked_token,
    checked_weight,
    seconds,
    traceback_of,
)
from orchestrix.worker.executor.heartbeat_log import HeartbeatLog, sentences
from orchestrix.worker.executor.service import ExecutorService
from orchestrix.worker.executor.urls import admin_urls, executor_address
from orchestrix.worker.jobs.messages import moment

REGISTER: Final = "/api/registry"
DEREGISTER: Final = "/api/registryRemove"


class Executor:
    """An executor of the app `app` while its `async with` block runs: it registers `address`, and serves jobs there.

        async with Executor("shop", "http://10.0.0.7:9999", admins, token, listen="0.0.0.0:9999") as executor:
            await executor.wait_for_stop()

    Component ExecutorRegistryThread of S2. It sends a heartbeat at once and every `beat` seconds to one of `admins`,
    the URLs of nodes' APIs: a list, or a text with commas. It stays with the admin that accepted; where that fails, the
    others are tried in the same heartbeat. If all fail this is logged, and tried again at the next heartbeat: entering
    never raises for it. Each admin has `timeout` seconds to answer, so that entering takes that long for each of them
    at most, and leaving that long once more.

    With `listen`, a host and port, it runs the jobs of `jobs`, functions with `@job`, or of all such functions of this
    process: at most `slots` attempts at once. With `tls` it serves HTTPS. Left, it takes nothing new, and attempts have
    `stop_timeout` seconds to end; then they are asked to stop, and reported as `WorkerStopped`. Without `listen`
    something else answers at `address`.

    `token`: the registry token; calls must be signed by it. Without it they must come from this machine. `weight`, and
    `load`, a function that returns a number from 0 on and must not block, are for the routing; without `load` it is the
    share of the slots that is taken. Raises ValueError for a wrong argument.
    """

    def __init__(
        self,
        app: str,
        address: str,
        admins: str | Sequence[str],
        token: str | None = None,
        *,
        listen: str | None = None,
        jobs: Iterable[Callable[..., Any]] | None = None,
        slots: int = 10,
        stop_timeout: float = 30.0,
        tls: ssl.SSLContext | None = None,
        beat: float = 30.0,
        timeout: float = 3.0,
        weight: int = 1,
        load: Callable[[], float] | None = None,
    ) -> None:
        self.instance: Final = clock.uuid7()
        """Distinguishes this registration from an earlier one of the same address."""
        self._address, self._load, self._load_failed = executor_address(address), checked_function(load), False
        self._timeout_s, self._heartbeat_s = seconds("timeout", timeout), seconds("beat", beat)
        self._stop_timeout_s = seconds("stop_timeout", stop_timeout)
        self._admins = Admins(admin_urls(admins), checked_token(token), self._timeout_s)
        self._key = {"registryGroup": "EXECUTOR", "registryKey": checked_app(app), "registryValue": self._address}
        self._weight = checked_weight(weight)
        self._name = f"executor {app} at {self._address}"
        self._log = HeartbeatLog(self._name, self._heartbeat_s)
        self._state: Literal["UP", "DRAINING"] = "UP"
        self._wake, self._first, self._leaving = WakeSignal(), asyncio.Event(), False
        self._entered = False
        self._task: asyncio.Task[None] | None = None
        self._service: ExecutorService | None = None
        places, bound = checked_slots(slots), checked_listen(listen)
        if bound is not None:
            chosen = checked_jobs(jobs)
            self._service = ExecutorService(app, self._address, bound, token, chosen, places, tls)

    async def __aenter__(self) -> Executor:
        """Serves and registers; returns when an admin has accepted, or all have failed. RuntimeError the second time,
        `ConfigError` where it cannot listen."""
        if self._entered:
            raise RuntimeError("an Executor is entered once; make another one")
        self._entered = True
        await self._serve()
        self._task = asyncio.create_task(self._run(), name=f"heartbeats of {self._name}")
        try:
            await self._first.wait()
        except BaseException:
            await self._leave(self._task)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends its attempts, then its heartbeats, then deregisters. A failure of that is logged: the cluster misses the
        heartbeats."""
        if self._task is not None:
            await self._leave(self._task)

    @property
    def history_ids(self) -> Sequence[str]:
        """The attempts that it runs, or whose final report was not taken yet."""
        return self._service.history_ids if self._service is not None else ()

    async def wait_for_stop(self) -> None:
        """Returns at SIGINT or SIGTERM: leave the block then."""
        stopped, loop = asyncio.Event(), asyncio.get_running_loop()
        for one in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(one, stopped.set)
        try:
            await stopped.wait()
        finally:
            for one in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(one)

    def drain(self) -> None:
        """Asks for no more work: says so at once, and in every heartbeat from now on."""
        self._state = "DRAINING"
        if self._service is not None:
            self._service.drain()
        self._wake.set()

    async def _serve(self) -> None:
        if self._service is None:
            return
        try:
            await self._service.start()
        except BaseException:
            await self._service.stop()
            raise

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
        try:
            if self._service is not None:
                self.drain()
                await self._service.finish(self._stop_timeout_s)
        finally:
            await self._deregister(heartbeats)

    async def _deregister(self, heartbeats: asyncio.Task[None]) -> None:
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
        if self._service is not None:
            await self._service.stop()

    def _heartbeat(self) -> dict[str, Any]:
        return {
            **self._key,
            "instance": self.instance,
            "state": self._state,
            "weight": self._weight,
            **self._current_load(),
            "runs": list(self.history_ids),
            "timestamp": moment(clock.now()),
        }

    def _current_load(self) -> dict[str, float]:
        """The field, if there is a function for it and that works; else a line in the log, once until it works."""
        if self._load is None:
            return {} if self._service is None else {"load": round(self._service.load, 4)}
        try:
            load = checked_load(self._load())
        except Exception as error:
            if not self._load_failed:
                LOGGER.warning(
                    "%s: no load in its heartbeats: %s",
                    self._name,
                    error,
                    exc_info=traceback_of(error),
                    extra={"event": log_events.EXECUTOR_FAILED},
                )
            self._load_failed = True
            return {}
        self._load_failed = False
        return {"load": load}
