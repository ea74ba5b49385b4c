"""Scenario environment: one node, one worker, a broker in memory, a database file and virtual time."""

from __future__ import annotations

import asyncio
import atexit
import logging
import sqlite3
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from orchestrix import clock, crash
from orchestrix.broker.topology import COMMANDS, EVENTS
from orchestrix.config.urls import sqlite_url
from orchestrix.domain.idempotency import StoredAnswer
from orchestrix.engine.control import Action
from orchestrix.engine.requests import ExistingSaga, IdempotencyKey, StartedSaga, StartRequest
from orchestrix.errors import OrchestrixError, RetryableError
from orchestrix.node import Node
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.persistence.schema import migrator
from orchestrix.saga.actions.requests import ActionRequest
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import TERMINAL, Saga
from orchestrix.saga.messages import Command
from orchestrix.saga.state import Instance, StateChange
from orchestrix.saga.transition import SagaStart
from orchestrix.testing.broker.server import MemoryServer
from orchestrix.testing.crash_points import AFTER, AT, BEFORE, OTHER, SENT, CrashPointTracker, Moment, PlannedCrash
from orchestrix.testing.handler_runner import HandlerRunner
from orchestrix.testing.simulation.inline_sqlite import SqliteClient, SqliteFile
from orchestrix.testing.simulation.processes import NodeProcess, SharedWorld, SimulatedProcess, WorkerProcess
from orchestrix.testing.simulation.rng import SeededRng
from orchestrix.testing.simulation.virtual_time import EPOCH_S, VirtualClock, VirtualLoop, current_process
from orchestrix.testing.stubs import When
from orchestrix.testing.trace import ScenarioTrace, TraceEntry
from orchestrix.worker.context import Context
from orchestrix.worker.handlers import HandlerTable, Output

T = TypeVar("T")

NETWORK_DELAY_S: Final = 0.001
"""Seconds that a message is in transit."""
SETTLED_AFTER_S: Final = 1.0
"""Seconds without activity after which an ended scenario counts as settled."""
INSTALLATION: Final = "00000000-0000-4000-8000-000000000000"
"""The prefix of a scenario's effect keys, the same each time."""
SETTLE_TIMEOUT_S: Final = 120.0
"""Seconds for which an ended scenario is given to settle at most."""


class StoryError(OrchestrixError):
    """The scenario cannot be run, or does not settle. The message says why, and shows what happened."""


@dataclass(frozen=True)
class ScenarioSetup:
    """The inputs of a scenario. `stubs` may still grow."""

    saga: Saga
    handlers: HandlerTable
    data: Mapping[str, Any]
    key: str
    seed: int
    stubs: dict[str, When]


class ObservedRow(NamedTuple):
    """What a commit can change of the saga's row."""

    state: str
    version: int
    blocker: str | None


@dataclass(frozen=True, slots=True)
class StoredSaga:
    """The saga as stored. `began` is the wall clock at its start."""

    instance: Instance
    changes: list[StateChange]
    began: float

    def rows(self) -> list[TraceEntry]:
        """Its history as entries of the trace."""
        return [
            TraceEntry(
                change.at.timestamp() - self.began, "saga", f"{change.to_state}  {change.reason}  ({change.actor})"
            )
            for change in self.changes
        ]


class ScenarioEnvironment:
    """Runs one scenario, once. Create it, `run_in_virtual_time` its actions, `close` it."""

    def __init__(self, setup: ScenarioSetup, crashes: Sequence[PlannedCrash] = ()) -> None:
        self.setup = setup
        self.loop = VirtualLoop()
        self.trace = ScenarioTrace(lambda: self.loop.time() - self.began)
        self.crash_points = CrashPointTracker(crashes)
        self.loop.abandons = any(one.place.moment == AT for one in crashes)
        self.row: ObservedRow | None = None
        self.began = self.loop.time()
        self._failed: BaseException | None = None
        self._folder = tempfile.TemporaryDirectory(dir=_memory(), prefix="story-")
        self._file = SqliteFile(Path(self._folder.name) / "story.db", template=_template())
        self._file.committing, self._file.committed = self._committing, self._committed
        self._table = saga_tables_of(setup.saga.name).instances.name
        self._uncommitted: ObservedRow | None = None
        self._changed = asyncio.Event()
        self._watching = False
        self._id = 0
        self._queries = 0
        self._rng = SeededRng(f"{setup.seed}:chance")
        self.trace.on_message = self._on_message
        self._work = HandlerRunner(
            setup.handlers, setup.stubs, self._passes_crash_point, self.trace.note, self._drop_answer
        )
        self._jobs = HandlerRunner(setup.handlers, setup.stubs, self._passes_crash_point, self.trace.note)
        self._start_processes()

    def _start_processes(self) -> None:
        catalog = Catalog([self.setup.saga])
        self._server = MemoryServer(SeededRng(f"{self.setup.seed}:wire"), delay=lambda: NETWORK_DELAY_S)
        self._server.observers.append(self.trace)
        world = SharedWorld(self.loop, self._file, self._server, catalog)
        world.on_event, world.failed = self.trace.note, self._broken
        world.do = self._do_job if catalog.jobs else None
        handlers = HandlerTable([(command, self._work.handle) for command in catalog.commands])
        self._node, self._worker = NodeProcess("node", world), WorkerProcess("worker", world, handlers)
        self._members: tuple[SimulatedProcess, ...] = (self._node, self._worker)
        self._queues = (*catalog.commands, *catalog.event_queues)

    def run_in_virtual_time(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns, run on virtual time. Raises `StoryError` within a running loop."""
        if asyncio._get_running_loop() is not None:
            work.close()
            raise StoryError("a story has its own event loop: run it in a plain function, not in an `async def`")
        with clock.use(VirtualClock(self.loop, self._rng)), self._captured_logs(), crash.crash_point_listener(self._at):
            return self.loop.run_until_complete(work)

    async def open(self) -> None:
        """Starts the processes, then the saga."""
        for member in self._members:
            member.start()
        for member in self._members:
            await member.ready.wait()
        self.began, self._watching = self.loop.time(), True
        del self.trace.entries[:]
        start = SagaStart(self.setup.key, "author", f"story-{self.setup.key}", self.setup.data)
        request = StartRequest(self.setup.saga.name, start)
        answer = await self._query(lambda node: node.engine.starter.start(request))
        if isinstance(answer, StartedSaga):
            self._id = answer.instance.id
        elif isinstance(answer, ExistingSaga) and answer.existing is not None:
            self._id = answer.existing

    async def ask(self, ask: ActionRequest) -> None:
        """Requests an action on the saga, again if the node dies meanwhile; it is applied once.

        Raises what `SagaControl.act` raises.
        """
        self.trace.note(ask.actor, f"{ask.verb.value}: {ask.reason}")
        action = Action(self.setup.saga.name, self._id, ask)
        self._queries += 1
        key = IdempotencyKey("story", str(self._queries), ask.verb.value, _stored)
        await self._query(lambda node: node.engine.control.act_once(action, key))

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Waits until a condition holds; False if it does not within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while not holds() and self._problem is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        if self._problem is not None:
            raise self._problem
        return holds()

    async def settle(self) -> None:
        """Waits until all processes run again and nothing new happens."""
        ends = self.loop.time() + SETTLE_TIMEOUT_S
        seen = -1
        while self.loop.time() < ends and (seen != len(self.trace.entries) or not self._is_idle()):
            seen = len(self.trace.entries)
            await self.until(lambda: False, SETTLED_AFTER_S)

    async def stored_saga(self) -> StoredSaga:
        """The saga as stored now."""
        pair = saga_tables_of(self.setup.saga.name)
        database = SqliteClient(self._file).database()
        async with database.read() as connection:
            found = await instances.get(connection, pair, self.setup.saga.name, self._id)
            changes = await history.listing(connection, pair, self._id, 0, 100_000)
        await database.close()
        assert found is not None, "the saga was started"
        return StoredSaga(found, changes, EPOCH_S + self.began)

    @property
    def is_idle(self) -> bool:
        """Whether nothing will happen any more without a person."""
        return self.row is not None and (self.row.state in TERMINAL or self.row.blocker is not None)

    def passed(self, moment: Moment, subject: str) -> int:
        """How often a crash point was passed."""
        return self.crash_points.counts[moment, subject]

    def close(self) -> None:
        """Releases everything, in any state."""
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)  # it may be garbage-collected while another loop runs
        try:
            with clock.use(VirtualClock(self.loop, self._rng)), self._captured_logs(discarded=True):
                self.loop.run_until_complete(self._end())
                self.loop.discard()
            self.loop.close()
        finally:
            asyncio._set_running_loop(running)
            self._file.close()
            self._folder.cleanup()

    async def _end(self) -> None:
        for member in self._members:
            if member.process is not None:
                member.process.kill()

    async def _query(self, query: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        while True:
            await self._node.ready.wait()
            process = self._node.process
            assert process is not None
            asking = process.spawn(query(self._node.node))
            gone = asyncio.ensure_future(self._node.gone.wait())
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if asking.done():
                try:
                    return asking.result()
                except RetryableError:
                    await asyncio.sleep(NETWORK_DELAY_S)

    # Callbacks of the processes.

    def _committing(self, raw: sqlite3.Connection) -> None:
        found = raw.execute(f"SELECT state, version, blocker FROM {self._table}").fetchone()
        self._uncommitted = ObservedRow(*found) if found is not None and ObservedRow(*found) != self.row else None
        if self._uncommitted is not None:
            self._passes_crash_point(BEFORE, self._uncommitted.state)

    def _committed(self) -> None:
        coming, self._uncommitted = self._uncommitted, None
        if coming is not None:
            self.row = coming
        self._passes_crash_point(AFTER, coming.state if coming is not None else OTHER)

    def _at(self, name: str) -> None:
        if self._passes_crash_point(AT, name):
            self.loop.abandon()

    def _drop_answer(self, command_id: str) -> None:
        self._server.dropped_answers.add(command_id)

    async def _do_job(self, context: Context, command: Command) -> Output:
        self.trace.job(command.id, command.type, command.attempt)
        return await self._jobs.handle(context, command)

    def _on_message(self, exchange: str, routing_key: str) -> None:
        if exchange == COMMANDS:
            self._passes_crash_point(AFTER, routing_key + SENT, self._node)
        elif exchange == EVENTS:
            self._passes_crash_point(AFTER, routing_key, self._worker)

    def _passes_crash_point(self, moment: Moment, subject: str, member: SimulatedProcess | None = None) -> bool:
        """Whether the process was killed at this crash point."""
        if not self._watching:
            return False
        if member is None:
            member = next((one for one in self._members if one.is_in(current_process())), None)
        place, crash = self.crash_points.through(moment, subject)
        self._changed.set()
        if crash is None or member is None or member.process is None:
            return False
        (self._work if member is self._worker else self._jobs).running.clear()
        self.trace.note(member.name, f"CRASH {place}")
        member.kill(crash.back_after)
        return True

    @property
    def _problem(self) -> BaseException | None:
        return self._failed or self._work.problem or self._jobs.problem

    def _is_idle(self) -> bool:
        if self._jobs.running or (self._work.running and self._worker.ready.is_set()):
            return False
        ready = (self._server.count(queue) for queue in self._queues)
        unsent = self._file.query("SELECT 1 FROM outbox LIMIT 1")
        return (
            all(one.ready.is_set() for one in self._members) and not unsent and not any(one and one[0] for one in ready)
        )

    def _broken(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._changed.set()

    @contextmanager
    def _captured_logs(self, *, discarded: bool = False) -> Iterator[None]:
        """Records what the product logs, and uncaught errors; those of killed processes are dropped."""
        log = logging.getLogger("orchestrix")
        before, handler = log.propagate, logging.NullHandler() if discarded else self.trace
        self.loop.set_exception_handler(lambda loop, context: self.trace.note("log", f"uncaught: {context}"))
        log.addHandler(handler)
        log.propagate = before and not discarded
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.propagate = before


def _stored(_done: Instance) -> StoredAnswer:
    return StoredAnswer("", 200, {}, b"")


def _memory() -> Path | None:
    """A folder in a memory file system, where the machine has one."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


@cache
def _template() -> Path:
    """An empty database, created once per process."""
    folder = tempfile.TemporaryDirectory(dir=_memory(), prefix="story-template-")
    path = Path(folder.name) / "template.db"
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(migrator.upgrade(sqlite_url(path)))
    finally:
        loop.close()
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("UPDATE installation SET installation = ?", (INSTALLATION,))
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    atexit.register(folder.cleanup)
    return path
