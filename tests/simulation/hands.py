"""Who does the jobs of a simulation, and does not always come to a good end?"""

from __future__ import annotations

from random import Random
from typing import Any, Final

from orchestrix import JobContext, Transient
from orchestrix.broker.port import Topology
from orchestrix.broker.topology import STOPS, queues_of_work
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.simulation.inline_sqlite import SqliteClient, SqliteFile
from orchestrix.testing.simulation.virtual_time import VirtualProcess, elapse
from orchestrix.worker.jobs.functions import JobFunction, JobTable
from orchestrix.worker.jobs.runner import JobRunner
from orchestrix.worker.jobs.state_guard import JobStateGuard
from tests.simulation.realm import Member, Realm

QUEUE: Final = "reports"


class WorkerMember(Member):
    """A worker of jobs."""

    fence = None

    def __init__(self, realm: Realm, name: str, file: SqliteFile) -> None:
        super().__init__(realm, name)
        self._file = file

    async def live(self, process: VirtualProcess) -> None:
        client = SqliteClient(self._file)
        process.on_death.append(client.disconnect)
        database = client.database()
        broker = MemoryBroker(self.realm.server, topology=queues_of_work(Topology()) + STOPS)
        process.on_death.append(broker.disconnect)
        self.brokers.append(broker)
        work = Work(self.realm.dice(f"work of {process.name}"))
        table = JobTable([JobFunction("report", QUEUE, work.report, 3.0)])
        guard = JobStateGuard(database, process.name, 6.0)
        runner = JobRunner(
            broker, table, [], guard.check, worker_id=process.name, slots=4, stop_timeout=2.0, heartbeat_s=2.0
        )
        await broker.start()
        await runner.start()
        await self.stopping.wait()
        await runner.stop()
        await broker.stop()
        await database.close()


class Work:
    """What the workers do: talks, and does not always come to a good end."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice

    async def report(self, context: JobContext) -> dict[str, Any]:
        """Logs so many lines, and tells how many."""
        dice, fate = self._dice, self._dice.random()
        count = dice.randrange(0, 25)
        for number in range(count):
            await context.log(f"line {number}")
            if dice.random() < 0.3:
                await context.progress({"line": number})
            await elapse(dice.uniform(0.0, 0.6))
            context.raise_if_cancelled()
        if fate > 0.9:
            raise Transient("Busy", "no paper")
        if fate > 0.85:
            await elapse(20.0)
        return {"lines": count}
