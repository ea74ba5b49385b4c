"""Group refresher: brings an app's address list up to date at once, after a call that has reached no executor."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from orchestrix.errors import RetryableError
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.registry import groups

log = logging.getLogger("orchestrix.registry")

BATCH: Final = 100
"""Groups that are locked together."""


class GroupRefresher:
    """Refreshes the lists of AUTO groups, in one transaction for all that were asked for meanwhile.

    `refreshed` is called afterwards: what this process remembers of the registry may be older. A refresh that fails is
    left to the leader, which compares all lists now and then.
    """

    def __init__(self, database: Database, refreshed: Callable[[], None]) -> None:
        self._database, self._refreshed = database, refreshed
        self._apps: set[str] = set()
        self._asked = WakeSignal()
        self._loop = Loop("group refresher", self._round)

    def refresh(self, app: str) -> None:
        """Soon; returns at once."""
        self._apps.add(app)
        self._asked.set()

    async def start(self) -> None:
        """Begins to refresh."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def _round(self) -> None:
        if not self._apps:
            await self._asked.wait(None)
        apps = sorted(self._apps)[:BATCH]
        self._apps.difference_update(apps)
        try:
            changed = await self._database.run(lambda tx: groups.refresh(tx, apps, self._database.now()))
        except RetryableError as away:
            log.debug("lists are left to the reaper: %s", away)
            return
        if changed:
            log.info("the address lists of %s were out of date", ", ".join(changed))
        self._refreshed()
