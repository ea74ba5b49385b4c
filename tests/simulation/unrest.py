"""What goes wrong in a simulated cluster, when, and to whom?  All of it is drawn from the seed before it begins."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from orchestrix import clock
from orchestrix.broker.port import Outgoing
from orchestrix.broker.topology import LEADER
from orchestrix.domain.leases import Fence
from orchestrix.testing.simulation.virtual_time import elapse
from tests.simulation.realm import Member, Realm

LOOK = 0.5
CALM = 5.0
"""Seconds for which an end of a fault may still be felt."""


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at` seconds, `kind` happens to `target` for `seconds`; `share` is its chance."""

    at: float
    kind: str
    target: int
    seconds: float
    share: float

    def __str__(self) -> str:
        return f"{self.at:6.3f} s  {self.kind:<14} member {self.target}  {self.seconds:.3f} s  {self.share:.3f}"


class Nemesis:
    """Does the faults of its plan, and undoes in `heal` what has not ended by itself.

    Faults begin in `duration` seconds and take up to `longest`; `kinds` are which there are.
    """

    def __init__(self, realm: Realm, kinds: Mapping[str, Deed], *, duration: float, longest: float) -> None:
        self.realm, self._kinds, self._duration, self._longest = realm, kinds, duration, longest
        dice = realm.dice("nemesis")
        self.plan = sorted((self._draw(dice) for _ in range(dice.randrange(1, 9))), key=lambda fault: fault.at)

    def _draw(self, dice: Random) -> Fault:
        kind, target = dice.choice(sorted(self._kinds)), dice.randrange(0, 4)
        return Fault(dice.uniform(0.0, self._duration), kind, target, dice.uniform(0.2, self._longest), dice.random())

    async def run(self) -> None:
        """The bad days."""
        begun = self.realm.loop.time()
        for fault in self.plan:
            await elapse(begun + fault.at - self.realm.loop.time())
            self.realm.witness.note(f"fault {fault}")
            self._kinds[fault.kind](self, fault, self._target(fault))
        # The broker may still believe in a connection that is cut.
        slow = [one.at + one.seconds + 1.0 for one in self.plan if one.kind in ("cut", "freeze", "isolate")]
        ends = max([self._duration, *slow])
        await elapse(max(0.0, begun + ends - self.realm.loop.time()))

    def _target(self, fault: Fault) -> Member:
        """Often whoever leads."""
        leader = self.realm.leader()
        members = self.realm.members
        return leader if fault.target == 3 and leader is not None else members[fault.target % len(members)]

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.realm.witness.note("heal")
        self.calm()
        self.realm.database_recovers()
        self.realm.server.start()
        if self.realm.server.alarm:
            self.realm.server.clear_alarm()
        for member in self.realm.members:
            self._thaw(member)
            member.process.kill_after(sys.maxsize)
        self.realm.all_disturbed(CALM)

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        """Does something in a while."""
        self.realm.loop.call_later(seconds, what)

    def kill(self, fault: Fault, member: Member) -> None:
        """Dies at any step of the next ones."""
        process = member.process
        process.on_death.append(lambda: member.restart(fault.seconds))
        process.kill_after(1 + int(fault.share**2 * 150))

    def stop(self, fault: Fault, member: Member) -> None:
        member.process.on_death.append(lambda: member.restart(fault.seconds))
        member.stopping.set()

    def freeze(self, fault: Fault, member: Member) -> None:
        process = member.process
        member.disturbed(fault.seconds + CALM)
        process.freeze()
        if fault.share < 0.6:
            member.cut(0.0, min(fault.seconds, 12.0))
        self.later(fault.seconds, lambda: self._thaw(member) if process is member.process else None)

    def _thaw(self, member: Member) -> None:
        if member.process.frozen:
            self.realm.witness.note(f"{member.process.name} thaws")
            member.process.unfreeze()

    def cut(self, fault: Fault, member: Member) -> None:
        late = fault.seconds if fault.share < 0.5 else 0.0
        member.disturbed(late + CALM)
        member.cut(late * fault.share, late)

    def isolate(self, fault: Fault, member: Member) -> None:
        """Without broker for a while, but with the database."""
        member.disturbed(CALM)
        for broker in member.brokers:
            broker.refuse_connections(fault.seconds)

    def broker(self, fault: Fault, member: Member) -> None:
        self.realm.all_disturbed(fault.seconds + CALM)
        self.realm.server.stop()
        if fault.share < 0.4:
            self.realm.server.forget()
        self.later(fault.seconds, self.realm.server.start)

    def alarm(self, fault: Fault, member: Member) -> None:
        if self.realm.server.up:
            self.realm.server.raise_alarm("memory alarm")
            self.later(fault.seconds, self.realm.server.clear_alarm)

    def queue(self, fault: Fault, member: Member) -> None:
        self.realm.server.delete(LEADER)

    def database(self, fault: Fault, member: Member) -> None:
        self.realm.all_disturbed(fault.seconds + CALM)
        self.realm.database_fails()
        self.later(fault.seconds, self.realm.database_recovers)

    def commits(self, fault: Fault, member: Member) -> None:
        dice = self.realm.dice(f"commits {fault.at}")
        self.realm.all_disturbed(fault.seconds + CALM)
        self.realm.lose_commits(lambda: dice.random() < 0.5 if dice.random() < 0.3 else None)
        self.later(fault.seconds, self.calm)

    def weather(self, fault: Fault, member: Member) -> None:
        """Tokens come late and twice."""
        dice, server = self.realm.dice(f"weather {fault.at}"), self.realm.server
        server.held_back = lambda queue: dice.uniform(0.0, 2.0) if dice.random() < 0.3 else 0.0
        server.copied_after = lambda queue: dice.uniform(0.0, 15.0) if dice.random() < 0.5 else None
        self.later(fault.seconds * 2, self.calm)

    def stranger(self, fault: Fault, member: Member) -> None:
        """Somebody else puts something into the queue."""
        term = int(fault.share * 12)
        body = json.dumps({"term": term, "nodeId": "n0.1"}) if fault.share < 0.8 else "{no token"
        self.realm.witness.minted[Fence(term, "n0.1")] += 1
        self.realm.server.put(LEADER, Outgoing("", LEADER, body.encode(), clock.uuid7()))

    def calm(self) -> None:
        """The weather is good, and every COMMIT is answered."""
        server = self.realm.server
        server.held_back, server.copied_after = (lambda queue: 0.0), (lambda queue: None)
        self.realm.lose_commits(lambda: None)


Deed = Callable[[Nemesis, Fault, Member], None]
KINDS: dict[str, Deed] = {
    "kill": Nemesis.kill,
    "kill too": Nemesis.kill,
    "stop": Nemesis.stop,
    "freeze": Nemesis.freeze,
    "cut": Nemesis.cut,
    "isolate": Nemesis.isolate,
    "broker": Nemesis.broker,
    "alarm": Nemesis.alarm,
    "queue": Nemesis.queue,
    "database": Nemesis.database,
    "commits": Nemesis.commits,
    "weather": Nemesis.weather,
    "stranger": Nemesis.stranger,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to. `again` is the module that shows it again."""

    seed: int
    wrong: list[str]
    trace: list[str]
    plan: list[str]
    again: str

    @property
    def digest(self) -> str:
        """A fingerprint of everything that happened."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()

    def __str__(self) -> str:
        wrong = "\n".join(f"  {one}" for one in self.wrong[:10])
        plan = "\n".join(f"  {one}" for one in self.plan)
        again = f".venv/bin/python -m {self.again} --seed {self.seed} --trace"
        return f"seed {self.seed}:\n{wrong}\nits bad days:\n{plan}\nsee it again:\n  {again}"


async def days(realm: Realm, nemesis: Nemesis, *, settle: float, rest: float) -> None:
    """The bad days, then `settle` seconds to find peace, and `rest` in which nothing changes any more; then the end."""
    realm.plan = nemesis.plan
    dice = realm.dice("system")
    for member in realm.members:
        realm.loop.call_later(dice.uniform(0.0, 1.0), member.boot)
    await nemesis.run()
    nemesis.heal()
    if not await until(lambda: _everybody_is_there(realm), 60.0):
        realm.witness.complain("somebody neither stopped nor started")
    await elapse(settle)
    await _rest(realm, rest)
    await end(realm)


async def end(realm: Realm) -> None:
    """Everybody stops in good order."""
    realm.ending = True
    for member in realm.members:
        member.stopping.set()
    await until(lambda: not any(member.process.alive for member in realm.members), 60.0)
    for member in realm.members:
        if member.process.alive:
            realm.witness.complain(f"{member.process.name} did not stop")


async def _rest(realm: Realm, seconds: float) -> None:
    if not realm.is_settled():
        realm.witness.complain(f"L3: nobody leads well a while after the last fault: {realm.row()}")
        return
    terms = len(realm.witness.terms)
    await elapse(seconds)
    if len(realm.witness.terms) != terms or not realm.is_settled():
        realm.witness.complain(f"L4: an undisturbed leader did not stay: {realm.row()}")


def _everybody_is_there(realm: Realm) -> bool:
    for member in realm.members:
        member.boot()
    return all(member.process.alive and not member.stopping.is_set() for member in realm.members)


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true in that time."""
    ends = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > ends:
            return False
        await elapse(LOOK)
    return True
