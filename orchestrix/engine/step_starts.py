"""Step starts: reports of begun commands move deadlines, and show how far each command queue has been begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from orchestrix import clock, crash
from orchestrix.broker.dead_letter import publish_dead_letter
from orchestrix.broker.port import Broker, Consumer, Delivery
from orchestrix.engine import saga_spans
from orchestrix.errors import RetryableError, SchemaMismatch
from orchestrix.lifecycle import Loop, WakeSignal, backoff
from orchestrix.persistence.engine import Connection, Database, Transaction
from orchestrix.persistence.sagas import begun_commands, command_queues, instances
from orchestrix.persistence.sagas.begun_commands import BegunCommand
from orchestrix.persistence.sagas.definition_store import DefinitionReader, NullDefinitionReader
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables, saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import sent_exactly
from orchestrix.saga.definition import STEP_STARTED
from orchestrix.saga.messages import StepStarted, UnreadableMessage, started
from orchestrix.saga.state import Instance
from orchestrix.saga.timeouts import begin
from orchestrix.telemetry import log_events
from orchestrix.telemetry.tracing import Span

log = logging.getLogger("orchestrix.step_starts")

PROGRESS_WRITE_INTERVAL_S: Final = 1.0
"""Seconds between two writes of the queues' progress, and how much progress is needed for one."""
OUTAGE_TIMEOUT_S: Final = 300.0
"""Seconds of a database outage after which unacknowledged reports are requeued."""
CONFLICT_RETRIES: Final = 3
"""How often a row that others change meanwhile is read again."""
_DATABASE_ERRORS: Final = (RetryableError, SchemaMismatch)


class QueueProgress:
    """The send time of the latest command of each queue that has been begun or answered, as far as this node knows.

    It is stored now and then, so that other nodes know it too: one that knows less waits longer, and fails nothing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[str, datetime] = {}
        self._written: dict[str, datetime] = {}
        self._wake = WakeSignal()
        self._loop = Loop("queue progress", self._round)

    async def start(self) -> None:
        """Begins to store it."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not stored is lost, and nothing fails by that."""
        await self._loop.stop()

    def note(self, begun: Mapping[str, datetime]) -> None:
        """Commands of these queues that were sent at these times have been begun or answered."""
        for queue, sent in begun.items():
            if queue not in self._known or self._known[queue] < sent:
                self._known[queue] = sent
        if begun and self._further():
            self._wake.set()

    async def read(self, connection: Connection, queues: Sequence[str]) -> dict[str, datetime]:
        """By queue, as all nodes know it."""
        found = await command_queues.begun_to(connection, queues)
        for queue in queues:
            mine = self._known.get(queue)
            if mine is not None and (queue not in found or found[queue] < mine):
                found[queue] = mine
        return found

    def _further(self) -> dict[str, datetime]:
        least = timedelta(seconds=PROGRESS_WRITE_INTERVAL_S)
        before = self._written
        return {queue: at for queue, at in self._known.items() if queue not in before or at - before[queue] >= least}

    async def _round(self) -> None:
        if not (further := self._further()):
            await self._wake.wait(None)
            return
        await self._database.run(lambda tx: command_queues.advance(tx, further))
        self._written |= further
        await asyncio.sleep(PROGRESS_WRITE_INTERVAL_S)


def begun_by(pairs: Iterable[tuple[str, datetime] | None]) -> dict[str, datetime]:
    """The latest time of each queue."""
    latest: dict[str, datetime] = {}
    for queue, sent in (pair for pair in pairs if pair is not None):
        latest[queue] = max(sent, latest.get(queue, sent))
    return latest


class StepStartListener:
    """Takes workers' reports of begun commands, and wakes their sagas when the time of the work ends.

    A report that is not about the command in flight changes nothing, and is no fault: the step may have ended before
    it came. It has a consumer of its own, so that no answer waits behind it. A version that not even `reader` finds
    has times that this node does not know: its timers are left to others, and so the report is dropped.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        catalog: Catalog,
        progress: QueueProgress,
        *,
        batch: int,
        reader: DefinitionReader | None = None,
    ) -> None:
        self._reader = reader or NullDefinitionReader()
        self._database = database
        self._broker = broker
        self._catalog = catalog
        self._progress = progress
        self._batch = batch
        self._consumer: Consumer | None = None
        self._loop = Loop("step starts", self._round)

    async def start(self) -> None:
        """Begins to listen."""
        self._consumer = await self._broker.consume([STEP_STARTED], prefetch=2 * self._batch)
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is not acknowledged goes back to its queue."""
        await self._loop.stop()
        if self._consumer is not None:
            await self._consumer.close()

    async def _round(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        deliveries = await consumer.receive(self._batch)
        starts: list[StepStarted] = []
        dead: list[tuple[Delivery, str]] = []
        spans: list[Span] = []
        for one in deliveries:
            span = saga_spans.begin_event(one)
            try:
                starts.append(started(one.body, one.correlation_id))
                saga_spans.describe_report(span, starts[-1])
                spans.append(span)
            except UnreadableMessage as refused:
                saga_spans.unknown_event(span, one, str(refused))
                dead.append((one, str(refused)))
        if starts:
            await self._take(consumer, deliveries, starts)
        for span in spans:
            span.end()
        if dead:
            await publish_dead_letter(self._broker, consumer, dead)
        crash.point("begins.before_ack")
        await consumer.acknowledge(deliveries)

    async def _take(self, consumer: Consumer, deliveries: Sequence[Delivery], starts: Sequence[StepStarted]) -> None:
        """Stores them, however long the database is unavailable, while the broker still waits for the ack."""
        since, failures = clock.monotonic(), 0
        while any(consumer.alive(one) for one in deliveries):
            try:
                for pair in (APPS, INSTANCES):
                    await self._write(
                        pair, [one for one in starts if one.saga is None or saga_tables_of(one.saga) is pair]
                    )
            except _DATABASE_ERRORS as error:
                failures += 1
                if failures == 1:
                    log.warning("storing step starts paused: %s", error, extra={"event": log_events.EVENTS_PAUSED})
                if clock.monotonic() - since > OUTAGE_TIMEOUT_S:
                    await consumer.reopen()
                await asyncio.sleep(backoff(failures))
            else:
                return

    async def _write(self, pair: SagaTables, starts: Sequence[StepStarted]) -> None:
        """One select and, where there is something to change, one update; those whose row has changed are read
        again."""
        for _ in range(CONFLICT_RETRIES):
            if not starts:
                return
            async with self._database.read() as connection:
                rows = await instances.guard(connection, pair, [one.app_id for one in starts])
                await self._reader.read_missing(
                    connection, [(row.saga, row.definition_version) for row in rows.values()]
                )
            now = self._database.now()
            begun = {
                one.id: one for one in (self._begun(rows.get(start.app_id), start, now) for start in starts) if one
            }
            if not begun:
                return
            done = await self._database.run(partial(_note, pair, list(begun.values())))
            self._progress.note(begun_by(self._sent(rows[id]) for id in done))
            starts = [one for one in starts if one.app_id in begun.keys() - done]

    def _begun(self, row: Instance | None, start: StepStarted, now: datetime) -> BegunCommand | None:
        if row is None or row.command_id != start.causation_id or row.correlation_id != start.correlation_id:
            return None
        saga = self._catalog.of(row) if start.saga in (None, row.saga) else None
        after = begin(saga, row, start.began_ms_ago, now) if saga is not None else None
        if after is None or after.wake_at is None:
            return None
        return BegunCommand(row.id, row.version, start.causation_id, after.wake_at, after.wait_ms, after.begun_at)

    def _sent(self, row: Instance) -> tuple[str, datetime] | None:
        saga = self._catalog.of(row)
        return sent_exactly(saga, row) if saga is not None else None


async def _note(pair: SagaTables, rows: Sequence[BegunCommand], tx: Transaction) -> set[int]:
    return await begun_commands.note(tx, pair, rows)
