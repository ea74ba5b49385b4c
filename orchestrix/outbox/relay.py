"""Outbox relay: publishes committed commands, whichever node committed them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from orchestrix import clock, crash
from orchestrix.broker.port import Broker, LinkState, Outcome, Published, Topology, WantedTopology, topology_now
from orchestrix.broker.published_spans import with_spans
from orchestrix.broker.topology import from_json, once_each
from orchestrix.errors import ConfigError, RetryableError
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.outbox import saga_log
from orchestrix.outbox.rows import REDRIVE_OWNER, message_of, publish_span
from orchestrix.persistence import outbox
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import history, instances
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables, saga_tables_of
from orchestrix.saga.state import UNSENDABLE
from orchestrix.saga.transition import block
from orchestrix.telemetry import log_events
from orchestrix.telemetry.metrics.catalogue import OUTBOX_WAIT
from orchestrix.telemetry.metrics.instruments import histogram

log = logging.getLogger("orchestrix.relay")
_wait = histogram(OUTBOX_WAIT).at()

DECLARATIONS_PER_BATCH = 100
"""Rows whose queues are declared together: a broker declares some eighty in a second."""
CLAIMED_ROWS_LIMIT = 20_000
"""Rows that wait in memory; beyond that their claims expire and they are read again."""
LATE_CONFIRM_S = 1.0
"""Seconds after which a confirm moves the deadline of the step that it belongs to."""
CONFIRM_TIMEOUT_S = 5.0
"""Seconds after which an unconfirmed message is published again, on a path of its own."""
DELETE_INTERVAL_S = 0.2
"""Seconds for which confirmed rows are gathered, so that at low load not every message costs a transaction more."""
REPUBLISH_DELAY_S = 0.2
POLL_INTERVAL_MIN_S, POLL_INTERVAL_MAX_S = 0.02, 5.0


class OutboxSignal(WakeSignal):
    """Wakes the relay: rows without a claim may have been committed. `set_at` is when it was last set (monotonic)."""

    def __init__(self) -> None:
        super().__init__()
        self.set_at = -math.inf

    def set(self) -> None:
        """There may be new rows."""
        self.set_at = clock.monotonic()
        self.repeat()

    def repeat(self) -> None:
        """Rows that were there before may be claimed now."""
        super().set()


class RefusedRowRule(Protocol):
    """What happens to a row that the broker refuses for good, by the kind of the row."""

    async def __call__(self, tx: Transaction, row: OutboxRow, detail: str) -> bool:
        """Handles the row, whose transaction it is part of; False for a row of another kind, which is left as it is."""


class _Claimed(NamedTuple):
    """A row that this process may send until `until` (monotonic); `suspect` if it may have closed the channel, `again`
    if it may have been published before.
    """

    until: float
    row: OutboxRow
    suspect: bool = False
    again: bool = False


class OutboxRelay:
    """Publishes rows of the outbox and deletes those that the broker has confirmed.

    Rows that this process has just committed come by `take` and are claimed already. Rows whose claim expired, of
    whichever node, are claimed by a scan: only the oldest of each saga, so that no first copy overtakes an older one.
    No transaction is open while it publishes. A row that brings its own queues waits beside the others until they are
    declared. A row without a confirm is sent again beside the others, so that a queue that does not answer holds up
    nothing else; if it is not confirmed before its claim expires, it is left to the next scan of any node. `ready` is
    set by whoever commits rows without a claim. `refused` are the rules for refused rows that belong to no saga: the
    first that fits handles one.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        topology: WantedTopology,
        *,
        node: str,
        lease: float,
        batch: int,
        ready: OutboxSignal | None = None,
        refused: Sequence[RefusedRowRule] = (),
    ) -> None:
        self.lease = lease
        self._database = database
        self._broker = broker
        self._topology = topology
        self._refused = refused
        self.node = node
        self._batch = batch
        self._waiting: deque[_Claimed] = deque()
        self._declaring: deque[_Claimed] = deque()
        self._doubtful: deque[_Claimed] = deque()
        self._claimed: dict[str, OutboxRow] = {}
        self._confirmed: list[OutboxRow] = []
        self._ready = ready or OutboxSignal()
        self._send_wake, self._retry_wake, self._delete_wake, self._declare_wake = (WakeSignal() for _ in range(4))
        self._pause = POLL_INTERVAL_MIN_S
        self._loops = [
            Loop("outbox relay", self._send),
            Loop("outbox relay (retries)", self._republish),
            Loop("outbox relay (new queues)", self._send_declaring),
            Loop("outbox scan", self._scan),
            Loop("outbox delete", self._delete),
        ]
        broker.on_up(self._link_up)

    async def start(self) -> None:
        """Begins to publish."""
        for loop in self._loops:
            await loop.start()

    async def stop(self) -> None:
        """Stops publishing and deletes what is confirmed; the claims of the rest are released."""
        for loop in self._loops:
            await loop.stop()
        with suppress(RetryableError):
            await self._delete_confirmed()
            queued = (*self._waiting, *self._declaring, *self._doubtful)
            left = [one.row.id for one in queued] + list(self._claimed)
            self._claimed.clear()
            self._waiting.clear()
            self._declaring.clear()
            self._doubtful.clear()
            if left:
                await self._database.run(lambda tx: outbox.release(tx, left))

    @property
    def undeclared_rows(self) -> int:
        """How many rows wait until their queues are declared."""
        return len(self._declaring)

    def take(self, rows: Iterable[OutboxRow]) -> None:
        """Publish these rows, which this node has just committed with a claim of its own."""
        until = clock.monotonic() + self.lease * 0.6
        for row in rows:
            again = row.former_claimer not in (None, REDRIVE_OWNER)
            (self._waiting if row.topology is None else self._declaring).append(_Claimed(until, row, again=again))
        for queue, wake in ((self._waiting, self._send_wake), (self._declaring, self._declare_wake)):
            while len(queue) > CLAIMED_ROWS_LIMIT:
                queue.pop()
            if queue:
                wake.set()

    def notify(self) -> None:
        """Rows without a claim may have been committed: scan at once.

        One that stands behind an older row of its saga can be claimed only when that is gone, so for a while every
        deletion scans again.
        """
        self._ready.set()

    @property
    def _is_expecting(self) -> bool:
        return clock.monotonic() < self._ready.set_at + self.lease

    def _link_up(self, _generation: int) -> None:
        for wake in (self._send_wake, self._retry_wake, self._declare_wake):
            wake.set()
        self.notify()

    async def _send(self) -> None:
        if not self._waiting or self._broker.state is not LinkState.UP:
            await self._send_wake.wait(1.0 if self._waiting else None)
            return
        await self._publish(self._next_batch(self._waiting))

    async def _republish(self) -> None:
        if not self._doubtful or self._broker.state is not LinkState.UP:
            await self._retry_wake.wait(1.0 if self._doubtful else None)
            return
        await asyncio.sleep(clock.uniform(REPUBLISH_DELAY_S / 2, REPUBLISH_DELAY_S))
        batch = self._next_batch(self._doubtful)
        await self._publish([one for one in batch if not one.suspect])
        await self._publish_one_by_one([one for one in batch if one.suspect])

    async def _send_declaring(self) -> None:
        """Rows with queues of their own, which are declared first; a batch that fails is retried."""
        if not self._declaring or self._broker.state is not LinkState.UP:
            await self._declare_wake.wait(1.0 if self._declaring else None)
            return
        batch = self._next_batch(self._declaring, DECLARATIONS_PER_BATCH)
        self._claimed.update((one.row.id, one.row) for one in batch)
        try:
            await self._broker.declare(once_each(from_json(one.row.topology) for one in batch))
        except ConfigError as wrong:
            log.warning("%s", wrong, extra={"event": log_events.OUTBOX_BLOCKED})
        except BaseException:
            self._declaring.extendleft(reversed(batch))
            for one in batch:
                self._claimed.pop(one.row.id, None)
            raise
        await self._publish(batch)

    def _next_batch(self, queue: deque[_Claimed], limit: int | None = None) -> list[_Claimed]:
        now = clock.monotonic()
        batch: list[_Claimed] = []
        while queue and len(batch) < (limit or self._batch):
            one = queue.popleft()
            if one.until > now:
                batch.append(one)
        return batch

    async def _publish(self, batch: Sequence[_Claimed]) -> None:
        if not batch:
            return
        self._claimed.update((one.row.id, one.row) for one in batch)
        spans = [publish_span(one.row, again=one.again) for one in batch]
        messages = [message_of(one.row, span) for one, span in zip(batch, spans, strict=True)]
        crash.point("outbox.before_publish")
        publishing = self._broker.publish(messages, timeout=CONFIRM_TIMEOUT_S)
        results = await with_spans(crash.within("outbox.after_publish", publishing), spans)
        crash.point("outbox.after_confirm")
        now = self._database.now()
        for one, result, span in zip(batch, results, spans, strict=True):
            if result.outcome is Outcome.CONFIRMED:
                _wait.record((now - one.row.created_at).total_seconds(), span.context)
            await self._settle(one, result)
            self._claimed.pop(one.row.id, None)
        if self._confirmed:
            self._delete_wake.set()

    async def _publish_one_by_one(self, suspects: Sequence[_Claimed]) -> None:
        """Declares what is missing, then publishes one by one: the row that closes the channel again is to blame."""
        if suspects:
            try:
                await self._broker.declare(self._topology_of([one.row for one in suspects]))
            except ConfigError as wrong:
                log.warning("%s", wrong, extra={"event": log_events.OUTBOX_BLOCKED})
        for one in suspects:
            if one.until > clock.monotonic():
                await self._publish([one])

    async def _settle(self, one: _Claimed, result: Published) -> None:
        """A confirmed row is deleted soon; another is set aside, or waits for its second try."""
        if result.outcome is Outcome.CONFIRMED:
            self._confirmed.append(one.row)
        elif result.outcome is Outcome.REFUSED or (one.suspect and result.channel_closed and "406" in result.detail):
            await self._park(one.row, result.detail)
        else:
            if one.suspect and result.outcome is Outcome.RETURNED:
                log.warning(
                    "no queue is bound for %s on %s yet; retrying",
                    one.row.routing_key,
                    one.row.exchange,
                    extra={"event": log_events.OUTBOX_BLOCKED},
                )
            suspect = one.suspect or result.channel_closed or result.outcome is Outcome.RETURNED
            self._doubtful.append(one._replace(suspect=suspect, again=True))
            self._retry_wake.set()

    def _topology_of(self, rows: Sequence[OutboxRow]) -> Topology:
        own = topology_now(self._topology) or Topology()
        return once_each([own, *(from_json(row.topology) for row in rows if row.topology is not None)])

    async def _scan(self) -> None:
        """Claims rows that no node publishes; sleeps until the next claim expires, or until it is notified."""
        if self._broker.state is LinkState.UP and len(self._waiting) + len(self._declaring) < self._batch:
            claimed = await self._database.run(
                lambda tx: outbox.claim(tx, self.node, lease_s=self.lease, limit=self._batch)
            )
            if claimed:
                crash.point("outbox.after_claim")
                self._pause = POLL_INTERVAL_MIN_S
                self.take(claimed)
                return
        if await self._ready.wait(await self._until_next()):
            self._pause = POLL_INTERVAL_MIN_S

    async def _until_next(self) -> float:
        async with self._database.read() as connection:
            due = await outbox.next_claim(connection)
        self._pause = min(self._pause * 2, POLL_INTERVAL_MAX_S)
        return POLL_INTERVAL_MAX_S if due is None else min(max(due, self._pause), POLL_INTERVAL_MAX_S)

    async def _delete(self) -> None:
        if not self._confirmed:
            await self._delete_wake.wait(None)
        if not self._is_expecting:
            await asyncio.sleep(DELETE_INTERVAL_S)
        await self._delete_confirmed()

    async def _delete_confirmed(self) -> None:
        done, self._confirmed = self._confirmed, []
        if not done:
            return
        try:
            await self._database.run(lambda tx: self._forget(tx, done))
        except BaseException:
            self._confirmed.extend(done)
            raise
        saga_log.sent(done)
        if self._is_expecting:
            self._ready.repeat()

    async def _forget(self, tx: Transaction, rows: Sequence[OutboxRow]) -> None:
        now = self._database.now()
        late: dict[SagaTables, list[tuple[int, str, int]]] = {}
        sent: dict[SagaTables, list[tuple[int, str]]] = {}
        for row in rows:
            if not row.timeout_ms:  # no command of a saga
                continue
            sent.setdefault(pair := saga_tables_of(row.saga), []).append((row.instance_id, row.id))
            if (now - row.created_at).total_seconds() > LATE_CONFIRM_S:
                late.setdefault(pair, []).append((row.instance_id, row.id, row.timeout_ms))
        for pair in (APPS, INSTANCES):  # in one order, so that two relays never wait for each other
            if pair in late:
                await instances.confirmed_late(tx, pair, sorted(late[pair]))
            if pair in sent:
                await history.sent(tx, pair, sent[pair], now)
        # The instances first, in the order in which everybody locks them, then their outbox rows.
        await outbox.delete(tx, sorted(row.id for row in rows), claimed_by=self.node)

    async def _park(self, row: OutboxRow, detail: str) -> None:
        """Sets the row aside with its reason; its saga waits for an operator, the others continue."""
        what = (row.type, row.saga, row.instance_id, detail)
        extra = {"event": log_events.MESSAGE_UNSENDABLE, "correlation_id": row.correlation_id}
        log.error("cannot send %s of %s %s: %s", *what, extra=extra)
        await self._database.run(lambda tx: self._set_aside(tx, row, detail))

    async def _set_aside(self, tx: Transaction, row: OutboxRow, detail: str) -> None:
        for rule in self._refused:
            if await rule(tx, row, detail):
                return
        pair = saga_tables_of(row.saga)
        instance = await instances.lock_one(tx, pair, row.instance_id)
        if instance is None or instance.command_id != row.id or not instance.live:
            await outbox.delete(tx, [row.id])
            return
        if instance.blocker is not None:  # the operator who resolves that sends it again
            await outbox.delete(tx, [row.id])
        else:
            await outbox.park(tx, row.id, detail)
            held = block(instance, UNSENDABLE, f"{UNSENDABLE}: {row.type}: {detail}", self._database.now())
            await instances.update(tx, pair, [(instance.version, held.instance)])
            await history.insert(tx, pair, [(instance.id, change) for change in held.history])
