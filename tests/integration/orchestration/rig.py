"""What does the orchestrator do over a real database and a broker in memory that breaks when told to?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import text

from orchestrix import COMPLETED, NothingToUndo, RetryPolicy, Saga, Step
from orchestrix.bootstrap.context import NodeSignals
from orchestrix.bootstrap.engine import follow_catalog
from orchestrix.broker.port import LinkState
from orchestrix.config.settings import JobsSettings, Settings
from orchestrix.domain.job_diagnosis import SilenceLimits
from orchestrix.engine.explain.why import SagaExplainer
from orchestrix.engine.job_steps import JobGateway, JobSteps
from orchestrix.engine.requests import StartedSaga, StartRequest
from orchestrix.node import build_node
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas import history, ignored_messages, instances
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.state import Instance, StateChange
from orchestrix.saga.transition import SagaStart
from sagas.app_provisioning import APP_PROVISIONING
from tests.fakes.broker import FakeBroker
from tests.support import eventually

HASTY = Saga(
    name="hasty",
    steps=(
        Step(
            name="hurry",
            state="HURRYING",
            command="cmd.hurry",
            event="evt.hurried",
            then=COMPLETED,
            undo=NothingToUndo("leaves nothing"),
            timeout=timedelta(milliseconds=200),
            retry=RetryPolicy(attempts=3, base=timedelta(milliseconds=100)),
        ),
    ),
)
CALM = replace(
    HASTY,
    name="calm",
    steps=tuple(
        replace(step, command="cmd.stroll", event="evt.strolled", timeout=timedelta(seconds=1.5))
        for step in HASTY.steps
    ),
)
SILENT = JobsSettings().silent
CATALOG = Catalog([APP_PROVISIONING, HASTY, CALM])


class HookedBroker(FakeBroker):
    """Tells its listeners when the link comes up, and remembers which queues were declared."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: list[Any] = []
        self.names: set[str] = set()
        self.hearers = 1
        self.waiting = 0
        self.silent: set[str] = set()

    def on_up(self, hook: Any) -> None:
        self.hooks.append(hook)

    def come_up(self) -> None:
        super().come_up()
        for hook in self.hooks:
            hook(self.generation)

    async def declare(self, topology: Any) -> None:
        await super().declare(topology)
        self.names |= {queue.name for queue in topology.queues}

    async def message_count(self, queue: str) -> tuple[int, int] | None:
        if queue.startswith("cmd."):
            return self.waiting, 0 if queue in self.silent else self.hearers
        return (0, 0) if queue in self.names else None

    def forget(self) -> None:
        """The broker comes back empty."""
        self.go_down()
        self.names.clear()
        self.come_up()


class Rig:
    """One node's orchestration. `desk` looks after the jobs of steps."""

    def __init__(
        self,
        database: Database,
        *,
        lease: float = 5.0,
        batch: int = 100,
        catalog: Catalog = CATALOG,
        desk: JobGateway | None = None,
    ) -> None:
        self.database = database
        self.broker = HookedBroker()
        self.catalog = catalog
        signals = NodeSignals()
        node = build_node(
            Settings.model_validate({"orchestrator": {"claim": lease, "batch": batch}}),
            database=database,
            broker=self.broker,
            roles=frozenset({"api", "orchestrator"}),
            catalog=catalog,
            name="rig-1",
            signals=signals,
            step_jobs=desk,
        )
        engine, moving = node.engine, node.engine.orchestration
        assert moving is not None
        self.relay, self.watch, self.definitions = node.relay, engine.changes, engine.definitions
        self.listener, self.begins, self.progress = moving.listener, moving.starts, moving.progress
        self.wakeups, self.held = moving.timers, moving.held_events
        self.starter, self.control, self.stuck = engine.starter, engine.control, engine.stuck
        self.incarnation = engine.reset_detector
        self.jobs = JobSteps(catalog, desk)
        self.phase: str | None = None
        self.explainer = SagaExplainer(
            database, self.broker, catalog, SilenceLimits(SILENT, 90.0), lambda: self.phase, engine.definitions
        )
        self.follower = follow_catalog(signals.catalog_grew, [self.listener.catalog_changed, self.held.notify])

    async def start(self) -> None:
        """Starts the relay, the starter and the listener; the others on demand."""
        await self.relay.start()
        await self.starter.run()
        await self.listener.start()
        await self.follower.start()

    async def stop(self) -> None:
        """Stops everything."""
        for stop in (
            self.follower,
            self.held,
            self.wakeups,
            self.incarnation,
            self.begins,
            self.progress,
            self.listener,
            self.starter,
            self.watch,
            self.relay,
        ):
            await stop.stop()

    async def begin(self, key: str, *, saga: str = "app") -> Instance:
        """A started instance."""
        result = await self.starter.start(StartRequest(saga, SagaStart(key, "ada", f"c-{key}", {})))
        assert isinstance(result, StartedSaga), result
        return result.instance

    def report(self, instance: Instance, event: str, *, proven: bool = True, **more: Any) -> None:
        """An event about `instance` arrives."""
        body: Mapping[str, Any] = {"appId": instance.id, "correlationId": instance.correlation_id, **more}
        cause = {"causationId": instance.command_id} if proven else {}
        self.broker.put(event, json.dumps({**cause, **body}).encode())

    async def now(self, instance: Instance) -> Instance:
        """The instance as the database has it."""
        pair = saga_tables_of(instance.saga)
        async with self.database.read() as connection:
            found = await instances.get(connection, pair, instance.saga, instance.id)
        assert found is not None
        return found

    async def reached(self, instance: Instance, state: str, *, deadline: float = 5.0) -> Instance:
        """Waits until the instance is in `state`."""
        return await self.until(instance, lambda one: one.state == state, deadline=deadline, message=state)

    async def until(
        self, instance: Instance, fits: Callable[[Instance], bool], *, deadline: float = 5.0, message: str = "ready"
    ) -> Instance:
        """Waits until the instance is as `fits` says."""

        async def there() -> bool:
            return fits(await self.now(instance))

        await eventually(there, deadline=deadline, message=f"{instance.key} is {message}")
        return await self.now(instance)

    async def check_consumers(self) -> None:
        """Checks all queues once, and writes into the rows of sagas what that says, as a running node does."""
        timers = self.wakeups
        timers._consumers._refreshed_at = None
        timers._blockers._recorded.clear()
        if self.up:
            await timers._consumers.refresh()
            await timers._blockers._round()

    async def history(self, instance: Instance) -> list[StateChange]:
        """All its rows of history."""
        async with self.database.read() as connection:
            return await history.listing(connection, saga_tables_of(instance.saga), instance.id, 0, 100)

    async def ignored(self, instance: Instance) -> dict[str, int]:
        """How many messages were ignored, by reason."""
        async with self.database.read() as connection:
            found = await ignored_messages.listing(connection, instance.saga, instance.id)
        return {note.reason: note.count for note in found}

    async def in_outbox(self) -> int:
        """How many rows the outbox holds."""
        async with self.database.read() as connection:
            return int((await connection.execute(text("SELECT count(*) FROM outbox"))).scalar_one())

    async def outbox_empty(self, *, deadline: float = 5.0) -> None:
        """Waits until nothing is owed."""

        async def empty() -> bool:
            return await self.in_outbox() == 0

        await eventually(empty, deadline=deadline, message="the outbox is empty")

    def sent(self, command: str) -> list[str]:
        """The ids of the confirmed messages of that command."""
        return [message.message_id for message in self.broker.events(command)]

    @property
    def up(self) -> bool:
        """Whether the broker is there."""
        return self.broker.state is LinkState.UP
