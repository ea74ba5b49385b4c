"""Worker process: runs a worker until it is signalled to stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from orchestrix.bootstrap.dev_worker import ELSEWHERE, WORKER_STOP_GRACE_S, log_cut_off, log_stopping
from orchestrix.bootstrap.factories import (
    load_catalog,
    open_broker,
    open_database,
)
from orchestrix.bootstrap.health_checks import DatabaseWatch, watched
from orchestrix.bootstrap.monitoring.port import STOP_TIMEOUT_S, MonitoringPort
from orchestrix.bootstrap.stop_signals import StopSignals, first_of, given_up
from orchestrix.bootstrap.traces import WORKER_SERVICE, export_traces, stop_traces
from orchestrix.broker.port import Broker
from orchestrix.broker.topology import saga_topology
from orchestrix.config.settings import Settings
from orchestrix.event_loop_watchdog import EventLoopWatchdog
from orchestrix.lifecycle import CLOSE_TIMEOUT_S, Health, settle_memory, stop_stage
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.definition_store import DefinitionStore
from orchestrix.telemetry.metrics.catalogue import INFO
from orchestrix.telemetry.metrics.instruments import gauge
from orchestrix.telemetry.process_stop import ProcessStop
from orchestrix.version import VERSION
from orchestrix.worker.composition import assemble
from orchestrix.worker.worker import Worker

log = logging.getLogger("orchestrix")
WORKER: Final = "worker"


async def run_worker(
    settings: Settings,
    *,
    name: str,
    queues: Sequence[str],
    job_queues: Sequence[str] = (),
    broker_url: Callable[[], str],
    ready: Callable[[Sequence[str]], None],
    local_traces: Path | None = None,
    process_stop: ProcessStop | None = None,
) -> None:
    """Serves the commands of `queues` and the jobs of `job_queues` until SIGINT or SIGTERM; all that it can if both
    are empty. `name` is its id on the wire; `ready` gets the names of all queues; `local_traces` is the file of a `dev`
    that it belongs to. `process_stop` gets why it stops, and how many commands and jobs it did not finish.

    Waits for an absent database or broker. Raises `SchemaMismatch`, `ConfigError`, `DefinitionError`.
    """
    catalog = load_catalog(settings)
    database = open_database(settings)
    broker = open_broker(
        broker_url, f"orchestrix worker {name}", partial(saga_topology, catalog), log_name="orchestrix worker"
    )
    definitions = DefinitionStore(database, catalog)
    worker = assemble(settings, database, broker, catalog, queues, job_queues, name=name, reader=definitions)
    export_traces(settings, WORKER_SERVICE, name, local_traces)
    watch = DatabaseWatch(database, name)
    health = _health(watch, broker, worker)
    port = MonitoringPort(settings, health)
    timeout_s = settings.worker.stop_timeout
    stop = process_stop or ProcessStop(log)
    with (
        StopSignals(lambda: log_cut_off(worker, ELSEWHERE), stop) as signals,
        EventLoopWatchdog(asyncio.get_running_loop()) as watchdog,
    ):
        gauge(INFO).keep({(WORKER, VERSION): 1})
        await port.start()
        await broker.start()
        await watch.start()

        async def begin() -> None:
            await watch.wait_for_schema()
            await definitions.read_when_available()
            await definitions.start()
            await worker.start()
            health.started = True
            await broker.wait_connected()
            settle_memory()
            watchdog.start()
            ready([*worker.queues, *(worker.jobs.queues if worker.jobs is not None else ())])

        beginning = asyncio.create_task(begin(), name="begin")
        try:
            await first_of(signals.stop, beginning)
        finally:
            stop.begin()
            health.stopping = True
            await given_up(beginning)
            log_stopping(worker, timeout_s, ELSEWHERE)
            await stop_stage("stopping the worker", worker.stop(), timeout_s + WORKER_STOP_GRACE_S)
            stop.unfinished = worker.abandoned
            await _close(definitions, watch, broker, database)
            await stop_stage("closing the monitoring port", port.stop(), STOP_TIMEOUT_S)


async def _close(definitions: DefinitionStore, watch: DatabaseWatch, broker: Broker, database: Database) -> None:
    """Ends what a worker stands on, when it has stopped."""
    await stop_stage("stopping the definition store", definitions.stop(), CLOSE_TIMEOUT_S)
    await stop_stage("stopping the database monitor", watch.stop(), CLOSE_TIMEOUT_S)
    await stop_stage("closing the broker connection", broker.stop(), CLOSE_TIMEOUT_S)
    await stop_stage("closing the database connections", database.close(), CLOSE_TIMEOUT_S)
    await stop_traces()


def _health(watch: DatabaseWatch, broker: Broker, worker: Worker) -> Health:
    """It is ready while it reads its queues."""
    health = Health()
    watched(health, watch, broker)
    health.watch("Consumers", worker.problem)
    return health
