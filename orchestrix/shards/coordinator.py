"""Shard coordinator: what a node does for services of shards. Any node answers, for all state is in the database."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from orchestrix import clock, crash
from orchestrix.broker.port import Broker
from orchestrix.domain.shards import messages
from orchestrix.domain.shards import service as rules_of
from orchestrix.domain.shards.draft import assignment
from orchestrix.domain.shards.members import Process
from orchestrix.domain.shards.messages import MemberMessage
from orchestrix.domain.shards.state import (
    Effect,
    Event,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
    ServiceCheck,
    ShardRules,
)
from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from orchestrix.errors import RetryableError, SchemaMismatch, Unavailable
from orchestrix.lifecycle import Loop
from orchestrix.persistence.engine import Database
from orchestrix.persistence.shards import generations, services, workers
from orchestrix.saga.messages import UnreadableMessage
from orchestrix.shards.changes import ServiceChanges
from orchestrix.shards.effects import STALE_S, ChangeLog, answer, answers, renewed
from orchestrix.shards.heartbeats import QueuedHeartbeat, RoutineHeartbeats
from orchestrix.shards.listening import Listening
from orchestrix.shards.memory import ServiceMemory
from orchestrix.shards.rabbitmq import Handled, MemberAnswer, MemberRequest
from orchestrix.shards.transport import MakeTransport

log = logging.getLogger("orchestrix.shards")

POLL_S: Final = 1.0
"""Seconds between two reads of what other nodes have changed."""
SHORTEST_POLL_S: Final = 0.05
PRUNE_S: Final = 600.0
GIVE_BACK_S: Final = 5.0
"""Seconds without the database after which members are left to other nodes."""
STOP_TIMEOUT_S: Final = 5.0
"""Seconds in which it gives up the leader locks of pending generations."""
NOT_TAKING: Final = "members of shard services are left to other nodes: the database does not answer"
HISTORY_KEPT: Final = timedelta(days=7)
"""How long generations are kept that were superseded, and services without members."""


@dataclass(slots=True)
class _Batch:
    """The messages of one service that are stored together: by whom, with which correlation id, and the place of the
    last request, which brings all answers.
    """

    events: list[Event] = field(default_factory=list)
    asked: dict[Process, str | None] = field(default_factory=dict)
    last: int = 0


class ShardCoordinator:
    """Stores what members say, answers them, and begins and activates generations.

    An answer leaves after the commit of what it answers. `check_s` are the seconds between two checks for silent
    members; none is inactive before this node has listened for the heartbeat time-out. A node without its database
    gives the messages back that it has, and takes no more, for other nodes may have theirs.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        make_transport: MakeTransport,
        *,
        node_id: str,
        rules: ShardRules,
        check_s: float,
    ) -> None:
        self._database, self._node_id = database, node_id
        self._rules, self._check_s = rules, check_s
        self._listening = Listening(broker)
        self._memory = ServiceMemory()
        self._changes, self._log = ServiceChanges(database, rules), ChangeLog()
        self._transport = make_transport(self)
        self._writing = asyncio.Lock()
        self._heartbeats = RoutineHeartbeats(
            database, rules, self._memory, self._listening, self._writing, self._transport.send, self._store_queued
        )
        self._checked_at = self._pruned_at = -PRUNE_S
        self._answered_at, self._takes, self._started = clock.monotonic(), False, False
        self._loop = Loop("shard coordinator", self._round)

    async def start(self) -> None:
        """Begins to answer members."""
        self._listening.interrupt()
        self._answered_at, self._takes, self._started = clock.monotonic(), True, True
        await self._heartbeats.start()
        await self._transport.start()
        await self._loop.start()

    async def stop(self) -> None:
        """Takes no more; other nodes answer what is left, and lead what this one led."""
        was_started, self._started = self._started, False
        await self._loop.stop()
        await self._transport.stop()
        await self._heartbeats.stop()
        if was_started:
            await self._release_leads()

    def problem(self) -> str | None:
        """Why it takes no messages of members now, if it has given them back."""
        return None if self._takes or not self._started else NOT_TAKING

    # What members send.

    def refusal(self, problem: str) -> bytes:
        """The answer to a message that cannot be read."""
        return messages.refusal(problem)

    async def handle(self, requests: Sequence[MemberRequest]) -> Sequence[Handled]:
        """As `RequestHandler`: routine heartbeats wait for the next statement, all else is stored at once."""
        self._heartbeats.check()
        results = [Handled() for _ in requests]
        batches: dict[str, _Batch] = {}
        for place, request in enumerate(requests):
            try:
                message = messages.read(request.body, request.reply_to, request.via)
            except UnreadableMessage as error:
                results[place] = Handled(unreadable=str(error))
            else:
                self._sort(message, request, place, batches)
        for service, batch in batches.items():
            await self._store(service, batch, results)
        return results

    def _sort(self, message: MemberMessage, request: MemberRequest, place: int, batches: dict[str, _Batch]) -> None:
        service, event = message.service, message.event
        process = event.worker_id, event.instance
        batch = batches.get(service)
        is_first = batch is None or process not in batch.asked
        if isinstance(event, MemberHeartbeat) and is_first and self._heartbeats.is_routine(service, event):
            self._heartbeats.add(QueuedHeartbeat(service, event, request.correlation_id))
            return
        batch = batches.setdefault(service, _Batch())
        batch.events.append(event)
        batch.asked[process], batch.last = request.correlation_id, place

    async def _store(self, service: str, batch: _Batch, results: list[Handled]) -> None:
        async with self._writing:
            for one in batch.events:
                self._forget_queued(service, one)
            effects = await self._apply(service, batch.events)
        sent = answers(effects, batch.asked)
        results[batch.last] = Handled([*results[batch.last].answers, *sent])

    def _forget_queued(self, service: str, event: Event) -> None:
        if isinstance(event, MemberRegistration | MemberHeartbeat | MemberLeave):
            self._heartbeats.drop((service, (event.worker_id, event.instance)), event.reply_to)

    async def _store_queued(self, queued: Sequence[QueuedHeartbeat]) -> Sequence[MemberAnswer]:
        """Stores heartbeats of which something has changed since they arrived; the lock is taken."""
        found: list[MemberAnswer] = []
        for service in sorted({one.service for one in queued}):
            mine = [one for one in queued if one.service == service]
            asked = {one.key[1]: one.correlation_id for one in mine}
            found += answers(await self._apply(service, [one.heartbeat for one in mine]), asked)
        return found

    async def _apply(self, service: str, events: Sequence[Event]) -> list[Effect]:
        """What follows, after the commit."""
        began = clock.monotonic()
        try:
            effects = await self._changes.apply(service, events)
        except RetryableError:
            self._listening.interrupt()
            raise
        if clock.monotonic() - began >= STALE_S:
            effects = await self._renewed(service, effects)
        self._log.write(service, effects)
        return effects

    async def _renewed(self, service: str, effects: Sequence[Effect]) -> list[Effect]:
        """The effects with assignments as they are now: this process may have stood still since the commit, and a plain
        member cannot see that one is old.
        """
        began = -STALE_S
        while clock.monotonic() - began >= STALE_S:
            began = clock.monotonic()
            async with self._database.read() as connection:
                await self._memory.read(connection, [service])
        known = self._memory.get(service)
        return [one for effect in effects if (one := renewed(effect, known.state if known else None)) is not None]

    async def current(self, addresses: Collection[str]) -> Sequence[MemberAnswer]:
        """What the members with these addresses have, as it is stored now."""
        async with self._database.read() as connection:
            await self._memory.refresh(connection)
        return [
            answer(assignment(known.state, member), None)
            for _, known in self._memory
            for member in known.state.members.values()
            if member.reply_to in addresses and member.answered
        ]

    # What the node does by itself.

    async def _round(self) -> None:
        try:
            wait_s = await self.poll()
        except (RetryableError, SchemaMismatch) as error:
            self._listening.interrupt()
            await self._give_back()
            raise Unavailable(str(error)) from error  # which the loop logs in one line
        await self._take_again()
        await asyncio.sleep(wait_s)

    async def _give_back(self) -> None:
        if self._takes and clock.monotonic() - self._answered_at >= GIVE_BACK_S:
            self._takes = False
            await self._transport.stop()

    async def _take_again(self) -> None:
        self._answered_at = clock.monotonic()
        if not self._takes:
            await self._transport.start()
            self._takes = True

    async def poll(self) -> float:
        """Reads what has changed, leads and activates generations, and checks for silence; seconds until the next."""
        async with self._database.read() as connection:
            await self._memory.refresh(connection)
            since = self._listening.update(connection.now())
        await self._lead()
        at = clock.monotonic()
        changed = [service for service in await self._due(since, at) if await self._check(service, since)]
        await self._read(changed)
        await self._prune(at)
        return self._wait_s()

    async def _lead(self) -> None:
        """Leads the generations that no node leads yet."""
        pending = [known.state.pending for _, known in self._memory]
        if all(one is None or one.leader_id is not None for one in pending):
            return
        taken = await self._database.run(
            lambda tx: generations.acquire_leader_lock(tx, self._node_id, self._database.now())
        )
        if taken:
            crash.point("shards.lead.after_commit")
        await self._read([service for service, _ in taken])

    async def _release_leads(self) -> None:
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._database.run(lambda tx: generations.release_leader_lock(tx, self._node_id))
        except (RetryableError, SchemaMismatch, TimeoutError) as error:
            log.debug("pending generations stay without a leader until their time is over: %s", error)

    async def _read(self, names: Collection[str]) -> None:
        if names:
            async with self._database.read() as connection:
                await self._memory.read(connection, names)

    async def _due(self, since: datetime, at: float) -> list[str]:
        """The services of which a check may change something, read once more. There are few, however many have
        members: signs of life change no version, so one statement finds the silent.
        """
        now, known = self._database.now(), list(self._memory)
        due = {service for service, one in known if _is_due(rules_of.next_action_at(one.state, self._node_id), now)}
        if at - self._checked_at >= self._check_s:
            self._checked_at = at
            due |= {service for service, one in known if rules_of.needs_check(one.state, now, since, self._rules)}
            due |= await self._silent(now, since)
        await self._read(due)
        return sorted(due)

    async def _silent(self, now: datetime, since: datetime) -> set[str]:
        timeout = timedelta(seconds=self._rules.heartbeat_timeout_s)
        if now - since < timeout:
            return set()
        async with self._database.read() as connection:
            return await workers.silent_services(connection, now - timeout, now + CLOCK_TOLERANCE)

    async def _check(self, service: str, since: datetime) -> bool:
        """Stores what a check changes; whether it does: most do not."""
        known, check = self._memory.get(service), ServiceCheck(self._node_id, since)
        if known is None:
            return False
        expected, effects = rules_of.apply(known.state, [check], self._database.now(), self._rules)
        if expected == known.state and not effects:
            return False
        async with self._writing:  # which can take long, with heartbeats that wait for it, too
            since = self._listening.update(self._database.now())
            effects = await self._apply(service, [ServiceCheck(self._node_id, since)])
        await self._transport.send(answers(effects, _NOBODY))
        return True

    async def _prune(self, at: float) -> None:
        if at - self._pruned_at >= PRUNE_S:
            self._pruned_at = at
            before = self._database.now() - HISTORY_KEPT
            await self._database.run(lambda tx: generations.prune(tx, before))
            while await self._database.run(lambda tx: services.prune(tx, before)) == services.PRUNED_AT_ONCE:
                pass

    def _wait_s(self) -> float:
        """Until the next second, or the end of a window that this node waits for."""
        now = self._database.now()
        due = (rules_of.next_action_at(known.state, self._node_id) for _, known in self._memory)
        waits = [(one - now).total_seconds() for one in due if one is not None]
        return max(min([POLL_S, *waits]), SHORTEST_POLL_S)


_NOBODY: Final[Mapping[Process, str | None]] = {}


def _is_due(at: datetime | None, now: datetime) -> bool:
    return at is not None and at <= now
