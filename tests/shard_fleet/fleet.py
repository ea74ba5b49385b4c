"""How does a test run members of services as real processes, and see who holds which shard?"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.bench.control import Orders
from tests.documents import ROOT
from tests.processes import Process, Processes
from tests.servers.run import Run
from tests.shard_fleet import intervals
from tests.shard_fleet.intervals import BEGIN, LATE, STOP, Entry, Interval, Life, machine_time
from tests.support import eventually

STARTED_S: Final = 60.0


@dataclass(slots=True)
class MemberProcess:
    """A process of members, and what it has logged until now."""

    name: str
    process: Process
    orders: Orders
    log: Path
    life: Life = field(default_factory=Life)
    held: dict[tuple[str, str], set[int]] = field(default_factory=dict)
    """The shards that each member works on, by service and worker id, as far as they were read."""
    members: dict[str, str] = field(default_factory=dict)
    """The services of the members that it runs, by worker id."""
    _offset: int = 0
    _paused_at: float | None = None

    @property
    def awake(self) -> bool:
        """Whether it lives and runs."""
        return self._paused_at is None and self.process.returncode is None

    def read(self) -> None:
        """What was logged since."""
        with self.log.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        whole = data.rfind(b"\n") + 1
        self._offset += whole
        for line in data[:whole].decode().splitlines():
            self._take(Entry.read(line))

    def _take(self, one: Entry) -> None:
        self.life.entries.append(one)
        shards = self.held.setdefault((one.service, one.holder.worker), set())
        if one.kind == BEGIN:
            shards.add(one.shard)
        elif one.kind == STOP:
            shards.discard(one.shard)

    async def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Gives an order; its answer."""
        return await asyncio.to_thread(self.orders.ask, do, **details)

    def kill9(self) -> None:
        """It is dead when this returns."""
        self.process.kill9()
        self.life.dead_at = machine_time()
        self.members.clear()

    def pause(self) -> None:
        """It stands still when this returns."""
        self.process.pause()
        self._paused_at = machine_time()

    def resume(self) -> None:
        """It runs again."""
        assert self._paused_at is not None, "it stands still"
        self.life.frozen.append((self._paused_at, machine_time()))
        self._paused_at = None
        self.process.resume()

    def lives(self, rest: float) -> Iterator[Interval]:
        """All that it has held."""
        life = self.life
        frozen = [*life.frozen, *([(self._paused_at, intervals.FOREVER)] if self._paused_at is not None else [])]
        return intervals.intervals(Life(life.entries, life.dead_at, frozen), rest)


class Fleet(Processes):
    """Starts processes of members; ends them with the test and shows their logs if it failed.

    `timeout` is the heartbeat time-out of the coordinators, in seconds.
    """

    def __init__(self, run: Run, folder: Path, timeout: float) -> None:
        super().__init__(run, folder)
        self._made = run, folder
        self.timeout = timeout
        self.processes: list[MemberProcess] = []

    async def start(self, broker_url: str, **env: str) -> MemberProcess:
        """Starts a process without members."""
        run, folder = self._made
        name, orders = f"members-{len(self.processes) + 1}", Orders()
        log = folder / f"{name}.shards"
        log.touch()
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("ORCHESTRIX_", "PYTHON"))}
        more = {
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "ORCHESTRIX_BROKER_URL": broker_url,
            "ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT": f"{self.timeout:g}",
            "ORCHESTRIX_SHARDS__CHECK": f"{self.timeout / 3:g}",
        }
        command = (sys.executable, "-m", "tests.shard_fleet.program", str(log))
        process = Process(
            run, name, command, {**inherited, **more, **orders.env, **env}, folder, folder / f"{name}.log"
        )
        self._all.append(process)
        self.processes.append(MemberProcess(name, process, orders, log))
        await asyncio.to_thread(orders.greet, STARTED_S)
        return self.processes[-1]

    async def join(self, process: MemberProcess, service: str, count: int, *workers: str, **more: Any) -> None:
        """Members of that process begin to take part."""
        for worker in workers:
            await process.ask("join", service=service, worker=worker, count=count, **more)
            process.members[worker] = service

    async def leave(self, worker: str) -> None:
        """One stops all its shards and leaves; returns when it has."""
        process = self.process_of(worker)
        await process.ask("leave", worker=worker)
        del process.members[worker]

    async def count(self, worker: str, count: int) -> None:
        """One says that its service has so many shards."""
        await self.process_of(worker).ask("count", worker=worker, count=count)

    def process_of(self, worker: str) -> MemberProcess:
        """The process that runs the member."""
        return next(one for one in self.processes if worker in one.members)

    def close(self) -> None:
        """Ends all of them."""
        super().close()
        for one in self.processes:
            one.orders.close()

    # What is known of them.

    def held(self, service: str) -> dict[str, set[int]]:
        """The shards of each member that is awake."""
        found: dict[str, set[int]] = {}
        for process in self.processes:
            if process.awake:
                process.read()
                for worker in (worker for worker, of in process.members.items() if of == service):
                    found[worker] = set(process.held.get((service, worker), ()))
        return found

    async def shared(self, service: str, count: int, *, within: float) -> float:
        """Waits until the members that are awake hold each shard once, as many each; the seconds that took."""
        began = time.monotonic()

        def is_shared() -> bool:
            held = self.held(service)
            holders = Counter(shard for shards in held.values() for shard in shards)
            missing = [shard for shard in range(count) if shard not in holders]
            twice = [shard for shard, many in holders.items() if many > 1 or shard >= count]
            assert not missing, f"nobody holds {len(missing)} shards, such as {missing[:5]}"
            assert not twice, f"{len(twice)} shards are held twice, or are none, such as {twice[:5]}"
            sizes = [len(shards) for shards in held.values()]
            assert max(sizes) - min(sizes) <= 1, f"shares are {sizes}"
            return True

        await eventually(is_shared, deadline=within, every=0.1, message=f"the shards of {service} are shared")
        return time.monotonic() - began

    def intervals(self) -> list[Interval]:
        """All that any process has held until now."""
        for process in self.processes:
            process.read()
        return [one for process in self.processes for one in process.lives(self.timeout / 3)]

    def check(self) -> None:
        """No shard had two holders."""
        wrong = intervals.faults(self.intervals())
        late = [one for process in self.processes for one in process.life.entries if one.kind == LATE]
        wrong += [f"{one.holder} works on {one.shard} {one.at - one.value:.3f} s after its lease" for one in late]
        assert not wrong, "\n".join([f"{len(wrong)} faults, the first of them:", *wrong[:10]])

    def ended(self, since: float) -> list[Interval]:
        """What members have let go of since then."""
        return intervals.interruptions(self.intervals(), since, intervals.FOREVER)


def names(prefix: str, first: int, many: int) -> list[str]:
    """Worker ids, in order."""
    return [f"{prefix}-{number:02}" for number in range(first, first + many)]
