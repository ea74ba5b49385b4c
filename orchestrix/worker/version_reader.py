"""Version reader: finds the definitions by which commands go, where the worker's code has others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrix.domain.version_check import Key
from orchestrix.lifecycle import backoff
from orchestrix.persistence.versions import Reader

from .desk import Desk
from .errors import OWN_TROUBLE
from .outage import Outage

KEY: Final = "definitions"


class VersionReader:
    """Reads stored versions. While the database is away the worker takes no more commands, and keeps what it has."""

    def __init__(self, reader: Reader, desk: Desk, outage: Outage) -> None:
        self._reader = reader
        self._desk = desk
        self._outage = outage

    async def find(self, keys: Sequence[Key]) -> bool:
        """Learns those of these versions that are stored; False if the worker stops before the database is there."""
        failures = 0
        while True:
            try:
                await self._reader.find(keys)
            except OWN_TROUBLE as error:
                failures += 1
                await self._outage.note(KEY, error)
                if not await self._desk.pause(backoff(failures)):
                    return False
            else:
                await self._outage.over(KEY)
                return True
