"""How does a fault test run jobs that talk on executors of several kinds, and see that no word of them is lost?"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests import jobs_ledger
from tests.acceptance import talking
from tests.documents import ROOT, block
from tests.fault.executors import NAMES, PAGE, TIMES, Address, RegistryWorld
from tests.fault.proxy import Proxy
from tests.jobs_ledger import JobsLedger, Told
from tests.processes import Process, Processes
from tests.servers.run import Run
from tests.support import eventually, free_port

TOKEN: Final = "s3cret-of-the-shop"
NODE_JS: Final = shutil.which("node")
GROUP: Final = "shop"
PAUSE_S: Final = 0.3
"""Seconds between the words of a job: each of them is two requests and two confirms, on a busy machine, too."""
QUICK: Final = {
    "ORCHESTRIX_REGISTRY__TOKEN": TOKEN,
    "ORCHESTRIX_CLUSTER__HANDOFF_ACK": "0.5",
    "ORCHESTRIX_CLUSTER__HANDOFF_HARD": "10",
    "ORCHESTRIX_CLUSTER__ORPHAN_CHECK": "1",
    "ORCHESTRIX_CLUSTER__RECONCILE": "1",
}
OWN: Final = """
def talk(run: "Run", payload: dict) -> dict:
    print("begins", run.call["historyId"], flush=True)
    said = 0
    while not os.path.exists(payload["until"]) and run.cancelled is None:
        said += 1
        run.log(f"line {said}")
        run.report("status", status="RUNNING", progress={"lines": said})
        time.sleep(payload["pause"])
    return {"lines": said}


JOBS = {"talk": talk}
"""
"""What the author of an executor after docs/executors.md writes: it stands in the place of the example's job."""
PORT: Final = "urlsplit(ADDRESS).port or 80"
CALLED: Final = '"POST /run HTTP/1.1" 200'
"""What that executor prints of each call that it takes."""


class Talkers(Processes):
    """Starts executors, each as a process of its own."""

    def __init__(self, run: Run, folder: Path, heartbeat_s: float) -> None:
        super().__init__(run, folder)
        self._made, self._heartbeat_s = (run, folder), heartbeat_s
        code = block(PAGE, "python", "ThreadingHTTPServer")
        assert TIMES in code
        assert PORT in code
        code = code.replace(PORT, 'int(os.environ["LISTEN_PORT"])')
        begin, end = code.index("def count("), code.index("class Run:")
        assert 'JOBS = {"count": count}' in code[begin:end]
        code = code[:begin] + OWN.lstrip() + "\n\n" + code[end:]
        (folder / "standard_library.py").write_text(code.replace(TIMES, f"HEARTBEAT_S, TIMEOUT_S = {heartbeat_s}, 3.0"))
        shutil.copy(Path(talking.__file__), folder)

    def start(self, kind: str, app: str, admins: Sequence[str], *places: str) -> Process:
        """One of a kind: `python` by the standard library alone, `sdk`, or `node`. A place is an address, or
        `address=listen`; only `sdk` may have several."""
        run, folder = self._made
        address, _, listen = places[0].partition("=")
        urls, beat = ",".join(admins), str(self._heartbeat_s)
        commands = {
            "python": (sys.executable, "-I", "-S", str(folder / "standard_library.py"), app, address, urls),
            "sdk": (sys.executable, str(folder / "talking.py"), app, urls, beat, *places),
            "node": (NODE_JS or "node", str(ROOT / "tests" / "fault" / "talking.mjs"), app, urls, beat, *places),
        }
        name = f"{kind}-{len(self._all) + 1}"
        port = (listen or address).rpartition(":")[2]
        env = {"PATH": os.environ["PATH"], "REGISTRY_TOKEN": TOKEN, "LISTEN_PORT": port}
        self._all.append(Process(run, name, commands[kind], env, folder, folder / f"{name}.log"))
        return self._all[-1]

    def begun(self) -> dict[str, int]:
        """How often each attempt was begun, by what all of them printed, those that are dead included."""
        found: dict[str, int] = {}
        for process in self._all:
            for line in process.log().splitlines():
                if line.startswith("begins "):
                    history_id = line.split()[1]
                    found[history_id] = found.get(history_id, 0) + 1
        return found


class ExecutorJobs:
    """Two nodes, executors, and jobs that talk."""

    def __init__(self, registry: RegistryWorld, talkers: Talkers) -> None:
        self.registry, self.talkers = registry, talkers
        self.running: dict[Address, tuple[str, Process]] = {}
        self.links: dict[Address, Proxy] = {}
        self._instances: dict[Address, str | None] = {}
        self._places: dict[Address, str] = {}

    async def up(self, **env: str) -> None:
        """Starts the nodes."""
        await jobs_ledger.watch(self.registry.world.system.database_url)
        settings = {**QUICK, **env}
        for place in range(len(NAMES)):
            await self.registry.start_node(place, **settings)
        await self.registry.make_group(GROUP)

    async def executor(self, kind: str, *, linked: bool = False) -> Address:
        """One that is in the group. A `linked` one is called through `links`, and reports without it."""
        listen = f"127.0.0.1:{free_port()}"
        address = f"http://{listen}"
        if linked:
            link = self.registry.link(address)
            address = f"http://127.0.0.1:{link.port}"
            self.links[address] = link
        self._places[address] = f"{address}={listen}" if linked else address
        await self.start(kind, address)
        return address

    async def start(self, kind: str, address: Address) -> None:
        """One again at an address where one has been."""
        process = self.talkers.start(kind, GROUP, self.registry.world.urls, self._places[address])
        self.running[address] = kind, process
        await eventually(lambda: self._is_listed(address, process), deadline=20, message=f"{address} is registered")

    async def _is_listed(self, address: Address, process: Process) -> bool:
        assert process.returncode is None, process.log_tail()
        instance = (await self.registry.rows()).get(address, {}).get("instance")
        if address not in (await self.registry.group(GROUP))["addressList"] or instance == self._instances.get(address):
            return False
        self._instances[address] = instance
        return True

    # Its jobs.

    def gate(self, name: str) -> Path:
        """The file that ends the jobs of that name."""
        return self.registry.world.system.folder / name

    async def submit(self, address: Address, gate: str, **more: Any) -> str:
        """A job that talks on that executor until the gate is there; its id."""
        payload = {"until": str(self.gate(gate)), "pause": PAUSE_S}
        routing = {"strategy": "ADDRESS", "address": address}
        return await self.post(handler="talk", payload=payload, routing=routing, **more)

    async def post(self, **body: Any) -> str:
        """`POST /jobs` at a node that lives."""
        url = next(node.url for node in self.registry.world.nodes if node.alive)
        answer = await self.registry.http.post(f"{url}/jobs", json={"group": GROUP, **body})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    async def told(self, *ids: str) -> list[Told]:
        """What the database has of these jobs."""
        ledger = await jobs_ledger.read(self.registry.world.system.database_url)
        return [ledger.jobs[one] for one in ids]

    async def until(self, what: str, fits: Callable[[Told], bool], ids: Iterable[str], *, within: float) -> None:
        """Waits until each of these jobs is so."""
        wanted = list(ids)

        async def so() -> bool:
            found = await self.told(*wanted)
            assert all(map(fits, found)), [one for one in found if not fits(one)][:2]
            return True

        await eventually(so, deadline=within, every=0.1, message=what)

    async def talk(self, ids: Sequence[str], *, within: float = 30.0) -> None:
        """Waits until new words of each of these jobs are in the database."""
        before = {one.id: len(one.lines[str(one.history)]) for one in await self.told(*ids)}

        def heard(job: Told) -> bool:
            return job.state == "RUNNING" and len(job.lines[str(job.history)]) > before[job.id] + 2

        await self.until("each job talks", heard, ids, within=within)

    async def over(self, gate: str, ids: Sequence[str]) -> JobsLedger:
        """Ends these jobs; what the database holds of them once their queues are deleted."""
        self.gate(gate).touch()
        await self.until("each job ends", lambda job: job.state == "SUCCEEDED" and not job.channels, ids, within=60.0)
        ledger = await jobs_ledger.read(self.registry.world.system.database_url)
        return replace(ledger, jobs={one: ledger.jobs[one] for one in ids})

    # Its nodes.

    def node_of(self, owner: str | None) -> int:
        """The place of the node of that id."""
        return NAMES.index(str(owner).rpartition("-")[0])

    async def moved(self, end: Callable[[Process], Awaitable[None]], ids: Sequence[str], *, within: float) -> None:
        """Ends the node that owns the last of these jobs; the other one follows those that it had."""
        place = self.node_of((await self.told(ids[-1]))[0].owner)
        node = self.registry.world.nodes[place]
        await end(node.process)

        def is_moved(job: Told) -> bool:
            return job.owner is not None and self.node_of(job.owner) != place

        await self.until("the other one owns them", is_moved, ids, within=within)
        await self.talk(ids)
        node.restart()
        await self.registry.world.ready()
