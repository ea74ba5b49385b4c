"""Does a node that may take no jobs take none, whoever else lets it begin again?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any, cast

import pytest

from orchestrix.broker.topology import JOB_ASSIGNED, JOB_HANDOFF, jobs_topology
from orchestrix.errors import Unavailable
from orchestrix.jobs.ownership.handoff_subscriber import JobHandoffSubscriber
from orchestrix.jobs.ownership.owned_jobs import OwnedJobs
from orchestrix.jobs.ownership.reconciler import OwnershipReconciler
from orchestrix.jobs.ownership.self_fencing import SelfFencing
from orchestrix.persistence.engine import Database
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.consumer import MemoryConsumer
from orchestrix.testing.broker.server import MemoryServer
from tests.support import eventually, holds

pytestmark = pytest.mark.virtual_time

NODE = "node-1"
LIMIT = 0.1


class Reading:
    """Holdings, and what reconciles them, that read nothing."""

    def __init__(self) -> None:
        self.epochs: dict[str, int] = {}
        self.trouble: Exception | None = None
        self.left = 0

    async def leave(self, job_ids: object) -> None:
        """There is nothing to leave."""
        self.left += 1
        if self.trouble is not None:
            raise self.trouble

    async def run_once(self) -> None:
        """There is nothing to compare."""


class Slow(MemoryBroker):
    """A broker that subscribes late."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server, topology=jobs_topology(NODE))
        self.may_consume = asyncio.Event()
        self.may_consume.set()
        self.asked = 0

    async def consume(self, *args: Any, **options: Any) -> MemoryConsumer:
        self.asked += 1
        await self.may_consume.wait()
        return await super().consume(*args, **options)


class Rig:
    """A taker, and the broker as it sees it."""

    def __init__(self) -> None:
        self.server = MemoryServer(Random(1))
        self.broker = Slow(self.server)
        self.reading = Reading()
        holdings = cast(OwnedJobs, self.reading)
        self.taker = JobHandoffSubscriber(cast(Database, None), self.broker, holdings, NODE)
        self.trouble: BaseException | None = None
        self.footing = SelfFencing(self.ping, self.taker, holdings, cast(OwnershipReconciler, Reading()), limit=LIMIT)

    async def ping(self) -> None:
        if self.trouble is not None:
            raise self.trouble

    def reads(self) -> tuple[int, int]:
        """How many consumers there are of new jobs, and of offers."""
        counts = [self.server.count(queue) for queue in (JOB_ASSIGNED, JOB_HANDOFF)]
        new, offers = (one[1] if one is not None else -1 for one in counts)
        return new, offers

    async def read(self, *wanted: int) -> None:
        await eventually(lambda: self.reads() == wanted, deadline=5, message=f"{wanted} consumers")

    async def still(self, *wanted: int) -> None:
        await self.read(*wanted)
        await holds(lambda: self.reads() == wanted, during=0.1)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    await rig.broker.start()
    assert await rig.broker.wait_connected(5)
    await rig.taker.start()
    await rig.read(1, 1)
    yield rig
    await rig.footing.stop()
    await rig.taker.stop()
    await rig.broker.stop()


async def test_the_end_of_a_rebalance_takes_nothing_up_that_was_let_go(rig: Rig) -> None:
    await rig.taker.decline()
    await rig.read(1, 0)
    await rig.taker.release()
    await rig.taker.accept()
    await rig.still(0, 0)
    await rig.taker.start()
    await rig.read(1, 1)


async def test_a_database_that_is_back_ends_no_rebalance(rig: Rig) -> None:
    await rig.taker.decline()
    await rig.taker.release()
    await rig.taker.start()
    await rig.still(1, 0)
    await rig.taker.accept()
    await rig.read(1, 1)


async def test_what_was_let_go_while_it_subscribed_is_not_taken_up(rig: Rig) -> None:
    await rig.taker.decline()
    rig.broker.may_consume.clear()
    accepting = asyncio.create_task(rig.taker.accept())
    await eventually(lambda: rig.broker.asked == 3, deadline=5)
    await rig.taker.release()
    rig.broker.may_consume.set()
    await accepting
    await rig.still(0, 0)


async def test_two_that_let_it_begin_at_once_make_one_subscription(rig: Rig) -> None:
    await rig.taker.release()
    rig.broker.may_consume.clear()
    both = [asyncio.create_task(rig.taker.start()) for _ in range(2)]
    await eventually(lambda: rig.broker.asked == 3, deadline=5)
    rig.broker.may_consume.set()
    await asyncio.gather(*both)
    await rig.still(1, 1)


@pytest.mark.parametrize("trouble", [Unavailable("it is away"), OSError("a socket broke"), asyncio.CancelledError()])
async def test_whatever_the_question_raises_is_no_answer(
    rig: Rig, trouble: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.footing.start()
    rig.trouble = trouble
    await rig.read(0, 0)
    rig.trouble = None
    await rig.read(1, 1)
    told = [one.message for one in caplog.records if "counted as no answer" in one.message]
    assert len(told) == (1 if isinstance(trouble, OSError) else 0), told


async def test_a_let_go_that_fails_half_way_is_taken_up_again(rig: Rig) -> None:
    rig.reading.trouble = Unavailable("a channel hangs")
    await rig.footing.start()
    rig.trouble = Unavailable("it is away")
    await eventually(lambda: rig.reading.left > 0, deadline=5)
    await rig.read(0, 0)
    rig.trouble = None
    await rig.read(1, 1)


async def test_a_let_go_that_fails_is_tried_again_while_there_is_no_database(rig: Rig) -> None:
    rig.reading.trouble = Unavailable("a channel hangs")
    await rig.footing.start()
    rig.trouble = Unavailable("it is away")
    await eventually(lambda: rig.reading.left > 1, deadline=5)
    rig.reading.trouble = None
    await eventually(lambda: rig.reading.left > 2, deadline=5)
    await holds(lambda: rig.reading.left == 3, during=2 * LIMIT)
