"""Executor URLs: checks the address of an executor and the list of its admins."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

HOST_AND_PORT: Final = r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
ADDRESS: Final = re.compile(HOST_AND_PORT)
ADMIN: Final = re.compile(rf"{HOST_AND_PORT}(?:/[A-Za-z0-9._~/-]*)?")


def executor_address(address: str) -> str:
    """`address`; ValueError unless it is `http(s)://host:port`."""
    found = ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if found is None or not _is_port(found["port"]):
        raise ValueError(f"address {address!r}: write http://host:port or https://host:port, with nothing after it")
    return address


def admin_urls(admins: str | Sequence[str]) -> tuple[str, ...]:
    """The URLs of a comma-separated list, or of a sequence, each once and in their order.

    ValueError unless there is one, and each is `http(s)://host`, with or without a port and a path.
    """
    listed = admins.split(",") if isinstance(admins, str) else admins
    if not isinstance(listed, Sequence) or not all(isinstance(one, str) for one in listed):
        raise ValueError("admins: write URLs of nodes' APIs, as one text with commas or as a list of texts")
    urls = tuple(dict.fromkeys(url for one in listed if (url := one.strip().rstrip("/"))))
    if not urls:
        raise ValueError("admins: name at least one URL of a node's API, e.g. http://10.0.0.1:8080")
    for url in urls:
        found = ADMIN.fullmatch(url)
        if found is None or not _is_port(found["port"] or "80"):
            raise ValueError(f"admins: {_without_user(url)!r} is not a URL such as http://10.0.0.1:8080")
    return urls


def _is_port(port: str | None) -> bool:
    return port is not None and 0 < int(port) < 65536


def _without_user(url: str) -> str:
    """The URL as a message may show it: it may have a password."""
    return re.sub(r"//.*@", "//…@", url)
