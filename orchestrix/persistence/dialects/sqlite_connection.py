"""SQLite connection: ends once, however often that is requested."""

from __future__ import annotations

import asyncio
import sqlite3
import weakref
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

import aiosqlite
from aiosqlite.core import _connection_worker_thread


class SqliteHandle(sqlite3.Connection):
    """A connection that undoes its transaction before it closes.

    SQLite keeps a closed one, locks included, for as long as there is a reference to a cursor that was not read to its
    end: the traceback of a task that was cancelled does so.
    """

    def close(self) -> None:
        with suppress(sqlite3.Error):
            if self.in_transaction:
                self.rollback()
        super().close()


class SqliteConnection(aiosqlite.Connection):
    """A connection whose thread is stopped once, however often that is requested.

    SQLAlchemy gives up a connection whose task was cancelled by `stop` while a `close` is still on its way; that one
    would then wait for the answer of a thread which has ended, and hold up the end of the event loop for ever.
    """

    _stopped: asyncio.Future[Any] | None = None

    def stop(self) -> asyncio.Future[Any] | None:
        self._stopped = self._stopped or super().stop()
        return self._stopped


def connection(database: str, **options: Any) -> SqliteConnection:
    """A connection that is not open yet; awaiting it opens it. The options are those of `sqlite3.connect`."""
    made = SqliteConnection(partial(sqlite3.connect, database, factory=SqliteHandle, **options), iter_chunk_size=64)
    # A process that ends without having closed it must not stay for it.
    made._thread = Thread(target=_serve, args=(made._tx, weakref.ref(made)), daemon=True)
    return made


def _serve(questions: Any, whose: weakref.ref[SqliteConnection]) -> None:
    """Answers until the connection is asked to stop. A caller whose event loop has ended meanwhile gets no answer."""
    while True:
        try:
            _connection_worker_thread(questions)
        except RuntimeError:
            if getattr(whose(), "_connection", None) is not None:
                continue
        return
