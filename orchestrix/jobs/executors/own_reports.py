"""Own reports: stores the reports of attempts that this very node owns, without a way through the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from orchestrix.broker.port import Broker, Delivery, LinkState, Outgoing
from orchestrix.domain.jobs import OWNED, JobRow
from orchestrix.errors import Unavailable
from orchestrix.jobs.events import ChannelBatch, ChannelState, JobEventListener
from orchestrix.jobs.messages import STATUS_QUEUE_SUFFIX

STORE_TIMEOUT_S: Final = 5.0
"""Seconds until an executor is asked to send its report again later."""

StoreReports = Callable[[JobRow, Sequence[Outgoing]], Awaitable[bool]]
"""Stores messages about a job; False where they are to go through the queues of the job."""


class OwnReports:
    """Where the part of a node that takes reports finds the part that owns jobs, under its present id."""

    def __init__(self) -> None:
        self._stores: dict[str, StoreReports] = {}

    def open(self, node: str, store: StoreReports) -> None:
        """The jobs of `node` are owned here."""
        self._stores[node] = store

    def close(self, node: str) -> None:
        """They are not, from now on."""
        self._stores.pop(node, None)

    async def store(self, job: JobRow, messages: Sequence[Outgoing]) -> bool:
        """Whether the messages were stored here, in their order. Raises `Unavailable`: send all of it again."""
        store = None if job.owner is None else self._stores.get(job.owner)
        return store is not None and await store(job, messages)


class OwnReportStore:
    """Stores reports of jobs that `node` owns as if they had come by the job's queues, which such a job does without.

    A job whose queues this node reads is left to them: another node has declared them for its reports. What was
    reported there and what is reported here can pass each other, as where a report is sent again: statuses count by
    their numbers, lines up to the last one, and a job ends only when all of them are there.
    """

    def __init__(
        self,
        node: str,
        events: JobEventListener,
        broker: Broker,
        own: OwnReports,
        *,
        reads: Callable[[str], bool],
        clear: Callable[[str, int], Awaitable[None]],
    ) -> None:
        self._node, self._events, self._broker, self._own = node, events, broker, own
        self._reads, self._clear = reads, clear

    async def start(self) -> None:
        """Begins to store."""
        self._own.open(self._node, self.store)

    async def stop(self) -> None:
        """Ends: reports go through the queues, to the next owner."""
        self._own.close(self._node)

    async def store(self, job: JobRow, messages: Sequence[Outgoing]) -> bool:
        """As `StoreReports`."""
        if job.ownership != OWNED or self._broker.state is not LinkState.UP or self._reads(job.id):
            return False
        batch = ChannelBatch(job.id, job.owner_epoch, self._broker, _NoChannel(), [_delivery(one) for one in messages])
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                state = await self._events.handle(batch)
        except TimeoutError:
            raise Unavailable("the report could not be stored in time") from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise Unavailable("this node gives up its jobs") from None
        if state is ChannelState.COMPLETE:
            await self._clear(job.id, job.owner_epoch)
        return state is not ChannelState.LOST


class _NoChannel:
    """Where there is nothing to acknowledge: a report that is not answered is sent again."""

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing is to be done."""

    def alive(self, delivery: Delivery) -> bool:
        """A message that cannot be stored becomes a dead letter, whatever happens to the request."""
        return True


def _delivery(message: Outgoing) -> Delivery:
    """The message as its queue would bring it; its lines may be there already, as where a report is sent again."""
    return Delivery(
        message.body,
        message.routing_key,
        message.exchange,
        message.routing_key,
        message.message_id,
        message.correlation_id,
        message.type,
        message.headers,
        redelivered=not message.routing_key.endswith(STATUS_QUEUE_SUFFIX),
        delivery_count=0,
        tag=0,
        session=0,
    )
