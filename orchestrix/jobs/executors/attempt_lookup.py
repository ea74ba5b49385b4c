"""Attempt lookup: reads the attempts that reports are about, many in one select."""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrix.domain.jobs import JobAttempt, JobRow
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import executor_jobs

LOOKUPS_PER_SELECT: Final = 200
Found = tuple[JobRow | None, JobAttempt | None]


class AttemptLookup:
    """What is asked for while a select is under way is read by the next one: a burst of reports takes one connection.

    Each select begins after all that it answers were asked for, so that none is answered by what was before.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[tuple[str, str], asyncio.Future[Found]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def get(self, job_id: str, history_id: str) -> Found:
        """The job without its payload, and the attempt, where they exist. Raises `Unavailable`."""
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        self._waiting.append(((job_id, history_id), answer))
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="lookup of reported attempts")
        return await answer

    async def _read(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:LOOKUPS_PER_SELECT], self._waiting[LOOKUPS_PER_SELECT:]
                await self._answer([one for one in batch if not one[1].done()])
        finally:
            self._reading = None

    async def _answer(self, batch: list[tuple[tuple[str, str], asyncio.Future[Found]]]) -> None:
        try:
            async with self._database.read() as connection:
                found = await executor_jobs.attempts_of(connection, {key for key, _ in batch})
        except Exception as error:
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
            return
        for key, answer in batch:
            if not answer.done():
                answer.set_result(found.get(key, (None, None)))
