"""Crashes: keeps in the database what became of a command whose workers died, for those who ask why it waits."""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrix.errors import OrchestrixError
from orchestrix.persistence import suspects
from orchestrix.persistence.engine import Database
from orchestrix.persistence.suspects import Suspect

from .context import LOGGER
from .job import Job

WITHIN_S: Final = 1.0
"""Seconds that a note may take: nothing waits longer for it."""
BESIDE_NOTHING: Final = "it is tried with nothing else at work"


class Crashes:
    """Notes of suspects alone: a healthy command costs nothing here."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def began_alone(self, job: Job) -> bool:
        """Whether it was tried with nothing else at work. If nobody can say, it was: that is what its header says."""
        try:
            async with asyncio.timeout(WITHIN_S), self._database.read() as connection:
                row = await suspects.of_command(connection, job.command.id)
        except (OrchestrixError, TimeoutError):
            return True
        return row is None or row.place == BESIDE_NOTHING

    async def note(self, job: Job, place: str) -> bool:
        """Keeps how many deaths the command has, and where it stands: `place` is a part of a sentence, which begins
        with `suspects.WAITS` if the command is in its queue. Whether that could be written down."""
        command = job.command
        row = Suspect(command.id, command.type, command.saga, command.app_id, job.deaths, place)
        try:
            async with asyncio.timeout(WITHIN_S):
                await self._database.run(lambda tx: suspects.put(tx, row))
        except (OrchestrixError, TimeoutError) as away:
            LOGGER.debug("where a suspect stands could not be noted: %s", away, extra=job.told)
            return False
        return True
