"""Composition: assembles a worker of the library's or the user's handlers and jobs, all or those chosen."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from orchestrix import clock
from orchestrix.broker.port import Broker
from orchestrix.config.file import NAME
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.persistence.sagas.definition_store import DefinitionReader
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Compensation, Job, Order, Step
from orchestrix.telemetry import log_events
from orchestrix.version import VERSION, host_name
from orchestrix.worker.author_code import AuthorCode, load_author_code
from orchestrix.worker.jobs.state_guard import JobStateGuard

from .context import LOGGER
from .handlers import HandlerTable
from .heartbeat import ProcessIdentity
from .jobs.functions import JobTable
from .jobs.runner import JobRunner
from .worker import Worker


def assemble(
    settings: Settings,
    database: Database,
    broker: Broker,
    catalog: Catalog,
    queues: Sequence[str] = (),
    job_queues: Sequence[str] = (),
    *,
    name: str | None = None,
    reader: DefinitionReader | None = None,
) -> Worker:
    """A worker for `queues` and `job_queues`; if none is named, for every command with a handler, and every queue that
    its jobs name. `name` is its id on the wire, `reader` finds stored versions of sagas.

    Raises `ConfigError`: a module of the author's is wrong, a queue is unknown, or this machine lacks what a handler
    needs.
    """
    authored = load_author_code(settings)
    name = name or clock.unique_name(settings.node_id)
    handlers, known = HandlerTable(), set(authored.jobs)
    if queues or not job_queues:
        handlers = _handlers(authored, catalog, queues)
        known.update(authored.handlers)
    runner = None
    if job_queues or not queues:
        runner = _runner(
            settings, broker, authored.jobs, job_queues, JobStateGuard(database, name, settings.jobs.silent)
        )
        _check_job_queues(job_queues, authored.jobs, catalog)
        for one in authored.replaced_jobs:
            LOGGER.warning(
                "job %s: a module of ORCHESTRIX_WORKERS replaces the one of %s",
                one,
                NAME,
                extra={"event": log_events.WORKER_CONFIGURATION},
            )
    _warn_of_undo(catalog, [*handlers, *(authored.jobs if runner is not None else ())], known)
    at_work = [one.function for one in authored.jobs.values()] if runner is not None else []
    authored.sections.check([*handlers.values(), *at_work])
    process = ProcessIdentity(name, host_name(), VERSION)
    return Worker(broker, database, catalog, handlers, settings, runner, reader, process)


def _runner(
    settings: Settings, broker: Broker, jobs: JobTable, queues: Sequence[str], guard: JobStateGuard
) -> JobRunner | None:
    """The job runner; None if there are no jobs and none are requested."""
    if not jobs and not queues:
        return None
    tuned = settings.worker
    return JobRunner(
        broker,
        jobs,
        queues,
        guard.check,
        worker_id=guard.worker_id,
        slots=tuned.concurrency,
        stop_timeout=tuned.stop_timeout,
        heartbeat_s=settings.jobs.beat,
    )


def _check_job_queues(queues: Sequence[str], jobs: JobTable, catalog: Catalog) -> None:
    """A line for each queue that no function here names: clients may send any job there.

    Raises `ConfigError` for one to which steps send jobs that are not here: each would fail.
    """
    sent = [job for saga in catalog.code for step in saga.steps for job in _jobs_of(step)]
    known = ", ".join(f"{one.name} ({', '.join(one.queues)})" for one in jobs.values()) or "none"
    for queue in queues:
        steps = [job.name for job in sent if job.queue == queue]
        if queue in jobs.queues or any(name in jobs for name in steps):
            continue
        if not steps:
            LOGGER.warning(
                "job queue %s: none of the jobs here names it (%s); others that come fail",
                queue,
                known,
                extra={"event": log_events.WORKER_CONFIGURATION},
            )
            continue
        raise ConfigError(
            f"no job of this worker is for queue {queue}; it has {known}: write @job({steps[0]!r}) above the function "
            f"of its jobs, or add its module to ORCHESTRIX_WORKERS or {NAME}"
        )


def _jobs_of(step: Step) -> list[Job]:
    """The jobs of a step and of its compensation."""
    undo = step.undo.job if isinstance(step.undo, Compensation) else None
    return [job for job in (step.job, undo) if job is not None]


def _handlers(authored: AuthorCode, catalog: Catalog, queues: Sequence[str]) -> HandlerTable:
    """The handlers of `queues`, or all handlers."""
    known = authored.handlers
    for queue in queues:
        if queue not in known:
            raise ConfigError(
                f"this worker has no handler for {queue}; it has {', '.join(known) or 'none'}: "
                f"add its module to ORCHESTRIX_WORKERS or {NAME}"
            )
    table = HandlerTable()
    for command in dict.fromkeys(queues or known):
        if command in authored.replaced:
            LOGGER.warning(
                "%s: a module of ORCHESTRIX_WORKERS replaces the handler of %s",
                command,
                NAME,
                extra={"event": log_events.WORKER_CONFIGURATION},
            )
        table.add(command, known[command])
        table.settings[command] = authored.sections.of(known[command])
    _warn_of_replaced(catalog, table, authored.replaced, known)
    return table


def _warn_of_undo(catalog: Catalog, served: Collection[str], known: Collection[str]) -> None:
    """Warns of steps, by command or job, that this worker executes without knowing the compensation."""
    for saga in catalog:
        for step in saga.steps:
            if not isinstance(step.undo, Compensation) or _work(step) not in served or _work(step.undo) in known:
                continue
            if _is_of_executors(step) or _is_of_executors(step.undo):  # other processes have those anyway
                continue
            if step.undo.job is None:
                lacks = f"but its undo {step.undo.command} has none: another worker must serve it"
            else:
                job, queue = step.undo.job.name, step.undo.job.queue
                lacks = f"but its undo, the job {job}, has none: another worker of queue {queue} must have it"
            has = "a handler" if step.job is None else "a function"
            LOGGER.warning(
                "%s has %s here, %s", _work(step), has, lacks, extra={"event": log_events.WORKER_CONFIGURATION}
            )


def _is_of_executors(order: Order) -> bool:
    return order.job is not None and order.job.group is not None


def _work(order: Order) -> str:
    """The command, or the job, by which a worker identifies it."""
    return order.command if order.job is None else order.job.name


def _warn_of_replaced(
    catalog: Catalog, served: Collection[str], replaced: Collection[str], known: Collection[str]
) -> None:
    """Warns of steps that a replaced handler executes here, but the file's own handler compensates."""
    for command in set(served) & set(replaced):
        owner = catalog.command(command)
        undo = owner.step.undo if owner is not None and not owner.undoes else None
        if isinstance(undo, Compensation) and undo.command in known and undo.command not in replaced:
            LOGGER.warning(
                "%s is undone by %s of %s, which finds only its own effects",
                command,
                undo.command,
                NAME,
                extra={"event": log_events.WORKER_CONFIGURATION},
            )
