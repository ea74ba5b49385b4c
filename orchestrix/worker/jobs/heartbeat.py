"""Worker heartbeat service: reports at intervals that the worker lives, and which attempts it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from orchestrix import clock
from orchestrix.broker.port import Broker, Outgoing, Topology
from orchestrix.broker.topology import WORKER_HEARTBEAT
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.lifecycle import WakeSignal
from orchestrix.saga.messages import dump
from orchestrix.worker.context import LOGGER
from orchestrix.worker.jobs.messages import moment
from orchestrix.worker.jobs.slots import JobSlots

LAST_HEARTBEAT_TIMEOUT_S: Final = 1.0
"""Seconds that the broker has to confirm the last heartbeat."""
State = Literal["ALIVE", "DRAINING", "LEFT"]


class JobWorkerHeartbeat:
    """Publishes a heartbeat every so many seconds, and at once after a reconnect; a lost one is not repeated.

    Before the first heartbeat over a connection it declares `topology`, which the broker may have lost.
    """

    def __init__(
        self,
        broker: Broker,
        topology: Topology,
        worker_id: str,
        queues: Sequence[str],
        job_slots: JobSlots,
        interval_s: float,
    ) -> None:
        self._broker, self._topology = broker, topology
        self._worker_id, self._queues, self._job_slots, self._interval_s = (
            worker_id,
            list(queues),
            job_slots,
            interval_s,
        )
        self._declared = 0
        self._state: State = "ALIVE"
        self._wake = WakeSignal()
        broker.on_up(lambda generation: self._wake.set())

    async def round(self) -> None:
        """Declares, publishes, and waits for the next time."""
        if await self._broker.wait_connected(self._interval_s):
            if self._declared != self._broker.generation:
                await self._declare(self._broker.generation)
            await self._broker.publish([self._message()], timeout=self._interval_s / 2)
            await self._wake.wait(self._interval_s)

    def drain(self) -> None:
        """Reports at once, and from now on, that the worker serves no queue any more."""
        self._state, self._queues = "DRAINING", []
        self._wake.set()

    async def leave(self) -> None:
        """Reports that the worker has left; if that is lost, its missing heartbeats show it later."""
        self._state = "LEFT"
        await self._broker.publish([self._message()], timeout=LAST_HEARTBEAT_TIMEOUT_S)

    async def _declare(self, generation: int) -> None:
        try:
            await self._broker.declare(self._topology)
        except ConfigError as wrong:
            LOGGER.error("%s", wrong)
        except Unavailable:
            return
        self._declared = generation

    def _message(self) -> Outgoing:
        now = clock.now()
        fields = {
            "workerId": self._worker_id,
            "queues": self._queues,
            "jobs": [
                {"jobId": one.job_id, "historyId": one.history_id} for one in self._job_slots.heartbeat_dispatches()
            ],
            "state": self._state,
            **({"lostPlaces": self._job_slots.lost} if self._job_slots.lost else {}),
            "timestamp": moment(now),
        }
        return Outgoing(
            exchange=WORKER_HEARTBEAT,
            routing_key=self._worker_id,
            body=dump(fields),
            message_id=clock.uuid7(),
            type="worker.heartbeat",
            timestamp=now,
        )
