"""Dead dispatch handler: ends attempts whose job dispatch never came to a worker that could take it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrix import clock
from orchestrix.broker.topology import DISPATCH_QUEUE_PREFIX, JOB_ASSIGNED, JOB_HANDOFF, dispatch_queue
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import DISPATCHED, FAILED, LOST, AttemptEnding
from orchestrix.jobs import messages, spans, step_results
from orchestrix.jobs.outbox_rows import JOBS
from orchestrix.persistence import outbox
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.jobs import job_queues, jobs
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.messages import UnreadableMessage

DELIVERY_LIMIT_REASON = "delivery_limit"


class DeadDispatchHandler:
    """Ends attempts whose dispatches are dead letters, or cannot be sent, in the transactions of those who find that.

    The jobs continue by their retry policies. Dead messages between nodes have no consequence: the leader asks again by
    itself. `notify_leader` says that a job may begin, `sent` that the outbox has something to send; `on_change` is
    notified of each that changed.
    """

    def __init__(
        self,
        database: Database,
        *,
        notify_leader: Callable[[], None],
        sent: Callable[[], None],
        on_change: Callable[[Iterable[str]], None],
    ) -> None:
        self._database = database
        self._notify_leader = notify_leader
        self._sent = sent
        self._on_change = on_change

    async def queues(self) -> set[str]:
        """The queues in which messages about jobs can die. Raises `Unavailable`."""
        async with self._database.read() as connection:
            names = await job_queues.named(connection)
        return {JOB_ASSIGNED, JOB_HANDOFF, *map(dispatch_queue, names)}

    async def died(self, tx: Transaction, dead_letters: Sequence[tuple[DeadLetter, bytes]]) -> None:
        """Ends the attempts whose dispatches these are, each dead letter with its whole body.

        Only by a dispatch that is exactly the expected one: one that was forged or garbled has no consequence, and
        the true one is sent again where it is lost.
        """
        dispatches = [(name, *one) for one in dead_letters if (name := _attempt(*one)) is not None]
        found = await jobs.by_histories(tx, [name for name, _, _ in dispatches])
        payloads = await jobs.payloads(tx, [job.id for job in found.values()])
        whole = {name: replace(job, payload=payloads.get(job.id)) for name, job in found.items()}
        true = [
            (name, its)
            for name, its, body in dispatches
            if name in whole and messages.matches_dispatch(whole[name], body)
        ]
        await self._end(tx, {name: _death(dead_letter) for name, dead_letter in true})

    async def refused(self, tx: Transaction, row: OutboxRow, detail: str) -> bool:
        """Withdraws what the broker refuses for good; False for a row that is not about jobs."""
        if row.saga != JOBS:
            return False
        if row.routing_key.startswith(DISPATCH_QUEUE_PREFIX):
            error = {"type": "Unsendable", "message": f"the broker rejected the dispatch: {detail}"}
            await self._end(tx, {row.id: AttemptEnding(FAILED, error, retryable=False)})
        await outbox.delete(tx, [row.id])
        return True

    async def _end(self, tx: Transaction, lost: Mapping[str, AttemptEnding]) -> None:
        """The endings by the ids of their attempts; where a worker has begun the attempt, only a copy has died."""
        found = await jobs.by_histories(tx, lost)
        rows = await jobs.lock(tx, [job.id for job in found.values()])
        out = [job for job in rows.values() if job.state == DISPATCHED and job.history_id in lost]
        if not out:
            return
        now = self._database.now()
        moved = [rules.ended(job, lost[str(job.history_id)], now, clock.uniform(0, 1)) for job in out]
        moved = spans.end_attempts(tx, out, moved)
        changed = [(before.version, one.job) for before, one in zip(out, moved, strict=True)]
        tried = [one.attempt for one in moved if one.attempt is not None]
        if (await step_results.store_with_results(tx, changed, tried)).results:
            tx.then(self._sent)
        tx.then(self._notify_leader)
        tx.then(lambda: self._on_change([job.id for job in out]))


def _attempt(dead_letter: DeadLetter, body: bytes) -> str | None:
    """The id of the attempt whose dispatch this is."""
    if not dead_letter.queue.startswith(DISPATCH_QUEUE_PREFIX):
        return None
    try:
        return messages.read_history_id(body)
    except UnreadableMessage:
        return None


def _death(dead_letter: DeadLetter) -> AttemptEnding:
    queue = dead_letter.queue.removeprefix(DISPATCH_QUEUE_PREFIX)
    if dead_letter.reason == DELIVERY_LIMIT_REASON:
        what = "exceeded the delivery limit (worker died or requeued it)"
        return AttemptEnding(
            LOST, {"type": "WorkerLost", "message": f"its dispatch in queue {queue} {what}{_see(dead_letter)}"}
        )
    message = f"its dispatch in queue {queue} was dead-lettered: {dead_letter.reason[:300]}{_see(dead_letter)}"
    return AttemptEnding(LOST, {"type": "DispatchRefused", "message": message})


def _see(dead_letter: DeadLetter) -> str:
    return f" (`orchestrix dlq show {dead_letter.id}`)"
