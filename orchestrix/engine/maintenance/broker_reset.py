"""Broker reset: detects that the broker has lost its data, and redispatches the commands in flight by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from orchestrix import clock, crash
from orchestrix.broker.port import Broker, LinkState, Topology
from orchestrix.broker.topology import incarnation_queue
from orchestrix.engine.job_steps import JobSteps
from orchestrix.engine.redispatch import redispatch_commands
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.cluster import broker_incarnation
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.quantities import counted
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import Instance
from orchestrix.telemetry import log_events

log = logging.getLogger("orchestrix.broker_reset")

INSTANCES_PER_TRANSACTION = 500
TAKEOVER_TIMEOUT_S = 3.0
"""Seconds without a sign of life from the node that does the reset, after which another takes over."""


class BrokerResetDetector:
    """The check of every node with the role `orchestrator` whether the broker is new or was reset, at each connect.

    The database names an empty queue. If the broker does not have it, it is another broker, or an emptied one: one
    node wins the right to a new name, sends every live saga's current command under its old message id, and declares
    the new queue last. If it dies before that, the new name is missing too and all begins again, after `grace_s` s.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        relay: OutboxRelay,
        catalog: Catalog,
        *,
        grace_s: float = TAKEOVER_TIMEOUT_S,
        jobs: JobSteps | None = None,
    ) -> None:
        self._jobs = jobs or JobSteps(catalog)
        self._database = database
        self._broker = broker
        self._relay = relay
        self._catalog = catalog
        self._grace_s = grace_s
        self._wake = WakeSignal()
        self._loop = Loop("broker reset check", self._round)
        self._done = -1
        self.agreed = asyncio.Event()
        broker.on_up(lambda _generation: self._wake.set())

    async def start(self) -> None:
        """Begins to compare, now and at each connect."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops comparing."""
        await self._loop.stop()

    def problem(self) -> str | None:
        """Why this node does not know yet whether the broker was reset, or None."""
        if self._done == self._broker.generation:
            return None
        return "not yet checked whether the broker was reset"

    async def _round(self) -> None:
        generation = self._broker.generation
        if self._broker.state is not LinkState.UP or generation == self._done:
            await self._wake.wait(None)
        elif await self._agree():
            self._done = generation
            self.agreed.set()

    async def _agree(self) -> bool:
        async with self._database.read() as connection:
            known, age = await broker_incarnation.read(connection), await broker_incarnation.age(connection)
        if known is not None and await self._remembered(known):
            return True
        if age < self._grace_s:  # another node is at it
            log.info(
                "waiting up to %.1f s for another node to redispatch what the broker lost",
                self._grace_s - age,
                extra={"event": log_events.BROKER_RESET},
            )
            await self._wake.wait(self._grace_s - age)
            return False
        new = clock.uuid7()
        if not await self._database.run(lambda tx: broker_incarnation.replace(tx, known, new)):
            return False
        crash.point("redispatch.after_claim")
        return await self._redispatch_all(new)

    async def _remembered(self, known: str) -> bool:
        return await self._broker.message_count(incarnation_queue(known).name) is not None

    async def _redispatch_all(self, marker: str) -> bool:
        """False if another node has taken over meanwhile, which then sends all and declares its own queue."""
        sent = 0
        for pair in (APPS, INSTANCES):
            names = [saga.name for saga in self._catalog if (saga.name == APPS.saga) == (pair is APPS)]
            after = 0
            while names and (live := await self._pending_instances(pair, names, after)):
                after, sent = live[-1].id, sent + len(live)
                if not await self._restore(live, marker):
                    return False
                self._relay.notify()
        crash.point("redispatch.before_declare")
        if not await self._database.run(lambda tx: broker_incarnation.touch(tx, marker)):
            return False
        await self._broker.declare(Topology(queues=(incarnation_queue(marker),)))
        if sent:
            log.warning(
                "broker is new or was reset: re-sent %s",
                counted(sent, "outstanding command"),
                extra={"event": log_events.BROKER_RESET},
            )
        return True

    async def _restore(self, live: Sequence[Instance], marker: str) -> bool:
        return await self._database.run(lambda tx: self._write(tx, live, marker))

    async def _write(self, tx: Transaction, live: Sequence[Instance], marker: str) -> bool:
        await redispatch_commands(tx, self._catalog, live)
        await self._jobs.ensure(tx, live)
        return await broker_incarnation.touch(tx, marker)

    async def _pending_instances(self, pair: SagaTables, names: Sequence[str], after: int) -> list[Instance]:
        async with self._database.read() as connection:
            return await instances.to_redispatch(connection, pair, names, after, INSTANCES_PER_TRANSACTION)
