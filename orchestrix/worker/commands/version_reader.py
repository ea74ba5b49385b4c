"""Version reader: reads stored definitions for commands of versions that the worker's code lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrix.domain.version_check import Key
from orchestrix.lifecycle import backoff
from orchestrix.persistence.sagas.definition_store import DefinitionReader
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.errors import INFRASTRUCTURE_ERRORS

KEY: Final = "definitions"


class VersionReader:
    """Reads stored versions. While the database is unavailable the worker takes no more commands, and keeps what it
    has."""

    def __init__(self, reader: DefinitionReader, in_flight: InFlightCommands, outage: Backpressure) -> None:
        self._reader = reader
        self._in_flight = in_flight
        self._outage = outage

    async def find(self, keys: Sequence[Key]) -> bool:
        """Loads those of these versions that are stored; False if the worker stops before the database is reachable."""
        failures = 0
        while True:
            try:
                await self._reader.find(keys)
            except INFRASTRUCTURE_ERRORS as error:
                failures += 1
                await self._outage.note(KEY, error)
                if not await self._in_flight.pause(backoff(failures)):
                    return False
            else:
                await self._outage.over(KEY)
                return True
