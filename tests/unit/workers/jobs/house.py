"""How does a test run jobs on virtual time, over a broker in memory, and see all that a worker says?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Sequence
from random import Random
from typing import Any, TypeVar

from orchestrix.broker.port import Delivery, Headers, Outgoing, Topology
from orchestrix.broker.topology import (
    DEAD,
    DISPATCH_QUEUE_PREFIX,
    JOB_CANCEL,
    WORKER_HEARTBEAT,
    job_channels,
    logs_queue,
    queues_of_work,
    status_queue,
)
from orchestrix.saga.messages import dump
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.server import MemoryServer
from orchestrix.testing.simulation.virtual_time import VirtualLoop
from orchestrix.worker.jobs.functions import DEFAULT_QUEUE, Function, JobFunction, JobTable
from orchestrix.worker.jobs.runner import JobRunner
from orchestrix.worker.jobs.state_guard import CurrentDispatch, DispatchVerdict, ReceivedDispatch, StateLookup
from tests.support import eventually

T = TypeVar("T")
GRACE = 10.0
BASE = queues_of_work(Topology())


def dispatch(handler: str, number: int = 1, **changes: Any) -> bytes:
    """The dispatch of job `j-{number}` as its attempt `h-{number}`."""
    job_id = changes.get("jobId", f"j-{number}")
    fields = {
        "jobId": job_id,
        "historyId": f"h-{number}",
        "handler": handler,
        "payload": {"number": number},
        "attempt": 1,
        "timeoutMs": None,
        "correlationId": f"c-{number}",
        "channels": {"status": status_queue(job_id), "logs": logs_queue(job_id)},
    }
    return dump({**fields, **changes})


async def believed(asked: Sequence[ReceivedDispatch]) -> list[DispatchVerdict]:
    """What the database would say if it owed whatever comes."""
    return [CurrentDispatch(one.dispatch) for one in asked]


class House:
    """A broker, and a worker when `open` has made it.

    `said` are the bodies that the broker has taken from jobs, in order, `headers` those of the same messages.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.look: StateLookup = believed
        self.server = MemoryServer(Random(1), delay=lambda: 0.001)
        self.server.observers.append(self)
        self.said: list[dict[str, Any]] = []
        self.headers: list[dict[str, str | int]] = []
        self.beats: list[tuple[float, dict[str, Any]]] = []
        self.dead: list[Outgoing] = []
        self.acknowledged: list[Delivery] = []

    def play(self, story: Coroutine[Any, Any, T]) -> T:
        """What the story returns."""
        return self.loop.run_until_complete(story)

    async def open(
        self,
        queues: Sequence[str] = (),
        *,
        places: int = 10,
        stop_timeout: float = 30.0,
        worker_id: str = "worker-1",
        beats: bool = True,
        **functions: Function,
    ) -> JobRunner:
        """A worker of these functions, by the names of their jobs; waits for its first beat, if it can beat."""
        table = JobTable(JobFunction(name, DEFAULT_QUEUE, function, GRACE) for name, function in functions.items())
        self.broker = MemoryBroker(self.server, topology=BASE)
        self.runner = JobRunner(
            self.broker,
            table,
            queues,
            self.look,
            worker_id=worker_id,
            slots=places,
            stop_timeout=stop_timeout,
            heartbeat_s=10.0,
        )
        await self.broker.start()
        await self.runner.start()
        if beats:
            await eventually(lambda: self.beats, deadline=5.0, message="the first beat")
        return self.runner

    async def close(self) -> None:
        """The worker stops as at SIGTERM."""
        await self.runner.stop()
        await self.broker.stop()

    def send(
        self, handler: str, *numbers: int, queue: str = DEFAULT_QUEUE, channels: bool = True, **fields: Any
    ) -> None:
        """Dispatches jobs; with their channels, unless the broker has lost them."""
        for number in numbers or (1,):
            body = dispatch(handler, number, **fields)
            if channels:
                self.server.declare(job_channels(json.loads(body)["jobId"]))
            self.put(body, queue)

    def put_channels(self, number: int) -> None:
        """The broker has the channels of a job."""
        self.server.declare(job_channels(f"j-{number}"))

    def put(self, body: bytes, queue: str = DEFAULT_QUEUE, headers: Headers | None = None) -> None:
        """Somebody puts a message into a queue of jobs."""
        name = DISPATCH_QUEUE_PREFIX + queue
        self.server.put(name, Outgoing("", name, body, "m", headers=headers or {}))

    async def stop_job(self, number: int = 1, reason: str = "by hand", **changes: Any) -> None:
        """Tells all workers that a job is to stop."""
        fields = {"jobId": f"j-{number}", "historyId": f"h-{number}", "reason": reason, **changes}
        other = MemoryBroker(self.server)
        await other.start()
        await other.wait_connected()
        await other.publish([Outgoing(JOB_CANCEL, f"j-{number}", dump(fields), "m")])
        await other.stop()

    # What the broker has seen.

    def published(self, message: Outgoing, queues: Sequence[str]) -> None:
        body = json.loads(message.body)
        if message.exchange == WORKER_HEARTBEAT:
            self.beats.append((self.loop.time(), body))
        elif message.exchange == DEAD:
            self.dead.append(message)
        elif queues and message.exchange == "":
            self.said.append({**body, "queue": queues[0]})
            self.headers.append(dict(message.headers))

    def acknowledging(self, delivery: Delivery) -> None:
        self.acknowledged.append(delivery)

    def of(self, number: int = 1) -> list[dict[str, Any]]:
        """What was said of a job."""
        return [one for one in self.said if one["jobId"] == f"j-{number}"]

    def statuses(self, number: int = 1) -> list[str]:
        """Its statuses."""
        return [one["status"] for one in self.of(number) if "status" in one]

    def messages(self, number: int = 1) -> list[str]:
        """Its log."""
        return [one["message"] for one in self.of(number) if "message" in one]

    def last(self, number: int = 1) -> dict[str, Any]:
        """The latest word of a job."""
        return self.of(number)[-1]

    async def ended(self, *numbers: int, within: float = 60.0) -> None:
        """Waits until these jobs have had their last words, and the worker holds them no more."""
        final = {"SUCCEEDED", "FAILED", "CANCELLED"}
        wanted = numbers or (1,)

        def over() -> bool:
            return all(final & set(self.statuses(one)) for one in wanted)

        await eventually(over, deadline=within, message=f"jobs {wanted} ended: {self.said}")

    async def says(self, status: str, number: int = 1, within: float = 60.0) -> None:
        """Waits for a status."""
        await eventually(lambda: status in self.statuses(number), deadline=within, message=f"{status}: {self.said}")

    async def later(self, seconds: float) -> None:
        """Lets so much time pass."""
        ends = self.loop.time() + seconds
        await eventually(lambda: self.loop.time() >= ends, deadline=seconds + 1.0)


def tasks() -> int:
    """How many tasks there are."""
    return len([one for one in asyncio.all_tasks() if not one.done()])
