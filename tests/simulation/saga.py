"""Do sagas keep their promises over one seed's worth of bad days?

    .venv/bin/python -m tests.simulation.saga --seed 123 --trace

runs that seed again, exactly as it was, and shows what happened.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import logging
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from orchestrix import clock
from orchestrix.persistence.schema import migrator
from orchestrix.saga.definition import Saga
from orchestrix.testing.simulation.virtual_time import LoopStalled, VirtualClock, VirtualLoop, elapse
from tests import tally
from tests.simulation.nemesis import DURATION, Nemesis
from tests.simulation.system import Client, Ears, NodeMember, Operator, WorkerMember, World
from tests.simulation.witness import TRIGGER

PATIENCE = 900.0
"""Virtual seconds in which everything must have ended after the last fault."""
STOPPING = 60.0
LOOK = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to. `virtual` is how many seconds went by."""

    seed: int
    wrong: list[str]
    trace: list[str]
    plan: list[str]
    virtual: float
    module: str = "tests.simulation.saga"

    @property
    def digest(self) -> str:
        """A fingerprint of everything that happened."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def __str__(self) -> str:
        wrong = "\n".join(f"  {one}" for one in self.wrong[:10])
        plan = "\n".join(f"  {one}" for one in self.plan)
        again = f".venv/bin/python -m {self.module} --seed {self.seed} --trace"
        return f"seed {self.seed}:\n{wrong}\nits bad days:\n{plan}\nsee it again:\n  {again}"


class Simulation:
    """Runs seeds, each in a world of its own, from one migrated database."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._template = folder / "template.db"
        asyncio.run(migrator.upgrade(f"sqlite+aiosqlite:///{self._template}"))
        raw = sqlite3.connect(self._template)
        raw.execute(TRIGGER)
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()

    def run(self, seed: int, kind: type[World] = World) -> Outcome:
        """One seed, in a world of that kind."""
        loop = VirtualLoop()
        with clock.use(VirtualClock(loop, Random(f"{seed}:clock"))):
            world = loop.run_until_complete(self._world(seed, loop, kind))
            try:
                with _heard(world):
                    plan = loop.run_until_complete(_days(world))
            finally:
                with _heard(world):
                    world.witness.is_over = True
                    loop.discard()
                loop.close()
                world.close()
                for file in self._folder.glob(f"{seed}.db*"):
                    file.unlink()
        witness = world.witness
        tally.saw("sagas", witness.judged, part=f"{kind.__name__} {seed}")
        return Outcome(seed, witness.wrong, witness.trace, plan, loop.time() - 1000.0, kind.module)

    async def _world(self, seed: int, loop: VirtualLoop, kind: type[World]) -> World:
        return kind(seed, loop, self._folder, self._template)


async def _days(world: World) -> list[str]:
    dice = world.dice("system")
    nodes = 3 if dice.random() < 0.15 else 2
    world.members += [NodeMember(world, f"node-{n}") for n in range(nodes)]
    world.members += [WorkerMember(world, f"worker-{n}") for n in range(2)]
    nemesis = Nemesis(world)
    for member in world.members:
        world.loop.call_later(dice.uniform(0.0, 1.0), member.boot)
    clients = [asyncio.ensure_future(_client(world, dice, n)) for n in range(dice.randrange(2, 6))]
    operator = Operator(world)
    meddling = asyncio.ensure_future(operator.meddle(DURATION * 1.5)) if dice.random() < 0.6 else None
    await nemesis.run()
    nemesis.heal()
    await world.change_hands()
    if meddling is not None:
        await meddling
    await _settle(world, clients, operator)
    world.witness.judge(world.sagas)
    return [str(fault) for fault in nemesis.plan]


async def _client(world: World, dice: Random, place: int) -> None:
    saga: Saga = world.sagas[place % len(world.sagas)]
    name = f"n{place}" if dice.random() < 0.8 else "n0"
    keyed = dice.random() < 0.3 and name != "n0"
    await elapse(dice.uniform(0.0, DURATION * 0.8))
    await Client(world, saga, name, keyed=keyed).run()


async def _settle(world: World, clients: Sequence[asyncio.Future[None]], operator: Operator) -> None:
    """Waits until all has ended, then stops everybody in good order."""
    ends = world.loop.time() + PATIENCE
    while not (all(client.done() for client in clients) and _is_quiet(world)):
        if world.loop.time() > ends:
            world.witness.complain(f"I2: not quiet {PATIENCE:g} s after the last fault")
            return
        await operator.tidy()
        await elapse(LOOK)
    for client in clients:
        client.result()
    world.witness.note("quiet")
    world.ending = True
    for member in world.members:
        member.stopping.set()
    ends = world.loop.time() + STOPPING
    while any(member.process.alive for member in world.members):
        if world.loop.time() > ends:
            alive = [member.process.name for member in world.members if member.process.alive]
            world.witness.complain(f"{', '.join(alive)} did not stop within {STOPPING:g} s")
            return
        await elapse(LOOK)


def _is_quiet(world: World) -> bool:
    working = (*world.catalog.commands, *world.catalog.event_queues)
    return not any(world.server.depth(queue) for queue in working) and world.witness.is_quiet()


@contextmanager
def _heard(world: World) -> Iterator[None]:
    """What the product logs, and what nobody has caught, comes to the witness."""
    ears, log = Ears(world.witness), logging.getLogger("orchestrix")
    before = log.propagate
    log.addHandler(ears)
    log.propagate = False
    world.loop.set_exception_handler(
        lambda loop, context: world.witness.complain(f"uncaught: {context.get('message')} {context.get('exception')!r}")
    )
    try:
        yield
    except LoopStalled as stalled:
        world.witness.wrong.append(str(stalled))
    finally:
        log.removeHandler(ears)
        log.propagate = before


@contextmanager
def simulation() -> Iterator[Simulation]:
    """A simulation with a folder of its own, in memory where the machine has such."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="simulation-") as folder:
        yield Simulation(Path(folder))


def main(kind: type[World] = World) -> int:
    """The command line, for worlds of that kind."""
    parser = argparse.ArgumentParser(description="Simulates sagas over bad days.")
    parser.add_argument("--seed", type=int, required=True, help="the first seed")
    parser.add_argument("--count", type=int, default=1, help="how many seeds from there")
    parser.add_argument("--trace", action="store_true", help="show all that happens")
    asked = parser.parse_args()
    failed = 0
    with simulation() as runs:
        for seed in range(asked.seed, asked.seed + asked.count):
            outcome = runs.run(seed, kind)
            failed += bool(outcome.wrong)
            if asked.trace:
                print("\n".join(outcome.trace))
            if asked.trace or outcome.wrong:
                print(outcome)
                print(f"{outcome.digest}  {outcome.virtual:.1f} virtual seconds")
    print(f"{asked.count} seeds, {failed} of them wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
