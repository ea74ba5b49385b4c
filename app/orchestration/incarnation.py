"""How is it noticed that the broker has lost its memory, and what is sent again?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from app import clock, crash
from app.broker.port import Broker, LinkState, Topology
from app.broker.topology import incarnation_queue
from app.lifecycle import Loop, Wake
from app.orchestration.outgoing import row_for
from app.orchestration.relay import OutboxRelay
from app.persistence import incarnation, instances, outbox
from app.persistence.engine import Database
from app.persistence.outbox import OutboxRow
from app.persistence.pairs import APPS, INSTANCES, Pair
from sagas.engine.catalog import Catalog
from sagas.engine.messages import Command
from sagas.engine.state import Instance
from sagas.engine.transition import command_for

log = logging.getLogger("orchestrix.incarnation")

CHUNK = 500
PATIENCE = 5.0
"""Seconds that a node leaves to the one that won the race, before it takes over."""


class Incarnation:
    """Compares the broker with the database at each connect.

    The database names an empty queue. If the broker does not have it, it is another broker, or an emptied one: one
    node wins the right to a new name, sends what every live saga is owed under the old message ids, and declares the
    new queue last. If it dies before that, the new name is missing too and all begins again.
    """

    def __init__(self, database: Database, broker: Broker, relay: OutboxRelay, catalog: Catalog) -> None:
        self._database = database
        self._broker = broker
        self._relay = relay
        self._catalog = catalog
        self._wake = Wake()
        self._loop = Loop("broker incarnation", self._round)
        self._done = -1
        self.agreed = asyncio.Event()
        broker.on_up(lambda _generation: self._wake.set())

    async def start(self) -> None:
        """Begins to compare, now and at each connect."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops comparing."""
        await self._loop.stop()

    def trouble(self) -> str | None:
        """Why this node does not know yet whether the broker owes it anything, or None."""
        return None if self._done >= 0 else "the broker's memory is not compared with the database yet"

    async def _round(self) -> None:
        generation = self._broker.generation
        if self._broker.state is not LinkState.UP or generation == self._done:
            await self._wake.wait(None)
        elif await self._agree():
            self._done = generation
            self.agreed.set()

    async def _agree(self) -> bool:
        async with self._database.read() as connection:
            known = await incarnation.read(connection)
        if known is not None and await self._remembered(known):
            return True
        new = clock.uuid7()
        if not await self._database.run(lambda tx: incarnation.replace(tx, known, new)):
            await self._wake.wait(PATIENCE)
            return False
        crash.point("redispatch.after_claim")
        if known is not None:
            log.warning("the broker has lost its memory: every live saga's command is sent again")
        await self._send_all()
        crash.point("redispatch.before_declare")
        await self._broker.declare(Topology(queues=(incarnation_queue(new),)))
        return True

    async def _remembered(self, known: str) -> bool:
        return await self._broker.message_count(incarnation_queue(known).name) is not None

    async def _send_all(self) -> None:
        for pair in (APPS, INSTANCES):
            names = [saga.name for saga in self._catalog if (saga.name == APPS.saga) == (pair is APPS)]
            after = 0
            while names and (live := await self._owed(pair, names, after)):
                after = live[-1].id
                await self._owe([row_for(one, command) for one in live if (command := self._command(one))])
                self._relay.poke()

    async def _owe(self, rows: Sequence[OutboxRow]) -> None:
        await self._database.run(lambda tx: outbox.insert(tx, rows, claimed_by=None, lease_s=0.0))

    async def _owed(self, pair: Pair, names: Sequence[str], after: int) -> list[Instance]:
        async with self._database.read() as connection:
            return await instances.owed(connection, pair, names, after, CHUNK)

    def _command(self, instance: Instance) -> Command | None:
        saga = self._catalog.saga(instance.saga)
        return command_for(saga, instance) if saga else None
