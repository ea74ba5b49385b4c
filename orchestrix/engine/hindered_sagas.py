"""Hindered sagas: records that sagas are held up by a queue that has lost its consumers, until it has some again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from orchestrix import clock
from orchestrix.engine.broker_status import needed
from orchestrix.engine.consumer_presence import ConsumerPresence
from orchestrix.lifecycle import Loop
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import hindered_instances
from orchestrix.persistence.sagas.hindered_instances import Waiting
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import NO_CONSUMER, Instance
from orchestrix.saga.steps import COMPENSATING, TERMINAL
from orchestrix.telemetry import log_events

log = logging.getLogger("orchestrix.timers")

LOSS_GRACE_S: Final = 5.0
"""Seconds without a consumer before anything is recorded: a worker that restarts takes fewer."""
SEARCH_INTERVAL_S: Final = 5.0
"""Seconds at least between two searches for those that began to wait for a queue which has no consumer already."""
INSTANCES_PER_TRANSACTION: Final = 500


class HinderedSagas:
    """Writes `hindered_by` of the instances that wait for a queue, when that loses or gets its consumers.

    Those that begin to wait later are found when a queue without consumers has more messages than before, else by
    their own timers. What another process has recorded is taken back by the first node that sees consumers, also by one
    that has just started.
    """

    def __init__(self, database: Database, catalog: Catalog, presence: ConsumerPresence) -> None:
        self._database = database
        self._catalog = catalog
        self._presence = presence
        self._recorded: dict[str, tuple[bool, int]] = {}
        self._next_search_at: dict[str, float] = {}
        self._loop = Loop("hindered sagas", self._round)

    async def start(self) -> None:
        """Begins to record."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is recorded stays."""
        await self._loop.stop()

    async def _round(self) -> None:
        for queue in self._catalog.commands:
            silent, messages = self._presence.is_silent(queue, LOSS_GRACE_S), self._presence.messages(queue)
            if silent is None or not self._is_news(queue, silent, messages):
                continue
            count = await self._record(queue, silent)
            self._recorded[queue] = silent, messages
            self._next_search_at[queue] = clock.monotonic() + SEARCH_INTERVAL_S
            if count:
                found = "no consumer" if silent else "consumers"
                log.info(
                    "%s has %s; sagas that wait for it: %d",
                    queue,
                    found,
                    count,
                    extra={"event": log_events.SAGA_HINDERED},
                )
        await self._presence.checked.wait(None)

    def _is_news(self, queue: str, silent: bool, messages: int) -> bool:
        """Whether the queue has lost or got consumers, or has more messages that no consumer takes."""
        was_silent, had = self._recorded.get(queue, (None, 0))
        if was_silent is not silent:
            return True
        if messages < had:  # purged, or expired: those that come from now on are more again
            self._recorded[queue] = silent, messages
        return silent and messages > had and clock.monotonic() >= self._next_search_at.get(queue, 0.0)

    async def _record(self, queue: str, silent: bool) -> int:
        """How many instances it was recorded of, or not any more. Ends early where that is not so any more."""
        owner = self._catalog.command(queue)
        if owner is None:
            return 0
        states = {*self._catalog.states(owner.saga.name), COMPENSATING} - TERMINAL
        wanted = Waiting(owner.saga.name, states, recorded=not silent)
        after, count = 0, 0
        while self._presence.is_silent(queue, LOSS_GRACE_S) is silent:
            rows = await self._database.run(lambda tx: self._write(tx, queue, wanted, after))  # noqa: B023
            if not rows:
                break
            after, count = rows[-1].id, count + sum(self._waits_for(one, queue) for one in rows)
        return count

    async def _write(self, tx: Transaction, queue: str, wanted: Waiting, after: int) -> Sequence[Instance]:
        pair = saga_tables_of(wanted.saga)
        rows = await hindered_instances.lock_waiting(tx, pair, wanted, after, INSTANCES_PER_TRANSACTION)
        mine = [one for one in rows if self._waits_for(one, queue)]
        await hindered_instances.record(tx, pair, mine, None if wanted.recorded else NO_CONSUMER)
        return rows

    def _waits_for(self, one: Instance, queue: str) -> bool:
        """Whether a worker must take a command from that queue for the instance to continue."""
        saga = self._catalog.of(one)
        return saga is not None and not one.begun and queue in needed(saga, one)
