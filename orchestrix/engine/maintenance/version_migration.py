"""Version migration: moves live instances of older versions of a saga to a later one, in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from orchestrix import clock, crash
from orchestrix.errors import ConflictError, Contention, Invalid, NotFound
from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import definitions, instance_migration, instances
from orchestrix.persistence.sagas.definition_store import read, stored
from orchestrix.persistence.sagas.definitions import StoredDefinition
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import SagaTransition, TransitionInputs, migrates_until
from orchestrix.saga.definition import Saga
from orchestrix.saga.state import Instance
from orchestrix.saga.versions.migration import (
    MigrationRefusal,
    MigrationRoute,
    NameMapping,
    check_maps,
    marked,
    migrated,
)
from orchestrix.saga.versions.serialization import UnknownFormatError

INSTANCES_PER_TRANSACTION: Final = 200
"""Instances in one transaction."""
POLL_INTERVAL_S: Final = 0.2
LOCKED_TIMEOUT_S: Final = 10.0
"""For so long instances that others have locked are tried again."""
MIGRATION_MARK_LIFETIME: Final = timedelta(seconds=30)
"""For so long the next command waits for its migration: a process that dies holds it up for no longer."""
VERB: Final = "migrate"
_BUSY: Final = "locked by other transactions for too long: run the same command again"


@dataclass(frozen=True, slots=True)
class MigrationRequest:
    """The request. `wait_s`: for so many seconds steps in flight are waited for. A dry run changes nothing."""

    saga: str
    to: int
    maps: NameMapping
    actor: str
    reason: str
    wait_s: float = 0.0
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RefusedInstance:
    """One instance that stays as it is, and why."""

    id: int
    key: str
    version: int
    state: str
    reason: str


@dataclass(slots=True)
class MigrationResult:
    """How many were moved, or would be; and every instance that is refused."""

    migrated: int = 0
    refused: list[RefusedInstance] = field(default_factory=list)


@dataclass(slots=True)
class _Batch:
    """The results of one transaction's instances. `left` is to be tried again, with the reason why."""

    migrated: int = 0
    refused: list[RefusedInstance] = field(default_factory=list)
    left: dict[int, RefusedInstance | None] = field(default_factory=dict)


async def migrate(database: Database, catalog: Catalog, asked: MigrationRequest) -> MigrationResult:
    """Moves what can be moved. It can be interrupted anywhere and begun again: what is done stays.

    Raises `NotFound` for a version that does not exist, `Invalid` for one that is stored differently,
    `InvalidMappingError` and `Unavailable`.
    """
    return await (await _prepared(database, catalog, asked)).run()


async def _prepared(database: Database, catalog: Catalog, asked: MigrationRequest) -> _Migration:
    async with database.read() as connection:
        rows = [row for row in await definitions.all_of(connection) if row.saga == asked.saga]
    known = {row.version: row for row in rows}
    code = {saga.version: saga for saga in catalog.code if saga.name == asked.saga}
    target, new = _target(asked, known.get(asked.to), code.get(asked.to), {*known, *code})
    olds = {version: code[version] for version in code if version < asked.to and version not in known}
    for version, row in known.items():
        if version < asked.to and (old := _readable(row, code.get(version))) is not None:
            olds[version] = old
    check_maps([olds[version] for version in sorted(olds)], new, asked.maps)
    routes = {version: MigrationRoute(old, new, asked.maps) for version, old in olds.items()}
    return _Migration(database, asked, target, routes)


def _target(
    asked: MigrationRequest, row: StoredDefinition | None, code: Saga | None, known: Collection[int]
) -> tuple[StoredDefinition, Saga]:
    """The version to go to, with the author's model of its data where this code has it."""
    if row is None and code is None:
        have = f"known are {', '.join(map(str, sorted(known)))}" if known else f"no version of {asked.saga} is known"
        raise NotFound(
            f"version {asked.to} of saga {asked.saga!r} is neither stored nor in this code ({have}): "
            "start a node that has it once, or add its module to ORCHESTRIX_SAGAS or orchestrix.toml"
        )
    mine = stored(code) if code is not None else None
    if row is not None and mine is not None and row.digest != mine.digest:
        raise Invalid(
            f"version {asked.to} of saga {asked.saga!r} differs between this code and the database: "
            "run this with the code that the nodes have"
        )
    found = row or mine
    assert found is not None, "one of both is there"
    return found, code or read(found)


def _readable(row: StoredDefinition, code: Saga | None) -> Saga | None:
    """The saga of a row; None for one that only a newer release can read."""
    if code is not None and stored(code).digest == row.digest:
        return code
    try:
        return read(row)
    except UnknownFormatError:
        return None


class _Migration:
    """One run of `migrate`. `routes` leads from each older version that is known."""

    def __init__(
        self, database: Database, asked: MigrationRequest, target: StoredDefinition, routes: dict[int, MigrationRoute]
    ) -> None:
        self._database = database
        self._asked = asked
        self._target = target
        self._routes = routes
        self._pair = saga_tables_of(asked.saga)
        self._result = MigrationResult()
        self._left: dict[int, RefusedInstance | None] = {}
        self._since: float | None = None

    async def run(self) -> MigrationResult:
        """Each instance once, then those that were locked or in flight, until the time is over."""
        if not self._asked.dry_run:
            await self._database.run(self._store_target)
        after = 0
        while ids := await self._page(after):
            self._note(await (self._preview(ids) if self._asked.dry_run else self._move(ids)))
            after = ids[-1]
        self._since = clock.monotonic()
        while self._left and self._time_left():
            await asyncio.sleep(POLL_INTERVAL_S)
            await self._again()
        await self._give_up()
        self._result.refused.sort(key=lambda one: one.id)
        return self._result

    async def _page(self, after: int) -> list[int]:
        async with self._database.read() as connection:
            return await instance_migration.below(
                connection, self._pair, self._asked.saga, self._asked.to, after, INSTANCES_PER_TRANSACTION
            )

    async def _store_target(self, tx: Transaction) -> None:
        if await definitions.lock(tx, self._target.saga, self._target.version) is None:
            await definitions.insert(tx, self._target)

    def _note(self, batch: _Batch) -> None:
        self._result.migrated += batch.migrated
        self._result.refused += batch.refused
        self._left |= batch.left

    def _time_left(self) -> bool:
        busy = None in self._left.values()
        return self._passed < max(LOCKED_TIMEOUT_S if busy else 0.0, self._asked.wait_s)

    async def _again(self) -> None:
        """Those that were left, where something is to be done: those still in flight are only read."""
        for ids in _chunks(sorted(self._left)):
            async with self._database.read() as connection:
                rows, held = await instance_migration.read(connection, self._pair, self._asked.saga, ids)
            due = [one.id for one in rows if self._is_due(one, one.id in held)]
            for id in due:
                del self._left[id]
            if due:
                self._note(await self._move(due))

    def _is_due(self, one: Instance, held: bool) -> bool:
        judged = self._judge(one, held)
        if not isinstance(judged, MigrationRefusal) or not judged.in_flight:
            return True
        return self._waits and migrates_until(one, self._database.now() + MIGRATION_MARK_LIFETIME / 2) is None

    @property
    def _waits(self) -> bool:
        return self._passed < self._asked.wait_s

    @property
    def _passed(self) -> float:
        """Seconds since each was tried once."""
        return 0.0 if self._since is None else clock.monotonic() - self._since

    async def _give_up(self) -> None:
        """What is left is refused; what is in flight continues by its own version."""
        if self._left and self._asked.wait_s > 0 and not self._asked.dry_run:
            for ids in _chunks(sorted(self._left)):
                self._left = {id: one for id, one in self._left.items() if id not in ids}
                self._note(await self._move(ids))
        busy = [id for id, one in self._left.items() if one is None]
        async with self._database.read() as connection:
            rows, _ = await instance_migration.read(connection, self._pair, self._asked.saga, busy)
        live = [one for one in rows if one.live and one.definition_version < self._asked.to]
        self._result.refused += [_refused(one, _BUSY) for one in live]
        self._result.refused += [one for one in self._left.values() if one is not None]
        self._left = {}

    async def _preview(self, ids: Sequence[int]) -> _Batch:
        """What would become of them (dry run)."""
        async with self._database.read() as connection:
            rows, held = await instance_migration.read(connection, self._pair, self._asked.saga, ids)
        judged = [(one, self._judge(one, one.id in held)) for one in rows if self._concerns(one)]
        batch = _Batch()
        for one, verdict in judged:
            if isinstance(verdict, MigrationRefusal) and not (verdict.in_flight and self._asked.wait_s > 0):
                batch.refused.append(_refused(one, verdict.reason))
            else:
                batch.migrated += 1
        return batch

    async def _move(self, ids: Sequence[int]) -> _Batch:
        try:
            batch = await self._database.run(lambda tx: self._write(tx, ids))
        except Contention:
            return _Batch(left=dict.fromkeys(ids))
        if batch.migrated:
            crash.point("migrate.after_commit")
        return batch

    async def _write(self, tx: Transaction, ids: Sequence[int]) -> _Batch:
        await self._check_target(tx)
        rows, held = await instances.lock_with_held(tx, self._pair, ids)
        batch = _Batch(left=dict.fromkeys({*ids} - {one.id for one in rows}))
        moved: list[tuple[Instance, SagaTransition]] = []
        out: list[Instance] = []
        for one in filter(self._concerns, rows):
            verdict = self._judge(one, one.id in held)
            if isinstance(verdict, SagaTransition):
                moved.append((one, verdict))
            elif verdict.in_flight and self._asked.wait_s > 0:
                out.append(one)
                batch.left[one.id] = _refused(one, f"{verdict.reason}; not finished within {self._asked.wait_s:g} s")
            else:
                batch.refused.append(_refused(one, verdict.reason))
        await self._mark(tx, out)
        await self._store(tx, moved)
        batch.migrated = len(moved)
        return batch

    async def _check_target(self, tx: Transaction) -> None:
        """Makes sure that no node replaces the version while instances of it are made."""
        row = await definitions.lock(tx, self._target.saga, self._target.version)
        if row is None or row.digest != self._target.digest:
            replaced = f"version {self._target.version} of saga {self._target.saga!r} was replaced meanwhile"
            raise ConflictError(f"{replaced}: run the same command again")

    def _concerns(self, one: Instance) -> bool:
        return one.live and one.saga == self._asked.saga and one.definition_version < self._asked.to

    def _judge(self, one: Instance, held: bool) -> SagaTransition | MigrationRefusal:
        route = self._routes.get(one.definition_version)
        if route is None:
            return MigrationRefusal(f"version {one.definition_version} is neither stored nor in this code")
        inputs = TransitionInputs(self._database.now(), clock.uuid7(), clock.uniform(0, 1))
        return migrated(route, one, inputs, actor=self._asked.actor, held_events=held)

    async def _mark(self, tx: Transaction, out: Sequence[Instance]) -> None:
        """Makes their next commands wait; once those in flight are not waited for any more, lets them go."""
        until = self._database.now() + MIGRATION_MARK_LIFETIME if self._waits else None
        changed = [marked(one, until) for one in out]
        differ = [new for old, new in zip(out, changed, strict=True) if old.progress != new.progress]
        await instances.write_progress(tx, self._pair, differ)

    async def _store(self, tx: Transaction, moved: Sequence[tuple[Instance, SagaTransition]]) -> None:
        if not moved:
            return
        changed = [(before.version, after.instance) for before, after in moved]
        history = [(before.id, change) for before, after in moved for change in after.history]
        if await instance_migration.write(tx, self._pair, changed, history) != {before.id for before, _ in moved}:
            raise Contention("concurrent update of a locked row")
        await audit.insert(tx, [self._audited(before, after.instance) for before, after in moved])
        crash.point("migrate.before_commit")

    def _audited(self, before: Instance, after: Instance) -> AuditRow:
        asked = self._asked
        return AuditRow(
            at=after.updated_at,
            actor=asked.actor,
            verb=VERB,
            reason=asked.reason,
            saga=after.saga,
            instance_id=after.id,
            from_version=before.version,
            to_version=after.version,
            detail={
                "from": before.definition_version,
                "to": after.definition_version,
                "map": dict(asked.maps.states),
                "mapStep": dict(asked.maps.steps),
            },
        )


def _refused(one: Instance, reason: str) -> RefusedInstance:
    return RefusedInstance(one.id, one.key, one.definition_version, one.state, reason)


def _chunks(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[start : start + INSTANCES_PER_TRANSACTION] for start in range(0, len(ids), INSTANCES_PER_TRANSACTION))
