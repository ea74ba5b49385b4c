"""Routine heartbeats: stored together, once a second, and answered from memory after that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from orchestrix import clock, crash
from orchestrix.domain.shards.members import Process
from orchestrix.domain.shards.service import is_routine, routine_answer
from orchestrix.domain.shards.state import MemberHeartbeat, ShardRules
from orchestrix.errors import RetryableError, SchemaMismatch, Unavailable
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database
from orchestrix.persistence.shards import workers
from orchestrix.persistence.shards.workers import SignOfLife
from orchestrix.shards.effects import STALE_S, answer
from orchestrix.shards.listening import Listening
from orchestrix.shards.memory import ServiceMemory
from orchestrix.shards.rabbitmq import MemberAnswer

log = logging.getLogger("orchestrix.shards")

GATHER_S: Final = 1.0
"""Seconds between the beginnings of two statements: what arrives meanwhile shares the next one."""
BATCH: Final = 1_000
"""Heartbeats in one statement."""

STOP_TIMEOUT_S: Final = 5.0
"""Seconds to store at the stop what is queued."""

MemberKey: TypeAlias = tuple[str, Process]
"""A service, and a process of it."""
Send: TypeAlias = Callable[[Sequence[MemberAnswer]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class QueuedHeartbeat:
    """A heartbeat that waits to be stored."""

    service: str
    heartbeat: MemberHeartbeat
    correlation_id: str | None

    @property
    def key(self) -> MemberKey:
        """Whose it is."""
        return self.service, (self.heartbeat.worker_id, self.heartbeat.instance)


class RoutineHeartbeats:
    """Queues the newest routine heartbeat of each process for up to a second.

    Only a crash of this node loses one, and none is answered before it is stored: its member's lease is as long as
    several heartbeats. `changed` stores those that turn out to be no routine, and returns the answers; `writing` keeps
    a later message of the same process from overtaking its heartbeat.
    """

    def __init__(
        self,
        database: Database,
        rules: ShardRules,
        memory: ServiceMemory,
        listening: Listening,
        writing: asyncio.Lock,
        send: Send,
        changed: Callable[[Sequence[QueuedHeartbeat]], Awaitable[Sequence[MemberAnswer]]],
    ) -> None:
        self._database, self._rules, self._memory = database, rules, memory
        self._listening, self._writing = listening, writing
        self._send, self._changed = send, changed
        self._queued: dict[MemberKey, QueuedHeartbeat] = {}
        self._failure: RetryableError | None = None
        self._arrived = WakeSignal()
        self._begun_at = -GATHER_S
        self._loop = Loop("shard heartbeats", self._round)

    async def start(self) -> None:
        """Begins to store."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stores what is queued, if the database is there."""
        await self._loop.stop()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self.flush()
        except (RetryableError, TimeoutError) as error:
            log.debug("heartbeats of members are left: %s", error)

    def check(self) -> None:
        """Raises `RetryableError` while heartbeats cannot be stored: others are better left to other nodes."""
        if self._failure is not None:
            raise self._failure

    def is_routine(self, service: str, heartbeat: MemberHeartbeat) -> bool:
        """Whether it may be answered from memory."""
        known = self._memory.get(service)
        return (
            known is not None
            and is_routine(known.state, heartbeat)
            and (heartbeat.worker_id, heartbeat.instance) in known.ids
        )

    def add(self, queued: QueuedHeartbeat) -> None:
        """Stores it with the next statement, in place of the one before of the same process."""
        self._queued[queued.key] = queued
        self._arrived.set()

    def drop(self, key: MemberKey, reply_to: str | None) -> None:
        """A later message of that process, which is no routine, says all that this one says.

        One from another address is of another plain client, and does not count as the member's.
        """
        known = self._queued.get(key)
        if known is not None and reply_to in (known.heartbeat.reply_to, None):
            del self._queued[key]

    async def _round(self) -> None:
        if not self._queued:
            await self._arrived.wait(None)
        if (rest := self._begun_at + GATHER_S - clock.monotonic()) > 0:
            await asyncio.sleep(rest)
        self._begun_at = clock.monotonic()
        await self.flush()

    async def flush(self) -> None:
        """Stores what is queued, then answers it. Raises `RetryableError`; what was not stored is queued again then.

        After any other error the batch is left to the next heartbeats of its members: one that always fails would keep
        the others from being stored for ever.
        """
        for _ in range(0, len(self._queued), BATCH):
            await self._flush_batch()

    async def _flush_batch(self) -> None:
        async with self._writing:
            batch = dict(list(self._queued.items())[:BATCH])
            for key in batch:
                del self._queued[key]
            try:
                stored = await self._note(list(batch.values()))
                others = await self._changed([one for key, one in batch.items() if key not in stored])
            except BaseException as error:
                if isinstance(error, RetryableError | SchemaMismatch | asyncio.CancelledError):
                    self._queued = {**batch, **self._queued}
                self._listening.interrupt()
                self._failure = error if isinstance(error, RetryableError) else None
                if isinstance(error, SchemaMismatch):
                    self._failure = Unavailable(str(error))
                    raise self._failure from error
                raise
            self._failure = None
        await self._send([*(one for one in stored.values() if one is not None), *others])

    async def _note(self, batch: Sequence[QueuedHeartbeat]) -> dict[MemberKey, MemberAnswer | None]:
        """The answers to those that are stored. They are made of the memory under whose versions these were stored."""
        signs: dict[int, SignOfLife] = {}
        found: dict[int, tuple[MemberKey, MemberAnswer | None]] = {}
        for one in batch:
            known, heartbeat = self._memory.get(one.service), one.heartbeat
            if known is None or not self.is_routine(one.service, heartbeat):
                continue
            row, member = known.ids[one.key[1]], known.state.members[heartbeat.worker_id]
            signs[row] = SignOfLife(row, member.version, heartbeat.seq)
            sent = routine_answer(known.state, heartbeat, self._rules)
            found[row] = one.key, None if sent.reply_to is None else answer(sent, one.correlation_id)
        if not signs:
            return {}
        began, now = clock.monotonic(), self._database.now()
        noted = await self._database.run(lambda tx: workers.note(tx, list(signs.values()), now))
        crash.point("shards.heartbeats.after_commit")
        stored = {found[row][0]: found[row][1] for row in noted}
        if clock.monotonic() - began >= STALE_S:  # it may have stood still since the commit
            stored |= {key: None for key in stored if key[1][1] is None}
        return stored
