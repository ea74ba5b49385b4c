"""Executor reaper: the leader's duty that removes silent executors and keeps the address lists right."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from orchestrix import crash
from orchestrix.config.registry import RegistrySettings
from orchestrix.domain.leases import Fence
from orchestrix.domain.registry.executors import GOODBYE_KEPT_S, LATE_FACTOR, may_remove
from orchestrix.domain.stored_times import age_s
from orchestrix.errors import Unavailable
from orchestrix.leader_duties import PeriodicDuty
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry import groups, listeners, registrations
from orchestrix.persistence.registry.registrations import SILENT, RegisteredExecutor, Removal
from orchestrix.quantities import counted
from orchestrix.registry.registrar import GROUP_LIMIT, REMOVED_KEPT

log = logging.getLogger("orchestrix.registry")

BATCH: Final = 500
"""Executors that are removed in one transaction."""
MIN_WAIT_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
"""Seconds between two checks, or one heartbeat interval if that is longer, after which the process was frozen or the
clock was set: it has not listened meanwhile."""
NEARLY_FULL: Final = GROUP_LIMIT * 9 // 10
"""Executors of one app from which on a warning is logged."""


class ExecutorReaper:
    """A duty of the leader: the JobRegistryHelper of S2.

    Checks when the oldest heartbeat reaches the dead time, at the latest after the clean-up interval: who registers
    meanwhile is not dead before that. Each of its writes ends with the check of the term. It removes none before it has
    listened for one dead time: since it gained leadership, since the end of an outage of its database or of a pause of
    its process, and since the end of a silence of all executors, which is rather that of the nodes.
    """

    def __init__(self, database: Database, settings: RegistrySettings, fence: Fence) -> None:
        self._database = database
        self._beat, self._dead = settings.beat, settings.dead
        # Each heartbeat is seen before the next one replaces it, or a regular one would look like the end of a silence.
        self._interval = min(settings.cleanup, settings.beat / 2)
        self._fence = fence
        self._checked_at: datetime | None = None
        self._listening_since: datetime | None = None
        self._heard: datetime | None = None
        self._large: frozenset[str] = frozenset()
        self._duty = PeriodicDuty("executor reaper", self._run_once)

    async def start(self) -> None:
        """Begins to listen."""
        self._checked_at = None
        await self._duty.start()

    async def stop(self) -> None:
        """Stops."""
        await self._duty.stop()

    async def _run_once(self) -> float:
        try:
            return await self.check()
        except Unavailable:
            self._checked_at = None
            raise

    async def check(self) -> float:
        """One check; the seconds until the next. Raises `StaleTermError`, `Contention` and `Unavailable`."""
        async with self._database.read() as connection:
            now = connection.now()
            found = await registrations.of_apps(connection)
            outdated = await groups.outdated(connection, found)
        self._listen(found, now)
        self._warn_of_large_groups(found)
        threshold = may_remove(
            now=now,
            listening_since=self._listening_since or now,
            last_heard_any=self._heard,
            beat_seconds=self._beat,
            dead_seconds=self._dead,
        )
        if threshold is not None and any(one.last_seen < threshold for one in found):
            await self._remove_silent(threshold)
        if late := await self._database.run(lambda tx: self._tidy(tx, outdated, now)):
            log.warning("the clock was set back: %s had a heartbeat in the future", counted(late, "executor"))
        return self._wait_s(found, threshold, now)

    def _wait_s(self, found: Sequence[RegisteredExecutor], threshold: datetime | None, now: datetime) -> float:
        """Seconds until the next one is dead, or has been listened for long enough; at most the interval."""
        if threshold is None:
            rest = self._dead - age_s(self._listening_since or now, now)
            return min(self._interval, rest) if rest > 0 else self._interval
        oldest = min((one.last_seen for one in found if one.last_seen >= threshold), default=now)
        return min(self._interval, max(self._dead - age_s(oldest, now), MIN_WAIT_S))

    def _listen(self, found: Sequence[RegisteredExecutor], now: datetime) -> None:
        """Notes the last heartbeat of all, and restarts listening where a pause of all, or of this node, has ended."""
        checked, self._checked_at = self._checked_at, now
        if checked is None or age_s(checked, now) > max(self._beat, LONGEST_PAUSE_S):
            self._listening_since, self._heard = now, None
        seen = sorted(one.last_seen for one in found if one.last_seen <= now)
        if not seen:
            return
        if self._heard is None or self._listening_since is None:
            self._heard = seen[-1]
            return
        first = next((one for one in seen if one > self._heard), None)
        if first is not None and age_s(self._heard, first) > LATE_FACTOR * self._beat:
            log.info("heartbeats again after %.0f s without any", age_s(self._heard, first))
            self._listening_since = max(self._listening_since, first)
        self._heard = max(self._heard, seen[-1])

    def _warn_of_large_groups(self, found: Sequence[RegisteredExecutor]) -> None:
        counts: dict[str, int] = {}
        for one in found:
            counts[one.app] = counts.get(one.app, 0) + 1
        large = frozenset(app for app, count in counts.items() if count >= NEARLY_FULL)
        for app in sorted(large - self._large):
            log.warning("%s has %s; the limit is %d", app, counted(counts[app], "executor"), GROUP_LIMIT)
        self._large = large

    async def _remove_silent(self, threshold: datetime) -> None:
        """Removes in batches, each a transaction of its own: of two leaders at once, the older one writes nothing."""
        more = True
        while more:
            removed = await self._database.run(lambda tx: self._remove(tx, threshold))
            crash.point("registry.cleanup.after_commit")
            for one in removed:
                age = age_s(one.last_seen, self._database.now())
                log.info("executor %s of %s removed: last heartbeat %.0f s ago", one.address, one.app, age)
            more = len(removed) == BATCH

    async def _remove(self, tx: Transaction, threshold: datetime) -> list[RegisteredExecutor]:
        now = self._database.now()
        gone = await registrations.stale(tx, threshold, BATCH)
        await registrations.record_removals(
            tx,
            [Removal(one.app, one.address, one.instance, SILENT, one.last_seen, now, one.drained_at) for one in gone],
        )
        await registrations.delete_rows(tx, [(one.app, one.address) for one in gone])
        await groups.refresh(tx, {one.app for one in gone}, now)
        crash.point("registry.cleanup.before_commit")
        await leases.check_fence(tx, self._fence)
        return gone

    async def _tidy(self, tx: Transaction, outdated: Collection[str], now: datetime) -> int:
        """Corrects address lists and times of the future, and deletes what is kept no longer; how many such times."""
        late = await registrations.correct_future(tx, now)
        await groups.refresh(tx, outdated, now)
        await registrations.prune_removals(tx, now, REMOVED_KEPT)
        await listeners.prune(tx, now, timedelta(seconds=GOODBYE_KEPT_S))
        await leases.check_fence(tx, self._fence)
        return late
