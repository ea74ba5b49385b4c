"""Who does the jobs that are steps of a saga in a story, and says how they end?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from orchestrix import clock
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import OVERDUE, PENDING, Attempt, Job, Moved, Status
from orchestrix.jobs import ends
from orchestrix.lifecycle import Loop, Wake
from orchestrix.persistence import jobs
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import Filter
from orchestrix.saga.messages import Command
from orchestrix.worker.context import Context
from orchestrix.worker.failures import given_up, sole
from orchestrix.worker.handlers import Output
from orchestrix.worker.jobs.endings import Ending, raised, returned

MOST: Final = 1000
Do = Callable[[Context, Command], Awaitable[Output]]


class Said(NamedTuple):
    """A worker's last word."""

    status: str
    result: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None


class Hands:
    """Does every job, by `do`, and writes its end in the transaction that a coordinator would write it in.

    What a story says of a job is what becomes of it after all its tries. What was not done when its process died is
    done anew by the next.
    """

    def __init__(self, database: Database, do: Do, sent: Callable[[], None]) -> None:
        self._database = database
        self._do = do
        self._sent = sent
        self._wake = Wake()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._loop = Loop("jobs of the story", self._round)
        self._wake.set()

    async def start(self) -> None:
        """Begins to look for jobs."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops, whatever is in hand."""
        await self._loop.stop()
        for task in self._busy.values():
            task.cancel()

    def poke(self) -> None:
        """There is a job."""
        self._wake.set()

    def changed(self, ids: Iterable[str]) -> None:
        """These may be cancelled: what is cancelled here has ended, and nobody is at it any more."""
        for id in ids:
            task = self._busy.pop(id, None)
            if task is not None:
                task.cancel()

    async def _round(self) -> None:
        await self._wake.wait(None)
        async with self._database.read() as connection:
            found = await jobs.page(connection, Filter(states=(PENDING,)), MOST)
            whole = [await jobs.get(connection, one.id) for one in found if one.id not in self._busy]
        for job in whole:
            if job is not None:
                self._busy[job.id] = asyncio.create_task(self._run(job), name=f"job {job.handler}")

    async def _run(self, job: Job) -> None:
        command = _command(job)
        doing = asyncio.create_task(_ending(self._do(Context.of(command, float("inf")), command)))
        limit = None if job.timeout_ms is None else job.timeout_ms / 1000
        done, _ = await asyncio.wait({doing}, timeout=limit)
        said = _said(doing.result()) if done else None
        await self._database.run(lambda tx: self._end(tx, job.id, said))
        self._busy.pop(job.id, None)
        self._sent()

    @staticmethod
    async def _end(tx: Transaction, id: str, said: Said | None) -> None:
        """Ends the job as its worker has said, or because its time is over."""
        job = (await jobs.lock(tx, [id]))[id]
        if job.ended:
            return
        begun = rules.dispatched(job, clock.uuid7(), tx.now())
        moved: object = rules.ended(begun.job, replace(OVERDUE, retryable=False), tx.now(), 0.5)
        if said is not None:
            word = Status(id, str(begun.job.history_id), "worker", 1, said.status, result=said.result, error=said.error)
            moved = rules.reported(begun.job, word, tx.now(), 0.5)
        assert isinstance(moved, Moved), "nobody else says anything"
        await jobs.store(tx, [(job.version, begun.job)], _of(begun))
        await ends.store(tx, [(begun.job.version, moved.job)], _of(moved))


async def _ending(work: Awaitable[Output]) -> Ending:
    task = asyncio.current_task()
    try:
        return returned(await work)
    except BaseException as unforeseen:
        if given_up(unforeseen, task):
            raise
        return raised(sole(unforeseen))


def _said(ending: Ending) -> Said:
    """What a worker would say of this: an end for good, whatever it was."""
    failed = ending.error
    error = None if failed is None else {"type": failed.type, "message": failed.message, "retryable": False}
    return Said(ending.status, ending.result, error)


def _of(moved: Moved) -> Sequence[Attempt]:
    return [moved.attempt] if moved.attempt is not None else []


def _command(job: Job) -> Command:
    """The job as the command that it stands for, so that all that answers commands answers it."""
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
