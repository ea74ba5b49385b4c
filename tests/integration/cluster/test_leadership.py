"""Does the lead change hands over a real broker as fast as it should, and never without need?"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.topology import LEADER, cluster_topology
from orchestrix.cluster import leadership as leaderships
from orchestrix.cluster.election_tokens import token_message
from orchestrix.cluster.leadership import Leadership
from orchestrix.cluster.lease_store import DatabaseLeaseStore
from orchestrix.domain.leases import INITIAL_TOKEN, Fence, LeaderMode, LeaderToken
from orchestrix.errors import Unavailable
from orchestrix.persistence.cluster import leases
from orchestrix.persistence.engine import Database
from tests.support import eventually, holds, stand_still


@dataclass
class Duty:
    """What the leader does: says that it does."""

    fence: Fence
    running: list[Fence]

    async def start(self) -> None:
        self.running.append(self.fence)

    async def stop(self) -> None:
        if self.fence in self.running:
            self.running.remove(self.fence)


@dataclass
class Candidate:
    """One node's part in the election."""

    node_id: str
    broker: AmqpBroker
    leadership: Leadership
    running: list[Fence] = field(default_factory=list)
    let: asyncio.Event | None = None

    @property
    def leads(self) -> bool:
        return self.leadership.fence is not None and self.running == [self.leadership.fence]


@dataclass
class Stubborn(Duty):
    """A duty that does not stop, whatever is done to it, before it is let."""

    let: asyncio.Event

    async def stop(self) -> None:
        while not self.let.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.let.wait()
        await super().stop()


class Election:
    """Nodes over one broker and one database."""

    def __init__(self, url: str, database: Database) -> None:
        self._url, self.database = url, database
        self.candidates: list[Candidate] = []

    async def add(
        self,
        node_id: str,
        lease: float = 30.0,
        renew: float = 10.0,
        let: asyncio.Event | None = None,
        *,
        linked: bool = True,
    ) -> Candidate:
        """A node whose duty does not stop before it is `let`, if that is given; `linked` from the beginning, or not."""
        broker = AmqpBroker(self._url, name=node_id, topology=cluster_topology(node_id))
        running: list[Fence] = []

        def duty(fence: Fence) -> Duty:
            return Duty(fence, running) if let is None else Stubborn(fence, running, let)

        seat = DatabaseLeaseStore(self.database, node_id, lease)
        leadership = Leadership(seat, broker, node_id, [duty], lease=lease, renew=renew)
        made = Candidate(node_id, broker, leadership, running, let)
        self.candidates.append(made)
        if linked:
            await broker.start()
            assert await broker.wait_connected(10)
        await leadership.start()
        return made

    async def led(self, by: Candidate | None = None, *, deadline: float = 5.0) -> Candidate:
        """Waits until somebody leads (`by`, if given)."""

        def leader() -> Candidate | None:
            found = [one for one in self.candidates if one.leads and by in (None, one)]
            return found[0] if found else None

        found = await eventually(leader, deadline=deadline, every=0.005, message="somebody leads")
        assert found is not None
        return found

    async def handovers(self) -> list[leases.Handover]:
        async with self.database.read() as connection:
            return await leases.last_handovers(connection, 100)

    async def stop(self) -> None:
        for one in self.candidates:
            if one.let is not None:
                one.let.set()
            await one.leadership.stop()
            await one.broker.stop()


@pytest.fixture
async def election(broker_url: str, database: Database) -> AsyncIterator[Election]:
    made = Election(broker_url, database)
    yield made
    await made.stop()


@asynccontextmanager
async def timed(limit: float) -> AsyncIterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < limit


@pytest.mark.req("S0-2")
async def test_one_of_three_leads_and_stays(election: Election) -> None:
    for node_id in ("a-1", "b-1", "c-1"):
        await election.add(node_id)
    leader = await election.led()
    assert leader.leadership.fence == Fence(1, leader.node_id)
    await holds(lambda: [one for one in election.candidates if one.leads] == [leader], during=1.5)
    (only,) = await election.handovers()
    assert (only.reason, only.mode, only.from_holder) == ("first", LeaderMode.BROKER, None)
    assert only.ended_at is not None


@pytest.mark.req("DC-7")
async def test_who_resigns_has_a_successor_at_once(election: Election) -> None:
    first = await election.add("a-1")
    await election.led(first)
    second = await election.add("b-1")
    async with timed(1.5):
        await first.leadership.stop()
        assert first.running == []
        await election.led(second)
    assert (await election.handovers())[0].reason == "resigned"


@pytest.mark.req("DC-7")
async def test_a_duty_that_does_not_stop_keeps_neither_the_successor_nor_the_end_waiting(
    election: Election, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leaderships, "DUTIES_ABANDON_TIMEOUT_S", 0.5)
    let = asyncio.Event()
    first = await election.add("a-1", let=let)
    await election.led(first)
    second = await election.add("b-1")
    ending = asyncio.create_task(first.leadership.stop())
    async with timed(3.0):
        await election.led(second)
    async with timed(6.0):
        await asyncio.wait_for(ending, 6.0)
    assert (await election.handovers())[0].reason == "resigned"
    assert "leader duties of term 1 did not stop in time and are abandoned" in caplog.text
    let.set()
    await eventually(lambda: first.running == [], deadline=5, message="it ends when it is let")


async def test_a_node_with_a_duty_that_does_not_stop_stands_in_line_again(
    election: Election, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaderships, "DUTIES_ABANDON_TIMEOUT_S", 0.2)
    let = asyncio.Event()
    only = await election.add("a-1", let=let)
    await election.led(only)
    await only.broker.delete(LEADER)
    await eventually(lambda: len(only.running) == 2, deadline=20, message="it leads anew")
    assert only.running == [Fence(1, "a-1"), Fence(2, "a-1")]
    let.set()


@pytest.mark.req("DC-7", "S0-72")
async def test_who_loses_its_link_has_a_successor_at_once(election: Election) -> None:
    first = await election.add("a-1")
    await election.led(first)
    second = await election.add("b-1")
    async with timed(3.0):
        await first.broker.stop()
        assert first.leadership.fence is None
        await election.led(second)
    handover = (await election.handovers())[0]
    assert (handover.reason, handover.from_holder) == ("lost", "a-1")


async def test_a_token_that_is_lost_with_its_queue_is_made_anew(election: Election) -> None:
    only = await election.add("a-1")
    await election.led(only)
    await only.broker.delete(LEADER)
    await eventually(lambda: not only.leads, deadline=2, message="it leads no more")
    await election.led(only, deadline=20)
    assert [one.reason for one in await election.handovers()] == ["retaken", "first"]
    count = await only.broker.message_count(LEADER)
    assert count is not None
    assert count[1] == 1


async def test_a_token_that_is_lost_under_who_leads_alone_is_made_anew(
    election: Election, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who began without a link leads alone until it can renew its lease with one, whatever becomes of the queue."""
    lonely = await election.add("a-1", linked=False)
    await election.led(lonely, deadline=45)

    async def away(*_lease: object) -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(lonely.leadership._lease_store, "renew", away)
    await lonely.broker.start()
    assert await lonely.broker.wait_connected(10)

    async def sent() -> bool:
        return lonely.leadership._term is not None and lonely.leadership._term.token_published

    await eventually(sent, deadline=6, message="there is a token")
    await lonely.broker.delete(LEADER)

    async def there() -> bool:
        return await lonely.broker.message_count(LEADER) is not None

    await eventually(there, deadline=5, message="the queue is there again")
    await holds(lambda: lonely.leads, during=3)
    await lonely.leadership.stop()

    async def left() -> bool:
        return await lonely.broker.message_count(LEADER) == (1, 0)

    await eventually(left, deadline=5, message="it leaves a token to whoever comes")


async def test_copies_of_tokens_disturb_nobody(election: Election) -> None:
    only = await election.add("a-1")
    await election.led(only)
    await only.broker.publish([token_message(LeaderToken(1, "a-1")), token_message(INITIAL_TOKEN)])
    await holds(lambda: only.leads, during=1.0)
    assert len(await election.handovers()) == 1


async def test_who_has_slept_past_its_lease_sees_its_write_refused(
    election: Election, caplog: pytest.LogCaptureFixture
) -> None:
    only = await election.add("a-1", lease=2.0, renew=0.9)
    await election.led(only)

    async def written() -> bool:
        return (await election.handovers())[0].ended_at is not None

    await eventually(written, deadline=5, message="its first write is over, and the next one not due")
    losing = asyncio.create_task(only.broker.stop())  # the first that it notices is that its link is gone
    stand_still(2.2)
    with sqlite3.connect(str(election.database.url.database)) as file:
        file.execute("UPDATE leases SET term = 2, holder = 'b-1'")
    file.close()
    await losing
    await eventually(lambda: "nothing was written" in caplog.text, deadline=5)
    assert "a-1 wrote as leader of term 1" in caplog.text
