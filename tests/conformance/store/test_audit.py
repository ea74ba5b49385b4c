"""Is what people did kept, in order and as they said it?"""

from __future__ import annotations

from datetime import datetime, timedelta

from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditFilter, AuditRow
from orchestrix.persistence.engine import Database


async def test_what_was_done_to_a_saga_comes_back_as_it_went_in(database: Database) -> None:
    now = database.now()
    paused = AuditRow(
        at=now, actor="ada", verb="pause", reason="é 😀", saga="app", instance_id=1, from_version=3, to_version=4
    )
    skipped = AuditRow(
        at=now - timedelta(seconds=1),
        actor="bob",
        verb="skip",
        reason="it is there",
        saga="app",
        instance_id=1,
        from_version=4,
        to_version=6,
        detail={"output": {"repo": "x", "big": 2**64 + 1}, "none": None},
    )
    other = AuditRow(at=now, actor="ada", verb="pause", reason="x", saga="order", instance_id=1)
    nobodys = AuditRow(at=now, actor="ada", verb="drop", reason="noise", detail={"ids": ["a", "b"]})
    async with database.begin() as tx:
        await audit.insert(tx, [paused, other, nobodys, skipped])
        await audit.insert(tx, [])
    async with database.read() as connection:
        assert await audit.listing(connection, "app", 1) == [paused, skipped]
        assert await audit.listing(connection, "order", 1) == [other]
        assert await audit.listing(connection, "app", 2) == []


async def test_a_reason_that_no_database_takes_is_kept_readable(database: Database) -> None:
    async with database.begin() as tx:
        row = AuditRow(at=tx.now(), actor="ada", verb="pause", reason="a\0b\ud800", saga="app", instance_id=1)
        await audit.insert(tx, [row])
        (found,) = await audit.listing(tx, "app", 1)
    assert found.reason == "a\ufffdb\ufffd"


async def test_pages_are_in_the_order_of_time_and_have_each_row_once(database: Database) -> None:
    """Rows of one moment are in the order of their ids; a row can be of an earlier moment than one before it."""
    now = database.now()
    ago = [3, 1, 2, 1, 1, 5, 4]
    rows = [
        AuditRow(at=now - timedelta(seconds=n), actor="ada", verb="pause", reason=f"{place}")
        for place, n in enumerate(ago)
    ]
    async with database.begin() as tx:
        await audit.insert(tx, rows)
    seen: list[str] = []
    last: tuple[datetime, int] | None = None
    async with database.read() as connection:
        while found := await audit.page(connection, AuditFilter(actor="ada"), 2, last):
            seen += [row.reason for _, row in found]
            last = found[-1][1].at, found[-1][0]
    assert seen == ["4", "3", "1", "2", "0", "6", "5"]
