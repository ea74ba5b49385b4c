"""Do nodes of the former release go on starting and moving sagas while the columns are added and filled?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from sqlalchemy import func, insert, select, update

from orchestrix import Saga
from orchestrix.errors import Contention
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.persistence.schema import migrator
from sagas.app_provisioning import APP_PROVISIONING
from tests.migrations.conftest import SERVERS
from tests.migrations.test_columns import BEFORE, NEW, define, facts, good, instance_values, rows
from tests.support import eventually
from tests.unit.sagas.runs import TRIP, Run

SAGAS = (APP_PROVISIONING, TRIP)
THERE_BEFORE = 200
"""Instances of each saga that are there before the upgrade, so that the filling takes a while."""
WRITERS = 3
"""Writers of each saga."""
AFTER = 20
"""Starts that follow the upgrade: a node of the former release runs beside those of this one for a while."""


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.servers) for name in SERVERS])
async def database(request: pytest.FixtureRequest) -> AsyncIterator[Database]:
    """As the former release left it: of SQLite, whose one writer is the upgrade, nobody else writes meanwhile."""
    url = str(request.getfixturevalue(SERVERS[request.param]))
    database = Database(url, make=True)
    await migrator.upgrade(url)
    await migrator.downgrade(url, BEFORE)
    yield database
    await database.close()


@dataclass
class FormerNode:
    """Writes as a node of the former release does: the instance, then its history, and none of the new columns."""

    database: Database
    saga: Saga
    ids: Iterator[int]
    ended: list[int] = field(default_factory=list)
    """The instances that have come to their end."""
    is_stopping: bool = False

    async def work(self) -> None:
        """Starts one after another, and moves each to its end, a transaction for each change."""
        for id in self.ids:
            run = good(self.saga)
            for place in range(len(run.history)):
                await self.change(id, run, place)
            self.ended.append(id)
            if self.is_stopping:
                return

    async def change(self, id: int, run: Run, place: int) -> None:
        """As nodes do, again where a lock was not given. At PostgreSQL no two wait for each other; MariaDB locks the
        instances that a statement of the filling reads."""
        while True:
            try:
                return await self.database.run(lambda tx: self.write(tx, id, run, place), attempts=1)
            except Contention as refused:
                if self.database.dialect.name == "postgresql" and "deadlock" in str(refused):
                    pytest.fail(str(refused))

    async def write(self, tx: Transaction, id: int, run: Run, place: int) -> None:
        """The change at `place` of the story. The instance was read and locked before it is changed."""
        pair, row = saga_tables_of(self.saga.name), run.history[place]
        if place == 0:
            await tx.execute(insert(pair.instances).values(instance_values(pair, id, run.instance)))
        else:
            one = select(pair.instances.c.id).where(pair.instances.c.id == id).with_for_update()
            assert (await tx.execute(one)).scalar_one() == id
            changed = update(pair.instances).where(pair.instances.c.id == id)
            await tx.execute(changed.values(updated_at=row.at))
        await tx.execute(insert(pair.history).values({pair.owner: id, **former(row)}))


def former(row: Any) -> dict[str, Any]:
    """The columns of a history row that the former release knew."""
    return {name: getattr(row, name) for name in type(row).__slots__ if name not in NEW}


@asynccontextmanager
async def running(nodes: list[FormerNode]) -> AsyncIterator[list[asyncio.Task[None]]]:
    tasks = [asyncio.create_task(node.work()) for node in nodes for _ in range(WRITERS)]
    try:
        yield tasks
    finally:
        for node in nodes:
            node.is_stopping = True
        await asyncio.gather(*tasks)


def many_ended(nodes: list[FormerNode], least: dict[str, int]) -> bool:
    return all(len(node.ended) >= least[node.saga.name] for node in nodes)


async def test_nodes_of_the_former_release_write_while_columns_are_added_and_filled(database: Database) -> None:
    url = database.url.render_as_string(hide_password=False)
    await database.run(lambda tx: define(tx, *SAGAS))
    await database.run(there_before)
    nodes = [FormerNode(database, saga, count(THERE_BEFORE + 1)) for saga in SAGAS]
    async with running(nodes) as tasks:
        await eventually(lambda: many_ended(nodes, dict.fromkeys(("app", "trip"), 2)), deadline=60)
        begun = {node.saga.name: len(node.ended) for node in nodes}
        await migrator.upgrade(url)
        meanwhile = {node.saga.name: len(node.ended) - begun[node.saga.name] for node in nodes}
        least = {node.saga.name: len(node.ended) + AFTER for node in nodes}
        await eventually(lambda: many_ended(nodes, least) or any(task.done() for task in tasks), deadline=60)
    assert all(meanwhile.values()), meanwhile
    assert await migrator.check(url) == []
    for node in nodes:
        await check(database, node)


async def there_before(tx: Transaction) -> None:
    for saga in SAGAS:
        pair, run = saga_tables_of(saga.name), good(saga)
        ids = range(1, THERE_BEFORE + 1)
        await tx.execute(insert(pair.instances), [instance_values(pair, id, run.instance) for id in ids])
        changes = [{pair.owner: id, **former(row)} for id in ids for row in run.history]
        await tx.execute(insert(pair.history), changes)


async def check(database: Database, node: FormerNode) -> None:
    """Each change is there once; what was there before is filled, what came later says nothing that is wrong."""
    pair, story = saga_tables_of(node.saga.name), good(node.saga).history
    written = facts(story, "version", "from_state", "to_state", "reason")
    for id in (1, THERE_BEFORE, *node.ended):
        found = await rows(database, node.saga.name, id)
        assert facts(found, "version", "from_state", "to_state", "reason") == written
        assert all(now.kind in (then.kind, None) for now, then in zip(found, story, strict=True))
    table = pair.history.c
    empty = select(func.count()).where(table[pair.owner] <= THERE_BEFORE, table.kind.is_(None))
    async with database.read() as connection:
        assert (await connection.execute(empty)).scalar_one() == 0
        all_of = select(func.count()).select_from(pair.instances)
        there = (await connection.execute(all_of)).scalar_one()
    assert there >= THERE_BEFORE + len(node.ended)
