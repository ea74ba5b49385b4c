"""Worker heartbeat service: reports at intervals that the worker lives, what it serves, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from orchestrix import clock
from orchestrix.broker.port import Broker, Outcome, Outgoing, Topology
from orchestrix.broker.topology import WORKER_HEARTBEAT
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.saga.messages import dump
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.jobs.messages import moment
from orchestrix.worker.jobs.slots import JobSlots

LAST_HEARTBEAT_TIMEOUT_S: Final = 1.0
"""Seconds that the broker has to confirm the last heartbeat."""
REFUSED_RETRY_S: Final = 300.0
"""Seconds after which a worker without jobs tries again what the broker refused: each refusal closes the channel by
which its events go, too."""
UNHEARD_RETRY_S: Final = 1.0
ACCESS_REFUSED: Final = "403"
"""With this code the broker begins its answer to a user who may not do something (AMQP 0-9-1)."""
State = Literal["ALIVE", "DRAINING", "LEFT"]


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """The process of a worker: its id on the wire, and where and what it is."""

    id: str
    host: str
    version: str


Describe = Callable[[bool], Mapping[str, Any]]
"""What a heartbeat says besides its jobs, given whether the worker takes nothing new any more."""


class HeartbeatPublisher:
    """Publishes a heartbeat every so many seconds, and at once after a reconnect; a lost one is not repeated. One that
    no node listens for is, after a second, until the first was received, if it describes a process: people look
    whether that has started.

    Before the first heartbeat over a connection it declares `topology`, which the broker may have lost. A worker
    without `job_slots` serves commands alone: nothing depends on its heartbeats, so that one that the broker refuses is
    not sent again soon.
    """

    def __init__(
        self,
        broker: Broker,
        topology: Topology,
        worker_id: str,
        queues: Sequence[str],
        job_slots: JobSlots | None,
        interval_s: float,
        describe: Describe | None = None,
    ) -> None:
        self._broker, self._topology = broker, topology
        self._worker_id, self._queues, self._job_slots, self._interval_s = (
            worker_id,
            list(queues),
            job_slots,
            interval_s,
        )
        self._describe = describe
        self._declared = 0
        self._heard = False
        self._refused_until = 0.0
        self._state: State = "ALIVE"
        self._wake = WakeSignal()
        self._loop = Loop("worker heartbeat", self._round)
        broker.on_up(lambda generation: self._wake.set())

    async def start(self) -> None:
        """Begins to publish."""
        await self._loop.start()

    async def _round(self) -> None:
        """Declares, publishes, and waits for the next time."""
        if await self._broker.wait_connected(self._interval_s):
            if self._declared != self._broker.generation and not self._is_refused:
                await self._declare(self._broker.generation)
            again = await self._publish() if not self._is_refused else self._interval_s
            await self._wake.wait(again)

    @property
    def _is_refused(self) -> bool:
        return clock.monotonic() < self._refused_until

    async def _publish(self) -> float:
        """Seconds until the next time."""
        (published,) = await self._broker.publish([self._message()], timeout=self._interval_s / 2)
        self._heard = self._heard or published.outcome is Outcome.CONFIRMED
        if self._job_slots is None and published.channel_closed:
            self._check(published.detail)
        unheard = published.outcome is Outcome.RETURNED and self._describe is not None and not self._heard
        return min(self._interval_s, UNHEARD_RETRY_S) if unheard else self._interval_s

    def begin_drain(self) -> None:
        """Reports at once, and from now on, that the worker serves no queue any more."""
        self._state, self._queues = "DRAINING", []
        self._wake.set()

    async def stop(self) -> None:
        """Reports that the worker has left; if that is lost, its missing heartbeats show it later."""
        await self._loop.stop()
        self._state = "LEFT"
        if not self._is_refused:
            await self._broker.publish([self._message()], timeout=LAST_HEARTBEAT_TIMEOUT_S)

    async def _declare(self, generation: int) -> None:
        try:
            await self._broker.declare(self._topology)
        except ConfigError as wrong:
            if self._job_slots is None:
                self._refused(str(wrong))
                return
            LOGGER.error("%s", wrong, extra={"event": log_events.QUEUE_MISSING})
        except Unavailable:
            return
        self._declared = generation

    def _check(self, detail: str) -> None:
        """The broker has closed the channel while a heartbeat of a worker of commands alone was in flight."""
        self._declared = 0
        if detail.startswith(ACCESS_REFUSED):
            self._refused(detail)

    def _refused(self, why: str) -> None:
        self._refused_until = clock.monotonic() + REFUSED_RETRY_S
        LOGGER.warning(
            "the broker refuses the heartbeats of this worker, so that no list shows it: %s",
            why,
            extra={"event": log_events.HEARTBEATS_REFUSED},
        )

    def _message(self) -> Outgoing:
        now = clock.now()
        slots = self._job_slots
        held = slots.heartbeat_dispatches() if slots is not None else ()
        fields = {
            "workerId": self._worker_id,
            "queues": self._queues,
            "jobs": [{"jobId": one.job_id, "historyId": one.history_id} for one in held],
            "state": self._state,
            **({"lostPlaces": slots.lost} if slots is not None and slots.lost else {}),
            **(self._describe(self._state != "ALIVE") if self._describe is not None else {}),
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
