"""Dev worker: runs the worker of a `dev` process, and stops it without losing what it has in progress."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.port import CONNECTION
from orchestrix.broker.topology import (
    UNROUTED,
    dead_letters_of,
    dispatch_queue,
    logs_queue,
    status_queue,
    worker_heartbeat_queue,
)
from orchestrix.quantities import counted
from orchestrix.worker.worker import Worker

LAST_WRITES_TIMEOUT_S: Final = 10.0
"""Seconds that the node has, once the worker has ended, to store what the worker has reported."""
WORKER_STOP_GRACE_S: Final = 20.0
"""Seconds that a worker may take beyond its own stop time: what has not ended then is reported as given up."""
POLL_INTERVAL_S: Final = 0.02
AT_NEXT_START: Final = "commands and jobs that are cut off restart at the next start"
ELSEWHERE: Final = (
    "commands are redelivered to other workers; a running job attempt is lost and retried if retries remain"
)

log = logging.getLogger("orchestrix")


def log_stopping(worker: Worker, timeout_s: float, cut: str) -> None:
    """Logs what is waited for, up to `timeout_s` seconds, and that a second signal cuts it off: `cut` is what happens
    then.
    """
    running = _running(worker)
    if running:
        log.warning("stopping: waiting up to %g s for %s. Press Ctrl-C again to stop now (%s)", timeout_s, running, cut)


def log_cut_off(worker: Worker, cut: str) -> None:
    """Logs what a second signal has cut off, and what happens then."""
    running = _running(worker)
    if running:
        log.warning("stopped before the end: %s; %s", running, cut)


def _running(worker: Worker) -> str:
    """What the worker has in progress, in words: `1 running job and 2 running commands`; empty without any."""
    counts = {"job": len(worker.jobs.job_ids) if worker.jobs is not None else 0, "command": worker.commands_in_flight}
    return " and ".join(counted(count, f"running {what}") for what, count in counts.items() if count)


@dataclass(frozen=True, slots=True)
class DevWorker:
    """The worker of a `dev`. It has ended only when the node has stored its last messages: the embedded broker loses
    all at its own end. `commands` and `events` are the queues of sagas; `node` returns the present id of the node.
    """

    worker: Worker
    broker: EmbeddedBroker
    commands: Collection[str]
    events: Collection[str]
    node: Callable[[], str]
    timeout_s: float

    @property
    def shutdown_limit_s(self) -> float:
        """Seconds in which it ends, whatever happens."""
        return self.timeout_s + WORKER_STOP_GRACE_S + LAST_WRITES_TIMEOUT_S

    async def start(self) -> None:
        """Begins to take work."""
        await self.worker.start()

    async def stop(self) -> None:
        """Takes no more, and ends as `Worker.stop`; then waits up to `LAST_WRITES_TIMEOUT_S` seconds until all is
        stored.
        """
        log_stopping(self.worker, self.timeout_s, AT_NEXT_START)
        await self.worker.stop()
        try:
            async with asyncio.timeout(LAST_WRITES_TIMEOUT_S):
                for queues in (self._publish_queues, self._refused):  # what is refused was published before
                    await self._settled(set(queues()))
        except TimeoutError:
            log.warning("the last reports of the worker could not all be stored; the work they report is done again")

    def cut_off(self) -> None:
        """A second signal has come, and ends all at once."""
        log_cut_off(self.worker, AT_NEXT_START)

    async def _settled(self, queues: set[str]) -> None:
        """Each of them has been empty once: what others publish meanwhile is not waited for."""
        while True:
            left = self.broker.unsettled()
            queues = {name for name in queues if _is_left(left, name)}
            if not queues:
                return
            await asyncio.sleep(POLL_INTERVAL_S)  # the broker does not notify what becomes of its messages

    def _publish_queues(self) -> Iterator[str]:
        """The queues that this worker publishes to: of sagas, of its own jobs, and of its heartbeats."""
        yield from self.events
        yield worker_heartbeat_queue(self.node())
        for job_id in self.worker.jobs.had if self.worker.jobs is not None else ():
            yield from (status_queue(job_id), logs_queue(job_id))

    def _refused(self) -> Iterator[str]:
        """The queues that hold its dead letters until the node has stored them."""
        orders = [dispatch_queue(name) for name in self.worker.jobs.queues] if self.worker.jobs is not None else []
        yield from map(dead_letters_of, (*self.events, *self.commands, *orders))
        yield UNROUTED


def _is_left(left: Mapping[str, int], queue: str) -> bool:
    """Whether anything is in a queue, or in one whose name each connection chooses."""
    if CONNECTION not in queue:
        return bool(left.get(queue))
    return any(count and name.startswith(queue.removesuffix(CONNECTION)) for name, count in left.items())
