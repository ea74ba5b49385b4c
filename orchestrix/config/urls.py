"""Setting URLs: that of a SQLite file."""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import quote

SQLITE_URL_PREFIX: Final = "sqlite+aiosqlite:///"


def sqlite_url(path: Path) -> str:
    """The URL of the SQLite database at `path`, with `%`, `?` and `#` escaped: file names may have them."""
    return SQLITE_URL_PREFIX + quote(str(path))
