"""How does a test set up a worker over a broker and a database in memory?"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

from orchestrix.broker.port import Broker, Delivery
from orchestrix.config.settings import Settings
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.definition_store import DefinitionReader, NullDefinitionReader
from orchestrix.saga.catalog import Catalog, MessageOwner
from orchestrix.saga.messages import Command
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.delivery_spans import begin_delivery
from orchestrix.worker.handlers import Handler, HandlerTable
from orchestrix.worker.heartbeat import ProcessIdentity
from orchestrix.worker.worker import Worker
from sagas.app_provisioning import APP_PROVISIONING
from tests.fakes.broker import FakeBroker, FakeConsumer
from tests.fakes.rows import Rows

CREATE, REGISTER, DELETE = "cmd.createGitRepo", "cmd.registerApp", "cmd.deleteGitRepo"
CREATED, DELETED, FAILED = "evt.gitRepoCreated", "evt.gitRepoDeleted", "evt.stepFailed"
CATALOG = Catalog([APP_PROVISIONING])
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

COMMAND = Command(
    id="m-1",
    type=CREATE,
    saga="app",
    app_id=1,
    app_name="shop",
    correlation_id="c-1",
    expected_state="APP_INITIATED",
    step="createGitRepo",
    attempt=1,
    timeout_ms=60_000,
    idempotency_key="app:1:createGitRepo:do",
    data={"size": 3},
)


def command(app_id: int = 1, **changes: Any) -> Command:
    """The first command of app `app_id`, with id `m-{app_id}`."""
    key = f"app:{app_id}:createGitRepo:do"
    fresh = replace(COMMAND, id=f"m-{app_id}", app_id=app_id, correlation_id=f"c-{app_id}", idempotency_key=key)
    return replace(fresh, **changes)


def undo(app_id: int = 1, **changes: Any) -> Command:
    """The command that undoes the first one of app `app_id`, with id `u-{app_id}`."""
    key = f"app:{app_id}:createGitRepo:undo"
    fresh = command(app_id, id=f"u-{app_id}", type=DELETE, expected_state="COMPENSATING", idempotency_key=key)
    return replace(fresh, **{"undoes_attempt": 1, **changes})


def job(ordered: Command = COMMAND) -> CommandDelivery:
    """A job as the intake makes it."""
    name = ordered.type
    delivery = Delivery(b"", name, "", name, None, None, None, {"traceparent": TRACE}, False, 0, 1, 1)
    owner = cast(MessageOwner, CATALOG.command(name))
    return CommandDelivery(ordered, owner, 0.0, [delivery], checked_at=1e12, span=begin_delivery(delivery))


class Rig:
    """A worker, its broker and its rows. `start` first."""

    def __init__(self, broker: FakeBroker, rows: Rows) -> None:
        self.broker = broker
        self.rows = rows
        self.worker: Worker | None = None
        self.catalog = CATALOG
        self.process: ProcessIdentity | None = None
        self.reader: DefinitionReader = NullDefinitionReader()

    async def start(self, handler: Handler, **settings: Any) -> Worker:
        """A worker that does and undoes the first step with `handler`; `settings` are those of `worker`."""
        database, broker = cast(Database, self.rows), cast(Broker, self.broker)
        table = HandlerTable([(CREATE, handler), (DELETE, handler)])
        tuned = Settings.model_validate({"worker": settings})
        self.worker = Worker(broker, database, self.catalog, table, tuned, reader=self.reader, process=self.process)
        await self.worker.start()
        return self.worker

    @property
    def consumer(self) -> FakeConsumer:
        """The worker's consumer."""
        return self.broker.consumers[0]

    def send(self, *app_ids: int, **changes: Any) -> None:
        """The first commands of these apps; rows for those that have none. `changes` are fields of `Stored`."""
        for app_id in app_ids:
            if app_id not in self.rows.rows:
                self.rows.put(app_id)
            self.put(command(app_id), **changes)

    def put(self, ordered: Command, **changes: Any) -> None:
        """A command, without a row."""
        self.broker.put(ordered.type, ordered.body(), **changes)

    async def settled(self) -> None:
        """Waits until every command is acknowledged."""
        for queue in (CREATE, DELETE):
            await self.broker.settled(queue)

    def bodies(self, routing_key: str = CREATED) -> list[dict[str, Any]]:
        """What the events of that name say."""
        return [json.loads(message.body) for message in self.broker.events(routing_key)]

    def error(self) -> dict[str, Any]:
        """The error of the only failure event."""
        (body,) = self.bodies(FAILED)
        error: dict[str, Any] = body["error"]
        return error
