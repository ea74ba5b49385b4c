"""Saga timers: act on sagas whose time has come, for a retry, a deadline or an answer that does not come."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from orchestrix import clock, crash
from orchestrix.broker.port import Broker, LinkState
from orchestrix.engine import saga_spans
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.consumer_presence import ConsumerPresence
from orchestrix.engine.hindered_sagas import HinderedSagas
from orchestrix.engine.job_steps import JobSteps
from orchestrix.engine.step_starts import QueueProgress
from orchestrix.errors import ConflictError
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.outbox import saga_log
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.outbox.rows import row_for, rows_of
from orchestrix.persistence import outbox, throttle
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import command_queues, instances, redelivered_commands, transitions
from orchestrix.persistence.sagas.command_queues import TimeoutBurst
from orchestrix.persistence.sagas.definition_store import DefinitionReader, NullDefinitionReader
from orchestrix.persistence.sagas.instances import TimerUpdate
from orchestrix.persistence.sagas.saga_tables import APPS, INSTANCES, SagaTables
from orchestrix.persistence.sagas.transitions import OutboxBatch
from orchestrix.quantities import counted
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import SagaTransition, TransitionInputs, pending_command
from orchestrix.saga.definition import Saga
from orchestrix.saga.state import DEADLINE, JOB, RETRY, Instance
from orchestrix.saga.timeouts import CommandDeliveryStatus, TimerRescheduled, wake
from orchestrix.telemetry import log_events
from orchestrix.telemetry.tracing import Span

log = logging.getLogger("orchestrix.timers")

IDLE_POLL_INTERVAL_S = 5.0
"""Seconds between two polls when nothing is due earlier."""
LOCKED_POLL_INTERVAL_S = 0.1
"""Seconds until the next poll where all rows that are due are locked by others."""
DEADLINE_EXTENSION_S = 15.0
"""Seconds by which deadlines are extended when an answer could not be stored: its next try takes fewer."""
TIMEOUT_THROTTLE = "timeouts"
"""The name of the rate limit that all nodes share."""


@dataclass(slots=True)
class DueInstances:
    """What became of the instances of one pair of tables that were due."""

    due: int = 0
    moved: list[SagaTransition] = field(default_factory=list)
    before: list[Instance] = field(default_factory=list)
    rescheduled: list[TimerUpdate] = field(default_factory=list)
    sent: list[OutboxRow] = field(default_factory=list)
    polling: list[Instance] = field(default_factory=list)
    """Those that check their jobs."""
    spans: list[tuple[Span, Instance, SagaTransition | None]] = field(default_factory=list)
    """The spans of those that move or send, with the instance before."""
    bursts: list[TimeoutBurst] = field(default_factory=list)
    """The queues of which many commands have timed out just now."""


class SagaTimers:
    """Sends retries that are due, extends waits that an outage explains, and lets the other deadlines fail their step.

    Any node does it; a row is locked by one at a time. While this node has no broker it leaves them to the others, and
    it fails nothing before it could have received an answer, and a worker could have read the command, for as long as
    the step may take. `timeouts` is how many steps may fail by deadline in a second, over all nodes: an outage must
    never become a wave of compensations.
    """

    def __init__(
        self,
        database: Database,
        broker: Broker,
        relay: OutboxRelay,
        watch: SagaChangeNotifier,
        catalog: Catalog,
        *,
        batch: int,
        timeouts: float,
        jobs: JobSteps | None = None,
        progress: QueueProgress | None = None,
        reader: DefinitionReader | None = None,
    ) -> None:
        self._progress = progress or QueueProgress(database)
        self._reader = reader or NullDefinitionReader()
        self._database = database
        self._broker = broker
        self._relay = relay
        self._watch = watch
        self._catalog = catalog
        self._batch = batch
        self._timeouts = timeouts
        self._jobs = jobs or JobSteps(catalog)
        self._wake = WakeSignal()
        self._loop = Loop("timers", self._round)
        self._listening_since: datetime | None = None
        self._deadlines_extended_until = 0.0
        self._next_check_at = 0.0
        self._consumers = ConsumerPresence(broker, lambda: catalog.commands, database.now)
        self._blockers = HinderedSagas(database, catalog, self._consumers)
        broker.on_up(self._link_up)

    async def start(self) -> None:
        """Begins to poll."""
        self._listening_since = self._database.now()
        await self._consumers.start()
        await self._blockers.start()
        await self._loop.start()

    async def stop(self) -> None:
        """Stops; what is due is found by another node."""
        await self._loop.stop()
        await self._blockers.stop()
        await self._consumers.stop()

    def expect(self, moved: Iterable[Instance]) -> None:
        """These have just been committed by this process: the next poll is in time for them."""
        times = [one.wake_at for one in moved if one.wake_at is not None]
        if times and (min(times) - self._database.now()).total_seconds() < self._next_check_at - clock.monotonic():
            self._wake.set()

    def extend_deadlines(self) -> None:
        """This process receives answers that it cannot store; it is called again while that lasts."""
        self._deadlines_extended_until = clock.monotonic() + DEADLINE_EXTENSION_S

    def _link_up(self, _generation: int) -> None:
        self._listening_since = self._database.now()
        self._wake.set()

    async def _round(self) -> None:
        if self._broker.state is not LinkState.UP:
            await self._wake.wait(IDLE_POLL_INTERVAL_S)
            return
        wait = await self._until_next()
        if wait > 0:
            self._next_check_at = clock.monotonic() + wait
            await self._wake.wait(wait)
            return
        await self._consumers.refresh()  # before the transaction, so that no lock waits for the broker
        if not sum([await self._wake_all(pair, names) for pair, names in self._sagas().items() if names]):
            await self._wake.wait(clock.uniform(LOCKED_POLL_INTERVAL_S / 2, LOCKED_POLL_INTERVAL_S))

    def _sagas(self) -> dict[SagaTables, list[str]]:
        """The sagas that are known now, by the tables of their instances."""
        return {
            APPS: [saga.name for saga in self._catalog if saga.name == APPS.saga],
            INSTANCES: [saga.name for saga in self._catalog if saga.name != APPS.saga],
        }

    async def _wake_all(self, pair: SagaTables, names: Sequence[str]) -> int:
        """How many were due and not locked by others."""
        try:
            woken = await self._database.run(lambda tx: self._write(tx, pair, names))
        except ConflictError as late:
            log.debug("concurrent update, retrying: %s", late)
            return 0
        for span, before, moved in woken.spans:
            if moved is not None:
                saga_spans.describe(span, before, moved)
            span.end()
        if woken.due:
            crash.point("timers.after_commit")
            log.debug(
                "timers due: %d, commands sent: %d, sagas moved: %d", woken.due, len(woken.sent), len(woken.moved)
            )
            self._relay.notify()
            self._watch.committed(one.instance for one in woken.moved)
            saga_log.committed(zip(woken.before, woken.moved, strict=True))
        for burst in woken.bursts:
            log.warning(
                "at least %s of %s timed out within a minute; see `orchestrix doctor`",
                *_log_values(burst),
                extra={"event": log_events.SAGA_TIMEOUTS},
            )
        return woken.due

    async def _write(self, tx: Transaction, pair: SagaTables, names: Sequence[str]) -> DueInstances:
        due = await instances.due(tx, pair, names, self._batch, self._reader.unrunnable)
        await self._reader.read_missing(tx, [(one.saga, one.definition_version) for one in due])
        due = [one for one in due if self._catalog.of(one) is not None]  # other nodes wake the rest
        if not due:
            return DueInstances()
        unsent = await outbox.still_stored(tx, [one.command_id for one in due if one.command_id])
        begun = await self._progress.read(tx, sorted({queue for one in due if (queue := self._queue_of(one))}))
        set_aside_at = await redelivered_commands.set_aside(
            tx, [one.command_id for one in due if one.command_id and self._queue_of(one)]
        )
        woken = DueInstances(len(due))
        for one in due:
            self._classify(one, one.command_id in unsent, begun, set_aside_at.get(one.command_id or ""), woken)
        await self._postpone(tx, woken)
        await self._store(tx, pair, woken)
        crash.point("timers.before_commit")
        return woken

    def _queue_of(self, one: Instance) -> str | None:
        """The queue of the command in flight."""
        saga = self._catalog.of(one) if one.wake_reason not in (RETRY, JOB) else None
        here = pending_command(saga, one) if saga is not None else None
        return here.order.command or None if here is not None else None

    def _classify(
        self,
        one: Instance,
        unsent: bool,
        begun: Mapping[str, datetime],
        set_aside_at: datetime | None,
        woken: DueInstances,
    ) -> None:
        saga = self._catalog.of(one)
        assert saga is not None, "only known versions come here"
        here, now = pending_command(saga, one), self._database.now()
        if here is None and one.progress.awaited is None:  # of another version of its saga: other nodes know it
            woken.rescheduled.append(TimerUpdate.of(one, now + timedelta(seconds=IDLE_POLL_INTERVAL_S)))
            return
        if one.wake_reason == DEADLINE and clock.monotonic() < self._deadlines_extended_until:
            woken.rescheduled.append(_rescheduled(one, now + timedelta(seconds=DEADLINE_EXTENSION_S)))
            return
        if self._listening_since is None or self._listening_since > now:  # the clock was set back
            self._listening_since = now
        since = min(self._consumers.answers_since(self._listening_since) or now, now)
        queue = here.order.command if here is not None else ""
        served = self._consumers.since(queue, since) if queue else since
        served = served and min(served, now)
        broker_status = CommandDeliveryStatus(
            unsent, served, since, self._consumers.waiting_at(queue), begun.get(queue), set_aside_at
        )
        match wake(saga, one, broker_status, TransitionInputs(now, clock.uuid7(), clock.uniform(0, 1))):
            case SagaTransition() as moved:
                woken.moved.append(moved)
                woken.before.append(one)
            case TimerRescheduled(instance, command):
                if command is not None:
                    instance = _sending(saga, one, instance, woken)
                woken.rescheduled.append(TimerUpdate.of(instance, instance.wake_at or now))
                woken.polling += [instance] if instance.wake_reason == JOB else []
                if command is not None and command.job is None:
                    woken.sent.append(row_for(replace(instance, updated_at=now), command))

    async def _postpone(self, tx: Transaction, woken: DueInstances) -> None:
        """Those beyond the rate wait for their turn: those behind them must not wait for it too."""
        if not woken.moved:
            return
        granted = await throttle.take(tx, TIMEOUT_THROTTLE, len(woken.moved), self._timeouts)
        now = self._database.now()
        for turn, one in enumerate(woken.before[granted:], start=1):
            woken.rescheduled.append(_rescheduled(one, now + timedelta(seconds=turn / self._timeouts)))
        del woken.moved[granted:], woken.before[granted:]
        for turn, (before, moved) in enumerate(zip(woken.before, woken.moved, strict=True)):
            saga = self._catalog.of(before)
            assert saga is not None, "only known versions come here"
            span = saga_spans.begin_timer(saga, before)
            woken.moved[turn] = saga_spans.headed(moved, span)
            woken.spans.append((span, before, woken.moved[turn]))

    async def _store(self, tx: Transaction, pair: SagaTables, woken: DueInstances) -> None:
        if woken.rescheduled:
            await instances.update_timers(tx, pair, sorted(woken.rescheduled, key=lambda row: row.id))
        changed = [(old.version, new.instance) for old, new in zip(woken.before, woken.moved, strict=True)]
        history = [(one.instance.id, row) for one in woken.moved for row in one.history]
        updated = await transitions.write(tx, pair, changed, history, OutboxBatch([*woken.sent, *rows_of(woken.moved)]))
        if updated != {one.id for one in woken.before}:
            raise ConflictError("concurrent update of a locked row")
        late = Counter(queue for one in woken.before if (queue := self._queue_of(one)))
        woken.bursts = await command_queues.expired(tx, late)
        await self._jobs.follow(tx, zip(woken.before, woken.moved, strict=True))
        await self._jobs.ensure(tx, woken.polling)

    async def _until_next(self) -> float:
        nearest = IDLE_POLL_INTERVAL_S
        async with self._database.read() as connection:
            for pair, names in self._sagas().items():
                due = await instances.next_wake(connection, pair, names, self._reader.unrunnable) if names else None
                nearest = nearest if due is None else min(nearest, due)
        return nearest if nearest <= 0 else max(nearest, 0.002)


def _sending(saga: Saga, before: Instance, instance: Instance, woken: DueInstances) -> Instance:
    """`instance`, whose command is sent now: it follows from the span of its timer."""
    span = saga_spans.begin_timer(saga, before)
    woken.spans.append((span, before, None))
    return instance if span.context is None else replace(instance, trace_head=span.context.traceparent)


def _rescheduled(instance: Instance, at: datetime) -> TimerUpdate:
    """The same, and when its command was sent, which the wake-up time does not show any more."""
    return TimerUpdate.of(replace(instance, sent_at=instance.sending), at)


def _log_values(burst: TimeoutBurst) -> tuple[str, str]:
    return counted(burst.count, "command"), burst.queue
