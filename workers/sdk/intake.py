"""How does a delivery become a job?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from app import crash
from app.broker.port import Delivery
from sagas.engine import messages
from sagas.engine.catalog import Catalog, Owner

from .desk import Desk
from .failures import given_up
from .job import Job
from .reporter import Reporter, burial
from .triage import Triage

BATCH: Final = 500
LOOK: Final = 0.1
LINGER: Final = 0.002
BUSY: Final = 4
"""A batch of this size says that waiting `LINGER` seconds for the next one is worth it."""


class Intake:
    """Reads, joins or buries each delivery of a batch, and lets the fresh ones be looked at together."""

    def __init__(
        self, desk: Desk, catalog: Catalog, reporter: Reporter, triage: Triage, run: Callable[[Job], None]
    ) -> None:
        self._desk = desk
        self._catalog = catalog
        self._reporter = reporter
        self._triage = triage
        self._run = run
        self._last = 0

    async def round(self) -> None:
        """Takes one batch."""
        task = asyncio.current_task()
        linger = LINGER if self._last >= BUSY else 0.0
        deliveries = await self._desk.consumer.receive(BATCH, linger)
        self._last = len(deliveries)
        if not deliveries:  # the consumer is closed: nothing will come before this loop is stopped
            await asyncio.sleep(LOOK)
            return None
        crash.point("worker.after_receive")
        jobs = [job for delivery in deliveries if (job := self._admit(delivery))]
        try:
            await self._desk.answer()
            if self._desk.stopping.is_set():
                return await self._desk.give_back(jobs)
            for job in await self._triage.look(jobs):
                self._run(job)
        except BaseException as error:
            if given_up(error, task):
                raise
            await self._desk.reject(jobs)
            if isinstance(error, Exception):
                raise
            raise RuntimeError("what came could not be sorted") from error

    def _admit(self, delivery: Delivery) -> Job | None:
        try:
            command = messages.command(delivery.body)
            owner = self._owner(delivery, command)
        except messages.Unreadable as unreadable:
            self._reporter.add(burial(delivery, str(unreadable)))
            return None
        return self._desk.admit(command, owner, delivery)

    def _owner(self, delivery: Delivery, command: messages.Command) -> Owner:
        """The step that the queue belongs to, if the body speaks of it too."""
        owner = self._catalog.command(delivery.queue)
        if owner is None or command.type != delivery.queue:
            raise messages.Unreadable(f"wrong-type: {command.type[:100]} in {delivery.queue}")
        if command.saga != owner.saga.name:
            known = self._catalog.saga(command.saga) is not None
            raise messages.Unreadable("wrong-saga" if known else "unknown-saga")
        if owner.undoes != (command.undoes_attempt is not None):
            wrong = "is missing" if owner.undoes else "belongs to an undo alone"
            raise messages.Unreadable(f"undoesAttempt: {wrong}")
        return owner
