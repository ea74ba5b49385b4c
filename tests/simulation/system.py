"""What is simulated: nodes and workers as processes that die, their database, their broker, and clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from orchestrix import Compensation, Context, Hold, NothingToUndo, Permanent, RetryPolicy, Saga, Step, Transient, clock
from orchestrix.bootstrap.health_checks import DatabaseWatch
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import EVENTS, saga_topology
from orchestrix.config.settings import Settings
from orchestrix.engine.control import Action
from orchestrix.engine.requests import ExistingSaga, IdempotencyKey, KeyReused, Replayed, StartedSaga, StartRequest
from orchestrix.errors import ConflictError, NotFound, RetryableError
from orchestrix.node import Node, build_node
from orchestrix.persistence.idempotency import StoredAnswer
from orchestrix.persistence.sagas.definition_store import DefinitionStore
from orchestrix.saga.actions.apply import InvalidActionError
from orchestrix.saga.actions.requests import ActionNotAllowed, ActionRequest, SagaAction
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import STEP_STARTED
from orchestrix.saga.messages import Command, dump
from orchestrix.saga.state import Instance
from orchestrix.saga.transition import SagaStart
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.server import MemoryServer
from orchestrix.testing.simulation.inline_sqlite import SqliteClient, SqliteFile
from orchestrix.testing.simulation.virtual_time import ProcessKilled, VirtualLoop, VirtualProcess, elapse
from orchestrix.worker.errors import Unavailable
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.worker import Worker
from sagas.app_provisioning import APP_PROVISIONING
from tests.simulation.witness import Witness, watched

STEP_TIME = timedelta(seconds=6)
RETRY = RetryPolicy(attempts=4, base=timedelta(seconds=1), cap=timedelta(seconds=4))


def _hurried(step: Step) -> Step:
    assert isinstance(step.undo, Compensation)
    undo = replace(step.undo, timeout=STEP_TIME, retry=replace(RETRY, attempts=3))
    return replace(step, timeout=STEP_TIME, retry=RETRY, undo=undo)


APP = replace(APP_PROVISIONING, steps=tuple(_hurried(step) for step in APP_PROVISIONING.steps))


def _step(name: str, state: str, then: str, undo: str | None) -> Step:
    back = Compensation(f"cmd.{undo}", f"evt.{undo}.done", timeout=STEP_TIME, retry=replace(RETRY, attempts=3))
    return Step(
        name=name,
        state=state,
        command=f"cmd.{name}",
        event=f"evt.{name}.done",
        then=then,
        undo=NothingToUndo("it cannot be called back") if undo is None else back,
        timeout=STEP_TIME,
        retry=RETRY,
    )


ORDER = Saga(
    name="order",
    steps=(
        _step("reserve", "NEW", "RESERVED", "release"),
        _step("charge", "RESERVED", "CHARGED", "refund"),
        _step("tell", "CHARGED", "TOLD", None),
        _step("pack", "TOLD", "COMPLETED", "unpack"),
    ),
)
SETTINGS = Settings.model_validate(
    {"orchestrator": {"claim": 6.0, "timeouts_per_second": 5.0}, "worker": {"concurrency": 3, "stop_timeout": 3.0}}
)


class World:
    """Everything outside the processes. `dice(name)` are chance of their own for each use, all from one seed."""

    module = "tests.simulation.saga"
    """What runs such a world again."""

    def __init__(self, seed: int, loop: VirtualLoop, folder: Path, template: Path) -> None:
        self.seed = seed
        self.loop = loop
        self.sagas = self._wanted(seed)
        self.catalog = Catalog(self._known())
        wire, disk = self.dice("wire"), self.dice("disk")
        self.server = MemoryServer(wire, delay=lambda: wire.uniform(0.0002, 0.01))
        self.file = SqliteFile(
            folder / f"{seed}.db",
            template=template,
            delay=lambda: disk.uniform(0.0, 0.003),
            prepare=lambda raw: watched(raw, self.witness),
        )
        self.witness = Witness(self.file, self.catalog)
        self.server.observers.append(self.witness)
        self.members: list[Member] = []
        self.ending = False

    def _wanted(self, seed: int) -> tuple[Saga, ...]:
        """What clients start."""
        return ((APP, ORDER), (APP,), (ORDER, APP))[seed % 3]

    def _known(self) -> tuple[Saga, ...]:
        """All that somebody has the code of."""
        return self.sagas

    def dice(self, name: str) -> Random:
        """Dice for one use."""
        return Random(f"{self.seed}:{name}")

    def nodes(self) -> list[NodeMember]:
        """The nodes that live."""
        return [one for one in self.members if isinstance(one, NodeMember) and one.process.alive]

    def code(self, member: Member) -> Catalog:
        """The sagas that the code of a process has as it starts."""
        return self.catalog

    def version_of(self, saga: Saga, row: Mapping[str, Any]) -> Saga:
        """The definition by which an instance runs."""
        return self.catalog.version(saga.name, row["definition_version"]) or saga

    def prepare(self, node: Node) -> None:
        """A node is about to start."""

    async def change_hands(self) -> None:
        """The bad days are over: everybody may be started again with other code."""

    def close(self) -> None:
        """Frees the file."""
        self.file.close()


class Member:
    """A process that can die and come again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.boots = 0
        self.process = world.loop.process(name)
        self.process.alive = False
        self.broker: MemoryBroker | None = None
        self.stopping = asyncio.Event()

    def boot(self) -> None:
        """Starts it as a new process, unless it runs."""
        if self.process.alive or self.world.ending:
            return
        self.boots += 1
        self.world.witness.note(f"{self.name} boots")
        self.process = process = self.world.loop.process(f"{self.name}.{self.boots}")
        self.broker, self.stopping = None, asyncio.Event()
        task = process.spawn(self._main(process))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.world.witness.complain(f"{self.name} ended with {error!r}")

    def restart(self, after: float) -> None:
        """Starts it again in a while."""
        self.world.loop.call_later(after, self.boot)

    async def _main(self, process: VirtualProcess) -> None:
        def died() -> None:
            self.world.witness.note(f"{process.name} dies at step {process.steps}")

        process.on_death.append(died)
        client = SqliteClient(self.world.file)
        process.on_death.append(client.disconnect)
        catalog = self.world.code(self)
        broker = MemoryBroker(self.world.server, topology=lambda: saga_topology(catalog))
        process.on_death.append(broker.disconnect)
        self.broker = broker
        await self._live(client, broker, catalog)
        self.world.witness.note(f"{process.name} ends in good order")
        process.on_death.remove(died)
        process.kill()

    async def _live(self, client: SqliteClient, broker: MemoryBroker, catalog: Catalog) -> None:
        raise AssertionError("a member is a node or a worker")


class NodeMember(Member):
    """A node with all its roles."""

    node: Node | None = None

    async def _live(self, client: SqliteClient, broker: MemoryBroker, catalog: Catalog) -> None:
        database = client.database()
        self.node = build_node(
            SETTINGS,
            database=database,
            broker=broker,
            roles=frozenset(("api", "orchestrator")),
            catalog=catalog,
            name=self.process.name,
            database_watch=DatabaseWatch(database, interval_s=20.0),
        )
        self.world.prepare(self.node)
        await self.node.start()
        await self.node.begin()
        await self.stopping.wait()
        await self.node.stop()


class WorkerMember(Member):
    """A worker for every command."""

    async def _live(self, client: SqliteClient, broker: MemoryBroker, catalog: Catalog) -> None:
        database = client.database()
        work = Work(self.world, self.name, broker)
        definitions = DefinitionStore(database, catalog)
        watch = DatabaseWatch(database, interval_s=60.0)
        await broker.start()
        await watch.wait_for_schema()
        await definitions.read_when_available()
        await definitions.start()
        handlers = HandlerTable([(command, work.handle) for command in catalog.commands])
        worker = Worker(broker, database, catalog, handlers, SETTINGS, None, definitions)
        await worker.start()
        await self.stopping.wait()
        await worker.stop()
        await definitions.stop()
        await broker.stop()
        await database.close()


class Work:
    """What the workers do: an effect that can happen once a key, after a while, and not always with success.

    What was undone is refused if it comes late.
    """

    def __init__(self, world: World, name: str, broker: MemoryBroker) -> None:
        self._world = world
        self._dice = world.dice(f"work of {name}")
        self._whims = world.dice(f"whims of {name}")
        self._broker = broker

    async def _says_so(self, command: Command) -> None:
        """Tells that it has begun, as a worker may whenever it likes."""
        told = {"appId": command.app_id, "saga": command.saga, "correlationId": command.correlation_id}
        body = dump({**told, "causationId": command.id, "beganMsAgo": self._whims.randrange(0, 500)})
        await self._broker.publish([Outgoing(EVENTS, STEP_STARTED, body, clock.uuid7())])

    async def handle(self, context: Context, command: Command) -> Mapping[str, Any]:
        """Handles every command alike."""
        witness, fate = self._world.witness, self._dice.random()
        witness.begins(command)
        if self._whims.random() < 0.25:
            await self._says_so(command)
        if self._whims.random() < 0.02:
            raise Hold("a person has to look at it")
        await elapse(self._dice.uniform(0.0, 0.3 if fate > 0.08 else 9.0))
        if fate > 0.97:
            raise Permanent("Refused", "the provider says no")
        if fate > 0.94:
            raise Transient("Busy", "the provider has no time", retry_after=0.7 if fate > 0.95 else None)
        if fate > 0.92:
            raise Unavailable("the provider cannot be reached")
        return await self._undo(command) if command.undoes_attempt is not None else await self._do(command)

    async def _do(self, command: Command) -> Mapping[str, Any]:
        witness = self._world.witness
        if command.attempt <= witness.tombstones[_effect_of(command)]:
            raise Permanent("Undone", "it was undone before it began")
        made = {f"of_{command.step}": f"{command.app_name}/{command.step}"}
        result = witness.effect(_effect_of(command), made, command.attempt)
        await elapse(self._dice.uniform(0.0, 0.05))
        return result

    async def _undo(self, command: Command) -> Mapping[str, Any]:
        self._world.witness.undone(_effect_of(command), command.undoes_attempt or 0)
        await elapse(self._dice.uniform(0.0, 0.05))
        return {}


def _effect_of(command: Command) -> str:
    return f"{command.saga}:{command.app_id}:{command.step}:do"


class Client:
    """Somebody who wants one saga, asks until it gets an answer, and remembers it."""

    def __init__(self, world: World, saga: Saga, key: str, *, keyed: bool) -> None:
        self._world = world
        self._dice = world.dice(f"client {saga.name} {key}")
        self._saga = saga
        self._key = key
        self._request = StartRequest(
            saga.name, SagaStart(key, "ann", f"c-{saga.name}-{key}", {}), self._idempotency(keyed)
        )

    def _idempotency(self, keyed: bool) -> IdempotencyKey | None:
        return IdempotencyKey("post", f"{self._saga.name}-{self._key}", "f", _render) if keyed else None

    async def run(self) -> None:
        """Asks until it is answered."""
        while not await self._ask():
            await elapse(self._dice.uniform(0.1, 2.0))

    async def _ask(self) -> bool:
        nodes = [one for one in self._world.nodes() if one.node is not None]
        if not nodes:
            return False
        member = self._dice.choice(nodes)
        assert member.node is not None
        try:
            asking = member.process.spawn(member.node.engine.starter.start(self._request))
        except ProcessKilled:
            return False
        await asyncio.wait({asking}, timeout=self._dice.uniform(0.5, 5.0))
        if not asking.done():
            asking.add_done_callback(lambda late: late.cancelled() or late.exception())
            if member.process.alive and self._dice.random() < 0.5:
                asking.cancel()
            return False
        try:
            return self._heard(asking.result())
        except RetryableError:
            return False
        except NotFound:
            if member.node.context.catalog.startable(self._saga.name) is not None:
                raise
            return False  # a node without its code cannot start it

    def _heard(self, result: object) -> bool:
        witness, name = self._world.witness, (self._saga.name, self._key)
        witness.note(f"answered {name} {type(result).__name__}")
        if isinstance(result, StartedSaga):
            witness.started[name] += 1
            witness.answered[name] = result.instance.id
        elif isinstance(result, Replayed):
            witness.answered[name] = int(result.answer.body)
        elif isinstance(result, KeyReused):
            witness.complain(f"{name} is told that its key was used by another")
        return isinstance(result, StartedSaga | Replayed | ExistingSaga)


def _render(instance: Instance) -> StoredAnswer:
    return StoredAnswer("f", 201, {}, str(instance.id).encode())


class Operator:
    """A person who steps in: at random while the days are bad, and in the end wherever a person is waited for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._dice = world.dice("operator")

    async def meddle(self, seconds: float) -> None:
        """Asks for anything of anybody."""
        ends = self._world.loop.time() + seconds
        while self._world.loop.time() < ends:
            await elapse(self._dice.uniform(0.1, 1.5))
            rows = [(saga, row) for saga in self._world.sagas for row in self._world.witness.rows(saga)]
            if rows:
                saga, row = self._dice.choice(rows)
                await self._ask(saga, row, self._dice.choice(MEDDLING))

    async def tidy(self) -> None:
        """Lets go whatever waits for a person."""
        for saga in self._world.sagas:
            for row in self._world.witness.live(saga):
                if row["blocker"] is not None:
                    await self._ask(saga, row, SagaAction.RESUME if row["blocker"] == "paused" else SagaAction.RETRY)

    async def _ask(self, saga: Saga, row: Mapping[str, Any], verb: SagaAction) -> None:
        nodes = [one for one in self._world.nodes() if one.node is not None and one.node.health.started]
        if not nodes:
            return
        member = self._dice.choice(nodes)
        assert member.node is not None
        if member.node.context.catalog.saga(saga.name) is None:
            return
        ask = ActionRequest(
            verb,
            "ann",
            "because",
            output=_output(self._world.version_of(saga, row), row, verb),
            extend_by=timedelta(seconds=self._dice.uniform(0, 9)),
        )
        seen = self._dice.random() < 0.5 or bool(ask.output)  # an output is one of the step that was seen
        version = row["version"] if seen else None
        try:
            asking = member.process.spawn(member.node.engine.control.act(Action(saga.name, row["id"], ask, version)))
        except ProcessKilled:
            return
        await asyncio.wait({asking}, timeout=5.0)
        if not asking.done():
            asking.add_done_callback(lambda late: late.cancelled() or late.exception())
            return
        if asking.cancelled():
            return
        refused = asking.exception()
        if refused is None:
            self._world.witness.note(f"verb {verb.value} of {saga.name} {row['id']}: {asking.result().instance.state}")
        elif not isinstance(refused, RetryableError | ConflictError | ActionNotAllowed) and not _came_too_late(
            ask, refused
        ):
            self._world.witness.complain(f"{verb.value} of {saga.name} {row['id']} was answered with {refused!r}")


def _output(saga: Saga, row: Mapping[str, Any], verb: SagaAction) -> Mapping[str, str] | None:
    """What the step that is skipped would have answered."""
    here = [step.name for step in saga.steps if step.state == row["state"]]
    return {f"of_{name}": "by hand" for name in here} if verb is SagaAction.SKIP else None


def _came_too_late(ask: ActionRequest, refused: BaseException) -> bool:
    """Whether the saga was at a failed undo by the time: that takes no output."""
    return isinstance(refused, InvalidActionError) and bool(ask.output)


MEDDLING = (
    SagaAction.RETRY,
    SagaAction.SKIP,
    SagaAction.PAUSE,
    SagaAction.PAUSE,
    SagaAction.RESUME,
    SagaAction.RESUME,
    SagaAction.CANCEL,
    SagaAction.TERMINATE,
    SagaAction.SET_DEADLINE,
)


class Ears(logging.Handler):
    """Hears what the product logs: a stack trace is always a mistake."""

    def __init__(self, witness: Witness) -> None:
        super().__init__(logging.WARNING)
        self._witness = witness

    def emit(self, record: logging.LogRecord) -> None:
        """Notes every line, and complains about those with a stack trace."""
        told = f"{record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            self._witness.complain(f"logged with its stack: {told}: {record.exc_info[1]!r}")
        else:
            self._witness.note(f"log {told}")


Plan = Callable[[World], Coroutine[Any, Any, None]]
