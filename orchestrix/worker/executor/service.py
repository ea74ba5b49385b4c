"""Executor service: the part of an executor that takes jobs over HTTP, from its first call to its last report."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrix.worker.jobs.functions import JobFunction, JobTable

if TYPE_CHECKING:  # HTTP is loaded where it is served
    from orchestrix.http_client import HttpClient
    from orchestrix.worker.executor.http_server import ExecutorServer
    from orchestrix.worker.executor.runs import Runs

REPORT_TIMEOUT_S: Final = 10.0
"""Seconds that a callback has to take reports: a node answers after the broker's confirm."""


class ExecutorService:
    """Serves `jobs` of the app at `listen`, at most `slots` attempts at once."""

    def __init__(
        self,
        app: str,
        address: str,
        listen: tuple[str, int],
        token: str | None,
        jobs: Iterable[JobFunction],
        slots: int,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._app, self._address, self._listen, self._token = app, address, listen, token
        self._jobs, self._slots, self._tls = list(jobs), slots, tls
        self._runs: Runs | None = None
        self._server: ExecutorServer | None = None
        self._client: HttpClient | None = None

    @property
    def history_ids(self) -> list[str]:
        """The attempts in flight."""
        return self._runs.history_ids if self._runs is not None else []

    @property
    def load(self) -> float:
        """The share of the slots that is taken, from 0 to 1."""
        return self._runs.load if self._runs is not None else 0.0

    async def start(self) -> None:
        """Takes calls. Raises `ConfigError`: it cannot listen, or a setting of a function's module is wrong."""
        from orchestrix.http_client import HttpClient
        from orchestrix.worker.executor.endpoints import Endpoints
        from orchestrix.worker.executor.http_server import ExecutorServer
        from orchestrix.worker.executor.runs import Runs

        jobs = JobTable(_with_settings(self._jobs))
        self._client = HttpClient(keep_alive=True)
        self._runs = Runs(jobs, self._slots, self._address, self._client, REPORT_TIMEOUT_S)
        self._server = ExecutorServer(self._listen, Endpoints(self._app, self._runs, self._token).answer, self._tls)
        await self._server.start()

    def drain(self) -> None:
        """Takes no more attempts."""
        if self._runs is not None:
            self._runs.stopping = True

    async def finish(self, timeout: float) -> None:
        """Ends the attempts, in `timeout` seconds and about eight more."""
        if self._runs is not None:
            await self._runs.stop(timeout)

    async def stop(self) -> None:
        """Takes no more calls."""
        if self._server is not None:
            await self._server.stop()
        if self._client is not None:
            await self._client.close()


def _with_settings(jobs: Sequence[JobFunction]) -> list[JobFunction]:
    """The functions, with what their modules have declared as `SETTINGS`, by the environment and `orchestrix.toml`."""
    if not any(hasattr(sys.modules.get(one.function.__module__), "SETTINGS") for one in jobs):
        return list(jobs)
    from orchestrix.config import file
    from orchestrix.config.settings import load
    from orchestrix.worker.settings_sections import SettingsSections

    settings = load(file=file.found(None, os.environ, Path.cwd()))
    sections = SettingsSections(settings, (), [one.function for one in jobs])
    sections.check([one.function for one in jobs])
    return [replace(one, settings=sections.of(one.function)) for one in jobs]
