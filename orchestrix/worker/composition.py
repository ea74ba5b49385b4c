"""Which handlers and jobs does this worker have: its own, the user's, or those that the command line chose?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from orchestrix import clock
from orchestrix.broker.port import Broker
from orchestrix.config import Settings
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.persistence.versions import Reader
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Compensation, Order
from workers import app_registration, git_repo

from .context import LOGGER
from .handlers import HandlerTable
from .jobs.functions import JobTable
from .jobs.guard import Guard
from .jobs.runner import JobRunner
from .modules import load_handlers, load_jobs
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
    reader: Reader | None = None,
) -> Worker:
    """A worker for `queues` and `job_queues`; if none is named, for every command that it has a handler for, and every
    queue that its jobs name. A user's handler replaces a built-in one. `name` is its id on the wire, `reader` finds
    stored versions of sagas.

    Raises `ConfigError`: a module of `ORCHESTRIX_WORKERS` is wrong, a queue is unknown, or this machine lacks what a
    built-in handler needs.
    """
    jobs = load_jobs(settings.workers)
    handlers, known = HandlerTable(), set(jobs)
    if queues or not job_queues:
        handlers, commands = _handlers(settings, database, catalog, queues)
        known.update(commands)
    runner = None
    if job_queues or not queues:
        name = name or f"{settings.node_id}-{clock.token()[:8]}"
        runner = _runner(settings, broker, jobs, job_queues, Guard(database, name, settings.jobs.silent))
    _warn_of_undo(catalog, [*handlers, *(jobs if runner is not None else ())], known)
    return Worker(broker, database, catalog, handlers, settings, runner, reader)


def _runner(
    settings: Settings, broker: Broker, jobs: JobTable, queues: Sequence[str], guard: Guard
) -> JobRunner | None:
    """What runs the user's jobs; None if there are none and nobody asks for any."""
    if not jobs and not queues:
        return None
    for queue in set(queues) - set(jobs.queues):
        LOGGER.warning("no job here names the queue %s: what comes there is done by the functions of others", queue)
    tuned = settings.worker
    return JobRunner(
        broker,
        jobs,
        queues,
        guard.look,
        worker_id=guard.worker_id,
        places=tuned.concurrency,
        stop_timeout=tuned.stop_timeout,
        beat=settings.jobs.beat,
    )


def _handlers(
    settings: Settings, database: Database, catalog: Catalog, queues: Sequence[str]
) -> tuple[HandlerTable, list[str]]:
    """Those of `queues`, and every command that there is a handler for."""
    users = load_handlers(settings.workers)
    built_in = _built_in(settings, database)
    known = list(dict.fromkeys([*built_in, *users]))
    for queue in queues:
        if queue not in known:
            raise ConfigError(
                f"this worker has no handler for {queue}; it has {', '.join(known)}: "
                "name the module that has it in ORCHESTRIX_WORKERS"
            )
    table = HandlerTable()
    for command in dict.fromkeys(queues or known):
        if command in users and command in built_in:
            LOGGER.warning("%s is handled by a module of ORCHESTRIX_WORKERS instead of the built-in handler", command)
        table.add(command, users[command] if command in users else built_in[command]()[command])
    _warn_of_built_in(catalog, table, users, known)
    return table, known


def _built_in(settings: Settings, database: Database) -> dict[str, Callable[[], HandlerTable]]:
    """Made only when wanted: a worker that serves other queues needs no git."""
    made: dict[str, Callable[[], HandlerTable]] = {}
    made |= dict.fromkeys(git_repo.COMMANDS, cache(lambda: git_repo.handlers(settings.git)))
    registration = cache(lambda: app_registration.handlers(settings.registration, database))
    return made | dict.fromkeys(app_registration.COMMANDS, registration)


def _warn_of_undo(catalog: Catalog, served: Collection[str], known: Collection[str]) -> None:
    """Says of which steps, commands or jobs, this worker does the work and does not know the undo."""
    for saga in catalog:
        for step in saga.steps:
            if not isinstance(step.undo, Compensation) or _work(step) not in served or _work(step.undo) in known:
                continue
            if step.undo.job is None:
                lacks = f"its undo {step.undo.command} has none: another worker must serve it"
            else:
                job, queue = step.undo.job.name, step.undo.job.queue
                lacks = f"its undo, the job {job}, has no function here: another worker of queue {queue} must have it"
            has = "a handler" if step.job is None else "a function"
            LOGGER.warning("%s has %s here, %s", _work(step), has, lacks)


def _work(order: Order) -> str:
    """What a worker knows it by: its command, or its job."""
    return order.command if order.job is None else order.job.name


def _warn_of_built_in(
    catalog: Catalog, served: Collection[str], users: Collection[str], known: Collection[str]
) -> None:
    """Says which steps are done here in the user's own way, but undone only in the built-in one."""
    for command in set(served) & set(users):
        owner = catalog.command(command)
        undo = owner.step.undo if owner is not None and not owner.undoes else None
        if isinstance(undo, Compensation) and undo.command in known and undo.command not in users:
            LOGGER.warning("%s is undone by the built-in %s, which finds only built-in work", command, undo.command)
