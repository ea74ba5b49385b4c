"""Who takes part in a simulated cluster, and who sees what each of them does?"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.broker.topology import LEADER
from orchestrix.domain.leases import Fence, LeaderMode
from orchestrix.testing.broker.client import MemoryBroker
from orchestrix.testing.broker.server import MemoryServer
from orchestrix.testing.simulation.virtual_time import VirtualLoop, VirtualProcess, current_process


class Witness:
    """Sees every term and every write as it is committed, and every token. `trace` are lines of what happened."""

    def __init__(self) -> None:
        self.is_over = False
        self.wrong: list[str] = []
        self.trace: list[str] = []
        self.terms: list[Fence] = []
        self.minted: Counter[Fence | None] = Counter()

    def note(self, what: str) -> None:
        """One more line of the trace."""
        if not self.is_over:
            self.trace.append(f"{asyncio.get_running_loop().time():.6f} {what}")

    def complain(self, what: str) -> None:
        """Something is wrong."""
        if not self.is_over:
            self.note(f"WRONG {what}")
            self.wrong.append(what)

    def began(self, fence: Fence, mode: LeaderMode) -> None:
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
        mine = next((fence for fence in reversed(self.terms) if _boot(fence.holder) == process.name), None)
        own = mine is not None and token == {"term": mine.term, "nodeId": mine.holder}
        if self.minted[mine] <= own:
            self.complain(f"{process.name} acknowledged a token before there was one of its own term")


def _boot(node_id: str) -> str:
    """The process of a node: one process can be several, one after the other."""
    return node_id.partition("-")[0]


class Member(ABC):
    """A node that can die and come again, each time as another."""

    def __init__(self, realm: Realm, name: str) -> None:
        self.realm, self.name, self.boots = realm, name, 0
        self.process = realm.loop.process(name)
        self.process.alive = False
        self.brokers: list[MemoryBroker] = []
        self.stopping = asyncio.Event()
        self.blameless_since = 0.0

    @property
    @abstractmethod
    def fence(self) -> Fence | None:
        """What it writes as the leader, if it leads as far as it knows."""

    @abstractmethod
    async def live(self, process: VirtualProcess) -> None:
        """From the start to the end in good order."""

    def boot(self) -> None:
        """Starts it, unless it runs."""
        if self.process.alive or self.realm.ending:
            return
        self.boots += 1
        self.process = process = self.realm.loop.process(f"{self.name}.{self.boots}")
        self.realm.witness.note(f"{process.name} boots")
        self.stopping, self.brokers = asyncio.Event(), []
        self.disturbed(0.0)
        task = process.spawn(self._run(process))
        task.add_done_callback(self._ended)

    def disturbed(self, seconds: float) -> None:
        """For so long something is wrong with it that is not its own doing."""
        self.blameless_since = max(self.blameless_since, self.realm.loop.time() + seconds)

    def link(self, node_id: str) -> MemoryBroker:
        """One more link of its own."""
        made = self.realm.broker(node_id)
        self.process.on_death.append(made.disconnect)
        self.brokers.append(made)
        return made

    def cut(self, client_after: float, server_after: float) -> None:
        """The network drops its links."""
        for broker in self.brokers:
            broker.drop_connections(client_after, server_after)

    def restart(self, after: float) -> None:
        """Starts it again in a while."""
        self.realm.loop.call_later(after, self.boot)

    async def _run(self, process: VirtualProcess) -> None:
        def died() -> None:
            self.realm.witness.note(f"{process.name} dies at step {process.steps}")

        process.on_death.append(died)
        await self.live(process)
        self.realm.witness.note(f"{process.name} ends in good order")
        process.on_death.remove(died)
        process.kill()

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self.realm.witness.complain(f"{self.name} ended with {error!r}")


class Realm(ABC):
    """Everything outside the processes. `dice(name)` are chance of their own for each use, all from one seed."""

    def __init__(self, seed: int, loop: VirtualLoop, witness: Witness) -> None:
        self.seed, self.loop, self.witness = seed, loop, witness
        wire = self.dice("wire")
        self.server = MemoryServer(wire, delay=lambda: wire.uniform(0.0002, 0.01))
        self.server.observers.append(witness)
        self.members: list[Member] = []
        self.ending = False
        self.plan: Sequence[object] = ()
        """What goes wrong, each thing as its `str` says it."""

    def dice(self, name: str) -> Random:
        """Dice for one use."""
        return Random(f"{self.seed}:{name}")

    @abstractmethod
    def broker(self, name: str) -> MemoryBroker:
        """A link for the node of that name."""

    @abstractmethod
    def row(self) -> tuple[Fence, LeaderMode] | None:
        """Who leads, by the row."""

    @abstractmethod
    def database_fails(self) -> None:
        """The database goes away."""

    @abstractmethod
    def database_recovers(self) -> None:
        """It is there again."""

    @abstractmethod
    def lose_commits(self, fate: Callable[[], bool | None]) -> None:
        """`fate` says of each COMMIT whether its answer gets lost, and whether it was done then."""

    def leader(self) -> Member | None:
        """Who is in the row and knows it."""
        row = self.row()
        return next((one for one in self.members if row and one.process.alive and one.fence == row[0]), None)

    def is_settled(self) -> bool:
        """Whether one member leads, with a link and a token, and no other thinks so."""
        row = self.row()
        leaders = [one for one in self.members if one.process.alive and one.fence is not None]
        good = row is not None and row[1] is LeaderMode.BROKER and self.server.depth(LEADER) > 0
        return good and leaders == [self.leader()]

    def all_disturbed(self, seconds: float) -> None:
        """For so long something is wrong with all."""
        for member in self.members:
            member.disturbed(seconds)
