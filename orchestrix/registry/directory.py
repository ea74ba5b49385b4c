"""Registry directory: who is registered, in which state, also while the database is away."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from orchestrix import clock
from orchestrix.config.registry import RegistrySettings
from orchestrix.domain.registry.executors import ExecutorState, state_of
from orchestrix.domain.registry.suspicion import KEPT_PROBES, Suspicion, suspected_by
from orchestrix.errors import RetryableError, Unavailable
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import executor_jobs
from orchestrix.persistence.registry import groups, registrations, suspicions
from orchestrix.persistence.registry.groups import ExecutorGroup
from orchestrix.persistence.registry.registrations import RegisteredExecutor, Removal
from orchestrix.registry.registrar import REMOVED_KEPT

log = logging.getLogger("orchestrix.registry")

HANGS_AFTER_S: Final = 1.0
AWAY_S: Final = 5.0
"""Seconds for which requests are answered from memory at once, after a reading that has failed only after so many."""
REFRESH_S: Final = 10.0
"""Seconds between two readings for the time in which the database is away."""


@dataclass(frozen=True, slots=True)
class ExecutorView:
    """An executor as it is shown. `in_flight`: how many attempts were given to it and have not ended; `drained`: a
    person has excluded it from new jobs; `suspected_by`: the nodes that got no answer from it, since `suspected_since`.
    """

    address: str
    state: ExecutorState
    since: datetime
    last_seen: datetime | None
    weight: int | None
    load: float | None
    in_flight: int
    drained: bool = False
    suspected_by: Sequence[str] = ()
    suspected_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """An app with its group, None if it has none, and its executors: those removed lately come last."""

    app: str
    group: ExecutorGroup | None
    executors: Sequence[ExecutorView]


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """The apps that have a group or executors, by name. `as_of` is the time of the reading if the database is away."""

    apps: Sequence[GroupView]
    as_of: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Reading:
    at: datetime
    groups: Sequence[ExecutorGroup]
    registrations: Sequence[RegisteredExecutor]
    removals: Sequence[Removal]
    suspicions: Sequence[Suspicion]
    in_flight: Mapping[tuple[str, str], int]
    """By app and address."""


class RegistryDirectory:
    """Reads the registry; while the database is away, answers are those of the last reading, which is seconds old."""

    def __init__(self, database: Database, settings: RegistrySettings) -> None:
        self._database = database
        self._settings = settings
        self._last: _Reading | None = None
        self._away_until = 0.0
        self._renewed = WakeSignal()
        self._loop = Loop("registry directory", self._round)

    async def start(self) -> None:
        """Begins to keep a reading."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    def renew(self) -> None:
        """Lists have changed: the reading that is kept is renewed at once."""
        self._renewed.set()

    async def view(self, *, fresh: bool = False) -> DirectoryView:
        """All apps; with `fresh` from memory only if a reading fails now. Raises `Unavailable` if none succeeded."""
        if not fresh and clock.monotonic() < self._away_until and self._last is not None:
            # A database that hangs is not waited for by each request.
            return DirectoryView(_apps(self._last, self._settings), self._last.at)
        try:
            reading, as_of = await self._read(), None
        except RetryableError as away:
            if self._last is None:
                raise Unavailable(str(away)) from away
            reading, as_of = self._last, self._last.at
        return DirectoryView(_apps(reading, self._settings), as_of)

    async def _round(self) -> None:
        await self._read()
        await self._renewed.wait(REFRESH_S)

    async def _read(self) -> _Reading:
        began = clock.monotonic()
        try:
            async with self._database.read() as connection:
                now = connection.now()
                self._last = _Reading(
                    now,
                    await groups.listed(connection),
                    await registrations.of_apps(connection),
                    await registrations.removals(connection, now - REMOVED_KEPT),
                    await suspicions.listed(connection),
                    await executor_jobs.in_flight(connection),
                )
        except RetryableError:
            if clock.monotonic() - began > HANGS_AFTER_S:
                self._away_until = clock.monotonic() + AWAY_S
            raise
        self._away_until = 0.0
        return self._last


def _apps(reading: _Reading, settings: RegistrySettings) -> list[GroupView]:
    executors: dict[str, dict[str, ExecutorView]] = {}
    for one in reading.registrations:
        seen = _registered(one, reading, settings)
        executors.setdefault(one.app, {})[one.address] = _suspected(seen, one.app, reading, settings)
    for gone in reading.removals:
        if gone.last_seen is None:
            continue  # the goodbye of one that was not registered
        executors.setdefault(gone.app, {}).setdefault(gone.address, _removed(gone, reading))
    made = {group.app_name: group for group in reading.groups}
    return [GroupView(app, made.get(app), list(executors.get(app, {}).values())) for app in sorted({*made, *executors})]


def _registered(one: RegisteredExecutor, reading: _Reading, settings: RegistrySettings) -> ExecutorView:
    state, since = state_of(
        first_seen=one.first_seen,
        last_seen=one.last_seen,
        leaving=not one.takes_jobs,
        now=reading.at,
        beat_seconds=settings.beat,
        dead_seconds=settings.dead,
    )
    since = one.state_since if one.state == registrations.DRAINING else since
    in_flight = reading.in_flight.get((one.app, one.address), 0)
    shown = ExecutorView(one.address, state, since, one.last_seen, one.weight, one.load, in_flight)
    return shown if one.drained_at is None else replace(shown, since=one.drained_at, drained=True)


def _suspected(seen: ExecutorView, app: str, reading: _Reading, settings: RegistrySettings) -> ExecutorView:
    after = reading.at - timedelta(seconds=KEPT_PROBES * settings.probe)
    nodes = suspected_by(reading.suspicions, (app, seen.address), after=after, last_seen=seen.last_seen)
    return replace(seen, suspected_by=sorted(nodes), suspected_since=min(nodes.values())) if nodes else seen


def _removed(gone: Removal, reading: _Reading) -> ExecutorView:
    """It may still run attempts that it has taken."""
    in_flight = reading.in_flight.get((gone.app, gone.address), 0)
    return ExecutorView(gone.address, ExecutorState.REMOVED, gone.removed_at, gone.last_seen, None, None, in_flight)
