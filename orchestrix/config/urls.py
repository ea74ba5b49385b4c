"""Setting URLs: that of a SQLite file, and those at which nodes are called."""

from __future__ import annotations

import re
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import quote

SQLITE_URL_PREFIX: Final = "sqlite+aiosqlite:///"


def sqlite_url(path: Path) -> str:
    """The URL of the SQLite database at `path`, with `%`, `?` and `#` escaped: file names may have them."""
    return SQLITE_URL_PREFIX + quote(str(path))


_BASE: Final = re.compile(
    r"https?://(?:([A-Za-z0-9](?:[A-Za-z0-9._-]{0,252}))|\[([0-9A-Fa-f:.]+)\])(?::([0-9]{1,5}))?(?:/[A-Za-z0-9._~/-]*)?",
    re.IGNORECASE | re.ASCII,
)
BASE_URL_MAX_CHARS: Final = 300
"""So many that an executor takes a callback that begins with it."""


def base_url(text: str) -> str:
    """An http or https URL below which a node is called, without a slash at its end.

    Raises `ValueError` that does not repeat the text, which could hold a password.
    """
    found = _BASE.fullmatch(text)
    if found is None or len(text) > BASE_URL_MAX_CHARS or not 0 < int(found[3] or "80") < 65536:
        raise ValueError(
            "write http or https URLs with commas in between, without a user, query or fragment, such as "
            "https://orchestrix.example,http://10.0.0.1:8080"
        )
    if _is_everywhere(found[1] or found[2], is_ip=found[2] is not None):
        raise ValueError("no executor can call 0.0.0.0 or [::]: write a name or an address that leads to the nodes")
    return text.rstrip("/")


def _is_everywhere(host: str, *, is_ip: bool) -> bool:
    """Whether it stands for all addresses of a machine. Raises `ValueError` for an IPv6 address that is none."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        if is_ip:
            raise ValueError("there is no IPv6 address in the brackets of the URL") from None
        return False
