"""Write probe: checks every five seconds whether the database takes a write."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from orchestrix import clock
from orchestrix.errors import RetryableError, SchemaMismatch
from orchestrix.lifecycle import ended
from orchestrix.persistence.cluster import write_probes
from orchestrix.persistence.engine import Database, Transaction

log = logging.getLogger("orchestrix")

PROBE_INTERVAL_S: Final = 5.0
"""Seconds from the beginning of one write to that of the next."""
PROBE_TIMEOUT_S: Final = 2.0
"""Seconds that a write may take before the database counts as taking none."""
WRITES_PER_PRUNE: Final = 120
"""Writes between two removals of the rows of processes that are gone."""


class WriteProbe:
    """Writes the row of this process. `problem` is why that does not succeed, in a sentence; None while it does.

    `name` is the process's. There is one write at a time: one that hangs holds one connection, and no lock but that of
    its own row.
    """

    def __init__(self, database: Database, name: str, interval_s: float = PROBE_INTERVAL_S) -> None:
        self._database, self._name, self._interval_s = database, name, interval_s
        self._task: asyncio.Task[None] | None = None
        self._count = 0
        self._logged = False
        self.problem: str | None = "the database has not accepted a write yet"

    async def start(self) -> None:
        """Begins to write. The tables have to be there."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="write probe")

    async def stop(self) -> None:
        """Writes no more."""
        task, self._task = self._task, None
        if task is not None:
            await ended(task)

    async def _run(self) -> None:
        while True:
            began = clock.monotonic()
            self._note(await self._result(began))
            await asyncio.sleep(max(self._interval_s - (clock.monotonic() - began), 0.0))

    async def _result(self, began: float) -> str | None:
        writing = asyncio.ensure_future(self._database.run(self._write))
        try:
            while not (await asyncio.wait({writing}, timeout=PROBE_TIMEOUT_S))[0]:
                # It may only be queued behind others: what they have written meanwhile proves as much.
                written = self._database.written_at
                late = written is None or written < began
                began = clock.monotonic()
                self._note(f"the database has not accepted a write within {PROBE_TIMEOUT_S:g} s" if late else None)
            return _problem(writing)
        finally:
            if not writing.done():
                await ended(writing)

    async def _write(self, tx: Transaction) -> None:
        await write_probes.write(tx, self._name)
        if self._count % WRITES_PER_PRUNE == 0:
            await write_probes.prune(tx)
        self._count += 1

    def _note(self, problem: str | None) -> None:
        """Logs it once, and once more when it is over."""
        if problem is not None and not self._logged:
            log.warning("the database does not accept writes: %s", problem)
        elif problem is None and self._logged:
            self._database.renew()  # before all is reported as well
            log.warning("the database accepts writes again")
        self._logged = problem is not None
        self.problem = problem


def _problem(writing: asyncio.Future[None]) -> str | None:
    error = writing.exception()
    if error is None:
        return None
    if isinstance(error, RetryableError | SchemaMismatch):
        return str(error)
    log.debug("the write probe failed", exc_info=error)
    return f"the write check of the database failed: {type(error).__name__}"
