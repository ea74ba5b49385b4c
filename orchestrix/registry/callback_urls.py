"""Callback URLs: at which URLs nodes take the reports of executors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Final

from orchestrix import clock
from orchestrix.domain.registry.callbacks import listening_urls
from orchestrix.errors import Unavailable
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import listeners
from orchestrix.persistence.registry.listeners import Listener
from orchestrix.registry.node_listeners import NODE_SEEN_S

log = logging.getLogger("orchestrix.registry")

FRESH_S: Final = 5.0
"""Seconds for which it is not read again where nodes listen."""
NO_URL: Final = (
    "no executor can be called: no node is known that could take its reports. Start a node with the role api, or set "
    "ORCHESTRIX_HTTP__PUBLIC_URL on the nodes with the role coordinator"
)


class CallbackUrls:
    """The URLs of the settings; without these, where living nodes with the role api listen.

    `own` is where this node listens: that comes first, and the others take the reports of an attempt whose owner stops.
    """

    def __init__(self, database: Database, named: Sequence[str], own: Callable[[], Collection[Listener]]) -> None:
        self._database, self._named, self._own = database, named, own
        self._others: set[Listener] = set()
        self._read_until = 0.0
        self._missing = False

    async def __call__(self) -> Sequence[str]:
        """At least one URL. Raises `Unavailable` where none is known, or the database is away."""
        if self._named:
            return self._named
        await self._read()
        found = listening_urls(self._own(), self._others)
        if not found:
            if not self._missing:
                log.warning(NO_URL)
            self._missing, self._read_until = True, 0.0
            raise Unavailable(NO_URL)
        self._missing = False
        return found

    async def _read(self) -> None:
        if clock.monotonic() < self._read_until:
            return
        async with self._database.read() as connection:
            since = connection.now() - timedelta(seconds=NODE_SEEN_S)
            self._others = await listeners.living(connection, since)
        self._read_until = clock.monotonic() + FRESH_S
