"""What goes wrong in a simulation, when, and to whom?  All of it drawn from the seed before it begins."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from orchestrix import clock
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import EVENTS
from orchestrix.testing.simulation.virtual_time import elapse
from tests.simulation.system import Member, World

DURATION = 9.0
"""Seconds in which faults begin."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at` seconds, `kind` happens to `target` (a member, by its place) for `seconds`; `share` is its chance."""

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
        self._dice = world.dice("nemesis")
        count = self._dice.randrange(1, 7)
        self.plan = sorted((self._draw() for _ in range(count)), key=lambda fault: fault.at)

    def _draw(self) -> Fault:
        dice = self._dice
        kind = dice.choice(sorted(KINDS))
        target = dice.randrange(0, len(self._world.members))
        return Fault(dice.uniform(0.0, DURATION), kind, target, dice.uniform(0.2, 6.0), dice.random())

    async def run(self) -> None:
        """The bad days."""
        begun = self._world.loop.time()
        for fault in self.plan:
            await elapse(begun + fault.at - self._world.loop.time())
            self._world.witness.note(f"fault {fault}")
            KINDS[fault.kind](self, fault, self._world.members[fault.target])
        await elapse(max(0.0, begun + DURATION - self._world.loop.time()))

    def heal(self) -> None:
        """From now on nothing goes wrong, and everybody lives."""
        self._world.witness.note("heal")
        self._calm()
        self._world.file.recover()
        self._world.server.start()
        if self._world.server.alarm:
            self._world.server.clear_alarm()
        for member in self._world.members:
            self._thaw(member)
            member.boot()

    def _later(self, seconds: float, what: Callable[[], None]) -> None:
        self._world.loop.call_later(seconds, what)

    # The faults.

    def _kill(self, fault: Fault, member: Member) -> None:
        """Dies at any step of the next few hundred."""
        process = member.process
        process.on_death.append(lambda: member.restart(fault.seconds))
        process.kill_after(1 + int(fault.share**2 * 400))

    def _stop(self, fault: Fault, member: Member) -> None:
        member.process.on_death.append(lambda: member.restart(fault.seconds))
        member.stopping.set()

    def _freeze(self, fault: Fault, member: Member) -> None:
        process, broker = member.process, member.broker
        seconds = fault.seconds * 3
        process.freeze()
        if broker is not None and fault.share < 0.5:
            broker.drop_connections(
                0.0, min(seconds, 4.0)
            )  # the broker misses its heartbeats; it is told of that when it thaws
        self._later(seconds, lambda: self._thaw(member) if process is member.process else None)

    def _thaw(self, member: Member) -> None:
        if member.process.frozen:
            self._world.witness.note(f"{member.process.name} thaws")
            self._world.witness.last_thaw = self._world.loop.time()
            member.process.unfreeze()

    def _cut(self, fault: Fault, member: Member) -> None:
        if member.broker is not None:
            late = fault.seconds if fault.share < 0.3 else 0.0
            member.broker.drop_connections(late * fault.share, late)

    def _broker(self, fault: Fault, member: Member) -> None:
        self._world.server.stop()
        if fault.share < 0.4:
            self._world.server.forget()
        self._later(fault.seconds, self._world.server.start)

    def _alarm(self, fault: Fault, member: Member) -> None:
        """The broker takes nothing. A saga goes on without its command, and whoever was to send that dies."""
        if self._world.server.up:
            self._world.server.raise_alarm("memory alarm")
            self._later(fault.seconds, self._world.server.clear_alarm)
            self._later(fault.seconds * fault.share, lambda: self._stranger(fault, member))
            if fault.share < 0.8:
                self._later(fault.seconds * 0.9, lambda: self._kill(replace(fault, share=0.0), member))

    def _queue(self, fault: Fault, member: Member) -> None:
        queues = sorted(name for name in self._world.server.queues if not name.endswith(".dead"))
        if queues:
            self._world.server.delete(queues[int(fault.share * len(queues))])

    def _database(self, fault: Fault, member: Member) -> None:
        self._world.file.fail()
        self._later(fault.seconds, self._world.file.recover)

    def _commits(self, fault: Fault, member: Member) -> None:
        dice = self._world.dice(f"commits {fault.at}")
        self._world.file.commit_lost = lambda: dice.random() < 0.5 if dice.random() < 0.2 else None
        self._later(fault.seconds, self._calm)

    def _weather(self, fault: Fault, member: Member) -> None:
        """Queues that are late, each by its own, and copies of what went by."""
        dice, server = self._world.dice(f"weather {fault.at}"), self._world.server
        server.held_back = lambda queue: dice.uniform(0.0, 2.0) if dice.random() < 0.3 else 0.0
        server.copied_after = lambda queue: dice.uniform(0.0, 15.0) if dice.random() < 0.3 else None
        self._later(fault.seconds * 2, self._calm)

    def _stranger(self, fault: Fault, member: Member) -> None:
        """Another program does a saga's step by itself and says so, without naming a command."""
        live = [(saga, row) for saga in self._world.sagas for row in self._world.witness.live(saga)]
        unsent = {one for (one,) in self._world.file.query("SELECT id FROM outbox")}
        live = [one for one in live if one[1]["command_id"] in unsent] or live
        if not live:
            return
        saga, row = live[int(fault.share * len(live))]
        saga = self._world.version_of(saga, row)
        step = saga.step_in(row["state"])
        if step is None or row["tries"] > 1 or step.event not in self._world.server.queues:
            return  # whose word would be ambiguous, or could not be kept, leaves the work alone
        key, name = f"{saga.name}:{row['id']}:{step.name}:do", row["key" if "key" in row else "app_name"]
        data = self._world.witness.effect(key, {f"of_{step.name}": f"{name}/{step.name}"})
        body = {"type": step.event, "saga": saga.name, "appId": row["id"], "correlationId": row["correlation_id"]}
        message = Outgoing(EVENTS, step.event, json.dumps({**body, "data": data}).encode(), clock.uuid7())
        self._world.server.put(step.event, message)

    def _calm(self) -> None:
        server = self._world.server
        server.held_back, server.copied_after = (lambda queue: 0.0), (lambda queue: None)
        self._world.file.commit_lost = lambda: None


KINDS: dict[str, Callable[[Nemesis, Fault, Member], None]] = {
    "kill": Nemesis._kill,
    "kill too": Nemesis._kill,
    "stop": Nemesis._stop,
    "freeze": Nemesis._freeze,
    "cut": Nemesis._cut,
    "broker": Nemesis._broker,
    "alarm": Nemesis._alarm,
    "alarm too": Nemesis._alarm,
    "queue": Nemesis._queue,
    "database": Nemesis._database,
    "commits": Nemesis._commits,
    "weather": Nemesis._weather,
    "stranger": Nemesis._stranger,
}
