"""Job step worker: executes the jobs that are steps of a scenario's saga, and stores how they end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.job_diagnosis import execution_timeout
from orchestrix.domain.jobs import PENDING, AttemptStatus, JobAttempt, JobRow, JobTransition
from orchestrix.jobs import step_results
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.jobs.jobs import JobFilter
from orchestrix.saga.messages import Command
from orchestrix.worker.context import Context
from orchestrix.worker.error_mapping import ends_task, main_error
from orchestrix.worker.handlers import Output
from orchestrix.worker.jobs.outcome import AttemptOutcome, raised, returned

BATCH_LIMIT: Final = 1000
Do = Callable[[Context, Command], Awaitable[Output]]


class JobStepResult(NamedTuple):
    """The final result that a worker reports."""

    status: str
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


class JobStepWorker:
    """Executes every job, by `do`, and stores its end in the same transaction as a coordinator would.

    A stubbed answer to a job is its result after all its tries. A job that was not finished when its process was killed
    is executed again by the next.
    """

    def __init__(self, database: Database, do: Do, sent: Callable[[], None]) -> None:
        self._database = database
        self._do = do
        self._sent = sent
        self._wake = WakeSignal()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._loop = Loop("story jobs", self._round)
        self._wake.set()

    async def start(self) -> None:
        """Begins to poll for jobs."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops, whatever is in flight."""
        await self._loop.stop()
        for task in self._busy.values():
            task.cancel()

    def notify(self) -> None:
        """Notifies it of a new job."""
        self._wake.set()

    def changed(self, ids: Iterable[str]) -> None:
        """Notifies it of jobs that may have been cancelled: their execution here is cancelled."""
        for id in ids:
            task = self._busy.pop(id, None)
            if task is not None:
                task.cancel()

    async def _round(self) -> None:
        await self._wake.wait(None)
        async with self._database.read() as connection:
            found = await jobs.page(connection, JobFilter(states=(PENDING,)), BATCH_LIMIT)
            whole = [await jobs.get(connection, one.id) for one in found if one.id not in self._busy]
        for job in whole:
            if job is not None:
                self._busy[job.id] = asyncio.create_task(self._run(job), name=f"job {job.handler}")

    async def _run(self, job: JobRow) -> None:
        command = _command(job)
        doing = asyncio.create_task(_ending(self._do(Context.of(command, float("inf")), command)))
        limit = None if job.timeout_ms is None else job.timeout_ms / 1000
        done, _ = await asyncio.wait({doing}, timeout=limit)
        result = _result_of(doing.result()) if done else None
        await self._database.run(lambda tx: self._end(tx, job.id, result))
        self._busy.pop(job.id, None)
        self._sent()

    @staticmethod
    async def _end(tx: Transaction, id: str, result: JobStepResult | None) -> None:
        """Ends the job with its worker's result, or because it timed out."""
        job = (await jobs.lock(tx, [id]))[id]
        if job.ended:
            return
        begun = rules.dispatched(job, clock.uuid7(), tx.now())
        moved: object = rules.ended(begun.job, replace(execution_timeout(job), retryable=False), tx.now(), 0.5)
        if result is not None:
            word = AttemptStatus(
                id, str(begun.job.history_id), "worker", 1, result.status, result=result.result, error=result.error
            )
            moved = rules.reported(begun.job, word, tx.now(), 0.5)
        assert isinstance(moved, JobTransition), "only this worker reports"
        await jobs.store(tx, [(job.version, begun.job)], _of(begun))
        await step_results.store_with_results(tx, [(begun.job.version, moved.job)], _of(moved))


async def _ending(work: Awaitable[Output]) -> AttemptOutcome:
    task = asyncio.current_task()
    try:
        return returned(await work)
    except BaseException as unforeseen:
        if ends_task(unforeseen, task):
            raise
        return raised(main_error(unforeseen))


def _result_of(ending: AttemptOutcome) -> JobStepResult:
    """The result that a worker would report for the outcome, always a final one."""
    failed = ending.error
    error = None if failed is None else {"type": failed.type, "message": failed.message, "retryable": False}
    return JobStepResult(ending.status, ending.result, error)


def _of(moved: JobTransition) -> Sequence[JobAttempt]:
    return [moved.attempt] if moved.attempt is not None else []


def _command(job: JobRow) -> Command:
    """The job as a command, so that whatever answers commands answers it too."""
    given = job.payload
    return Command(
        id=job.id,
        type=job.handler,
        saga=given["saga"],
        app_id=given["appId"],
        app_name=given["appName"],
        correlation_id=job.correlation_id,
        expected_state="",
        step=given["step"],
        attempt=given["attempt"],
        timeout_ms=job.timeout_ms or 0,
        idempotency_key=given["idempotencyKey"],
        data=given["data"],
        undoes_attempt=given.get("undoesAttempt"),
        effect_key=given["effectKey"],
    )
