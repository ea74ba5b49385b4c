"""Which dialect speaks to the database of a URL?"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import URL

from orchestrix.errors import ConfigError

from .mysql import MySql
from .port import BulkInsert, BulkUpdate, Dialect
from .postgresql import PostgreSql
from .sqlite import Sqlite

__all__ = ["BulkInsert", "BulkUpdate", "Dialect", "dialect_of"]

_DIALECTS: dict[str, Callable[[URL], Dialect]] = {
    "postgresql+asyncpg": PostgreSql,
    "mysql+asyncmy": MySql,
    "sqlite+aiosqlite": Sqlite,
}


def dialect_of(url: URL) -> Dialect:
    """The dialect for `url`; raises `ConfigError` for a driver that is not supported."""
    found = _DIALECTS.get(url.drivername)
    if found is None:
        known = ", ".join(f"{name}://" for name in _DIALECTS)
        raise ConfigError(f"a database URL must start with one of {known}, not with {url.drivername}://")
    return found(url)
