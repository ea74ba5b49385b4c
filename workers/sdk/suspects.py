"""Which of the commands that came again is tried next?"""

from __future__ import annotations

import asyncio
from typing import Final

from app import clock
from app.lifecycle import Wake

from .job import Job

GATHER: Final = 0.1
"""Seconds in which others may still come that were in the same hands."""


class Suspects:
    """Commands that were in hand when a worker ended, one of which may have ended it.

    They are taken in no order: whoever stood behind the guilty one last time may be done before it this time. So all
    innocents are done after a few deaths, long before anybody's number of deliveries is too high.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._wake = Wake()

    def put(self, job: Job) -> None:
        """One more."""
        self._jobs.append(job)
        self._wake.set()

    async def take(self) -> Job:
        """Any of them. What came more than once waits a moment for others, so that there is a choice."""
        while not self._jobs:
            await self._wake.wait(None)
        if any(job.delivery_count > 1 for job in self._jobs):
            await asyncio.sleep(GATHER)
        if not self._jobs:  # given back meanwhile
            return await self.take()
        return self._jobs.pop(int(clock.uniform(0, len(self._jobs))) % len(self._jobs))

    def drain(self) -> list[Job]:
        """All that were not taken."""
        jobs, self._jobs = self._jobs, []
        return jobs
