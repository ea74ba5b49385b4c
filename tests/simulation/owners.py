"""Does every word of every job count once, whoever owns it, over one seed's worth of bad days?

    .venv/bin/python -m tests.simulation.owners --seed 123 --trace

runs that seed again, exactly as it was, and shows what happened.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

from orchestrix import clock
from orchestrix.jobs import worker_heartbeats
from orchestrix.jobs.rescue import orphan_detector, queue_cleaner
from orchestrix.lifecycle import settle_memory
from orchestrix.persistence.schema import migrator
from orchestrix.testing.simulation.virtual_time import VirtualClock, VirtualLoop, elapse
from tests.simulation import fences, steering
from tests.simulation.clerk import Clerk
from tests.simulation.ears import heard
from tests.simulation.house import TRIGGERS, Owners
from tests.simulation.realm import Member
from tests.simulation.replay import replay
from tests.simulation.unrest import KINDS, Deed, Fault, Nemesis, Outcome, end, until

DURATION = 12.0
LONGEST = 8.0
PATIENCE = 400.0
"""Seconds in which everything must have ended after the last fault."""
SWEPT_AFTER, SWEEP = 6.0, 2.0
LATEST_COPY = 5.0
"""Seconds after which a message comes a second time at the latest: before the queues of its job are swept."""


async def days(realm: Owners, nemesis: Nemesis) -> None:
    """The bad days, then time for all to come to an end, then the end."""
    realm.plan = nemesis.plan
    dice = realm.dice("system")
    for member in realm.members:
        realm.loop.call_later(dice.uniform(0.0, 1.0), member.boot)
    clerk = asyncio.ensure_future(Clerk(realm).run())
    begun = realm.loop.time()
    steered = asyncio.ensure_future(steering.STORIES[realm.steered](realm))
    await nemesis.run()
    await steered
    slept = max((one.at + _asleep(one) for one in nemesis.plan if one.kind in SLEEPS), default=0.0)
    await elapse(max(0.0, begun + slept - realm.loop.time()))
    nemesis.heal()
    realm.slowness.let_go()
    if not await until(lambda: realm.is_found() or _is_over(realm, clerk), PATIENCE):
        realm.witness.complain(f"I2: not quiet {PATIENCE:g} s after the last fault")
    realm.witness.judge()
    await elapse(SWEPT_AFTER + 2 * SWEEP)
    # One that stood still may just have made the queues of an ended job anew: they are cleared as what nobody owns.
    await until(realm.is_quiet, 2 * orphan_detector.UNOWNED_TIMEOUT_S)
    for queue in realm.server.queues:
        if queue.endswith((".status", ".logs")):
            realm.witness.complain(f"I11: {queue} is left behind")
    await end(realm)


def _is_over(realm: Owners, clerk: asyncio.Future[None]) -> bool:
    for member in realm.members:
        member.boot()
    return clerk.done() and realm.is_quiet()


class Simulation:
    """Runs seeds, each in a realm of its own, from one migrated database."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._template = folder, folder / "template.db"
        asyncio.run(migrator.upgrade(f"sqlite+aiosqlite:///{self._template}"))
        raw = sqlite3.connect(self._template)
        for statement in TRIGGERS:
            raw.execute(statement)
        raw.commit()
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        raw.close()

    def run(self, seed: int, sought: str | None = None) -> Outcome:
        """One seed; nobody is waited for any more when a complaint with the words `sought` has come."""
        loop = VirtualLoop()
        with clock.use(VirtualClock(loop, Random(f"{seed}:clock"))), _soon(), fences.noted():
            realm = loop.run_until_complete(self._realm(seed, loop))
            realm.sought = sought
            nemesis = Nemesis(realm, BAD, duration=DURATION, longest=LONGEST)
            with heard(realm.witness, loop):
                try:
                    loop.run_until_complete(days(realm, nemesis))
                finally:
                    realm.witness.is_over = True
                    realm.slowness.let_go()
                    loop.discard()
                    loop.close()
                    realm.file.close()
                    for file in self._folder.glob(f"{seed}.db*"):
                        file.unlink()
        plan = [str(one) for one in realm.plan]
        trace = [line.replace(f"{self._folder}/", "") for line in realm.witness.trace]
        return Outcome(seed, realm.witness.wrong, trace, plan, "tests.simulation.owners")

    async def _realm(self, seed: int, loop: VirtualLoop) -> Owners:
        return Owners(seed, loop, self._folder, self._template)


def _asleep(fault: Fault) -> float:
    return 8.0 + 4.0 * fault.share


def sleep(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    """It stands still until others have its jobs, and the broker does not miss it."""
    nemesis.freeze(replace(fault, seconds=_asleep(fault), share=1.0), member)


def lose(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    """A worker is gone, or stands still, for longer than one may be silent."""
    worker = _house(nemesis).busiest("worker_id") or nemesis.realm.members[-1]
    gone = replace(fault, seconds=_asleep(fault), share=1.0 if fault.share < 0.5 else 0.1)
    (nemesis.freeze if fault.share < 0.5 else nemesis.kill)(gone, worker)


def leave(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    """Whoever owns most has to hand it over."""
    nemesis.stop(fault, _house(nemesis).busiest("owner") or member)


def _house(nemesis: Nemesis) -> Owners:
    assert isinstance(nemesis.realm, Owners)
    return nemesis.realm


def weather(nemesis: Nemesis, fault: Fault, member: Member) -> None:
    """Messages come late and twice, but not for as long as elsewhere."""
    nemesis.weather(fault, member)
    dice, server = nemesis.realm.dice(f"copies {fault.at}"), nemesis.realm.server
    server.copied_after = lambda queue: dice.uniform(0.0, LATEST_COPY) if dice.random() < 0.5 else None


BAD: dict[str, Deed] = {
    name: deed for name, deed in KINDS.items() if name not in ("stranger", "queue", "freeze writing")
}
BAD |= {"sleep": sleep, "sleep too": sleep, "stop too": leave, "weather": weather}
BAD |= {"worker": lose, "worker too": lose}
SLEEPS = frozenset(("sleep", "sleep too", "worker", "worker too"))


@contextmanager
def _soon() -> Iterator[None]:
    """The queues of ended jobs are swept a little earlier."""
    cleaner, beats = queue_cleaner, worker_heartbeats
    before = cleaner.QUEUE_CLEANER_AGE_S, cleaner.QUEUE_CLEANER_INTERVAL_S, beats._REOPEN_AFTER
    cleaner.QUEUE_CLEANER_AGE_S, cleaner.QUEUE_CLEANER_INTERVAL_S = SWEPT_AFTER, SWEEP  # type: ignore[misc]
    beats._REOPEN_AFTER = timedelta(seconds=SWEPT_AFTER / 2)  # type: ignore[misc]
    try:
        yield
    finally:
        cleaner.QUEUE_CLEANER_AGE_S, cleaner.QUEUE_CLEANER_INTERVAL_S, beats._REOPEN_AFTER = before  # type: ignore[misc]


@contextmanager
def simulation() -> Iterator[Simulation]:
    """A simulation with a folder of its own, in memory where the machine has such."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="owners-") as folder:
        runs = Simulation(Path(folder))
        settle_memory()
        yield runs


def main() -> int:
    """The command line."""
    with simulation() as runs:
        return replay("Simulates the owners of jobs over bad days.", runs.run)


if __name__ == "__main__":
    sys.exit(main())
