"""SQLite file: whether it is still the one that was opened, and can be used."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from sqlalchemy import URL, Engine, event

from orchestrix.errors import ConfigError, SchemaMismatch, Unavailable

_UNUSABLE: Final = {
    sqlite3.SQLITE_CANTOPEN: "make it and its folder readable and writable for this user",
    sqlite3.SQLITE_READONLY: "make it and its folder writable for this user",
    sqlite3.SQLITE_PERM: "make it and its folder readable and writable for this user",
    sqlite3.SQLITE_NOTADB: "restore it",
}


class DatabaseFile:
    """The file at `path`.

    A deleted file stays open in SQLite, which would still write where it is never read.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self._opened: tuple[int, int] | None = None

    @classmethod
    def of(cls, url: URL) -> DatabaseFile | None:
        """The file that `url` names; None in memory, and for what only SQLite can read (`file:`)."""
        name = url.database
        if not name or name == ":memory:" or name.startswith("file:"):
            return None
        return cls(Path(name).absolute())

    def make(self) -> None:
        """Makes the file and its folder where they are missing. Raises `ConfigError`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            where = f"the folder {self.path.parent} of the database"
            raise ConfigError(f"{where} cannot be created: {error.strerror}") from error
        with suppress(OSError):  # SQLite reports what is wrong with the file when it opens it
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # for its owner, as what is in it

    def watch(self, engine: Engine) -> None:
        """Makes every use of a connection, and every COMMIT, raise `Unavailable` once the file has gone.

        A first connection to a missing file raises `SchemaMismatch`: whoever only looks must not leave an empty one.
        """
        event.listen(engine, "do_connect", lambda *_: self._check_before())
        event.listen(engine, "connect", lambda *_: self._remember())
        event.listen(engine, "checkout", lambda *_: self.check())
        event.listen(engine, "commit", lambda _: self.check())

    def check(self) -> None:
        """Raises `Unavailable` if another file is there than was opened, or none."""
        if self._opened not in (None, self._found()):
            raise Unavailable(f"the database file {self.path} was deleted or replaced: stop, restore it, start again")

    def _check_before(self) -> None:
        self.check()
        if self._opened is None and not os.path.lexists(self.path):
            raise SchemaMismatch(f"the database file {self.path} does not exist: run `orchestrix db upgrade`")

    def refusal(self, code: int, text: str) -> str | None:
        """What to do about a primary result code of SQLite that is about the file."""
        fix = _UNUSABLE.get(code)
        return f"the database file {self.path} cannot be used ({text}): {fix}, or use another file" if fix else None

    def _remember(self) -> None:
        self._opened = self._opened or self._found()

    def _found(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino
