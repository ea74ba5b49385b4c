"""Step jobs: what the engine can do, within its own transactions, with the jobs that are steps of sagas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from orchestrix.domain.jobs import JobRow
from orchestrix.jobs import redispatch, step_results
from orchestrix.jobs.cancellation import cancel_jobs
from orchestrix.jobs.events import StopRequest
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.jobs import jobs


class StepJobs:
    """Notifications are made after the commit.

    `notify` lets the leader poll for jobs that are due; `stop` notifies workers; `sent` says that the outbox has
    something to send; `on_change` is notified of every job that has changed.
    """

    def __init__(
        self,
        notify: Callable[[], None],
        *,
        stop: Callable[[Sequence[StopRequest]], None],
        sent: Callable[[], None],
        on_change: Callable[[Iterable[str]], None],
    ) -> None:
        self._notify = notify
        self._stop = stop
        self._sent = sent
        self._on_change = on_change

    async def put(self, tx: Transaction, new: Sequence[JobRow]) -> None:
        """Inserts those that do not exist yet."""
        await jobs.insert(tx, new)
        tx.then(self._notify)

    async def cancel(self, tx: Transaction, reasons: Mapping[str, str]) -> None:
        """Cancels those that exist and have not ended; raises `Contention`."""
        stops = await cancel_jobs(tx, reasons)
        tx.then(lambda: self._stopped(reasons, stops))

    async def republish(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Publishes once more the results of those that have ended."""
        if await step_results.insert_results(tx, await jobs.of_ids(tx, ids), again=True):
            tx.then(self._sent)

    async def answer(self, tx: Transaction, ended: Sequence[JobRow]) -> None:
        """Publishes the results of jobs that have ended and were never stored."""
        if await step_results.insert_unstored(tx, ended):
            tx.then(self._sent)

    async def redispatch(self, tx: Transaction, ids: Sequence[str]) -> None:
        """Dispatches again those that no worker has begun; raises `Contention`."""
        if await redispatch.redispatch(tx, ids):
            tx.then(self._sent)

    def _stopped(self, ids: Iterable[str], stops: Sequence[StopRequest]) -> None:
        if stops:
            self._stop(stops)
        self._sent()
        self._on_change(ids)
