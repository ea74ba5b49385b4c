"""URLs of settings: that of a SQLite file."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

SQLITE_URL_PREFIX: Final = "sqlite+aiosqlite:///"


def sqlite_url(path: Path) -> str:
    """The URL of the SQLite database at `path`, whose letters mean nothing in it: `%`, `?` and `#` are names' too."""
    return SQLITE_URL_PREFIX + quote(str(path))
