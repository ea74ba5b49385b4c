"""Definition store: writes the saga versions of this node's code, and reads those of all others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from orchestrix import clock
from orchestrix.domain.data_schema import model_of, schema_of
from orchestrix.domain.version_check import Definition, Key
from orchestrix.errors import ConfigError, RetryableError
from orchestrix.lifecycle import Loop, backoff
from orchestrix.persistence.engine import Connection, Database, Transaction
from orchestrix.persistence.sagas import definitions
from orchestrix.persistence.sagas.definitions import StoredDefinition
from orchestrix.quantities import counted
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Saga
from orchestrix.saga.errors import DefinitionError
from orchestrix.saga.messages import compact
from orchestrix.saga.versions.serialization import (
    UnknownFormatError,
    body_of,
    differences,
    digest_of,
    form_of,
    saga_from,
)

log = logging.getLogger("orchestrix.definitions")

READ_INTERVAL_S: Final = 10.0
DIFFERENCES_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class ReplacedDefinition:
    """A version that had no live instance and has another definition now."""

    saga: str
    version: int
    differences: tuple[str, ...]


class DefinitionReader(Protocol):
    """Who looks for versions that the catalog does not know yet."""

    async def read_missing(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Reads these versions in a transaction that has found instances of them."""

    async def find(self, keys: Sequence[Key]) -> None:
        """Reads these versions. Raises `Unavailable`."""

    async def read_all(self) -> None:
        """Reads every version that is stored. Raises `Unavailable`."""

    @property
    def unrunnable(self) -> Collection[Key]:
        """Versions of instances that this process has found and cannot run."""


class NullDefinitionReader:
    """For a process whose code is all there is."""

    unrunnable: Collection[Key] = ()

    async def read_missing(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Nothing else is stored."""

    async def find(self, keys: Sequence[Key]) -> None:
        """Nothing else is stored."""

    async def read_all(self) -> None:
        """Nothing else is stored."""


class VersionInUse(ConfigError):
    """Instances of this version are live, and the code of this process has another definition of it."""


def stored(saga: Saga) -> StoredDefinition:
    """`saga` as its row."""
    body = body_of(saga)
    return StoredDefinition(saga.name, saga.version, form_of(body), digest_of(body), body, schema_of(saga))


def definition_of(saga: Saga) -> Definition:
    """`saga` as it is compared with others."""
    return stored(saga).definition


def read(row: StoredDefinition) -> Saga:
    """The saga of a row, whose data are checked by their JSON Schema. Raises `UnknownFormatError`."""
    return saga_from(row.body, row.form, model_of(row.data_schema))


class DefinitionStore:
    """Keeps the catalog of a process equal to `saga_definitions`.

    `agree` is called before the node takes messages; from then on all rows are read every `READ_INTERVAL_S` seconds,
    and one at once where an instance names a version that is not known (`read_missing`). `on_change` is called after
    the catalog has grown: there may be new queues.
    """

    def __init__(self, database: Database, catalog: Catalog, on_change: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._catalog = catalog
        self._on_change = on_change
        self._unreadable: dict[Key, str] = {}
        self._unrunnable: set[Key] = set()
        self._replaced: dict[Key, str] = {}
        self._marks: dict[Key, tuple[int, str, str]] = {}
        self._problem: str | None = None
        self._loop = Loop("definitions", self._round)

    async def start(self) -> None:
        """Begins to read."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def agree(self) -> None:
        """`record`, as soon as the database is available. Raises as that does, except for temporary errors."""
        await _until_available(self.record)

    async def read_when_available(self) -> None:
        """`read_all`, as soon as the database is available."""
        await _until_available(self.read_all)

    async def record(self) -> list[ReplacedDefinition]:
        """Writes the code's versions, and reads all others.

        Returns those that were replaced. Raises `VersionInUse` for a version that live instances need as it was, and
        `ConfigError` for a message that belongs to another saga with live instances.
        """
        replaced = []
        for saga in self._catalog.code:
            one = await self._database.run(lambda tx, saga=saga: _record(tx, stored(saga)))  # type: ignore[misc]
            replaced += [one] if one is not None else []
        await self.read_all()
        await self._refuse_conflicts()
        for change in replaced:
            log.warning(
                "saga %s version %d was replaced (it has no live instances): %s",
                change.saga,
                change.version,
                "; ".join(change.differences),
            )
        return replaced

    async def read_all(self) -> None:
        """Reads every version that is stored."""
        async with self._database.read() as connection:
            rows = await definitions.all_of(connection)
            conflicts = self._add(rows)
            if conflicts and await self._forget_ended(connection, conflicts):
                self._add(conflicts)

    async def _forget_ended(self, connection: Connection, conflicts: Sequence[StoredDefinition]) -> bool:
        """Drops sagas that have messages which stored ones claim, and neither code here nor live instances."""
        owners = {
            owner for row in conflicts for owner in self._owners_of(row) if self._catalog.startable(owner) is None
        }
        ended = [owner for owner in owners if not await definitions.any_live(connection, owner)]
        for owner in ended:
            self._catalog.forget(owner)  # its row is looked at again when an instance names it, or when it changes
        return bool(ended)

    def _owners_of(self, row: StoredDefinition) -> set[str]:
        """The other sagas that have messages of this one."""
        orders = (part for step in row.body["steps"] for part in (step, step.get("undo") or {}))
        names = {part.get(what) for part in orders for what in ("command", "event")} - {None}
        return {owner for name in names if (owner := self._catalog.owner(str(name))) not in (None, row.saga)}

    async def _refuse_conflicts(self) -> None:
        """Raises `ConfigError` for a message of the code that belongs to another saga with live instances."""
        async with self._database.read() as connection:
            for row in await definitions.all_of(connection):
                owners = {one for one in self._owners_of(row) if self._catalog.startable(one) is not None}
                if owners and row.key in self._unreadable and await definitions.live(connection, *row.key):
                    raise ConfigError(f"needed by live instances of saga {row.saga!r}: {self._unreadable[row.key]}")

    async def read_missing(self, connection: Connection, keys: Sequence[Key]) -> None:
        """Reads these versions in a transaction that has found instances of them."""
        unknown = [key for key in dict.fromkeys(keys) if self._catalog.version(*key) is None]
        if unknown:
            self._reload(await definitions.some(connection, unknown))
            self._unrunnable.update(key for key in unknown if self._catalog.version(*key) is None)

    async def find(self, keys: Sequence[Key]) -> None:
        """Reads these versions, which a message names."""
        unknown = [key for key in dict.fromkeys(keys) if self._catalog.version(*key) is None]
        if unknown:
            async with self._database.read() as connection:
                self._reload(await definitions.some(connection, unknown))

    @property
    def unrunnable(self) -> Collection[Key]:
        """Versions of instances that this process has found and cannot run."""
        return self._unrunnable

    def problem(self) -> str | None:
        """The health probe: how many live instances this process cannot run, by version; None if it can run all."""
        return self._problem

    def unreadable(self) -> dict[Key, str]:
        """Stored versions that this process cannot run, and why."""
        return dict(self._unreadable)

    def _reload(self, rows: Sequence[StoredDefinition]) -> None:
        for row in rows:
            self._marks.pop(row.key, None)
        self._add(rows)

    def _add(self, rows: Sequence[StoredDefinition]) -> list[StoredDefinition]:
        """Adds what is new to the catalog; returns those with a message that belongs to another saga there."""
        grown, conflicts = False, []
        for row in rows:
            try:
                grown |= self._take(row)
            except UnknownFormatError as wrong:
                self._refused(row, wrong)
            except DefinitionError as wrong:
                self._refused(row, wrong)
                conflicts.append(row)
        if grown:
            self._unrunnable = {key for key in self._unrunnable if self._catalog.version(*key) is None}
            self._on_change()
        return conflicts

    def _refused(self, row: StoredDefinition, wrong: Exception) -> None:
        if self._unreadable.get(row.key) != str(wrong):
            log.warning("saga %s version %d cannot be run by this node: %s", *row.key, wrong)
        self._unreadable[row.key] = str(wrong)

    def _take(self, row: StoredDefinition) -> bool:
        """Whether the catalog changed by it. Raises `UnknownFormatError` and `DefinitionError`."""
        if self._catalog.has_code(*row.key):
            return self._is_other(row) and self._give_up_code(row)
        mark = row.form, row.digest, compact(row.data_schema)
        if self._marks.get(row.key) == mark:
            return False
        changed = self._catalog.add_stored(read(row))
        self._marks[row.key] = mark
        self._unreadable.pop(row.key, None)
        return changed

    def _is_other(self, row: StoredDefinition) -> bool:
        mine = self._catalog.version(*row.key)
        return mine is not None and digest_of(body_of(mine)) != row.digest

    def _give_up_code(self, row: StoredDefinition) -> bool:
        """Another node has stored another definition of this version, when no instance of it was live."""
        self._catalog.replaced(read(row))
        text = "was replaced by another definition: this node starts no instances until it has that, or another version"
        self._replaced[row.key] = text
        log.error("saga %s version %d %s", *row.key, text)
        return True

    async def _round(self) -> None:
        await asyncio.sleep(clock.uniform(READ_INTERVAL_S * 0.8, READ_INTERVAL_S))
        await self.read_all()
        await self.count_unrunnable()

    async def count_unrunnable(self) -> None:
        """Counts live instances of versions that this process has found and cannot run, and logs what changed."""
        counts = {}
        if self._unrunnable:
            async with self._database.read() as connection:
                counts = {key: await definitions.live(connection, *key) for key in sorted(self._unrunnable)}
        parts = [f"{count} of saga {saga} version {version}" for (saga, version), count in counts.items() if count]
        sentences = [f"live instances that this node cannot run: {', '.join(parts)}"] if parts else []
        sentences += [f"saga {saga} version {version} {text}" for (saga, version), text in self._replaced.items()]
        problem = "; ".join(sentences) or None
        if problem != self._problem:
            self._problem = problem
            log.warning("%s", problem or "this node can run all live instances again")


async def _until_available(work: Callable[[], Awaitable[object]]) -> None:
    """Repeats idempotent `work` until the database is available."""
    failures = 0
    while True:
        try:
            await work()
        except RetryableError as error:
            failures += 1
            if failures == 1:
                log.warning("reading saga definitions paused: %s", error)
            await asyncio.sleep(backoff(failures))
        else:
            return


async def _record(tx: Transaction, mine: StoredDefinition) -> ReplacedDefinition | None:
    """Stores one version of the code; what it replaced, if that runs otherwise."""
    before = await definitions.lock(tx, mine.saga, mine.version)
    if before is None:
        if await definitions.insert(tx, mine):
            return None
        before = await definitions.lock(tx, mine.saga, mine.version)
        assert before is not None, "a definition is never deleted"
    if before.digest == mine.digest:
        if before.data_schema != mine.data_schema or before.form != mine.form:
            await _replace_same(tx, before, mine)
        return None
    changes = differences(before.body, mine.body)
    count = await definitions.live(tx, mine.saga, mine.version)
    if count:
        raise VersionInUse(_in_use(mine, count, changes))
    await definitions.replace(tx, mine)
    return ReplacedDefinition(mine.saga, mine.version, tuple(changes))


async def _replace_same(tx: Transaction, before: StoredDefinition, mine: StoredDefinition) -> None:
    """Replaces a version that runs the same: only its data model, or the format of the row, has changed."""
    if before.data_schema != mine.data_schema:
        log.warning("saga %s version %d: the schema of its data changed", mine.saga, mine.version)
    if before.form <= mine.form:
        await definitions.replace(tx, mine)


def _in_use(mine: StoredDefinition, count: int, changes: Sequence[str]) -> str:
    shown = "; ".join(changes[:DIFFERENCES_SHOWN])
    more = f" and {len(changes) - DIFFERENCES_SHOWN} more" if len(changes) > DIFFERENCES_SHOWN else ""
    return (
        f"saga {mine.saga!r} version {mine.version} has {counted(count, 'live instance')} and differs in this code "
        f"({shown}{more}): raise its version, Saga(…, version={mine.version + 1}), or let the instances end first"
    )
