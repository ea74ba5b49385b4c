"""How does a test play the orchestrator to real workers?"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from orchestrix import clock
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Broker, Consumer, Delivery, Outcome, Outgoing
from orchestrix.broker.topology import COMMANDS
from orchestrix.config.settings import Settings
from orchestrix.persistence.cluster import installation
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import command_for
from orchestrix.saga.definition import COMPENSATING
from orchestrix.saga.messages import Command
from orchestrix.saga.state import Instance, InstanceProgress
from orchestrix.saga.transition import SagaStart, start
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.worker import Worker
from sagas.app_provisioning import APP_PROVISIONING

CATALOG = Catalog([APP_PROVISIONING])


async def stored(database: Database, name: str = "shop", **changes: Any) -> tuple[Instance, Command]:
    """A new row, and the command that is out for it. `changes` are fields of the row."""
    moved = start(APP_PROVISIONING, SagaStart(name, "ann", f"c-{name[:100]}", {}), clock.uuid7(), clock.now())
    row = replace(moved.instance, **changes)
    async with database.begin() as tx:
        (number,) = await instances.insert(tx, APPS, [replace(moved, instance=row)])
        here = await installation.known(tx)
    assert number is not None
    row = replace(row, id=number, installation=here.id)
    return row, order(row)


def order(row: Instance) -> Command:
    """The command that is out for the row."""
    command = command_for(APP_PROVISIONING, row)
    assert command is not None
    return command


class World:
    """The database, the broker and the workers on it."""

    def __init__(self, database: Database, url: str, broker: Broker) -> None:
        self.database = database
        self.broker = broker
        self.workers: list[Worker] = []
        self.brokers: list[AmqpBroker] = []
        self.url = url
        self._events: Consumer | None = None

    async def app(self, name: str = "shop", **changes: Any) -> tuple[Instance, Command]:
        """`stored` in the world's database."""
        return await stored(self.database, name, **changes)

    async def undone(self, name: str, step: str) -> tuple[Instance, Command]:
        """A new row that is being brought back, and the command that undoes `step`."""
        return await self.app(name, state=COMPENSATING, progress=InstanceProgress(todo=(step,), error="no luck"))

    async def send(self, *commands: Command) -> None:
        """Publishes commands as the relay does."""
        letters = [Outgoing(COMMANDS, one.type, one.body(), one.id, one.correlation_id, one.type) for one in commands]
        results = await self.broker.publish(letters)
        assert {result.outcome for result in results} == {Outcome.CONFIRMED}

    async def worker(self, handlers: HandlerTable, **settings: Any) -> Worker:
        """One more worker, with a connection of its own."""
        broker = AmqpBroker(self.url, name=f"worker {len(self.workers)}")
        await broker.start()
        worker = Worker(
            broker, self.database, CATALOG, handlers, Settings.model_validate({"worker": settings} if settings else {})
        )
        await worker.start()
        self.workers.append(worker)
        self.brokers.append(broker)
        return worker

    async def events(self, count: int) -> list[dict[str, Any]]:
        """The next events, in the order of their arrival."""
        if self._events is None:
            self._events = await self.broker.consume(CATALOG.events, 100)
        found: list[Delivery] = []
        while len(found) < count:
            batch = await self._events.receive(count - len(found))
            await self._events.acknowledge(batch)
            found += batch
        return [json.loads(one.body) for one in found]

    async def close(self) -> None:
        """Stops the workers."""
        for worker in self.workers:
            await worker.stop()
        for broker in self.brokers:
            await broker.stop()
