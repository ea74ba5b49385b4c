"""Job steps: how a step that is a job becomes a job, and what happens to the job once its saga has no use for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Protocol

from orchestrix.domain.jobs import CANCELLED, JobRow
from orchestrix.persistence.engine import Connection, Transaction
from orchestrix.persistence.jobs import job_targets, jobs
from orchestrix.persistence.jobs.job_targets import MixedVersions
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.instances import TimerUpdate
from orchestrix.persistence.sagas.saga_tables import SagaTables, saga_tables_of
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.commands import MAX_REASON, command_for, job_at_work, job_cancel_cause
from orchestrix.saga.messages import Command
from orchestrix.saga.state import JOB, RETRY, Instance, StateChange

MIXED_VERSIONS_POLL_INTERVAL: Final = timedelta(seconds=10)
"""How often a saga whose job cannot be made yet polls for it: nothing notifies that the last older node has stopped."""


NEVER_MADE: Final = "cancelled before it was made"


class JobGateway(Protocol):
    """The port to the jobs. Its writes are part of the transaction; it notifies those concerned after the commit."""

    async def put(self, tx: Transaction, new: Sequence[JobRow]) -> None:
        """Inserts those that do not exist yet."""

    async def cancel(self, tx: Transaction, reasons: Mapping[str, str]) -> None:
        """Cancels those that exist and have not ended, each for its reason. It locks them all, in one order."""

    async def republish(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Publishes once more the results of those that have ended."""

    async def answer(self, tx: Transaction, ended: Sequence[JobRow]) -> None:
        """Publishes the results of jobs that have ended and were never stored."""

    async def redispatch(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Dispatches again those that no worker has begun."""


class InstanceChange(Protocol):
    """What has become of an instance: how it is now, what its history says, and the commands it publishes."""

    @property
    def instance(self) -> Instance: ...

    @property
    def history(self) -> Sequence[StateChange]: ...

    @property
    def command(self) -> Command | None: ...


class JobSteps:
    """Keeps jobs in step with the sagas of `catalog`, in the transactions that move those.

    A job has the id of the command that it stands for: however often that is sent, there is one job. Its result comes
    back as an event, and by nothing else. `gateway` leads to the jobs; a catalog without job steps needs none.
    """

    def __init__(self, catalog: Catalog, gateway: JobGateway | None = None) -> None:
        self._jobs = gateway
        self._catalog = catalog

    async def follow(self, tx: Transaction, moves: Iterable[tuple[Instance | None, InstanceChange]]) -> None:
        """Inserts the jobs that instances need now, and cancels those that they had before; None for a new instance.

        Raises `Contention` where a job is locked by another transaction for longer than the lock time-out.
        """
        concerned = [(before, done) for before, done in moves if self._has_jobs(done.instance)]
        gone = {
            id: f"{done.instance.saga} {done.instance.id}: {done.history[0].reason}"[:MAX_REASON]
            for before, done in concerned
            if before is not None and (id := self._cancel_job(before, done.instance)) is not None
        }
        if gone:
            await self._gateway.cancel(tx, gone)
            await self._answer_absent(tx, [done.instance for _, done in concerned])
        new = [(done.instance, job) for _, done in concerned if (job := _job(done.instance, done.command)) is not None]
        await self._put(tx, new)

    async def ensure(self, tx: Transaction, waiting: Iterable[Instance], *, redispatch: bool = False) -> int:
        """Makes sure that the jobs which these wait for exist, or that their results are published; how many.

        An operator's `redispatch` dispatches them again too: by itself the leader sends only what is lost.
        """
        ids: list[str] = []
        polling: list[Instance] = []
        missing: list[tuple[Instance, JobRow]] = []
        for one in waiting:
            saga = self._catalog.of(one) if self._has_jobs(one) else None
            id = job_at_work(saga, one) if saga is not None else None
            if saga is None or id is None or one.blocker is not None or one.wake_reason == RETRY:
                continue
            ids.append(id)
            polling.append(one)
            job = _job(one, command_for(saga, one))
            missing += [(one, job)] if job is not None else []
        if ids:
            await self._put(tx, missing)
            await self._gateway.republish(tx, ids)
            await self._answer_absent(tx, polling)
        if ids and redispatch:
            await self._gateway.redispatch(tx, ids)
        return len(ids)

    async def _put(self, tx: Transaction, new: Sequence[tuple[Instance, JobRow]]) -> None:
        """Inserts the jobs, each with the instance that waits for it, that do not exist yet.

        A job for a group is not made while a living node cannot judge it, as leader or owner: its instance polls soon.
        """
        of_groups = [one for one, job in new if job.executor_group is not None]
        postponed = of_groups if of_groups and await _mixed_versions(tx) else []
        made = [job for _, job in new if job.executor_group is None or not postponed]
        if made:
            await self._gateway.put(tx, made)
        await _poll_soon(tx, postponed)

    async def _answer_absent(self, tx: Transaction, waiting: Iterable[Instance]) -> None:
        """Answers those that were cancelled, and wait for the end of a job that was never made: nothing else would."""
        ended = {job.id: job for one in waiting if (job := self._cancelled_job(one)) is not None}
        stored = {job.id for job in await jobs.of_ids(tx, ended)} if ended else set()
        absent = [job for id, job in ended.items() if id not in stored]
        if absent:
            await self._gateway.answer(tx, absent)

    def _cancelled_job(self, one: Instance) -> JobRow | None:
        """The job for a group that a cancelled instance waits for, as it would be had it been made."""
        saga = self._catalog.of(one)
        step = saga.step(one.progress.awaited or "") if saga is not None else None
        if step is None or step.job is None or step.job.group is None or one.command_id is None:
            return None
        return JobRow(
            id=one.command_id,
            **step.job.target(one.saga, one.id, one.key).columns(),
            handler=step.job.name,
            payload={"event": step.event},
            state=CANCELLED,
            cancel_reason=NEVER_MADE,
            created_by=one.created_by,
            correlation_id=one.correlation_id,
            created_at=one.updated_at,
            updated_at=one.updated_at,
            saga=one.saga,
            instance_id=one.id,
            step=step.name,
            traceparent=one.traceparent,
            tracestate=one.tracestate,
            trace_head=one.trace[0],
        )

    def _has_jobs(self, instance: Instance) -> bool:
        saga = self._catalog.of(instance)
        return saga is not None and saga.has_jobs

    def _cancel_job(self, before: Instance, after: Instance) -> str | None:
        saga = self._catalog.of(after)
        assert saga is not None, "only known versions move"
        return job_cancel_cause(saga, before, after)

    @property
    def _gateway(self) -> JobGateway:
        assert self._jobs is not None, "sagas with jobs need a job service"
        return self._jobs


async def _mixed_versions(connection: Connection) -> bool:
    """Whether a living node cannot judge jobs for groups."""
    try:
        await job_targets.check_versions(connection)
    except MixedVersions:
        return True
    return False


async def _poll_soon(tx: Transaction, waiting: Sequence[Instance]) -> None:
    """Wakes them sooner than for the usual poll of a job, none later than before."""
    at, rows = tx.now() + MIXED_VERSIONS_POLL_INTERVAL, defaultdict[SagaTables, list[TimerUpdate]](list)
    for one in waiting:
        if one.wake_reason == JOB and one.wake_at is not None and one.wake_at > at:
            rows[saga_tables_of(one.saga)].append(TimerUpdate.of(one, at))
    for tables, updates in rows.items():
        await instances.update_timers(tx, tables, updates)


def _job(instance: Instance, command: Command | None) -> JobRow | None:
    """The job that stands for `command`, if one does. It is due at once."""
    if command is None or command.job is None:
        return None
    target = command.job.target(command.saga, command.app_id, command.app_name)
    return JobRow(
        id=command.id,
        **target.columns(),
        handler=command.job.name,
        payload=command.payload,
        retries=command.job.retries,
        timeout_ms=command.job.timeout_ms,
        created_by=instance.created_by,
        correlation_id=command.correlation_id,
        created_at=instance.updated_at,
        updated_at=instance.updated_at,
        wake_at=instance.updated_at,
        saga=instance.saga,
        instance_id=instance.id,
        step=command.step if command.undoes_attempt is None else f"{command.step}:undo",
        traceparent=instance.traceparent,
        tracestate=instance.tracestate,
        trace_head=instance.trace[0],
    )
