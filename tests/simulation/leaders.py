"""Is there one leader a term, and always one in the end, over one seed's worth of bad days?

    .venv/bin/python -m tests.simulation.leaders --seed 123 --trace

runs that seed again, exactly as it was, and shows what happened. Only the election is simulated, over a row in memory:
so a seed takes milliseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random

from orchestrix import clock
from orchestrix.broker.topology import cluster_topology
from orchestrix.cluster import leadership
from orchestrix.cluster.leadership import Leadership
from orchestrix.domain.leases import NOBODY, Fence, LeaderMode
from orchestrix.lifecycle import Loop
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop, VirtualProcess, elapse
from tests.simulation.ears import heard
from tests.simulation.realm import Member, Realm, Witness
from tests.simulation.replay import replay
from tests.simulation.row import Row, RowSeat
from tests.simulation.unrest import KINDS as COMMON
from tests.simulation.unrest import Deed, Fault, Nemesis, Outcome, days

LEASE, RENEW = 6.0, 2.0
DURATION = 25.0
LONGEST = 12.0
SETTLE = 25.0
"""Seconds after the last fault in which somebody leads, with a token and a link."""
REST = 15.0
"""Seconds for which he then stays."""


class Elector(Member):
    """A node that takes part in the election, and writes while it leads."""

    realm: Election
    leadership: Leadership | None = None

    @property
    def fence(self) -> Fence | None:
        return self.leadership.fence if self.leadership is not None else None

    async def live(self, process: VirtualProcess) -> None:
        broker = self.link(process.name)
        seat = RowSeat(self.realm.lease, process.name, LEASE)
        duties = [lambda fence: Scribe(seat, fence)]
        self.leadership = Leadership(seat, broker, process.name, duties, lease=LEASE, renew=RENEW)
        await broker.start()
        await self.leadership.start()
        await self.stopping.wait()
        await self.leadership.stop()
        await broker.stop()


class Scribe:
    """The leader's duty: writes, and knows nothing of any election."""

    def __init__(self, seat: RowSeat, fence: Fence) -> None:
        self._seat, self._fence = seat, fence
        self._loop = Loop("scribe", self._round)

    async def start(self) -> None:
        """Begins."""
        await self._loop.start()

    async def stop(self) -> None:
        """Stops."""
        await self._loop.stop()

    async def _round(self) -> None:
        await self._seat.write(self._fence)
        await elapse(0.7)


class Election(Realm):
    """Three electors and a row."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        super().__init__(seed, loop, Witness())
        disk = self.dice("disk")
        self.lease = Row(lambda: disk.uniform(0.0, 0.01))
        self.lease.began, self.lease.written = self.witness.began, self.witness.written
        self.members += [Elector(self, f"n{place}") for place in range(3)]

    def broker(self, name: str) -> MemoryBroker:
        return MemoryBroker(self.server, topology=cluster_topology(name))

    def row(self) -> tuple[Fence, LeaderMode] | None:
        found = self.lease.lease
        return None if found.holder == NOBODY else (found.fence, found.mode)

    def database_fails(self) -> None:
        self.lease.fail()

    def database_recovers(self) -> None:
        self.lease.up = True

    def lose_commits(self, fate: Callable[[], bool | None]) -> None:
        self.lease.commit_lost = fate


class Catcher(Nemesis):
    """Also knows when somebody has the row."""

    realm: Election

    def freeze_writing(self, fault: Fault, member: Member) -> None:
        """With the row in its hands, the next time that it has it."""
        process = member.process

        def caught(whose: VirtualProcess) -> None:
            if whose is process:
                self.realm.lease.caught = lambda whose: None
                self.freeze(fault, member)

        self.realm.lease.caught = caught

    def calm(self) -> None:
        super().calm()
        self.realm.lease.caught = lambda whose: None


def _freeze_writing(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    assert isinstance(nemesis, Catcher)
    nemesis.freeze_writing(fault, member)


KINDS: dict[str, Deed] = {**COMMON, "freeze writing": _freeze_writing}


def run(seed: int) -> Outcome:
    """One seed."""
    loop = VirtualLoop()
    with clock.use(VirtualClock(loop, Random(f"{seed}:clock"))), _often():
        realm = loop.run_until_complete(_realm(seed, loop))
        nemesis = Catcher(realm, KINDS, duration=DURATION, longest=LONGEST)
        with heard(realm.witness, loop):
            try:
                loop.run_until_complete(days(realm, nemesis, settle=SETTLE, rest=REST))
            finally:
                realm.witness.is_over = True
                loop.discard()
                loop.close()
    plan = [str(one) for one in realm.plan]
    return Outcome(seed, realm.witness.wrong, realm.witness.trace, plan, "tests.simulation.leaders")


async def _realm(seed: int, loop: VirtualLoop) -> Election:
    return Election(seed, loop)


@contextmanager
def _often() -> Iterator[None]:
    """A leader replaces its token every few seconds."""
    before, leadership.TOKEN_REFRESH_INTERVAL_S = leadership.TOKEN_REFRESH_INTERVAL_S, 8.0  # type: ignore[misc]
    try:
        yield
    finally:
        leadership.TOKEN_REFRESH_INTERVAL_S = before  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(replay("Simulates elections over bad days.", run))
