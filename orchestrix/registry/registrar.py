"""Registrar: records the heartbeats of executors, many at a time in one commit, and their goodbyes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from orchestrix import clock, crash
from orchestrix.domain.registry.executors import GOODBYE_KEPT_S, Goodbye, beats_after_goodbye
from orchestrix.errors import ConflictError, Contention, RetryableError, Unavailable
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import executor_jobs
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.registrations import GOODBYE, Executor, Heartbeat, Removal
from orchestrix.registry.attempt_signs import AttemptSigns
from orchestrix.telemetry.metrics.catalogue import REGISTERED
from orchestrix.telemetry.metrics.instruments import counter

log = logging.getLogger("orchestrix.registry")
_registered = counter(REGISTERED).at()

GATHER_S: Final = 0.5
"""Seconds between the beginnings of two commits of heartbeats: what arrives meanwhile shares the next one."""
BATCH: Final = 500
"""Heartbeats in one statement."""
GROUP_LIMIT: Final = 1_000
"""Executors that an app may have."""
PATIENCE_S: Final = 10.0
"""Seconds after which a heartbeat that waits for a database that hangs is refused: its executor has tried another node
long ago, and may have ended since."""
_KEPT: Final = timedelta(seconds=GOODBYE_KEPT_S)
REMOVED_KEPT: Final = timedelta(minutes=10)
"""How long it is kept who was removed."""


class GroupFull(ConflictError):
    """The app has as many executors as it may have."""


@dataclass(slots=True)
class _Pending:
    heartbeat: Heartbeat
    arrived_at: float
    answer: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(slots=True)
class _Recorded:
    """What one transaction did: who was refused, who is new, and the apps whose address list has changed."""

    refused: set[Executor] = field(default_factory=set)
    joined: list[Executor] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    restarted: set[Executor] = field(default_factory=set)
    """Those at whose address another process was registered before."""


class Registrar:
    """Records heartbeats and goodbyes. An answer comes after the commit.

    The first heartbeat after a pause is written at once, those that arrive within half a second of it share the next
    statement. One of a known executor changes its row alone; one that joins, leaves, drains or comes back changes its
    group's address list in the same transaction. The attempts that it names are noted in another one, before it.
    `notify_owners` wakes the nodes that own work of an executor at whose address another process has registered.
    """

    def __init__(
        self,
        database: Database,
        *,
        gather_s: float = GATHER_S,
        notify_owners: Callable[[Collection[str]], None] = lambda owners: None,
    ) -> None:
        self._database, self._notify_owners = database, notify_owners
        self._gather_s = gather_s
        self._signs = AttemptSigns(database)
        self._queue: list[_Pending] = []
        self._arrived = WakeSignal()
        self._accepting = False
        self._begun_at = -gather_s
        self._committing: asyncio.Task[None] | None = None
        self._loop = Loop("registrar", self._round)

    async def start(self) -> None:
        """Begins to take heartbeats."""
        self._accepting = True
        await self._signs.start()
        await self._loop.start()

    async def stop(self) -> None:
        """Refuses what has not begun; a commit under way is finished."""
        self._accepting = False
        await self._signs.stop()
        await self._loop.stop()
        if self._committing is not None:
            await self._committing
        left, self._queue = self._queue, []
        for pending in left:
            _fail(pending, _not_accepting())

    async def register(self, heartbeat: Heartbeat) -> None:
        """Records a heartbeat; returns after its commit.

        One that was overtaken by the goodbye of its own process is dropped. Raises `GroupFull`, and `Unavailable` while
        the database is away.
        """
        if self._accepting:
            await self._signs.note(heartbeat.executor, heartbeat.runs)
        if not self._accepting:
            raise _not_accepting()
        pending = _Pending(heartbeat, clock.monotonic())
        self._queue.append(pending)
        self._arrived.set()
        await pending.answer  # its own alone: a caller that is gone does not undo the commit

    async def deregister(self, executor: Executor, instance: str | None) -> bool:
        """Removes an executor that stops; whether it was registered.

        The goodbye of a process whose address another one has taken over removes nothing. Raises `Unavailable`.
        """
        removed = await self._database.run(lambda tx: self._remove(tx, executor, instance))
        crash.point("registry.remove.after_commit")
        if removed:
            log.info("executor %s of %s deregistered", executor[1], executor[0])
        return removed

    async def _remove(self, tx: Transaction, executor: Executor, instance: str | None) -> bool:
        now, app = self._database.now(), executor[0]
        found = await registrations.lock(tx, executor, now)
        mine = found is not None and (instance is None or found.instance in (None, instance))
        which = instance or (found.instance if found is not None else None)
        before = await registrations.removals(tx, now - _KEPT, [app], GOODBYE)
        repeated = any((one.address, one.instance) == (executor[1], which) for one in before)
        if mine or not (repeated or len(before) >= GROUP_LIMIT):
            last_seen = found.last_seen if mine and found is not None else None
            drained_at = found.drained_at if mine and found is not None else None
            gone = Removal(*executor, which, GOODBYE, last_seen, now, drained_at)
            await registrations.record_removals(tx, [gone])
        if mine:
            await registrations.delete_rows(tx, [executor])
            await groups.refresh(tx, [app], now)
        crash.point("registry.remove.before_commit")
        return mine

    async def _round(self) -> None:
        if not self._queue:
            await self._arrived.wait(None)
        if (rest := self._begun_at + self._gather_s - clock.monotonic()) > 0:
            await asyncio.sleep(rest)
        self._begun_at = clock.monotonic()
        self._refuse_old()
        batch, self._queue = self._queue[:BATCH], self._queue[BATCH:]
        if batch:
            self._committing = asyncio.create_task(self._commit(batch), name="registrar batch")
            await asyncio.shield(self._committing)

    def _refuse_old(self) -> None:
        """Refuses what has waited for too long: the queue is in the order of arrival."""
        old = clock.monotonic() - PATIENCE_S
        while self._queue and self._queue[0].arrived_at < old:
            _fail(self._queue.pop(0), Unavailable("the database did not answer in time; nothing was recorded"))

    async def _commit(self, batch: Sequence[_Pending]) -> None:
        latest = {pending.heartbeat.executor: pending.heartbeat for pending in batch}
        try:
            done = await self._database.run(lambda tx: self._record(tx, list(latest.values())))
        except Exception as error:
            for pending in batch:
                _fail(pending, error)
            return
        crash.point("registry.register.after_commit")
        for pending in batch:
            executor = pending.heartbeat.executor
            if executor in done.refused:
                _fail(pending, GroupFull(f"{executor[0]} has {GROUP_LIMIT} executors, which is the limit"))
            elif not pending.answer.done():
                pending.answer.set_result(None)
        _registered.add(len(done.joined))
        for app, address in done.joined:
            log.info("executor %s of %s registered", address, app)
        if done.restarted:
            await self._notify(done.restarted)
        if unlisted := {app for app, _ in done.joined}.difference(done.changed):
            await self._list_again(unlisted)

    async def _notify(self, restarted: Collection[Executor]) -> None:
        """Wakes who owns work of these. Each owner looks once a second, so that a failure costs little."""
        try:
            async with self._database.read() as connection:
                work = await executor_jobs.work_of(connection, restarted)
        except RetryableError as away:
            log.debug("owners find by themselves which executors were restarted: %s", away)
            return
        if owners := {owner for one in work.values() for owner in one.owners}:
            self._notify_owners(owners)

    async def _list_again(self, apps: Collection[str]) -> None:
        """Refreshes lists once more after the commit: a group that was being made meanwhile has not seen who joined.

        Who makes a group does the same, so that the later of the two commits is followed by one that sees both.
        """
        try:
            await self._database.run(lambda tx: groups.refresh(tx, apps, self._database.now()))
        except RetryableError as away:
            log.debug("lists are left to the reaper: %s", away)

    async def _record(self, tx: Transaction, heartbeats: Sequence[Heartbeat]) -> _Recorded:
        now = self._database.now()
        before = await registrations.among(tx, [one.executor for one in heartbeats], lock=True)
        known = {one.executor for one in heartbeats if one.executor in before}
        others = {
            one.executor
            for one in heartbeats
            if one.executor in known and before[one.executor].instance != one.instance
        }
        late = await _overtaken(tx, [one for one in heartbeats if one.executor not in known - others], now)
        new = [one for one in heartbeats if one.executor not in known | late]
        done = _Recorded(await _beyond_limit(tx, new))
        kept = [one for one in heartbeats if one.executor not in done.refused | late]
        await registrations.record(tx, kept, now, before)
        after = await registrations.among(tx, [one.executor for one in kept])
        done.joined = [
            executor
            for executor, row in after.items()
            if executor not in known or row.first_seen != before[executor].first_seen
        ]
        # The rows are locked now, so a goodbye that is not seen here waits for this commit.
        if await _overtaken(tx, [one for one in kept if one.executor in others.union(done.joined)], now):
            raise Contention("an executor said goodbye while its heartbeat was being recorded")
        back = {executor for executor, row in after.items() if executor in others and row.drained_at is not None}
        await registrations.set_drained(tx, back, None)
        still = await _drained_before(tx, [one for one in kept if one.executor in done.joined], now)
        await registrations.set_drained(tx, still, now)
        moved = {
            *done.joined,
            *back,
            *(one for one in after if one in known and before[one].state != after[one].state),
        }
        done.restarted = {one for one in others if one in after and before[one].instance is not None}
        done.changed = await groups.refresh(tx, {app for app, _ in moved}, now)
        crash.point("registry.register.before_commit")
        return done


async def _beyond_limit(tx: Transaction, new: Sequence[Heartbeat]) -> set[Executor]:
    """Those that their apps have no room for."""
    if not new:
        return set()
    counts = await registrations.counts(tx, sorted({one.app for one in new}))
    refused: set[Executor] = set()
    for one in new:
        counts[one.app] = counts.get(one.app, 0) + 1
        if counts[one.app] > GROUP_LIMIT:
            refused.add(one.executor)
    return refused


async def _drained_before(tx: Transaction, joined: Sequence[Heartbeat], now: datetime) -> set[Executor]:
    """Those that a person had drained before they were removed: the same process is back."""
    if not joined:
        return set()
    found = await registrations.removals(tx, now - REMOVED_KEPT, {one.app for one in joined})
    last = {(one.app, one.address): one for one in reversed(found)}
    return {
        one.executor
        for one in joined
        if (was := last.get(one.executor)) is not None and was.drained_at is not None and was.instance == one.instance
    }


async def _overtaken(tx: Transaction, heartbeats: Sequence[Heartbeat], now: datetime) -> set[Executor]:
    """Those whose own process has said goodbye already."""
    if not heartbeats:
        return set()
    said: dict[Executor, list[Goodbye]] = {}
    for one in await registrations.removals(tx, now - _KEPT, {one.app for one in heartbeats}, GOODBYE):
        said.setdefault((one.app, one.address), []).append(Goodbye(one.removed_at, one.instance))
    return {
        one.executor
        for one in heartbeats
        if not all(
            beats_after_goodbye(goodbye, instance=one.instance, now=now) for goodbye in said.get(one.executor, ())
        )
    }


def _not_accepting() -> Unavailable:
    return Unavailable("this node accepts no registrations: it is starting or stopping")


def _fail(pending: _Pending, error: Exception) -> None:
    if not pending.answer.done():
        pending.answer.set_exception(error)
        pending.answer.exception()  # its caller may be gone, and then the future has no other one
