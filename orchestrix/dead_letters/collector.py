"""Dead letter collector: moves dead letters from their queues into the database, each once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from orchestrix import clock, crash
from orchestrix.broker.port import Broker, Consumer, Delivery, Outcome
from orchestrix.broker.topology import EVENTS, UNROUTED, dead_letters_of
from orchestrix.dead_letters import spans
from orchestrix.dead_letters.parse import DELIVERY_LIMIT, UNROUTED_REASON, ParsedDeadLetter, parse, republished
from orchestrix.dead_letters.quota import DeadLetterQuota
from orchestrix.dead_letters.redrive import CORRELATION_LIMIT_BYTES, insert_rows, row_of, taken_ids, text_within
from orchestrix.dead_letters.retry_buffer import Key, LogRateLimiter, RetryBuffer, key_of
from orchestrix.errors import RetryableError, SchemaMismatch
from orchestrix.lifecycle import Loop, backoff
from orchestrix.outbox.rows import REDRIVE_OWNER
from orchestrix.persistence import audit, dead_letters
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import STEP_FAILED
from orchestrix.saga.messages import MAX_BODY, Command, UnreadableMessage, dump
from orchestrix.saga.messages import command as read_command
from orchestrix.saga.state import ORCHESTRATOR
from orchestrix.telemetry.metrics.catalogue import DEAD_LETTERED
from orchestrix.telemetry.metrics.instruments import counter
from orchestrix.telemetry.trace_context import context_in

log = logging.getLogger("orchestrix.dead_letters")
_recorded = counter(DEAD_LETTERED).at()

LETTERS_PER_TRANSACTION: Final = 100
LETTERS_PER_QUEUE: Final = 16
"""Per queue: a dead letter can be as long as the broker lets a client publish."""
REDELIVERY_LIMIT: Final = 10
"""Redeliveries of a dead letter before it is republished: some brokers drop a message after 20 of them."""
DATABASE_ERRORS: Final = (RetryableError, SchemaMismatch)
"""Errors of the database's own, for which no dead letter is to blame."""
ERRORS_BEFORE_PING: Final = 6
"""After so many of them in a row the database is pinged, to see whether it is unavailable at all."""
REDRIVE: Final = "redrive-dead-letter"
"""The verb of redriven dead letters in the audit."""
_ONCE_MORE: Final = "the delivery limit says nothing about an event: resent once"
_REROUTED: Final = "its queue was missing: resent once the queue exists again"
_GAVE_UP: Final = "every worker that took the command died before it answered; the broker gave up on it"


OnStored = Callable[[Transaction, Sequence[tuple[DeadLetter, bytes]]], Awaitable[None]]
"""What follows from dead letters that are stored, each with its whole body, within the transaction that stores them."""


@dataclass(frozen=True, slots=True)
class AutomaticRedrives:
    """The automatic consequences of some dead letters: rows to send, and the dead letters that are redriven by them."""

    rows: Sequence[OutboxRow] = ()
    again: Sequence[DeadLetter] = ()
    written: int = 0
    """How many dead letters are new in the database."""


class DeadLetterCollector:
    """Takes what is in the dead-letter queues, stores a batch in one transaction, then acknowledges.

    Each dead letter is identified by its content, so that it is stored once however often it comes. Dead by the
    delivery limit is no verdict: an event is sent once more, and the step of a command gets an event that this try
    failed. An event whose queue was missing is sent once more too, its queue declared before, if its saga is known
    here. While the database is unavailable, unacknowledged dead letters are held: a requeue counts as a delivery, and
    the broker drops a message after too many. Those that cannot be stored for their own sake are held too; they are
    retried later, and when that does not help go to the end of their queue, so that others come. `queues` are those
    that it consumes instead of those of all known sagas; `on_stored` is what follows from these beside. What is beyond
    the `quota` stays in its queue.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        catalog: Catalog,
        notify: Callable[[], None],
        *,
        queues: Sequence[str] = (),
        on_stored: OnStored | None = None,
        quota: DeadLetterQuota | None = None,
    ) -> None:
        self._quota = quota
        self._queues = queues
        self._on_stored = on_stored
        self._database = database
        self._broker = broker
        self._catalog = catalog
        self._notify = notify
        self._consumer: Consumer | None = None
        self._retry_buffer = RetryBuffer(LETTERS_PER_QUEUE // 2)
        self._log_limiter = LogRateLimiter()
        self._loop = Loop("dead-letter collector", self._round)

    def catalog_changed(self) -> None:
        """The catalog has grown: there may be more queues to read."""
        if self._consumer is not None and not self._queues:
            self._consumer.also_read(self._own_queues())

    def _own_queues(self) -> list[str]:
        names = (*self._catalog.commands, *self._catalog.event_queues)
        return [*(dead_letters_of(name) for name in names), UNROUTED]

    async def start(self) -> None:
        """Begins to take dead letters."""
        queues = self._queues or self._own_queues()
        self._consumer = await self._broker.consume(queues, prefetch=LETTERS_PER_QUEUE)
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not acknowledged is requeued."""
        await self._loop.stop()
        if self._consumer is not None:
            await self._consumer.close()

    def problem(self) -> str | None:
        """How many dead letters cannot be stored, or that too many come; None if all can."""
        return self._retry_buffer.problem() or (self._quota.problem() if self._quota is not None else None)

    async def _round(self) -> None:
        """Failed ones are retried alone; what the broker may soon drop, or is in the way, is republished."""
        consumer = self._consumer
        assert consumer is not None
        deliveries = await self._next(consumer)
        await self._move(consumer, [one for one in deliveries if not one.redelivered])
        again = [one for one in deliveries if one.redelivered]
        exceeded = [one for one in again if one.delivery_count >= REDELIVERY_LIMIT]
        due = self._retry_buffer.due(consumer.alive)
        failed_often = [one for one in due if self._retry_buffer.has_failed_often(one)]
        renewed = await self._renew(consumer, [*exceeded, *failed_often])
        for one in (*again, *due):
            if key_of(one) not in renewed:
                await self._move(consumer, [one])

    async def _next(self, consumer: Consumer) -> list[Delivery]:
        """What has come; nothing where a retry is due before, or where the quota is used up."""
        room = self._quota.available() if self._quota is not None else LETTERS_PER_TRANSACTION
        if not room and self._quota is not None:
            await asyncio.sleep(self._quota.wait())
            return []
        try:
            async with asyncio.timeout(self._retry_buffer.wait()):
                return await consumer.receive(min(room, LETTERS_PER_TRANSACTION))
        except TimeoutError:
            return []

    async def _renew(self, consumer: Consumer, deliveries: Sequence[Delivery]) -> set[Key]:
        """Republishes these at the ends of their queues; the keys of those that were published."""
        if not deliveries:
            return set()
        published = await self._broker.publish([republished(one) for one in deliveries])
        pairs = list(zip(deliveries, published, strict=True))
        done = [one for one, result in pairs if result.outcome is Outcome.CONFIRMED]
        for one, result in pairs:
            if result.outcome is not Outcome.CONFIRMED and self._log_limiter.allows():
                log.warning("cannot republish a dead letter of %s: %s", one.queue, result.detail)
        for one in done:
            self._retry_buffer.remove(one)
        await consumer.acknowledge(done)
        return {key_of(one) for one in done}

    async def _move(self, consumer: Consumer, deliveries: Sequence[Delivery], failures: int = 0) -> None:
        """Stores the dead letters, however long the database is unavailable."""
        while batch := [one for one in deliveries if consumer.alive(one)]:
            try:
                owed = await self._database.run(partial(self._write, batch))
            except Exception as error:
                failures += 1
                if not await self._is_away(error, failures):
                    await self._split(consumer, batch, error)
                    return
                if failures == 1:
                    log.warning("storing dead letters paused: %s", error)
                await asyncio.sleep(backoff(failures))
            else:
                crash.point("deadletters.after_commit")
                _recorded.add(owed.written)
                if owed.rows:
                    self._notify()
                if self._quota is not None:
                    self._quota.take(max(0, owed.written - len(owed.rows)))
                self._retry_buffer.remove_stored(batch)
                await consumer.acknowledge(batch)
                return

    async def _is_away(self, error: Exception, failures: int) -> bool:
        """Whether the database is to blame. If it answers pings while it refuses these again and again, they are."""
        if not isinstance(error, DATABASE_ERRORS):
            return False
        if failures < ERRORS_BEFORE_PING or isinstance(error, SchemaMismatch):
            return True
        try:
            await self._database.ping()
        except Exception:
            return True
        return False

    async def _split(self, consumer: Consumer, batch: Sequence[Delivery], error: Exception) -> None:
        """One of them cannot be stored: halves, until it is alone. It stays unacknowledged and is retried later."""
        middle = len(batch) // 2
        if middle:
            known = ERRORS_BEFORE_PING - 1 if isinstance(error, DATABASE_ERRORS) else 0
            await self._move(consumer, batch[:middle], known)
            await self._move(consumer, batch[middle:], known)
        else:
            self._retry_buffer.failed(batch[0], error)

    async def _write(self, batch: Sequence[Delivery], tx: Transaction) -> AutomaticRedrives:
        now = self._database.now()
        all_parsed = [parse(one, self._catalog, now) for one in batch]
        known = await self._known(tx, all_parsed)
        dead = {one.dead_letter.id: one for one in (_recognised(parsed, known) for parsed in all_parsed)}
        dead = {id: one for id, one in dead.items() if _is_new_death(one, known.get(id))}
        await dead_letters.record(tx, [one.dead_letter for one in dead.values()])
        owed = await self._judge(tx, dead)
        await insert_rows(tx, owed.rows)
        if self._on_stored is not None:
            await self._on_stored(tx, [(one.dead_letter, one.delivery.body) for one in dead.values()])
        await dead_letters.redriven(tx, [dead_letter.id for dead_letter in owed.again], now)
        await audit.insert(tx, [self._audited(dead_letter) for dead_letter in owed.again])
        crash.point("deadletters.before_commit")
        return replace(owed, written=len(dead))

    @staticmethod
    async def _known(tx: Transaction, all_parsed: Iterable[ParsedDeadLetter]) -> dict[str, DeadLetter]:
        ids = {id for one in all_parsed for id in (one.dead_letter.id, one.earlier) if id is not None}
        return {dead_letter.id: dead_letter for dead_letter in await dead_letters.lock(tx, list(ids))}

    async def _judge(self, tx: Transaction, dead: dict[str, ParsedDeadLetter]) -> AutomaticRedrives:
        """The consequences of those that no handler has judged, and that this transaction has stored itself."""
        undecided = [
            id for id, one in dead.items() if one.dead_letter.reason == _undecided_reason(one.dead_letter.queue)
        ]
        found = [one for one in await dead_letters.lock(tx, undecided) if _is_ours(one, dead[one.id])]
        again = [one for one in found if self._may_be_redriven(one)]
        taken = await taken_ids(tx, again) if again else set()
        now = self._database.now()
        rows = [
            row_of(one, self._catalog, now, taken=taken, body=dead[one.id].delivery.body)  # also one too long to store
            for one in again
        ]
        rows = spans.redrive(tx, list(zip(again, rows, strict=True)))
        return AutomaticRedrives(
            [*rows, *(row for one in found if (row := self._failure_of(dead[one.id])) is not None)], again
        )

    def _may_be_redriven(self, dead_letter: DeadLetter) -> bool:
        """An event that the sagas know, once; also an unrouted one whose queue exists."""
        queue = (
            dead_letter.routing_key
            if (dead_letter.queue, dead_letter.exchange) == (UNROUTED, EVENTS)
            else dead_letter.queue
        )
        return queue in self._catalog.events and not dead_letter.redriven and dead_letter.body_size <= MAX_BODY

    def _failure_of(self, parsed: ParsedDeadLetter) -> OutboxRow | None:
        """The event by which this try of a dead command's step has failed; None if it is no such command."""
        if parsed.dead_letter.queue not in self._catalog.commands:
            return None
        try:
            command = read_command(parsed.delivery.body)
        except UnreadableMessage:
            return None
        dead_letter, context = parsed.dead_letter, context_in(parsed.dead_letter.headers)
        id = clock.named_uuid(dead_letter.id.encode(), dead_letter.recorded_at.isoformat().encode())
        return OutboxRow(
            id=id,
            saga=REDRIVE_OWNER,
            instance_id=int(id.replace("-", ""), 16) >> 65,
            version=0,
            n=0,
            exchange=EVENTS,
            routing_key=STEP_FAILED,
            type=STEP_FAILED,
            correlation_id=text_within(command.correlation_id, CORRELATION_LIMIT_BYTES) or "",
            body=dump(_failure(id, command)),
            timeout_ms=0,
            created_at=dead_letter.recorded_at,
            traceparent=None if context is None else context.traceparent,
            tracestate=None if context is None else context.tracestate,
        )

    def _audited(self, dead_letter: DeadLetter) -> AuditRow:
        return AuditRow(
            at=self._database.now(),
            actor=ORCHESTRATOR,
            verb=REDRIVE,
            reason=_REROUTED if dead_letter.queue == UNROUTED else _ONCE_MORE,
            saga=dead_letter.saga,
            instance_id=dead_letter.instance_id,
            detail={"deadLetter": dead_letter.id, "queue": dead_letter.queue},
        )


def _undecided_reason(queue: str) -> str:
    """The reason that says that no handler has judged the message."""
    return UNROUTED_REASON if queue == UNROUTED else DELIVERY_LIMIT


def _recognised(parsed: ParsedDeadLetter, known: dict[str, DeadLetter]) -> ParsedDeadLetter:
    """The parsed message under the dead letter that it was redriven from, if it bears its id."""
    earlier = known.get(parsed.earlier) if parsed.earlier is not None and parsed.times else None
    if earlier is None or earlier.queue != parsed.dead_letter.queue:
        return parsed
    return replace(parsed, dead_letter=replace(parsed.dead_letter, id=earlier.id))


def _is_new_death(parsed: ParsedDeadLetter, before: DeadLetter | None) -> bool:
    """Whether it is to be stored: it is unknown, or it was redriven since and has died again.

    A redelivered one that does not know that it was redriven is an old death that is reported again.
    """
    if before is None:
        return True
    if before.redriven_at is None:
        return False
    another = parsed.timed and parsed.dead_letter.died_at != before.died_at
    return another or parsed.times >= before.redriven or not parsed.delivery.redelivered


def _is_ours(stored: DeadLetter, parsed: ParsedDeadLetter) -> bool:
    return stored.redriven_at is None and stored.recorded_at == parsed.dead_letter.recorded_at


def _failure(id: str, command: Command) -> dict[str, object]:
    return {
        "id": id,
        "type": STEP_FAILED,
        "saga": command.saga,
        "appId": command.app_id,
        "correlationId": command.correlation_id,
        "causationId": command.id,
        "error": {"type": "DeliveryLimit", "message": _GAVE_UP, "retryable": True},
    }
