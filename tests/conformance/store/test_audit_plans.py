"""Does each filter of the audit find its rows by an index, however many there are?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditFilter, AuditRow
from orchestrix.persistence.engine import Database
from tests.conformance.store.plans import Access, accesses, analyse, watched

ROWS: Final = 20_000
BEGAN: Final = datetime(2026, 1, 31, tzinfo=UTC)
HOUR: Final = timedelta(hours=1)


def row(n: int) -> AuditRow:
    """One action an hour: a few people do nearly all of it, and most of that is done to sagas."""
    saga = (None, "app", "order", "trip", "app")[n % 5]
    return AuditRow(
        at=BEGAN + n * HOUR,
        actor=f"person-{n % 40}",
        verb=f"verb-{n % 23}",
        reason="by hand",
        saga=saga,
        instance_id=None if saga is None else n % 997,
    )


@pytest.fixture
async def full(database: Database) -> Database:
    """A database with a long audit, whose first rows have what no other has."""
    rows = [row(n) for n in range(ROWS)]
    for n in range(3):
        rows[n] = replace(rows[n], actor="ada", verb="drain", saga="rare", instance_id=5)
    async with database.begin() as tx:
        await audit.insert(tx, rows)
    if database.dialect.name != "sqlite":  # servers count their rows by themselves
        await analyse(database, "audit")
    return database


LAST: Final = BEGAN + ROWS * HOUR
FILTERS: Final[dict[str, tuple[AuditFilter, int]]] = {
    "all": (AuditFilter(), 50),
    "a person": (AuditFilter(actor="person-7"), 50),
    "a person who did little, long ago": (AuditFilter(actor="ada"), 3),
    "nobody": (AuditFilter(actor="bob"), 0),
    "an action": (AuditFilter(verb="verb-7"), 50),
    "a rare action": (AuditFilter(verb="drain"), 3),
    "a saga": (AuditFilter(saga="order"), 50),
    "a rare saga": (AuditFilter(saga="rare"), 3),
    "no saga": (AuditFilter(saga="none"), 0),
    "an instance": (AuditFilter(saga="app", instance_id=5), 8),
    "lately": (AuditFilter(after=LAST - 100 * HOUR), 50),
    "long ago": (AuditFilter(before=BEGAN + 100 * HOUR), 50),
    "a day": (AuditFilter(after=BEGAN + 9_000 * HOUR, before=BEGAN + 9_024 * HOUR), 23),
    "a person's action": (AuditFilter(actor="person-7", verb="verb-7"), 22),
    "a person on an instance": (AuditFilter(actor="ada", saga="rare", instance_id=5), 3),
    "a person on a day": (AuditFilter(actor="person-7", after=BEGAN + 9_000 * HOUR, before=BEGAN + 9_024 * HOUR), 1),
}


async def found_by(database: Database, wanted: AuditFilter, last_seen: tuple[datetime, int] | None) -> list[Access]:
    """How the rows of a page are found; none where the database knows that there are none."""
    with watched(database) as sent:
        async with database.read() as connection:
            await audit.page(connection, wanted, 50, last_seen)
    (query,) = sent
    return await accesses(database, query)


async def test_no_page_is_found_by_reading_the_whole_audit(full: Database) -> None:
    for name, (wanted, count) in FILTERS.items():
        async with full.read() as connection:
            assert len(await audit.page(connection, wanted, 50)) == count, name
        for last_seen in (None, (row(15_000).at, 15_001)):
            for access in await found_by(full, wanted, last_seen):
                assert access.index is not None, name
                assert access.bounded or name == "all", name
    (first,) = await found_by(full, AuditFilter(), None)
    assert first.index == "ix_audit_at_id", "it is in the order of the page, and read only as far as that goes"
    (one,) = await found_by(full, AuditFilter(saga="app", instance_id=5), None)
    assert "instance_id" in (one.index or ""), "its saga has far more rows"
