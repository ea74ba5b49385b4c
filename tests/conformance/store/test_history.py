"""Does the history tell each version of each instance once?"""

from __future__ import annotations

import pytest

from orchestrix.errors import ConflictError, Invalid
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import history
from orchestrix.persistence.sagas.saga_tables import SagaTables
from orchestrix.saga.state import Instance, StateChange
from tests.conformance.store.build import some

Of = tuple[SagaTables, str]


def change(instance: Instance, version: int, reason: str = "why") -> StateChange:
    source = None if version == 1 else f"STATE_{version - 1}"
    at = instance.created_at
    return StateChange(version, source, f"STATE_{version}", reason, "ada", "c-1", "event-1", "command-1", at)


@pytest.mark.req("S3-37", "S3-46")
async def test_an_instance_has_many_rows_in_the_order_of_its_versions(database: Database, of: Of) -> None:
    pair, saga = of
    one, other = await some(database, 2, pair, saga)
    told = [(one.id, change(one, version)) for version in (3, 1, 4, 2)]
    async with database.begin() as tx:
        await history.insert(tx, pair, [*told, (other.id, change(other, 1))])
        await history.insert(tx, pair, [])
    async with database.read() as connection:
        found = await history.listing(connection, pair, one.id, 0, 10)
        assert found == [change(one, version) for version in (1, 2, 3, 4)]
        assert await history.listing(connection, pair, one.id, 1, 2) == found[1:3]
        assert await history.listing(connection, pair, other.id, 0, 10) == [change(other, 1)]
        assert await history.listing(connection, pair, other.id, 1, 10) == []


@pytest.mark.req("S3-52")
async def test_a_version_is_told_once(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    async with database.begin() as tx:
        await history.insert(tx, pair, [(one.id, change(one, 1))])
    with pytest.raises(ConflictError):
        async with database.begin() as tx:
            await history.insert(tx, pair, [(one.id, change(one, 2)), (one.id, change(one, 1, "again"))])
    async with database.read() as connection:
        assert await history.listing(connection, pair, one.id, 0, 10) == [change(one, 1)]


@pytest.mark.req("S3-36")
async def test_history_belongs_to_an_instance(database: Database, of: Of) -> None:
    pair, saga = of
    (one,) = await some(database, 1, pair, saga)
    with pytest.raises(Invalid):
        async with database.begin() as tx:
            await history.insert(tx, pair, [(one.id + 4711, change(one, 1))])
