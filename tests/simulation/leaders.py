"""Is there one leader a term, and always one in the end, over one seed's worth of bad days?

    .venv/bin/python -m tests.simulation.leaders --seed 123 --trace

runs that seed again, exactly as it was, and shows what happened. Only the election is simulated, over a row in memory:
so a seed takes milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from app import clock
from app.broker.port import Delivery, Outgoing
from app.broker.topology import LEADER, cluster_topology
from app.cluster import leadership
from app.cluster.leadership import Leadership
from app.domain.leases import Fence, Mode
from app.lifecycle import Loop
from app.testing.memory_broker import MemoryServer
from app.testing.memory_client import MemoryBroker
from app.testing.virtual_time import Process, VirtualLoop, VirtualSource, current_process, elapse
from tests.simulation.ears import heard
from tests.simulation.row import Row, RowSeat

LEASE, RENEW = 6.0, 2.0
DURATION = 25.0
"""Seconds in which faults begin."""
SETTLE = 25.0
"""Seconds after the last fault in which somebody leads, with a token and a link."""
REST = 15.0
"""Seconds for which he then stays."""
LOOK = 0.5


class Witness:
    """Sees every term and every write as it is committed, and every token."""

    def __init__(self) -> None:
        self.is_over = False
        self.wrong: list[str] = []
        self.trace: list[str] = []
        self.terms: list[Fence] = []
        self.minted: Counter[Fence | None] = Counter()

    def note(self, what: str) -> None:
        """One more line of the trace."""
        if self.is_over:
            return
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {what}")

    def complain(self, what: str) -> None:
        """Something is wrong."""
        if self.is_over:
            return
        self.note(f"WRONG {what}")
        self.wrong.append(what)

    def began(self, fence: Fence, mode: Mode) -> None:
        """A term is committed."""
        self.note(f"term {fence.term} {fence.holder} {mode}")
        if self.terms and fence.term <= self.terms[-1].term:
            self.complain(f"I6: term {fence.term} of {fence.holder} began after {self.terms[-1]}")
        self.terms.append(fence)

    def written(self, fence: Fence) -> None:
        """A leader's write is committed."""
        self.note(f"write {fence.term} {fence.holder}")
        if not self.terms or self.terms[-1] != fence:
            self.complain(f"I6: a write of {fence} was committed after {self.terms[-1:]} began")

    def published(self, message: Outgoing, queues: Sequence[str]) -> None:
        if message.routing_key == LEADER:
            token = json.loads(message.body)
            self.minted[Fence(token["term"], token["nodeId"])] += bool(queues)
            self.note(f"token {message.body.decode()} to {','.join(queues) or 'nobody'}")

    def acknowledging(self, delivery: Delivery) -> None:
        process = current_process()
        if delivery.queue != LEADER or process is None:
            return
        token = json.loads(delivery.body) if delivery.body.startswith(b'{"') else {}
        self.note(f"{process.name} acknowledges {delivery.body.decode()}")
        mine = next((fence for fence in reversed(self.terms) if fence.holder == process.name), None)
        own = mine is not None and token == {"term": mine.term, "nodeId": mine.holder}
        if self.minted[mine] <= own:
            self.complain(f"{process.name} acknowledged a token before there was one of its own term")


class Member:
    """A node that can die and come again, each time as another."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.boots = world, name, 0
        self.process = world.loop.process(name)
        self.process.alive = False
        self.broker: MemoryBroker | None = None
        self.leadership: Leadership | None = None
        self.stopping = asyncio.Event()

    def boot(self) -> None:
        """Starts it, unless it runs."""
        if self.process.alive or self.world.ending:
            return
        self.boots += 1
        self.process = process = self.world.loop.process(f"{self.name}.{self.boots}")
        self.world.witness.note(f"{process.name} boots")
        self.stopping, self.leadership = asyncio.Event(), None
        task = process.spawn(self._live(process))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.world.witness.complain(f"{self.name} ended with {error!r}")

    def restart(self, after: float) -> None:
        """Starts it again in a while."""
        self.world.loop.call_later(after, self.boot)

    async def _live(self, process: Process) -> None:
        def died() -> None:
            self.world.witness.note(f"{process.name} dies at step {process.steps}")

        process.on_death.append(died)
        self.broker = broker = MemoryBroker(self.world.server, topology=cluster_topology(process.name))
        process.on_death.append(broker.sever)
        seat = RowSeat(self.world.row, process.name, LEASE)
        duties = [lambda fence: Scribe(seat, fence)]
        self.leadership = Leadership(seat, broker, process.name, duties, lease=LEASE, renew=RENEW)
        await broker.start()
        await self.leadership.start()
        await self.stopping.wait()
        await self.leadership.stop()
        await broker.stop()
        self.world.witness.note(f"{process.name} ends in good order")
        process.on_death.remove(died)
        process.kill()


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


class World:
    """Everything outside the processes. `dice(name)` are chance of their own for each use, all from one seed."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.seed, self.loop = seed, loop
        self.witness = Witness()
        wire, disk = self.dice("wire"), self.dice("disk")
        self.server = MemoryServer(wire, pace=lambda: wire.uniform(0.0002, 0.01))
        self.server.taps.append(self.witness)
        self.row = Row(lambda: disk.uniform(0.0, 0.01))
        self.row.began, self.row.written = self.witness.began, self.witness.written
        self.members = [Member(self, f"n{place}") for place in range(3)]
        self.ending = False
        self.plan: Sequence[Fault] = ()

    def dice(self, name: str) -> Random:
        """Dice for one use."""
        return Random(f"{self.seed}:{name}")

    def leader(self) -> Member | None:
        """Who is in the row and knows it."""
        for member in self.members:
            if member.process.alive and member.leadership and member.leadership.fence == self.row.lease.fence:
                return member
        return None


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at` seconds, `kind` happens to `target` for `seconds`; `share` is its chance."""

    at: float
    kind: str
    target: int
    seconds: float
    share: float

    def __str__(self) -> str:
        return f"{self.at:6.3f} s  {self.kind:<12} member {self.target}  {self.seconds:.3f} s  {self.share:.3f}"


class Nemesis:
    """Does the faults of its plan, and undoes in `heal` what has not ended by itself."""

    def __init__(self, world: World) -> None:
        self._world = world
        dice = world.dice("nemesis")
        self.plan = sorted((self._draw(dice) for _ in range(dice.randrange(1, 9))), key=lambda fault: fault.at)

    def _draw(self, dice: Random) -> Fault:
        kind, target = dice.choice(sorted(KINDS)), dice.randrange(0, 4)
        return Fault(dice.uniform(0.0, DURATION), kind, target, dice.uniform(0.2, 12.0), dice.random())

    async def run(self) -> None:
        """The bad days."""
        begun = self._world.loop.time()
        for fault in self.plan:
            await elapse(begun + fault.at - self._world.loop.time())
            self._world.witness.note(f"fault {fault}")
            KINDS[fault.kind](self, fault, self._target(fault))
        # The broker may still believe in a connection that is cut.
        ends = max([DURATION, *(fault.at + fault.seconds + 1.0 for fault in self.plan if fault.kind == "cut")])
        await elapse(max(0.0, begun + ends - self._world.loop.time()))

    def _target(self, fault: Fault) -> Member:
        """Often whoever leads."""
        leader = self._world.leader()
        return leader if fault.target == 3 and leader is not None else self._world.members[fault.target % 3]

    def heal(self) -> None:
        """From now on nothing goes wrong, and everybody lives."""
        self._world.witness.note("heal")
        self._calm()
        self._world.row.up = True
        self._world.server.start()
        if self._world.server.alarm:
            self._world.server.clear_alarm()
        for member in self._world.members:
            self._thaw(member)
            member.process.kill_after(sys.maxsize)

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._world.loop.call_later(seconds, what)

    def _kill(self, fault: Fault, member: Member) -> None:
        """Dies at any step of the next ones."""
        process = member.process
        process.on_death.append(lambda: member.restart(fault.seconds))
        process.kill_after(1 + int(fault.share**2 * 150))

    def _stop(self, fault: Fault, member: Member) -> None:
        member.process.on_death.append(lambda: member.restart(fault.seconds))
        member.stopping.set()

    def _freeze(self, fault: Fault, member: Member) -> None:
        process, broker = member.process, member.broker
        process.freeze()
        if broker is not None and fault.share < 0.6:
            broker.cut(0.0, min(fault.seconds, 4.0))
        self._later(fault.seconds, lambda: self._thaw(member) if process is member.process else None)

    def _freeze_writing(self, fault: Fault, member: Member) -> None:
        """With the row in its hands, the next time that it has it."""
        process = member.process

        def caught(whose: Process) -> None:
            if whose is process:
                self._world.row.caught = lambda whose: None
                self._freeze(fault, member)

        self._world.row.caught = caught

    def _thaw(self, member: Member) -> None:
        if member.process.frozen:
            self._world.witness.note(f"{member.process.name} thaws")
            member.process.thaw()

    def _cut(self, fault: Fault, member: Member) -> None:
        if member.broker is not None:
            late = fault.seconds if fault.share < 0.5 else 0.0
            member.broker.cut(late * fault.share, late)

    def _broker(self, fault: Fault, member: Member) -> None:
        self._world.server.stop()
        if fault.share < 0.4:
            self._world.server.forget()
        self._later(fault.seconds, self._world.server.start)

    def _alarm(self, fault: Fault, member: Member) -> None:
        if self._world.server.up:
            self._world.server.raise_alarm("memory alarm")
            self._later(fault.seconds, self._world.server.clear_alarm)

    def _queue(self, fault: Fault, member: Member) -> None:
        self._world.server.delete(LEADER)

    def _database(self, fault: Fault, member: Member) -> None:
        self._world.row.fail()
        self._later(fault.seconds, lambda: setattr(self._world.row, "up", True))

    def _commits(self, fault: Fault, member: Member) -> None:
        dice = self._world.dice(f"commits {fault.at}")
        self._world.row.commit_lost = lambda: dice.random() < 0.5 if dice.random() < 0.3 else None
        self._later(fault.seconds, self._calm)

    def _weather(self, fault: Fault, member: Member) -> None:
        """Tokens come late and twice, and somebody else's are among them."""
        dice, server = self._world.dice(f"weather {fault.at}"), self._world.server
        server.held_back = lambda queue: dice.uniform(0.0, 2.0) if dice.random() < 0.3 else 0.0
        server.copied_after = lambda queue: dice.uniform(0.0, 15.0) if dice.random() < 0.5 else None
        self._later(fault.seconds * 2, self._calm)

    def _stranger(self, fault: Fault, member: Member) -> None:
        term = int(fault.share * 12)
        body = json.dumps({"term": term, "nodeId": "n0.1"}) if fault.share < 0.8 else "{no token"
        self._world.witness.minted[Fence(term, "n0.1")] += 1
        self._world.server.put(LEADER, Outgoing("", LEADER, body.encode(), clock.uuid7()))

    def _calm(self) -> None:
        server = self._world.server
        server.held_back, server.copied_after = (lambda queue: 0.0), (lambda queue: None)
        self._world.row.commit_lost, self._world.row.caught = (lambda: None), (lambda whose: None)


KINDS: dict[str, Callable[[Nemesis, Fault, Member], None]] = {
    "kill": Nemesis._kill,
    "kill too": Nemesis._kill,
    "stop": Nemesis._stop,
    "freeze": Nemesis._freeze,
    "freeze writing": Nemesis._freeze_writing,
    "cut": Nemesis._cut,
    "broker": Nemesis._broker,
    "alarm": Nemesis._alarm,
    "queue": Nemesis._queue,
    "database": Nemesis._database,
    "commits": Nemesis._commits,
    "weather": Nemesis._weather,
    "stranger": Nemesis._stranger,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to."""

    seed: int
    wrong: list[str]
    trace: list[str]
    plan: list[str]

    @property
    def digest(self) -> str:
        """A fingerprint of everything that happened."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def __str__(self) -> str:
        wrong = "\n".join(f"  {one}" for one in self.wrong[:10])
        plan = "\n".join(f"  {one}" for one in self.plan)
        again = f".venv/bin/python -m tests.simulation.leaders --seed {self.seed} --trace"
        return f"seed {self.seed}:\n{wrong}\nits bad days:\n{plan}\nsee it again:\n  {again}"


def run(seed: int) -> Outcome:
    """One seed."""
    loop = VirtualLoop()
    with clock.use(VirtualSource(loop, Random(f"{seed}:clock"))), _often():
        world = loop.run_until_complete(_world(seed, loop))
        with heard(world.witness, loop):
            try:
                loop.run_until_complete(_days(world))
            finally:
                world.witness.is_over = True
                loop.bury()
                loop.close()
    return Outcome(seed, world.witness.wrong, world.witness.trace, [str(one) for one in world.plan])


async def _world(seed: int, loop: VirtualLoop) -> World:
    return World(seed, loop)


@contextmanager
def _often() -> Iterator[None]:
    """A leader replaces its token every few seconds."""
    before, leadership.REMINT = leadership.REMINT, 8.0  # type: ignore[misc]
    try:
        yield
    finally:
        leadership.REMINT = before  # type: ignore[misc]


async def _days(world: World) -> None:
    nemesis, dice = Nemesis(world), world.dice("system")
    world.plan = nemesis.plan
    for member in world.members:
        world.loop.call_later(dice.uniform(0.0, 1.0), member.boot)
    await nemesis.run()
    nemesis.heal()
    if not await _until(lambda: _everybody_is_there(world), 20.0):
        world.witness.complain("somebody neither stopped nor started")
    await _settle(world)
    world.ending = True
    for member in world.members:
        member.stopping.set()
    await _until(lambda: not any(member.process.alive for member in world.members), 20.0)
    for member in world.members:
        if member.process.alive:
            world.witness.complain(f"{member.process.name} did not stop")


async def _settle(world: World) -> None:
    """Somebody leads in the end, with a link and a token, alone, and stays."""
    await elapse(SETTLE)
    if not _is_settled(world):
        world.witness.complain(f"L3: nobody leads well {SETTLE:g} s after the last fault: {world.row.lease}")
        return
    terms = len(world.witness.terms)
    await elapse(REST)
    if len(world.witness.terms) != terms or not _is_settled(world):
        world.witness.complain(f"L4: an undisturbed leader did not stay: {world.row.lease}")


def _everybody_is_there(world: World) -> bool:
    for member in world.members:
        member.boot()
    return all(member.process.alive and not member.stopping.is_set() for member in world.members)


def _is_settled(world: World) -> bool:
    leaders = [one for one in world.members if one.leadership is not None and one.leadership.fence is not None]
    good = world.row.lease.mode is Mode.BROKER and world.server.depth(LEADER) > 0
    return good and leaders == [world.leader()]


async def _until(condition: Callable[[], bool], seconds: float) -> bool:
    ends = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > ends:
            return False
        await elapse(LOOK)
    return True


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Simulates elections over bad days.")
    parser.add_argument("--seed", type=int, required=True, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there")
    parser.add_argument("--trace", action="store_true", help="show all that happens")
    asked = parser.parse_args()
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.count):
        outcome = run(seed)
        failed += bool(outcome.wrong)
        if asked.trace:
            print("\n".join(outcome.trace))
        if asked.trace or outcome.wrong:
            print(outcome)
            print(outcome.digest)
    print(f"{asked.count} seeds, {failed} of them wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
