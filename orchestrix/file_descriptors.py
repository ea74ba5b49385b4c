"""File descriptors: how many files and sockets this process may have, and how many of them HTTP may use."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

MAX_DESCRIPTORS: Final = 1 << 20
"""Never requests more, even where the system sets no limit."""
RESERVED_DESCRIPTORS: Final = 64
"""Kept for the broker, files, children and what Python needs, besides the database's connections."""
MIN_HTTP_CONNECTIONS: Final = 8
"""Connections that HTTP may have in any case."""
DEFAULT_HTTP_CONNECTIONS: Final = 10_000
"""Default limit of HTTP connections: more than one process can serve."""


def raise_limit() -> int:
    """Raises the soft limit to the hard one, where that is allowed; the limit that holds now."""
    import resource  # only some systems have it

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return limit()


def limit() -> int:
    """How many descriptors this process may have at once."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if soft == resource.RLIM_INFINITY else min(soft, MAX_DESCRIPTORS)


def for_http(limit: int, pool: int, wanted: int | None = None) -> int:
    """Connections that HTTP may have of `limit` descriptors, beside a pool of so many database connections: `wanted`,
    if there is room for them.
    """
    room = limit - max(RESERVED_DESCRIPTORS + 2 * pool, limit // 4)
    return max(MIN_HTTP_CONNECTIONS, min(room, DEFAULT_HTTP_CONNECTIONS if wanted is None else wanted))
