"""Stuck filter: which sagas wait for an operator, for the broker, or for workers or nodes that are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from orchestrix.broker.port import Broker
from orchestrix.broker.topology import UNROUTED, dispatch_queue
from orchestrix.domain.job_diagnosis import DISPATCH_GRACE
from orchestrix.domain.jobs import DISPATCHED, PENDING, RUNNING
from orchestrix.engine.broker_status import COUNT_TTL_S, BrokerStatus
from orchestrix.engine.explain.unusable_answer import answers
from orchestrix.engine.explain.why import OVERDUE_AFTER_S
from orchestrix.persistence import dead_letters
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Connection, Database
from orchestrix.persistence.jobs import blocked_job_steps
from orchestrix.persistence.jobs.blocked_job_steps import UnservedJobs
from orchestrix.persistence.sagas import instances, redelivered_commands
from orchestrix.persistence.sagas.instances import After, InstanceFilter
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.persistence.sagas.stuck_filter import WORKER_WAIT_REASONS, ExternalBlockers
from orchestrix.saga.commands import expected
from orchestrix.saga.definition import COMPENSATING, STEP_FAILED, Compensation, Order, Saga, Step
from orchestrix.saga.state import Instance

OVERDUE_AFTER: Final = timedelta(seconds=OVERDUE_AFTER_S)
UNUSABLE_ANSWERS_LIMIT: Final = 1000
"""How many of the last unusable answers are read."""
CRASHED_COMMANDS_LIMIT: Final = 200
"""So many of the last commands with which workers have died are read."""
NAMED_INSTANCES_LIMIT: Final = 1000
"""Up to so many instances that are overdue, or that wait for a job without a worker, are named by their ids, so that
the query planner cannot misjudge them. If there are more, none is, and all are found by what their rows say."""


class StuckSagas:
    """Lists them by what their rows say, and by what blocks them now: their own wait need not have ended for that.

    Rows say which queues have no consumer; the broker is asked for the queues of jobs alone, at most once a second.
    """

    def __init__(self, database: Database, broker: Broker, silent: float) -> None:
        self._database = database
        self._silent = silent
        self._broker_status = BrokerStatus(broker)

    async def page(
        self, saga: Saga, filters: InstanceFilter, sort: str, limit: int, after: After | None
    ) -> list[Instance]:
        """Up to `limit` instances that are stuck, or are not, as `filters` says; otherwise as `instances.page`."""
        empty = await self._empty_job_queues(saga)
        async with self._database.read() as connection:
            blockers = await _known(connection, saga, self._silent, empty)
            filters = replace(filters, blockers=replace(blockers, states=self._waiting_for_broker(saga)))
            return await instances.page(connection, saga_tables_of(saga.name), saga.name, filters, sort, limit, after)

    async def newest(
        self, sagas: Sequence[Saga], limit: int, after: Mapping[SagaTables, After | None]
    ) -> list[Instance]:
        """Up to `limit` stuck instances of these sagas from each pair of tables, the newest first, behind `after`.

        The number of statements depends neither on that of the instances nor on that of the sagas without jobs.
        """
        empty = {saga.name: await self._empty_job_queues(saga) for saga in sagas}
        async with self._database.read() as connection:
            answered, late = await dead_letters.sagas(connection), connection.now() - OVERDUE_AFTER
            blockers: dict[SagaTables, dict[str, ExternalBlockers]] = {pair: {} for pair in after}
            crashed = {
                one
                for pair in after
                for one in await redelivered_commands.waited_for(connection, pair, CRASHED_COMMANDS_LIMIT)
            }
            for saga in sagas:
                known = {id for name, id in crashed if name == saga.name}
                if saga.name in answered:
                    known |= await _unusable_answers(connection, saga)
                blockers[saga_tables_of(saga.name)][saga.name] = ExternalBlockers(
                    states=self._waiting_for_broker(saga),
                    ids=sorted(known),
                    overdue_since=late,
                    unserved_jobs=await _unserved_jobs(connection, saga, self._silent, empty[saga.name]),
                )
            pages = [
                await instances.newest_stuck(connection, pair, blockers[pair], limit, start)
                for pair, start in after.items()
            ]
        return [one for page in pages for one in page]

    async def _empty_job_queues(self, saga: Saga) -> list[str]:
        queues = [job.queue for order in _all_orders(saga) if (job := order.job) is not None and job.group is None]
        jobs = {dispatch_queue(queue): queue for queue in queues}
        return [jobs[queue] for queue in await self._broker_status.empty(jobs, max_age_s=COUNT_TTL_S)]

    def _waiting_for_broker(self, saga: Saga) -> list[str]:
        """The states in which a saga that waits for a worker waits for the broker: all while that is unavailable."""
        return [*saga.path[:-1], COMPENSATING] if self._broker_status.problem is not None else []


async def _known(connection: Connection, saga: Saga, silent: float, empty: Collection[str]) -> ExternalBlockers:
    """What the database knows of that blocks instances: unusable answers, commands with which workers die, overdue
    timers, jobs without worker."""
    pair, before = saga_tables_of(saga.name), connection.now() - OVERDUE_AFTER
    found = await _unusable_answers(connection, saga)
    crashed = await redelivered_commands.waited_for(connection, pair, CRASHED_COMMANDS_LIMIT)
    found.update(id for name, id in crashed if name == saga.name)
    late = await instances.overdue(connection, pair, saga.name, OVERDUE_AFTER_S, NAMED_INSTANCES_LIMIT + 1)
    unserved_jobs = await _unserved_jobs(connection, saga, silent, empty)
    by_jobs = (
        await blocked_job_steps.blocked_by_jobs(connection, pair, unserved_jobs, NAMED_INSTANCES_LIMIT + 1)
        if unserved_jobs is not None
        else []
    )
    many = len(by_jobs) > NAMED_INSTANCES_LIMIT
    ids = found.union(late if len(late) <= NAMED_INSTANCES_LIMIT else (), () if many else by_jobs)
    return ExternalBlockers(
        ids=sorted(ids),
        overdue_since=before if len(late) > NAMED_INSTANCES_LIMIT else None,
        unserved_jobs=unserved_jobs if many else None,
    )


async def _unusable_answers(connection: Connection, saga: Saga) -> set[int]:
    """The ids of those whose present command got an answer that could not be used, of the last ones."""
    found = await dead_letters.about(
        connection, saga.name, [*_events(saga), STEP_FAILED, UNROUTED], UNUSABLE_ANSWERS_LIMIT
    )
    rows = await instances.guard(connection, saga_tables_of(saga.name), [id for id, _, _ in found])
    waiting = {id: row for id, row in rows.items() if row.saga == saga.name and row.wake_reason in WORKER_WAIT_REASONS}
    events = {id: (order.event, STEP_FAILED) for id, row in waiting.items() if (order := expected(saga, row))}
    found_letters = await dead_letters.several(
        connection, [dead_letter for id, queue, dead_letter in found if queue in (*events.get(id, ()), UNROUTED)]
    )
    known = [one for one in found_letters if one.queue != UNROUTED or one.type in events.get(one.instance_id or 0, ())]
    return {id for one in known if (id := one.instance_id) in waiting and answers(waiting[id], one)}


async def _unserved_jobs(
    connection: Connection, saga: Saga, silent: float, empty: Collection[str]
) -> UnservedJobs | None:
    """Which of the saga's jobs no worker will start or end as things are; None where it has no jobs.

    Also those dispatched to queues that are `empty` now, though these have consumers: the dispatches may be lost.
    """
    if not any(order.job is not None for order in _all_orders(saga)):
        return None
    lease, now = await leases.read(connection), connection.now()
    beat = timedelta(seconds=silent / 2)  # a worker sends more than two heartbeats within the time-out
    since = {DISPATCHED: now - DISPATCH_GRACE, RUNNING: now - beat}
    if lease is None or lease.lapsed:
        return UnservedJobs(saga.name, {PENDING: now - DISPATCH_GRACE, **since})
    return UnservedJobs(saga.name, since, await blocked_job_steps.served(connection, beat), empty)


def _all_orders(saga: Saga) -> list[Order]:
    return [order for step in saga.steps for order in _orders(step)]


def _orders(step: Step) -> list[Order]:
    return [step, step.undo] if isinstance(step.undo, Compensation) else [step]


def _events(saga: Saga) -> list[str]:
    return [order.event for step in saga.steps for order in _orders(step)]
