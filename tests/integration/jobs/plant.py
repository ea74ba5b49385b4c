"""What does the coordinators' side of jobs stand on in a test, and who plays the worker?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from orchestrix import clock
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Binding, Consumer, Exchange, Outcome, Outgoing, Queue, Topology
from orchestrix.broker.topology import (
    JOB_CANCEL,
    WORKER_HEARTBEAT,
    dispatch_queue,
    job_dispatch,
    jobs_topology,
    logs_queue,
    queues_of_work,
    status_queue,
)
from orchestrix.config.settings import ClusterSettings, JobsSettings
from orchestrix.domain.jobs import JobAttempt, JobRow
from orchestrix.domain.leases import Fence
from orchestrix.jobs.cancellation import JobCanceller
from orchestrix.jobs.executors.port import ExecutorCalls
from orchestrix.jobs.job_coordinator import JobCoordinator, JobDependencies, JobSignals
from orchestrix.jobs.retry import JobRetrier
from orchestrix.jobs.submission import JobRequest, JobSubmitter
from orchestrix.lifecycle import DrainSignal, Service, Services, WakeSignal
from orchestrix.outbox.relay import OutboxRelay
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import job_logs, jobs
from orchestrix.persistence.jobs.job_logs import JobLogLine
from orchestrix.saga.job_targets import JobTarget
from orchestrix.schedules.scheduler import Scheduler
from tests.integration.jobs.rows import joined, leading, stopped
from tests.support import eventually

QUEUE: Final = "reports"
HASTY: Final = ClusterSettings(
    handoff_ack=0.4, handoff_hard=3.0, orphan_check=0.5, reconcile=0.3, heartbeat=1.0, dead=5.0
)
PATIENT: Final = JobsSettings(beat=0.2, silent=1.0)


async def callbacks() -> Sequence[str]:
    """Where executors are told to report."""
    return ["http://node:8080"]


class CountedDrain(DrainSignal):
    """How often the node began to drain."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def begin(self) -> None:
        super().begin()
        self.count += 1


class Node:
    """One coordinator: its connections, its relay, and its part in jobs."""

    def __init__(self, plant: Plant, name: str, cluster: ClusterSettings, tuned: JobsSettings) -> None:
        self.name = f"{name}-{clock.token()[:8]}"
        self._plant = plant
        self.signals, self.schedules_due, self.draining = JobSignals(), WakeSignal(), CountedDrain()
        control = AmqpBroker(plant.url, name=f"{name} jobs", topology=jobs_topology(self.name))
        outlet = AmqpBroker(plant.url, name=f"{name} relay", topology=queues_of_work(Topology()))
        self.outlet = outlet
        self.relay = OutboxRelay(plant.database, outlet, Topology(), node=self.name, lease=5.0, batch=100)
        around = JobDependencies(
            database=plant.database,
            relay=self.relay,
            control=control,
            open_link=lambda number: AmqpBroker(plant.url, name=f"{name} jobs {number}"),
            cluster=cluster,
            jobs=tuned,
            signals=self.signals,
            notify_leader=plant.poke,
            executors=plant.executors,
        )
        self.jobs = JobCoordinator(self.name, around, draining=self.draining)
        self.control = control
        self.duties: Service | None = None

    async def start(self) -> None:
        """Takes part."""
        await joined(self._plant.database, self.name)
        await self.outlet.start()
        await self.relay.start()
        await self.jobs.start()
        assert await self.control.wait_connected(10), self.control.problem
        assert await self.outlet.wait_connected(10), self.outlet.problem

    async def lead(self, term: int = 1) -> None:
        """Becomes the leader of that term."""
        fence = Fence(term, self.name)
        await leading(self._plant.database, fence)
        due, stop = self.signals.due.set, self.jobs.stops.publish
        schedules = Scheduler(self._plant.database, fence, self.schedules_due, notify_leader=due, stop=stop)
        self.duties = Services([self.jobs.duties(fence), schedules])
        await self.duties.start()

    async def resign(self) -> None:
        """Leads no more."""
        duties, self.duties = self.duties, None
        if duties is not None:
            await duties.stop()

    async def stop(self) -> None:
        """Ends in good order."""
        await self.resign()
        await self.jobs.stop()
        await self._close("LEFT")

    async def die(self) -> None:
        """Ends without a word."""
        await self.resign()
        await self.jobs.abandon()
        await self._close("DEAD")

    async def _close(self, state: str) -> None:
        await self.relay.stop()
        await self.outlet.stop()
        await stopped(self._plant.database, self.name, state)


class Plant:
    """Nodes, a client and a worker by hand, over one database and one broker."""

    def __init__(self, database: Database, url: str) -> None:
        self.database = database
        self.url = url
        self.nodes: list[Node] = []
        self.workers: list[Hand] = []
        self.submitter = JobSubmitter(database, self.poke)
        self.canceller: JobCanceller | None = None
        self.executors: ExecutorCalls | None = None
        """By what its nodes call executors, if they do."""
        self.noticed: list[tuple[str, str]] = []
        """The owner and the job of each notification of a report; without `notices` none arrives."""
        self.notices = True

    async def node(
        self,
        name: str = "node",
        *,
        leads: bool = False,
        cluster: ClusterSettings = HASTY,
        tuned: JobsSettings = PATIENT,
    ) -> Node:
        """A node that runs."""
        node = Node(self, name, cluster, tuned)
        self.nodes.append(node)
        await node.start()
        if leads:
            await node.lead()
        return node

    async def worker(self, name: str = "w-1", queue: str = QUEUE, *, beats: bool = False) -> Hand:
        """A worker by hand."""
        hand = Hand(self.url, name, queue)
        self.workers.append(hand)
        await hand.start(beats=beats)
        return hand

    async def close(self) -> None:
        """Ends all that runs."""
        for hand in self.workers:
            await hand.stop()
        for node in self.nodes:
            await node.die()

    def poke(self) -> None:
        """A job is due, or may be now."""
        for node in self.nodes:
            node.signals.due.set()
            node.schedules_due.set()

    async def notify_owner(self, owner: str, job_id: str) -> None:
        """An executor has reported the job."""
        self.noticed.append((owner, job_id))
        for node in self.nodes:
            if node.name == owner and self.notices:
                node.signals.reported.add([job_id])

    async def submit(self, **more: Any) -> JobRow:
        """A job for the worker's queue."""
        target = JobTarget(more.pop("queue", QUEUE))
        job = await self.submitter.submit(JobRequest(target, **{"handler": "report", **more}))
        assert isinstance(job, JobRow)
        return job

    async def cancel(self, job: JobRow, reason: str = "not wanted") -> JobRow:
        """Cancels by any node."""
        node = self.nodes[0]
        canceller = JobCanceller(self.database, node.jobs.stops.publish, lambda ids: None, notify_leader=self.poke)
        return await canceller.cancel(job.id, reason, "ada")

    async def retry(self, job: JobRow, reason: str = "mended") -> JobRow:
        """Retries by any node."""
        return await JobRetrier(self.database, lambda ids: None, self.poke).retry(job.id, reason, "ada")

    async def now(self, job: JobRow) -> JobRow:
        """The job as the database has it."""
        async with self.database.read() as connection:
            found = await jobs.get(connection, job.id)
        assert found is not None
        return found

    async def attempts(self, job: JobRow) -> list[JobAttempt]:
        """Its attempts."""
        async with self.database.read() as connection:
            return await jobs.attempts(connection, job.id)

    async def logs(self, job: JobRow) -> list[JobLogLine]:
        """Its log."""
        async with self.database.read() as connection:
            return await job_logs.page(connection, job.id, 10_000)

    async def reached(self, job: JobRow, state: str, *, deadline: float = 10.0, attempt: int | None = None) -> JobRow:
        """Waits until the job is in that state."""

        async def there() -> bool:
            found = await self.now(job)
            return found.state == state and attempt in (None, found.attempt)

        await eventually(there, deadline=deadline, message=f"the job is {state}")
        return await self.now(job)

    async def cleared(self, job: JobRow, *, deadline: float = 10.0) -> None:
        """Waits until its queues are gone and nobody owns it."""

        async def gone() -> bool:
            found = await self.now(job)
            return (found.channels, found.owner) == (0, None)

        await eventually(gone, deadline=deadline, message="the job is cleared away")

    async def owned(self, job: JobRow, node: Node | None = None, *, deadline: float = 10.0) -> JobRow:
        """Waits until a node, or that node, owns the job."""

        async def there() -> bool:
            owner = (await self.now(job)).owner
            return owner is not None if node is None else owner == node.name

        await eventually(there, deadline=deadline, message="the job is owned")
        return await self.now(job)


class Task:
    """One attempt that the hand has got, and what it says of it. `seq` counts its words.

    `context` are the headers of what it says, such as those of the order, which a worker that makes no spans copies.
    """

    def __init__(self, hand: Hand, order: dict[str, Any], headers: Mapping[str, object]) -> None:
        self.order = order
        self.headers = headers
        self._hand = hand
        self.seq = 0
        self.context: dict[str, str] = {}
        self.logged: list[int] = []

    @property
    def last_log(self) -> int:
        """The number of the last line."""
        return self.logged[-1] if self.logged else 0

    async def running(self, progress: Any = None, **more: Any) -> None:
        """It runs."""
        await self.say("RUNNING", progress=progress, **more)

    async def succeed(self, result: Any = None) -> None:
        """It is done."""
        await self.say("SUCCEEDED", result=result, lastLogSeq=self.last_log)

    async def fail(self, message: str = "no paper", **more: Any) -> None:
        """It has failed."""
        await self.say("FAILED", error={"type": "Broken", "message": message, **more}, lastLogSeq=self.last_log)

    async def say(self, status: str, **more: Any) -> None:
        """A status."""
        await self._send(self.order["channels"]["status"], status=status, **more)

    async def log(self, *lines: str) -> None:
        """Lines of its log."""
        for line in lines:
            await self._send(self.order["channels"]["logs"], level="info", message=line, at="2026-01-31T12:00:00Z")
            self.logged.append(self.seq)

    async def _send(self, queue: str, **more: Any) -> None:
        self.seq = more.pop("seq", self.seq + 1)
        who = {"jobId": self.order["jobId"], "historyId": self.order["historyId"], "workerId": self._hand.name}
        await self._hand.send("", queue, {**who, "seq": self.seq, **more}, self.context)


class Hand:
    """A worker that knows nothing but the messages."""

    def __init__(self, url: str, name: str, queue: str) -> None:
        self.name = name
        self.queue = queue
        self.held: list[Task] = []
        self.told: list[dict[str, Any]] = []
        ear = f"ear.{name}"
        exchanges = (Exchange(JOB_CANCEL, "topic"), Exchange(WORKER_HEARTBEAT, "topic"))
        listening = Topology(exchanges, (Queue(ear, exclusive=True),), (Binding(ear, JOB_CANCEL, "#"),))
        self._topology = queues_of_work(listening) + job_dispatch(queue)
        self.broker = AmqpBroker(url, name=name)
        self._ear = ear
        self._hearing: Consumer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._orders: Consumer | None = None

    async def start(self, *, beats: bool) -> None:
        """Connects; listens for words to stop; beats if it is to."""
        await self.broker.start()
        assert await self.broker.wait_connected(10), self.broker.problem
        await self.hearing()
        if beats:
            self._tasks.append(asyncio.create_task(self._beat()))

    async def stop(self) -> None:
        """Goes away."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self.broker.stop()

    async def take(self, *, acknowledge: bool = True) -> Task:
        """The next order, which it acknowledges early."""
        if self._orders is None:
            self._orders = await self.broker.consume([dispatch_queue(self.queue)], 100)
        async with asyncio.timeout(10):
            [delivery] = await self._orders.receive(1)
        task = Task(self, json.loads(delivery.body), delivery.headers)
        if acknowledge:
            await self._orders.acknowledge([delivery])
        self.held.append(task)
        return task

    async def rest(self) -> None:
        """Takes no more orders."""
        if self._orders is not None:
            await self._orders.close()
            self._orders = None

    async def send(
        self, exchange: str, key: str, fields: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        """A message, which the broker takes."""
        message = Outgoing(exchange, key, json.dumps(fields).encode(), clock.uuid7(), headers=headers or {})
        [published] = await self.broker.publish([message])
        assert published.outcome is Outcome.CONFIRMED, published

    async def beat(self) -> None:
        """Says what it holds."""
        jobs = [{"jobId": one.order["jobId"], "historyId": one.order["historyId"]} for one in self.held]
        fields = {"workerId": self.name, "queues": [self.queue], "jobs": jobs, "timestamp": "2026-01-31T12:00:00Z"}
        body = json.dumps(fields).encode()
        await self.broker.publish([Outgoing(WORKER_HEARTBEAT, self.name, body, clock.uuid7())])

    async def deaf(self) -> None:
        """Hears nothing: what is said meanwhile is lost."""
        assert self._hearing is not None
        await self._hearing.close()
        await self.broker.delete(self._ear)

    async def hearing(self) -> None:
        """Hears again, from now on."""
        await self.broker.declare(self._topology)
        self._hearing = await self.broker.consume([self._ear], 100)
        self._tasks.append(asyncio.create_task(self._listen(self._hearing)))

    async def stopped(self, task: Task, *, deadline: float = 10.0) -> dict[str, Any]:
        """Waits until it was told to stop."""
        history = task.order["historyId"]

        def said() -> list[dict[str, Any]]:
            return [one for one in self.told if one["historyId"] == history]

        return (await eventually(said, deadline=deadline, message="it is told to stop"))[0]

    async def _listen(self, ear: Consumer) -> None:
        while deliveries := await ear.receive(10):
            self.told += [json.loads(one.body) for one in deliveries]
            await ear.acknowledge(deliveries)

    async def _beat(self) -> None:
        while True:
            await self.beat()
            await pause(0.2)


async def pause(seconds: float) -> None:
    never = asyncio.Event()
    try:
        async with asyncio.timeout(seconds):
            await never.wait()
    except TimeoutError:
        return


async def queues_gone(plant: Plant, job: JobRow) -> None:
    """Waits until the broker does not know the queues of the job."""
    broker = plant.nodes[0].control

    async def gone() -> bool:
        found = [await broker.message_count(name) for name in (status_queue(job.id), logs_queue(job.id))]
        return found == [None, None]

    await eventually(gone, deadline=10, message="the queues of the job are gone")
