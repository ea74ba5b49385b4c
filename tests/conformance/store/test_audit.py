"""Is what people did kept, in order and as they said it?"""

from __future__ import annotations

from datetime import timedelta

from orchestrix.persistence import audit
from orchestrix.persistence.audit import AuditRow
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
