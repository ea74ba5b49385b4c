"""Call assigner: picks the executors of attempts and stores where each is called, many in one transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from orchestrix import clock
from orchestrix.domain.job_broadcasts import routed
from orchestrix.domain.jobs import AttemptEnding, JobRow, JobTransition
from orchestrix.domain.registry import executor_calls as rules
from orchestrix.domain.registry.routing import NoExecutors, Strategy, UnknownExecutor
from orchestrix.errors import NotFound
from orchestrix.jobs.executors.attempt_call import AttemptCall
from orchestrix.jobs.executors.port import PickAddresses
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import executor_jobs, jobs

StoreEnd = Callable[[Transaction, JobRow, AttemptEnding], Awaitable[JobTransition]]
Assigned = list[tuple[AttemptCall, JobRow]]


class CallAssigner:
    """Assigns the attempts that `node` owns to executors. An attempt for which there is none ends by `store_end`."""

    def __init__(self, database: Database, node: str, pick: PickAddresses, store_end: StoreEnd) -> None:
        self._database, self._node, self._pick, self._store_end = database, node, pick, store_end

    async def assign(self, calls: Sequence[AttemptCall]) -> Assigned:
        """Those whose executors are to be called, each with its job and payload: their addresses are stored.

        All or none of it is written: raises what the database raises.
        """
        assigned, moved = await self._database.run(partial(self._write, calls))
        for call in moved:
            call.state, call.moves = replace(call.state, unsure=False), False
        return assigned

    async def _write(self, calls: Sequence[AttemptCall], tx: Transaction) -> tuple[Assigned, list[AttemptCall]]:
        found = await executor_jobs.lock_own(tx, self._node, [call.attempt for call in calls])
        picked: list[tuple[AttemptCall, JobRow, JobRow]] = []
        assigned: Assigned = []
        there = [(call, found[call.attempt.history_id]) for call in calls if call.attempt.history_id in found]
        # A pick may lock its group: all nodes lock several groups in the same order.
        for call, locked in sorted(there, key=lambda one: str(one[1].executor_group)):
            job = routed(locked)
            if job.address is not None and not call.moves:
                assigned.append((call, job))
            elif (after := await self._called(tx, job, call)) is not None:
                picked.append((call, job, after))
        await executor_jobs.give(tx, [(job, after) for _, job, after in picked if not _at_once(job)])
        assigned += [(call, after) for call, _, after in picked]
        payloads = await jobs.payloads(tx, [_source(job) for _, job in assigned])
        whole = [(call, replace(job, payload=payloads.get(_source(job)))) for call, job in assigned]
        return whole, [call for call, _, _ in picked]

    async def _called(self, tx: Transaction, job: JobRow, call: AttemptCall) -> JobRow | None:
        """The job with its executor; None where there is none, or it is to be tried again later."""
        picked = await self._picked(tx, job, call)
        if isinstance(picked, AttemptEnding):
            await self._store_end(tx, job, picked)
        if not isinstance(picked, str):
            return None
        after = rules.called(job, picked, self._database.now())
        if _at_once(job):
            await executor_jobs.give(tx, [(job, after)])
        return after

    async def _picked(self, tx: Transaction, job: JobRow, call: AttemptCall) -> str | AttemptEnding | None:
        """The address to call; how the attempt ends where there is none, None where it is to be tried again later."""
        try:
            addresses = await self._pick(tx, job)
        except (NoExecutors, UnknownExecutor) as error:
            return rules.no_executors(str(error))
        except NotFound:
            return rules.no_group(str(job.executor_group))
        if job.routing != Strategy.FAILOVER:
            return addresses[0]
        found = rules.candidate(addresses, call.tried)
        if found is not None or not call.busy:
            return found or rules.not_reached(call.tried, "none could be reached")
        tx.then(partial(_begin_again, call))
        return None


def _begin_again(call: AttemptCall) -> None:
    """All have been tried, and one may take it later: not before the commit, for the transaction may be repeated."""
    call.tried, call.busy = [], False
    call.next_at = clock.monotonic() + rules.pause_s(call.state.calls)


def _source(job: JobRow) -> str:
    """The id of the job whose payload it has."""
    return job.parent_id or job.id


def _at_once(job: JobRow) -> bool:
    """Whether the next pick of the transaction must see this one."""
    return job.routing == Strategy.LEAST_LOADED
