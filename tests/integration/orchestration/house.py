"""What does the orchestrator do with dead letters over a real database and a real broker?"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from orchestrix.bootstrap.health_checks import DatabaseWatch
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Consumer, Delivery, Outcome, Outgoing, Queue, Topology
from orchestrix.broker.topology import COMMANDS, DEAD, EVENTS, saga_topology
from orchestrix.clock import uuid7
from orchestrix.config.settings import Settings
from orchestrix.dead_letters.service import DeadLetterRequester
from orchestrix.engine.requests import StartedSaga, StartRequest
from orchestrix.node import build_node
from orchestrix.persistence import audit, dead_letters, outbox
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.dead_letters import DeadLetter, DeadLetterFilter
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import APPS, saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import Instance, StateChange
from orchestrix.saga.transition import SagaStart
from sagas.app_provisioning import APP_PROVISIONING
from tests.support import eventually

CATALOG = Catalog([APP_PROVISIONING])
ADA = DeadLetterRequester("ada", "the worker is mended")
ALL = DeadLetterFilter(open_only=False)
CREATE, CREATED = "cmd.createGitRepo", "evt.gitRepoCreated"


class House:
    """A node whose parts a test starts as it needs them, and a stranger's hand at the same broker."""

    def __init__(self, database: Database, url: str, catalog: Catalog = CATALOG) -> None:
        self.database = database
        self.catalog = catalog
        self.hand = AmqpBroker(url, name="hand")
        self.broker = AmqpBroker(url, name="node", topology=saga_topology(catalog))
        self.node = build_node(
            Settings.model_validate({"orchestrator": {"claim": 5.0, "batch": 100}}),
            database=database,
            broker=self.broker,
            roles=frozenset({"orchestrator"}),
            catalog=catalog,
            name="node-1",
            single_process=True,
            database_watch=DatabaseWatch(database),
        )
        self.relay, self.starter = self.node.relay, self.node.engine.starter
        collectors = self.node.dead_letters.collectors
        assert collectors is not None
        self.mover, self.letters = collectors.sagas, self.node.dead_letters.service

    async def open(self, limited: dict[str, int]) -> None:
        """Declares everything. `limited` are queues that have a delivery limit, whatever the broker's own is."""
        await self.hand.start()
        assert await self.hand.wait_connected(10), self.hand.problem
        whole = saga_topology(self.catalog)
        queues = tuple(_limited(queue, limited) for queue in whole.queues)
        await self.hand.declare(Topology(whole.exchanges, queues, whole.bindings))
        await self.broker.start()
        assert await self.broker.wait_connected(10), self.broker.problem
        await self.relay.start()
        await self.starter.run()
        await self.node.engine.reset_detector.start()
        await self.node.engine.reset_detector.agreed.wait()  # so that nothing is sent again: the broker is new

    async def serve(self) -> None:
        """Starts all that a node does beside."""
        await self.node.works.start()

    async def close(self) -> None:
        """Stops everything."""
        await self.node.works.stop()
        for part in (self.mover, self.starter, self.node.engine.reset_detector, self.relay):
            await part.stop()
        await self.broker.stop()
        await self.hand.stop()

    # What the hand does.

    async def send(self, queue: str, body: bytes, *, exchange: str = "", id: str = "", **more: Any) -> None:
        """Publishes to the exchange that the queue's messages come by, unless another is named."""
        usual = COMMANDS if queue.startswith("cmd.") else EVENTS
        message = Outgoing(exchange or usual, queue, body, id or uuid7(), **more)
        [published] = await self.hand.publish([message])
        assert published.outcome is Outcome.CONFIRMED, published

    async def bury(self, queue: str, body: bytes, reason: str = "not-json", **more: Any) -> None:
        """A dead letter as whoever reads the queue would send it."""
        headers = {"x-reason": reason, "x-routing-key": queue, **more.pop("headers", {})}
        await self.send(queue, body, exchange=DEAD, headers=headers, **more)

    async def kill(self, queue: str) -> None:
        """Takes what is in the queue and gives it back until it is dead."""
        consumer = await self.hand.consume([queue], prefetch=1)
        while (await self.ready(f"{queue}.dead")) == 0:
            batch = await _received(consumer)
            await consumer.requeue(batch)
        await consumer.close()

    async def kill_moved(self, queue: str) -> None:
        """`kill`, while somebody takes the dead letters away."""
        before = [letter.recorded_at for letter in await self.all_kept()]
        consumer = await self.hand.consume([queue], prefetch=1)
        while [letter.recorded_at for letter in await self.all_kept()] == before:
            await consumer.requeue(await _received(consumer))
        await consumer.close()

    async def take(self, queue: str, count: int = 1) -> list[Delivery]:
        """Takes so many messages out of the queue for good."""
        consumer = await self.hand.consume([queue], prefetch=1)
        taken: list[Delivery] = []
        while len(taken) < count:
            batch = await consumer.receive(1)
            await consumer.acknowledge(batch)
            taken += batch
        await self.hand.message_count(queue)  # a round trip behind the ack
        await consumer.close()
        return taken

    async def ready(self, queue: str) -> int:
        """How many messages wait in the queue."""
        found = await self.hand.message_count(queue)
        assert found is not None, queue
        return found[0]

    async def holds(self, queue: str, count: int) -> None:
        """Waits until the queue holds so many messages."""

        async def so_many() -> bool:
            return await self.ready(queue) == count

        await eventually(so_many, deadline=10, message=f"{queue} holds {count}")

    # What is in the database.

    async def begin(self, key: str = "shop", *, saga: str = "app") -> Instance:
        """A started app, or an instance of another saga."""
        result = await self.starter.start(StartRequest(saga, SagaStart(key, "ada", f"c-{key}", {})))
        assert isinstance(result, StartedSaga), result
        return result.instance

    async def reached(self, app: Instance, state: str, *, attempt: int = 1) -> Instance:
        """Waits until the app is in `state` and at that attempt."""

        async def there() -> bool:
            now = await self.now(app)
            return (now.state, now.attempt) == (state, attempt)

        await eventually(there, deadline=10, message=f"{app.key} is {state}")
        return await self.now(app)

    async def now(self, app: Instance) -> Instance:
        """The app as the database has it."""
        async with self.database.read() as connection:
            found = await instances.get(connection, saga_tables_of(app.saga), app.saga, app.id)
        assert found is not None
        return found

    async def history(self, app: Instance) -> list[StateChange]:
        """All its rows."""
        async with self.database.read() as connection:
            return await history.listing(connection, APPS, app.id, 0, 100)

    async def kept(self, count: int = 1) -> list[DeadLetter]:
        """Waits until there are so many letters; the first to die comes first."""
        found: list[DeadLetter] = []

        async def enough() -> bool:
            found[:] = (await self.all_kept())[::-1]
            return len(found) >= count

        await eventually(enough, deadline=10, message=f"{count} dead letters are kept")
        assert len(found) == count
        return found

    async def all_kept(self) -> list[DeadLetter]:
        """Every letter, the last to die first."""
        async with self.database.read() as connection:
            return await dead_letters.page(connection, ALL, 200)

    async def letter(self, id: str) -> DeadLetter:
        """One letter as it is now."""
        async with self.database.read() as connection:
            found = await dead_letters.get(connection, id)
        assert found is not None
        return found

    async def audited(self, app: Instance) -> list[tuple[str, str, str]]:
        """(actor, verb, reason) of what was done about an app."""
        async with self.database.read() as connection:
            return [(row.actor, row.verb, row.reason) for row in await audit.listing(connection, "app", app.id)]

    async def audits(self, app: Instance) -> list[AuditRow]:
        """What was done about an app, with all that is known of it."""
        async with self.database.read() as connection:
            return await audit.listing(connection, app.saga, app.id)

    async def about(self, app: Instance) -> list[DeadLetter]:
        """The letters on the timeline of an app."""
        async with self.database.read() as connection:
            return await dead_letters.of_instance(connection, app.saga, app.id)

    async def nothing_owed(self) -> None:
        """Waits until the outbox is empty."""

        async def empty() -> bool:
            return not await self.owed()

        await eventually(empty, deadline=10, message="the outbox is empty")

    async def owed(self) -> int:
        """How many rows the outbox holds."""
        async with self.database.read() as connection:
            return await outbox.pending(connection)


def report(app: Instance, **more: Any) -> bytes:
    """The body of an event about what the app has out."""
    fields = {"appId": app.id, "saga": "app", "correlationId": app.correlation_id, "causationId": app.command_id}
    return json.dumps({**fields, **more}).encode()


def _limited(queue: Queue, limited: dict[str, int]) -> Queue:
    if queue.name not in limited:
        return queue
    return Queue(queue.name, {**queue.arguments, "x-delivery-limit": limited[queue.name]})


async def _received(consumer: Consumer) -> list[Delivery]:
    """What comes, which may be nothing: the last one has died."""
    try:
        async with asyncio.timeout(0.2):
            return await consumer.receive(1)
    except TimeoutError:
        return []
