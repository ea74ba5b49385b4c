"""Crash notes: record in the database what became of a command whose workers died, for `why`."""

from __future__ import annotations

import asyncio
from typing import Final

from orchestrix.errors import OrchestrixError
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import redelivered_commands
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.context import LOGGER

NOTE_TIMEOUT_S: Final = 1.0
"""Seconds that a note may take: nothing waits longer for it."""
TRIED_IN_ISOLATION: Final = "it is tried with nothing else at work"


class CrashNotes:
    """Notes of suspect commands only: a healthy command costs nothing here."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def started_in_isolation(self, command: CommandDelivery) -> bool:
        """Whether it was tried with nothing else running. If the database cannot say, it was: that is what its header
        says."""
        try:
            async with asyncio.timeout(NOTE_TIMEOUT_S), self._database.read() as connection:
                row = await redelivered_commands.of_command(connection, command.message.id)
        except (OrchestrixError, TimeoutError):
            return True
        return row is None or row.place == TRIED_IN_ISOLATION

    async def note(self, command: CommandDelivery, place: str) -> bool:
        """Stores how many worker deaths the command has, and where it is: `place` is a part of a sentence, which begins
        with `redelivered_commands.SET_ASIDE_PREFIX` if the command is in its queue. Whether that could be stored."""
        message = command.message
        row = RedeliveryRecord(message.id, message.type, message.saga, message.app_id, command.deaths, place)
        try:
            async with asyncio.timeout(NOTE_TIMEOUT_S):
                await self._database.run(lambda tx: redelivered_commands.put(tx, row))
        except (OrchestrixError, TimeoutError) as error:
            LOGGER.debug("cannot store the crash note of a command: %s", error, extra=command.log_fields())
            return False
        return True
