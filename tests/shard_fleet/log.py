"""Where does a process of members note what it holds?"""

from __future__ import annotations

import os

from tests.shard_fleet.intervals import Entry


class Log:
    """Each line is written at once: the process may be killed after it."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def write(self, one: Entry) -> None:
        """One line."""
        os.write(self._file, one.line().encode())
