"""Engine assembly: the parts of a node that start, move and explain sagas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchestrix.bootstrap.context import ORCHESTRATOR, NodeContext
from orchestrix.domain.job_diagnosis import SilenceLimits
from orchestrix.engine.broker_status import BrokerStatus
from orchestrix.engine.change_notifier import SagaChangeNotifier
from orchestrix.engine.control import SagaControl
from orchestrix.engine.event_listener import EventListener
from orchestrix.engine.explain.stuck import StuckSagas
from orchestrix.engine.explain.why import SagaExplainer
from orchestrix.engine.held_events import HeldEvents
from orchestrix.engine.job_steps import JobSteps
from orchestrix.engine.maintenance.broker_reset import TAKEOVER_TIMEOUT_S, BrokerResetDetector
from orchestrix.engine.redispatch import RedispatchService
from orchestrix.engine.starter import SagaStarter
from orchestrix.engine.step_starts import QueueProgress, StepStartListener
from orchestrix.engine.timers import SagaTimers
from orchestrix.lifecycle import Loop, Service, WakeSignal
from orchestrix.outbox import saga_metrics
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.sagas.definition_store import DefinitionStore


@dataclass(frozen=True, slots=True)
class EngineBase:
    """What the parts of an engine share."""

    relay: OutboxRelay
    jobs: JobSteps
    changes: SagaChangeNotifier
    definitions: DefinitionStore


@dataclass(frozen=True, slots=True)
class Orchestration:
    """What moves sagas: their events, the starts of their steps, and their timers. Only an orchestrator has it."""

    progress: QueueProgress
    listener: EventListener
    starts: StepStartListener
    held_events: HeldEvents
    timers: SagaTimers


@dataclass(frozen=True, slots=True)
class NodeEngine:
    """A node's parts for sagas."""

    definitions: DefinitionStore
    changes: SagaChangeNotifier
    reset_detector: BrokerResetDetector
    orchestration: Orchestration | None
    starter: SagaStarter
    control: SagaControl
    explainer: SagaExplainer
    stuck: StuckSagas
    broker_status: BrokerStatus
    redispatch: RedispatchService


def assemble_engine(
    node: NodeContext, relay: OutboxRelay, jobs: JobSteps, phase: Callable[[], str | None]
) -> NodeEngine:
    """The parts; nothing of them runs yet. `phase` as in `SagaExplainer`."""
    saga_metrics.begin(saga.name for saga in node.catalog)
    database, broker, catalog, silent = node.database, node.broker, node.catalog, node.settings.jobs.silent
    limits = SilenceLimits(silent, node.settings.registry.dead)
    changes = SagaChangeNotifier(database)
    reader = DefinitionStore(database, catalog, node.signals.catalog_grew.set)
    base = EngineBase(relay, jobs, changes, reader)
    timeout_s = 0.0 if node.single_process else TAKEOVER_TIMEOUT_S
    moving = _orchestration(node, base) if ORCHESTRATOR in node.roles else None
    expect = moving.timers.expect if moving is not None else _nobody_expects
    batch = node.settings.orchestrator.batch
    return NodeEngine(
        reader,
        changes,
        BrokerResetDetector(database, broker, relay, catalog, grace_s=timeout_s, jobs=jobs),
        moving,
        SagaStarter(database, catalog, relay, changes, node=node.name, batch=batch, on_commit=expect, jobs=jobs),
        SagaControl(database, relay, changes, catalog, expect, jobs, reader),
        SagaExplainer(database, broker, catalog, limits, phase, reader),
        StuckSagas(database, broker, silent),
        BrokerStatus(broker),
        RedispatchService(database, relay, catalog, jobs),
    )


def _nobody_expects(_moved: object) -> None:
    """This node has no timers: those of others find what is due."""


def _orchestration(node: NodeContext, base: EngineBase) -> Orchestration:
    tuned, reader, jobs = node.settings.orchestrator, base.definitions, base.jobs
    progress = QueueProgress(node.database)
    common = node.database, node.broker, base.relay, base.changes, node.catalog
    timers = SagaTimers(
        *common,
        batch=tuned.batch,
        timeouts=tuned.timeouts_per_second,
        jobs=jobs,
        progress=progress,
        reader=reader,
    )
    held_events = HeldEvents(
        node.database, base.relay, base.changes, node.catalog, reader, jobs=jobs, on_commit=timers.expect
    )
    listener = EventListener(
        *common,
        node=node.name,
        batch=tuned.batch,
        on_commit=timers.expect,
        extend_deadlines=timers.extend_deadlines,
        jobs=jobs,
        progress=progress,
        reader=reader,
        on_held=held_events.notify,
    )
    starts = StepStartListener(node.database, node.broker, node.catalog, progress, batch=tuned.batch, reader=reader)
    return Orchestration(progress, listener, starts, held_events, timers)


def follow_catalog(grew: WakeSignal, follow: Sequence[Callable[[], None]]) -> Service:
    """Calls each of these when the catalog has grown: there may be more queues to read, or events to apply."""

    async def round() -> None:
        await grew.wait(None)
        for one in follow:
            one()

    return Loop("queues of new sagas", round)
