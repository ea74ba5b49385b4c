"""Do all nodes of a cluster carry jobs, each job at one of them, and do more nodes carry more?"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Queue, Topology
from orchestrix.broker.topology import JOB_HANDOFF, queue_of_work
from orchestrix.domain.handoff import SHUTDOWN
from orchestrix.jobs import events, outbox_rows
from orchestrix.persistence.engine import Database, Transaction
from tests.integration.jobs.plant import Node, Plant
from tests.integration.jobs.test_handing import CALM, LAZY, checked, started
from tests.support import eventually

SHARED, CARRIED = 24, 12
LINES = 10
COMMIT = 0.05
"""Seconds that a commit takes where a database is slow."""


@pytest.mark.req("S0-6", "S0-13", "S0-29")
async def test_every_node_the_leader_too_wins_some_jobs_and_each_job_has_one_of_them(plant: Plant) -> None:
    members = [await plant.node("leader", leads=True, tuned=CALM, cluster=LAZY)]
    members += [await plant.node(name, tuned=CALM, cluster=LAZY) for name in ("second", "third")]
    hand = await plant.worker()
    pairs = await started(plant, hand, SHARED)
    owners = Counter([(await plant.owned(job)).owner for job, _ in pairs])
    assert owners.keys() == {one.name for one in members}
    assert min(owners.values()) >= SHARED // 6, owners
    await eventually(lambda: sum(one.jobs.count for one in members) == SHARED, deadline=5)
    assert {one.name: one.jobs.count for one in members} == owners, "whoever owns a job reads it, and nobody else"
    for _, task in pairs:
        await task.log(f"line {task.seq + 1}")
    await checked(plant, pairs)


@pytest.mark.req("S0-17", "S0-44", "S0-45")
async def test_whoever_takes_a_job_over_says_so_to_the_node_that_gave_it(plant: Plant) -> None:
    giver = await plant.node("giver", leads=True, tuned=CALM, cluster=LAZY)
    hand = await plant.worker()
    [(job, task)] = await started(plant, hand, 1)
    await plant.owned(job, giver)
    plant.nodes.remove(giver)
    await giver.die()
    acknowledgements = f"orchestrix.job.handoff.ack.{giver.name}"
    ear = AmqpBroker(plant.url, name="ear", topology=Topology(queues=(Queue(acknowledgements),)))
    await ear.start()
    assert await ear.wait_connected(10)
    heard = await ear.consume([acknowledgements], 10)
    await ear.declare(queue_of_work(JOB_HANDOFF))
    await ear.publish([outbox_rows.handoff(job.id, giver.name, 1, SHUTDOWN)])
    taker = await plant.node("taker", tuned=CALM, cluster=LAZY)
    async with asyncio.timeout(10):
        [answer] = await heard.receive(1)
    assert json.loads(answer.body) == {"jobId": job.id, "newOwner": taker.name, "ownerEpoch": 2}
    await ear.stop()
    await plant.owned(job, taker)
    await checked(plant, [(job, task)])


class Commits:
    """How many commits each node has made, and how many were under way at once at most."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.opened.set()
        self.of: Counter[str] = Counter()
        self.under_way = self.most = 0

    def restart(self) -> None:
        """Counts anew, and lets none begin until `opened` is set."""
        self.opened.clear()
        self.of.clear()
        self.most = 0


class Slow:
    """A node's database whose commits take their time, as over a long way; each node waits for its own alone."""

    def __init__(self, database: Database, node: str, commits: Commits) -> None:
        self._database, self._node, self._commits = database, node, commits

    async def run(self, work: Callable[[Transaction], Awaitable[Any]]) -> Any:
        commits = self._commits
        await commits.opened.wait()
        commits.of[self._node] += 1
        commits.under_way += 1
        commits.most = max(commits.most, commits.under_way)
        try:
            await asyncio.sleep(COMMIT)
            return await self._database.run(work)
        finally:
            commits.under_way -= 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)


@pytest.mark.req("S0-30")
async def test_more_nodes_carry_more(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node writes one batch after the other, so it has a limit; others have limits of their own."""
    monkeypatch.setattr(events, "MESSAGES_PER_TRANSACTION", 10)
    nodes: list[Node] = []
    commits = Commits()
    longest: dict[int, int] = {}
    for size in (1, 3):
        while len(nodes) < size:
            nodes.append(await plant.node(f"n{len(nodes)}", leads=not nodes, tuned=CALM, cluster=LAZY))
            slow = Slow(plant.database, nodes[-1].name, commits)
            nodes[-1].jobs.events._database = slow  # type: ignore[assignment]
        longest[size] = await _written(plant, f"w-{size}", commits)
        assert commits.most == size, "each node makes one after the other, and does not wait for the others"
    assert longest[3] < 0.7 * longest[1], longest


async def _written(plant: Plant, name: str, commits: Commits) -> int:
    """How many commits one node makes, the one with most, until all that workers have said is in the database."""
    hand = await plant.worker(name)
    pairs = await started(plant, hand, CARRIED)
    commits.restart()
    await asyncio.gather(*(task.log(*(f"line {n}" for n in range(LINES))) for _, task in pairs))
    commits.opened.set()

    async def all_there() -> bool:
        return [len(await plant.logs(job)) for job, _ in pairs] == [LINES] * CARRIED

    await eventually(all_there, deadline=30, every=0.02)
    needed = max(commits.of.values())
    await hand.rest()
    await asyncio.gather(*(task.succeed() for _, task in pairs))
    for job, _ in pairs:
        await plant.cleared(job)
    return needed
