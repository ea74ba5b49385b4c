"""What happens to a saga whose answer does not come?"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from app import crash
from app.broker.port import Broker, LinkState
from app.lifecycle import Loop, Wake
from app.orchestration.outgoing import rows_owed
from app.orchestration.relay import OutboxRelay
from app.persistence import instances, outbox
from app.persistence.engine import Database, Transaction
from app.persistence.instances import Rewake
from app.persistence.pairs import APPS, INSTANCES, Pair
from sagas.engine.catalog import Catalog
from sagas.engine.state import DEADLINE, UNSENT, Instance
from sagas.engine.transition import later

log = logging.getLogger("orchestrix.wakeups")

NAP = 5.0
"""Seconds between two looks when nothing is due earlier."""


class Wakeups:
    """Sends the current command of every overdue saga again, under its old id, and doubles the wait.

    Any node does it; a row is taken by one at a time. While this node has no broker it leaves them to the others.
    """

    def __init__(
        self, database: Database, broker: Broker, relay: OutboxRelay, catalog: Catalog, *, cap: float, batch: int
    ) -> None:
        self._database = database
        self._broker = broker
        self._relay = relay
        self._catalog = catalog
        self._cap = timedelta(seconds=cap)
        self._batch = batch
        self._wake = Wake()
        self._loop = Loop("wake-ups", self._round)
        self._sagas = {
            APPS: [saga.name for saga in catalog if saga.name == APPS.saga],
            INSTANCES: [saga.name for saga in catalog if saga.name != APPS.saga],
        }
        broker.on_up(lambda _generation: self._wake.set())

    async def start(self) -> None:
        """Begins to look."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is due is found by another node."""
        await self._loop.stop()

    async def _round(self) -> None:
        if self._broker.state is not LinkState.UP:
            await self._wake.wait(NAP)
            return
        woken = sum([await self._send_all_again(pair, names) for pair, names in self._sagas.items() if names])
        if woken:
            crash.point("wakeups.after_commit")
            log.debug("sent %d overdue commands again", woken)
            self._relay.poke()
        else:
            await self._wake.wait(await self._until_next())

    async def _send_all_again(self, pair: Pair, names: Sequence[str]) -> int:
        return await self._database.run(lambda tx: self._send_again(tx, pair, names))

    async def _send_again(self, tx: Transaction, pair: Pair, names: Sequence[str]) -> int:
        due = await instances.due(tx, pair, names, limit=self._batch)
        if not due:
            return 0
        unsent = await outbox.present(tx, [one.command_id for one in due if one.command_id])
        await instances.rewake(tx, pair, [self._rewoken(one, one.command_id in unsent) for one in due])
        now = self._database.now()
        sent = [replace(one, updated_at=now) for one in due if one.command_id not in unsent]
        again = rows_owed(self._catalog, sent)
        await outbox.insert(tx, again, claimed_by=None, lease_s=0.0)
        crash.point("wakeups.before_commit")
        return len(due)

    def _rewoken(self, instance: Instance, unsent: bool) -> Rewake:
        wait = timedelta(milliseconds=instance.wait_ms)
        wait = wait if unsent else later(wait, self._cap)  # the step's time begins with the confirm
        return Rewake(
            id=instance.id,
            version=instance.version,
            wake_at=self._database.now() + wait,
            wake_reason=UNSENT if unsent else DEADLINE,
            wait_ms=int(wait / timedelta(milliseconds=1)),
        )

    async def _until_next(self) -> float:
        nearest = NAP
        async with self._database.read() as connection:
            for pair, names in self._sagas.items():
                due = await instances.next_wake(connection, pair, names) if names else None
                nearest = min(nearest, NAP if due is None else max(due, 0.02))
        return nearest
