"""What does the database, by its own clock, say of who led and who owned which job when?"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg

# Rows say who owns a job now; these note each change, and each time that something a job said was written.
_NOTES: Final = """
CREATE SCHEMA evidence;
CREATE TABLE evidence.marks (
    id bigserial PRIMARY KEY, kind text, job_id text, former text, owner text,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON evidence.marks (job_id, id);
CREATE FUNCTION evidence.owned() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO evidence.marks (kind, job_id, former, owner) VALUES ('owned', NEW.id, OLD.owner, NEW.owner);
    RETURN NULL;
END $$;
CREATE TRIGGER owned AFTER UPDATE ON jobs FOR EACH ROW
    WHEN (OLD.owner IS DISTINCT FROM NEW.owner) EXECUTE FUNCTION evidence.owned();
CREATE FUNCTION evidence.heard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO evidence.marks (kind, job_id) SELECT DISTINCT 'heard', job_id FROM fresh;
    RETURN NULL;
END $$;
CREATE TRIGGER heard AFTER INSERT ON job_logs REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION evidence.heard();
"""
_GAPS: Final = """
SELECT 1000 * extract(epoch FROM (
    SELECT min(next.at) FROM evidence.marks AS next
    WHERE next.job_id = moved.job_id AND next.kind = 'heard' AND next.id > moved.id
) - moved.at)::float AS ms
FROM evidence.marks AS moved WHERE moved.kind = 'owned' AND moved.former = ANY($1)
"""


class Evidence:
    """One connection to the database of a cluster, which stays open, so that asking the time takes no time."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    @classmethod
    async def of(cls, url: str) -> Evidence:
        """Begins to note changes; the tables of the product must be there."""
        connection = await asyncpg.connect(url, timeout=10)  # type: ignore[no-untyped-call]
        await connection.execute(_NOTES)
        return cls(connection)

    async def close(self) -> None:
        """Notes go on; nobody reads them."""
        await self._connection.close()  # type: ignore[no-untyped-call]

    async def now(self) -> datetime:
        """The time."""
        now: datetime = await self._value("SELECT clock_timestamp()")
        return now

    async def term(self) -> tuple[int, str]:
        """The newest term and its holder; 0 before the first."""
        rows = await self._rows("SELECT term, holder FROM leases")
        return (rows[0]["term"], rows[0]["holder"]) if rows else (0, "")

    async def led(self, after: int) -> datetime | None:
        """When the first leader after that term that wrote anything did so first."""
        led: datetime | None = await self._value("SELECT min(ended_at) FROM handovers WHERE term > $1", after)
        return led

    async def node(self, name: str) -> str:
        """The id of the node's present life."""
        query = "SELECT id FROM nodes WHERE name = $1 ORDER BY started_at DESC LIMIT 1"
        return str(await self._value(query, name))

    async def owned(self, node: str) -> int:
        """How many jobs the node owns."""
        return int(await self._value("SELECT count(*) FROM jobs WHERE channels = 1 AND owner = $1", node))

    async def running(self) -> int:
        """How many jobs run, and are read by somebody."""
        return int(await self._value("SELECT count(*) FROM jobs WHERE state = 'RUNNING' AND owner IS NOT NULL"))

    async def given(self, former: str) -> tuple[int, datetime]:
        """How many of the node's jobs others have got, and when the last of them."""
        query = "SELECT count(*) AS jobs, max(at) AS at FROM evidence.marks WHERE kind = 'owned' AND former = $1"
        (row,) = await self._rows(query, former)
        return row["jobs"], row["at"]

    async def gaps(self, former: Sequence[str]) -> list[float | None]:
        """Milliseconds from each change of a job's owner to the first of its events that the new one wrote."""
        return [row["ms"] for row in await self._rows(_GAPS, list(former))]

    async def begun(self, handler: str) -> tuple[int, int]:
        """How many jobs of that kind a worker has begun, and how many there are."""
        query = "SELECT count(started_at) AS begun, count(*) AS jobs FROM jobs WHERE handler = $1"
        (row,) = await self._rows(query, handler)
        return row["begun"], row["jobs"]

    async def rate(self, handler: str) -> float:
        """Jobs a second that workers have begun since the last one was put down."""
        query = (
            "SELECT (count(*) / extract(epoch FROM max(started_at) - min(last)))::float"
            " FROM jobs, (SELECT max(created_at) AS last FROM jobs WHERE handler = $1) AS burst"
            " WHERE handler = $1 AND started_at > last"
        )
        return float(await self._value(query, handler))

    async def ended(self, created_by: str) -> int:
        """How many jobs of that kind have ended. Raises AssertionError where one needed more than its first try."""
        query = (
            "SELECT count(finished_at) AS ended, count(*) FILTER (WHERE attempt > 1 OR state IN"
            " ('FAILED', 'TIMED_OUT', 'CANCELLED')) AS bad FROM jobs WHERE created_by = $1"
        )
        (row,) = await self._rows(query, created_by)
        assert not row["bad"], f"{row['bad']} jobs of {created_by} did not succeed at once"
        return int(row["ended"])

    async def done_rate(self, created_by: str) -> float:
        """Jobs of that kind a second, from the first dispatch to the last end."""
        query = (
            "SELECT (count(*) / extract(epoch FROM max(finished_at) - min(dispatched_at)))::float"
            " FROM jobs WHERE created_by = $1"
        )
        return float(await self._value(query, created_by))

    async def _value(self, query: str, *arguments: object) -> Any:
        (row,) = await self._rows(query, *arguments)
        return row[0]

    async def _rows(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        return await self._connection.fetch(query, *arguments)
