"""Where is a story played?  In a world of its own: one node, one worker, a broker in memory, a file, virtual time."""

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
from orchestrix.bootstrap.node import Node
from orchestrix.broker.topology import COMMANDS, EVENTS
from orchestrix.config_urls import sqlite_url
from orchestrix.domain.idempotency import StoredAnswer
from orchestrix.errors import OrchestrixError, RetryLater
from orchestrix.orchestration.actions import Action
from orchestrix.orchestration.requests import IdempotencyKey, Started, StartRequest, Taken
from orchestrix.persistence import history, instances, schema
from orchestrix.persistence.pairs import pair_of
from orchestrix.saga.asks import Ask
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import TERMINAL, Saga
from orchestrix.saga.messages import Command
from orchestrix.saga.state import Change, Instance
from orchestrix.saga.transition import Start
from orchestrix.testing.answers import When
from orchestrix.testing.cast import Member, NodeMember, Scene, WorkerMember
from orchestrix.testing.chance import SeededDice
from orchestrix.testing.chronicle import Chronicle, Entry
from orchestrix.testing.inline_sqlite import SqliteClient, SqliteFile
from orchestrix.testing.memory_broker import MemoryServer
from orchestrix.testing.places import AFTER, AT, BEFORE, OTHER, SENT, Crash, Moment, Passages
from orchestrix.testing.virtual_time import EPOCH, VirtualLoop, VirtualSource, current_process
from orchestrix.testing.work import Work
from orchestrix.worker.context import Context
from orchestrix.worker.handlers import HandlerTable, Output

T = TypeVar("T")

WIRE: Final = 0.001
"""Seconds that a message is under way."""
CALM: Final = 1.0
"""Seconds without anything new after which a story that has ended is over."""
INSTALLATION: Final = "00000000-0000-4000-8000-000000000000"
"""What the effect keys of a story begin with, the same each time."""
LATEST: Final = 120.0
"""Seconds for which the rest of an ended story is waited for at most."""


class StoryError(OrchestrixError):
    """The story cannot be played, or does not come to rest. The message says why, and shows what happened."""


@dataclass(frozen=True)
class Plot:
    """What is given. `whens` may still grow."""

    saga: Saga
    handlers: HandlerTable
    data: Mapping[str, Any]
    key: str
    seed: int
    whens: dict[str, When]


class Row(NamedTuple):
    """What a commit can change of the saga's row."""

    state: str
    version: int
    blocker: str | None


@dataclass(frozen=True, slots=True)
class Told:
    """The saga as it is stored. `began` is the wall clock at its start."""

    instance: Instance
    changes: list[Change]
    began: float

    def rows(self) -> list[Entry]:
        """Its history as lines of a table."""
        return [
            Entry(change.at.timestamp() - self.began, "saga", f"{change.to_state}  {change.reason}  ({change.actor})")
            for change in self.changes
        ]


class Stage:
    """Plays one story, once. Make it, `play` what is to happen, `close` it."""

    def __init__(self, plot: Plot, crashes: Sequence[Crash] = ()) -> None:
        self.plot = plot
        self.loop = VirtualLoop()
        self.chronicle = Chronicle(lambda: self.loop.time() - self.began)
        self.passages = Passages(crashes)
        self.loop.abandons = any(one.place.moment == AT for one in crashes)
        self.row: Row | None = None
        self.began = self.loop.time()
        self._failed: BaseException | None = None
        self._folder = tempfile.TemporaryDirectory(dir=_memory(), prefix="story-")
        self._file = SqliteFile(Path(self._folder.name) / "story.db", template=_template())
        self._file.committing, self._file.committed = self._committing, self._committed
        self._table = pair_of(plot.saga.name).instances.name
        self._coming: Row | None = None
        self._stirred = asyncio.Event()
        self._watching = False
        self._id = 0
        self._asks = 0
        self._chance = SeededDice(f"{plot.seed}:chance")
        self.chronicle.on_message = self._on_message
        self._work = Work(plot.handlers, plot.whens, self._through, self.chronicle.note, self._mute)
        self._jobs = Work(plot.handlers, plot.whens, self._through, self.chronicle.note)
        self._cast()

    def _cast(self) -> None:
        catalog = Catalog([self.plot.saga])
        self._server = MemoryServer(SeededDice(f"{self.plot.seed}:wire"), pace=lambda: WIRE)
        self._server.taps.append(self.chronicle)
        scene = Scene(self.loop, self._file, self._server, catalog)
        scene.told, scene.failed = self.chronicle.note, self._broken
        scene.do = self._do_job if catalog.jobs else None
        handlers = HandlerTable([(command, self._work.handle) for command in catalog.commands])
        self._node, self._worker = NodeMember("node", scene), WorkerMember("worker", scene, handlers)
        self._members: tuple[Member, ...] = (self._node, self._worker)
        self._queues = (*catalog.commands, *catalog.event_queues)

    def play(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns once it has been done on virtual time. Raises `StoryError` within a running loop."""
        if asyncio._get_running_loop() is not None:
            work.close()
            raise StoryError("a story has a loop of its own: play it in a plain function, not in an `async def`")
        with clock.use(VirtualSource(self.loop, self._chance)), self._heard(), crash.heard_by(self._at):
            return self.loop.run_until_complete(work)

    async def open(self) -> None:
        """Starts the processes, then the saga."""
        for member in self._members:
            member.boot()
        for member in self._members:
            await member.ready.wait()
        self.began, self._watching = self.loop.time(), True
        del self.chronicle.entries[:]
        start = Start(self.plot.key, "author", f"story-{self.plot.key}", self.plot.data)
        request = StartRequest(self.plot.saga.name, start)
        answer = await self._asked(lambda node: node.starter.start(request))
        if isinstance(answer, Started):
            self._id = answer.instance.id
        elif isinstance(answer, Taken) and answer.existing is not None:
            self._id = answer.existing

    async def ask(self, ask: Ask) -> None:
        """A person asks something of the saga, again if the node dies meanwhile; it is done once.

        Raises what `Control.act` raises.
        """
        self.chronicle.note(ask.actor, f"{ask.verb.value}: {ask.reason}")
        action = Action(self.plot.saga.name, self._id, ask)
        self._asks += 1
        key = IdempotencyKey("story", str(self._asks), ask.verb.value, _stored)
        await self._asked(lambda node: node.control.act_once(action, key))

    async def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Waits until something holds; False if it does not within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                while not holds() and self._trouble is None:
                    self._stirred.clear()
                    await self._stirred.wait()
        except TimeoutError:
            pass
        if self._trouble is not None:
            raise self._trouble
        return holds()

    async def settle(self) -> None:
        """Waits until everybody is back and nothing new happens any more."""
        ends = self.loop.time() + LATEST
        seen = -1
        while self.loop.time() < ends and (seen != len(self.chronicle.entries) or not self._is_calm()):
            seen = len(self.chronicle.entries)
            await self.until(lambda: False, CALM)

    async def told(self) -> Told:
        """The saga as it is stored now."""
        pair = pair_of(self.plot.saga.name)
        database = SqliteClient(self._file).database()
        async with database.read() as connection:
            found = await instances.get(connection, pair, self.plot.saga.name, self._id)
            changes = await history.listing(connection, pair, self._id, 0, 100_000)
        await database.close()
        assert found is not None, "the saga was started"
        return Told(found, changes, EPOCH + self.began)

    @property
    def rests(self) -> bool:
        """Whether nothing will happen any more without a person."""
        return self.row is not None and (self.row.state in TERMINAL or self.row.blocker is not None)

    def passed(self, moment: Moment, subject: str) -> int:
        """How often a place was passed."""
        return self.passages.counts[moment, subject]

    def close(self) -> None:
        """Frees everything, whatever it was doing."""
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)  # it may be collected while another loop runs
        try:
            with clock.use(VirtualSource(self.loop, self._chance)), self._heard(buried=True):
                self.loop.run_until_complete(self._end())
                self.loop.bury()
            self.loop.close()
        finally:
            asyncio._set_running_loop(running)
            self._file.close()
            self._folder.cleanup()

    async def _end(self) -> None:
        for member in self._members:
            if member.process is not None:
                member.process.kill()

    async def _asked(self, question: Callable[[Node], Coroutine[Any, Any, T]]) -> T:
        while True:
            await self._node.ready.wait()
            process = self._node.process
            assert process is not None
            asking = process.spawn(question(self._node.node))
            gone = asyncio.ensure_future(self._node.gone.wait())
            await asyncio.wait({asking, gone}, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if asking.done():
                try:
                    return asking.result()
                except RetryLater:
                    await asyncio.sleep(WIRE)

    # What the world says of itself.

    def _committing(self, raw: sqlite3.Connection) -> None:
        found = raw.execute(f"SELECT state, version, blocker FROM {self._table}").fetchone()
        self._coming = Row(*found) if found is not None and Row(*found) != self.row else None
        if self._coming is not None:
            self._through(BEFORE, self._coming.state)

    def _committed(self) -> None:
        coming, self._coming = self._coming, None
        if coming is not None:
            self.row = coming
        self._through(AFTER, coming.state if coming is not None else OTHER)

    def _at(self, name: str) -> None:
        if self._through(AT, name):
            self.loop.abandon()

    def _mute(self, command_id: str) -> None:
        self._server.muted.add(command_id)

    async def _do_job(self, context: Context, command: Command) -> Output:
        self.chronicle.job(command.id, command.type, command.attempt)
        return await self._jobs.handle(context, command)

    def _on_message(self, exchange: str, routing_key: str) -> None:
        if exchange == COMMANDS:
            self._through(AFTER, routing_key + SENT, self._node)
        elif exchange == EVENTS:
            self._through(AFTER, routing_key, self._worker)

    def _through(self, moment: Moment, subject: str, member: Member | None = None) -> bool:
        """Whether the process at this place has just died."""
        if not self._watching:
            return False
        if member is None:
            member = next((one for one in self._members if one.is_in(current_process())), None)
        place, crash = self.passages.through(moment, subject)
        self._stirred.set()
        if crash is None or member is None or member.process is None:
            return False
        (self._work if member is self._worker else self._jobs).going.clear()
        self.chronicle.note(member.name, f"CRASH {place}")
        member.kill(crash.back_after)
        return True

    @property
    def _trouble(self) -> BaseException | None:
        return self._failed or self._work.trouble or self._jobs.trouble

    def _is_calm(self) -> bool:
        if self._jobs.going or (self._work.going and self._worker.ready.is_set()):
            return False
        ready = (self._server.count(queue) for queue in self._queues)
        unsent = self._file.look("SELECT 1 FROM outbox LIMIT 1")
        return (
            all(one.ready.is_set() for one in self._members) and not unsent and not any(one and one[0] for one in ready)
        )

    def _broken(self, error: BaseException) -> None:
        self._failed = self._failed or error
        self._stirred.set()

    @contextmanager
    def _heard(self, *, buried: bool = False) -> Iterator[None]:
        """What the product logs, and what nobody has caught, is written down; the last words of the dead are not."""
        log = logging.getLogger("orchestrix")
        before, ears = log.propagate, logging.NullHandler() if buried else self.chronicle
        self.loop.set_exception_handler(lambda loop, context: self.chronicle.note("log", f"uncaught: {context}"))
        log.addHandler(ears)
        log.propagate = before and not buried
        try:
            yield
        finally:
            log.removeHandler(ears)
            log.propagate = before


def _stored(_done: Instance) -> StoredAnswer:
    return StoredAnswer("", 200, {}, b"")


def _memory() -> Path | None:
    """A folder in memory, where the machine has one."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


@cache
def _template() -> Path:
    """A database with nothing in it, made once a process."""
    folder = tempfile.TemporaryDirectory(dir=_memory(), prefix="story-template-")
    path = Path(folder.name) / "template.db"
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(schema.upgrade(sqlite_url(path)))
    finally:
        loop.close()
    raw = sqlite3.connect(path)
    with raw:
        raw.execute("UPDATE installation SET installation = ?", (INSTALLATION,))
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()
    atexit.register(folder.cleanup)
    return path
