"""Job change notifier: wakes clients that follow a job, without constant polling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

POLL_INTERVAL_S: Final = 0.5
"""Seconds after which those who wait poll themselves: changes by other nodes are not notified here."""


class JobChangeNotifier:
    """Wakes those who wait for a job when this process has written a change of it."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[asyncio.Event]] = {}

    def notify(self, job_ids: Iterable[str]) -> None:
        """These jobs have changed, or logged."""
        for job_id in job_ids:
            for event in self._waiting.get(job_id, ()):
                event.set()

    async def changed(self, job_id: str, timeout: float) -> None:
        """Returns once the job may have changed, at the latest after `timeout` seconds."""
        event = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(event)
        try:
            async with asyncio.timeout(min(timeout, POLL_INTERVAL_S)):
                await event.wait()
        except TimeoutError:
            return
        finally:
            self._waiting[job_id].discard(event)
            if not self._waiting[job_id]:
                del self._waiting[job_id]
