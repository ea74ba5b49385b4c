"""Saga change notifier: wakes clients that wait for a saga to change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from orchestrix.errors import RetryableError
from orchestrix.lifecycle import ended
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.saga.state import Instance

log = logging.getLogger("orchestrix.watch")

POLL_INTERVAL_S = 0.2
"""Seconds between two polls for what other processes have committed."""

Key = tuple[str, int]


class SagaChangeNotifier:
    """Wakes those who wait for a saga: at once after commits of this process, within 0.2 s after those of others.

    While there are waiters, one select per pair of tables asks for all of them together.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[Key, dict[asyncio.Future[None], int]] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Nothing to do until there is a waiter."""

    async def stop(self) -> None:
        """Releases everybody who waits."""
        for waiters in list(self._waiting.values()):
            for future in list(waiters):
                _release(future)
        if self._task is not None:
            await ended(self._task)
            self._task = None

    def committed(self, moved: Iterable[Instance]) -> None:
        """These instances have just been committed by this process."""
        for instance in moved if self._waiting else ():
            self._wake((instance.saga, instance.id), instance.version)

    async def changed(self, saga: str, instance_id: int, since_version: int, timeout: float) -> None:
        """Returns once the instance may have passed `since_version`, or `timeout` seconds have gone by."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        key = (saga, instance_id)
        self._waiting.setdefault(key, {})[future] = since_version
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll(), name="watch")
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            return
        finally:
            waiters = self._waiting.get(key, {})
            waiters.pop(future, None)
            if not waiters:
                self._waiting.pop(key, None)

    def _wake(self, key: Key, version: int) -> None:
        for future, since in self._waiting.get(key, {}).items():
            if version > since:
                _release(future)

    async def _poll(self) -> None:
        while self._waiting:
            try:
                await self._ask()
            except RetryableError as error:
                log.debug("cannot poll for changes: %s", error)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _ask(self) -> None:
        by_pair: dict[SagaTables, dict[int, str]] = {}
        for saga, instance_id in self._waiting:
            by_pair.setdefault(saga_tables_of(saga), {})[instance_id] = saga
        async with self._database.read() as connection:
            for pair, ids in by_pair.items():
                found = await instances.versions(connection, pair, sorted(ids))
                for instance_id, version in found.items():
                    self._wake((ids[instance_id], instance_id), version)


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
