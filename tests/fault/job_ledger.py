"""What does the database say of jobs after a crash, and is nothing of them lost, done twice or stuck?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from orchestrix.domain.jobs import LIVE, SUCCEEDED
from tests.fault.numbered import LINES

SAYS: Final = {"quiet": 0}
"""How many lines a job of a handler logs that says not as many as the others."""


@dataclass
class Try:
    """One attempt, and what it has logged in the order of its numbers."""

    history_id: str
    number: int
    state: str
    dispatched_at: Any
    finished_at: Any
    lines: list[str] = field(default_factory=list)


@dataclass
class Row:
    """One job."""

    id: str
    handler: str
    state: str
    attempt: int
    tries: int
    retries: int
    attempts: list[Try] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the log of its last attempt is there to the end, if it has succeeded."""
        return self.state != SUCCEEDED or (bool(self.attempts) and self.attempts[-1].lines == self._all_lines)

    @property
    def _all_lines(self) -> list[str]:
        return [str(n) for n in range(SAYS.get(self.handler, LINES))]

    def check(self, state: str, most: int) -> None:
        """It has ended in `state` by at most so many attempts, one after another, each of which said all in order."""
        assert self.state == state, self
        assert [one.number for one in self.attempts] == list(range(1, self.attempt + 1)), self
        assert self.tries <= self.attempt <= most, self
        assert self.tries <= self.retries + 1, self
        assert self.attempts[-1].state == state, self
        assert not [one for one in self.attempts if one.state in LIVE or one.finished_at is None], self
        for before, after in zip(self.attempts, self.attempts[1:], strict=False):
            assert before.state != SUCCEEDED, self
            assert before.finished_at <= after.dispatched_at, f"two attempts at once: {self}"
        for one in self.attempts:
            assert one.lines == self._all_lines[: len(one.lines)], f"lost or said twice: {self}"
        assert self.complete, self

    def check_effects(self, begun: Counter[str]) -> None:
        """Each attempt has begun its work at most once, and the one that succeeded has."""
        for one in self.attempts:
            assert begun[one.history_id] <= 1, f"{one.history_id} was begun twice: {self}"
        assert self.state != SUCCEEDED or begun[self.attempts[-1].history_id] == 1, self


async def read(url: str) -> list[Row]:
    """All jobs, in the order of their ids."""
    engine = create_async_engine(url, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            return await _read(connection)
    finally:
        await engine.dispose()


async def _read(connection: AsyncConnection) -> list[Row]:
    # Of a broadcast, what is done is done by its children.
    columns = "id, handler, state, attempt, tries, retries"
    jobs = await _all(connection, f"{columns} FROM jobs WHERE broadcast_end IS NULL ORDER BY id")
    found = {row.id: Row(*row) for row in jobs}
    tries: dict[str, Try] = {}
    columns = "job_id, history_id, attempt, state, dispatched_at, finished_at"
    for job_id, *values in await _all(connection, f"{columns} FROM job_attempts ORDER BY job_id, attempt"):
        if job_id in found:
            tries[values[0]] = Try(*values)
            found[job_id].attempts.append(tries[values[0]])
    for history_id, line in await _all(connection, "history_id, message FROM job_logs ORDER BY history_id, seq"):
        if history_id in tries:
            tries[history_id].lines.append(line)
    return list(found.values())


async def _all(connection: AsyncConnection, wanted: str) -> Sequence[Any]:
    return (await connection.execute(text(f"SELECT {wanted}"))).all()


def begun(effects: Path) -> Counter[str]:
    """How often each attempt has begun its work, by the lines that it has left."""
    lines = effects.read_text().splitlines() if effects.exists() else []
    return Counter(line.partition(" ")[2] for line in lines)
