"""How does a connection of SQLite end, however often it is told to?"""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from typing import Any

import aiosqlite


class Connection(aiosqlite.Connection):
    """A connection whose thread is told to stop once, whoever says so again.

    SQLAlchemy gives up a connection whose task was cancelled by `stop` while a `close` is still on its way; that one
    would then wait for the answer of a thread which has ended, and hold up the end of the event loop for ever.
    """

    _stopped: asyncio.Future[Any] | None = None

    def stop(self) -> asyncio.Future[Any] | None:
        self._stopped = self._stopped or super().stop()
        return self._stopped


def connection(database: str, **options: Any) -> Connection:
    """A connection that is not open yet; awaiting it opens it. The options are those of `sqlite3.connect`."""
    made = Connection(partial(sqlite3.connect, database, **options), iter_chunk_size=64)
    made._thread.daemon = True  # a process that ends without having closed it must not stay for it
    return made
