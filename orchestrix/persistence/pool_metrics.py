"""Pool metrics: how many connections to the database a process has, from the first one to the end of their pool."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool

from orchestrix.telemetry.metrics.catalogue import IDLE, POOL_CONNECTIONS, POOL_LIMIT, USED
from orchestrix.telemetry.metrics.instruments import Values, gauge


class PoolMetrics:
    """Shows the pool of an engine. One that never connects is not shown."""

    def __init__(self, engine: AsyncEngine, size: int) -> None:
        self._engine, self._size = engine.sync_engine, size
        self._ends: list[Callable[[], None]] = []
        event.listen(self._engine, "connect", self._begin)

    def end(self) -> None:
        """The pool is closed: it is shown no more, until it connects again."""
        while self._ends:
            self._ends.pop()()

    def _begin(self, _connection: object, _record: object) -> None:
        if not self._ends:
            self._ends = [gauge(POOL_CONNECTIONS).watch(self._connections), gauge(POOL_LIMIT).watch(self._limit)]

    def _connections(self) -> Values:
        pool = self._engine.pool
        if not isinstance(pool, QueuePool):
            return {}
        return {(USED,): pool.checkedout(), (IDLE,): pool.checkedin()}

    def _limit(self) -> Values:
        return {(): self._size}
