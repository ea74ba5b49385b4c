"""Does no shard ever have two owners, and each one in the end, over one seed's worth of bad days?

    .venv/bin/python -m tests.simulation.shards --seed 123 --trace

runs that seed again, exactly as it was, and shows what happened. Nodes act on the same stored state in any order, from
memories that may be old; messages are late, lost, doubled and out of order; processes sleep, die and start again.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import heappop, heappush
from random import Random

from orchestrix.domain.shards import service as shards
from orchestrix.domain.shards.allocation import Allocation, Shares
from orchestrix.domain.shards.convergence import to_release
from orchestrix.domain.shards.generations import GenerationState
from orchestrix.domain.shards.members import AwayReason
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import (
    Assignment,
    Event,
    LeadTaken,
    MemberChange,
    MemberChangeKind,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
    PlainMode,
    ServiceCheck,
    ShardRules,
    ShardService,
)
from tests.simulation.replay import replay
from tests.simulation.shards_members import Interval, PlainMember, SdkMember
from tests.simulation.unrest import Outcome

BASE = datetime(2026, 1, 1, tzinfo=UTC)
DURATION, QUIET = 90.0, 75.0
NODES = ("node-1", "node-2", "node-3")
TICK, CHECK_S, REFRESH_S = 0.5, 5.0, 1.0


@dataclass
class Node:
    """A coordinator: its memory of the service, and whether it is there."""

    name: str
    listening_since: float = 0.0
    up: bool = True
    asleep_until: float = -1.0
    memory: ShardService | None = None
    read_at: float = -1.0
    blind_until: float = -1.0
    checked_at: float = 0.0
    allocation: Allocation | None = None
    """By which it divides; else as all do. A rolling change of the setting makes nodes differ."""


@dataclass
class Weather:
    """How messages travel: chances of 1, times in seconds."""

    late: float = 0.15
    latest: float = 6.0
    lost: float = 0.04
    twice: float = 0.05


MODES = {
    "mixed": Weather(),
    "plain": Weather(late=0.8, latest=4.0, lost=0.0, twice=0.0),
    "rush": Weather(late=0.5, latest=9.0),
    "late": Weather(late=0.6, latest=7.0, lost=0.0),
    "memory": Weather(late=0.6, latest=7.0, lost=0.1),
    "twins": Weather(late=0.8, latest=1.0, lost=0.0, twice=0.0),
}
"""The modes, each with its usual weather: all faults; milder ones, with clients of S1 among the members; changes in a
rush; the same with heartbeats that are overtaken; nodes that answer from old memories to members that were asleep;
clients of S1 with the same id."""

PAUSES = {"plain": (0.3, 1.0, 3.0), "rush": (0.3, 2.0, 4.0), "late": (0.3, 2.0, 4.0), "memory": (12.0, 24.0)}


def mode_of(seed: int) -> str:
    """The mode of a seed."""
    return tuple(MODES)[seed % len(MODES)]


@dataclass
class Realm:
    """The service, its nodes and its members, over one seed."""

    seed: int
    rules: ShardRules
    mode: str
    dice: Random
    now: float = 0.0
    row: ShardService | None = None
    intervals: list[Interval] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=lambda: [Node(name) for name in NODES])
    members: list[SdkMember | PlainMember] = field(default_factory=list)
    weather: Weather = field(default_factory=Weather)
    outage_until: float = -1.0
    left: set[tuple[str, str | None]] = field(default_factory=set)
    instances: int = 0
    _queue: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _number: int = 0

    @property
    def plain(self) -> bool:
        return self.mode in ("plain", "twins")

    # Time.

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self._number += 1
        heappush(self._queue, (self.now + max(seconds, 0.0), self._number, call))

    def run(self, until: float) -> None:
        """All that happens until then."""
        while self._queue and self._queue[0][0] <= until:
            self.now, _, call = heappop(self._queue)
            call()
        self.now = until

    def note(self, what: str) -> None:
        self.trace.append(f"{self.now:8.3f} {what}")

    def complain(self, what: str) -> None:
        self.wrong.append(f"{self.now:.3f} {what}")
        self.note(f"WRONG {what}")

    # Messages.

    def send(self, event: Event) -> None:
        if self.dice.random() < self.weather.lost and not isinstance(event, MemberLeave):
            return
        self.later(self._delay(), lambda: self._deliver(event))
        if self.dice.random() < self.weather.twice:
            self.later(self._delay(), lambda: self._deliver(event))

    def _delay(self) -> float:
        dice = self.dice
        return dice.uniform(0.0, self.weather.latest) if dice.random() < self.weather.late else dice.uniform(0.0, 0.05)

    def _deliver(self, event: Event) -> None:
        """To any node that is there; messages wait in the queue of the broker."""
        there = [node for node in self.nodes if node.up and self.now >= max(node.asleep_until, self.outage_until)]
        if not there:
            self.later(0.5, lambda: self._deliver(event))
            return
        self._receive(self.dice.choice(there), event)

    def _answer(self, node: Node, got: Assignment) -> None:
        """A node that sleeps sends its answers when it wakes."""
        if self.dice.random() < self.weather.lost:
            return
        held_up = max(0.0, node.asleep_until - self.now) + self._delay()
        for member in self.readers(got):
            self.later(held_up, lambda to=member: to.receive(got))  # type: ignore[misc]

    def readers(self, got: Assignment) -> list[SdkMember | PlainMember]:
        """In whose queue an answer arrives."""
        return [
            member for member in self.members if (member.worker_id, member.instance) == (got.worker_id, got.instance)
        ]

    # Nodes.

    def _receive(self, node: Node, event: Event) -> None:
        if not (isinstance(event, MemberHeartbeat) and self._answered_from_memory(node, event)):
            self.transact(node, event)

    def _answered_from_memory(self, node: Node, event: MemberHeartbeat) -> bool:
        memory = node.memory
        if memory is None or not shards.is_routine(memory, event) or not self.stored(node, memory, event):
            return False
        self._answer(node, shards.routine_answer(memory, event, self.rules))
        return True

    def stored(self, node: Node, memory: ShardService, event: MemberHeartbeat) -> bool:
        """What the one statement does that stores many signs of life: only where the version is as in memory."""
        known, stored = memory.members[event.worker_id], self.row and self.row.members.get(event.worker_id)
        if self.row is None or not stored or not self.is_same(stored.version, known.version):
            return False
        seen = replace(stored, last_seen=self.clock(), seq=max(stored.seq, event.seq))
        self.row = replace(self.row, members={**self.row.members, event.worker_id: seen})
        return True

    def is_same(self, stored: int, known: int) -> bool:
        """Whether a member's version is still the one in a node's memory."""
        return stored == known

    def clock(self) -> datetime:
        return BASE + timedelta(seconds=self.now)

    def transact(self, node: Node, event: Event) -> None:
        """One transaction, and its effects; the node can die in between, or fall asleep."""
        if self.row is None:
            if not isinstance(event, MemberRegistration | MemberHeartbeat):
                return
            self.row = shards.new_service("service", event.shard_count)
        if isinstance(event, MemberLeave):
            self.left.add((event.worker_id, event.instance))
        before = self.row
        self.row, effects = shards.apply(before, [event], self.clock(), self.rules_of(node))
        for effect in effects:
            if not isinstance(effect, Assignment):
                self.note(f"{node.name} {effect}")
            if isinstance(effect, MemberChange) and effect.kind is MemberChangeKind.INACTIVE:
                self._judge_inactive(node, before, effect)
        self._judge(node, before, self.row)
        if not self.plain and self.dice.random() < 0.01:
            self.crash(node)
            return
        if not self.plain and self.dice.random() < 0.01:
            node.asleep_until = self.now + self.dice.uniform(1.0, 30.0)
        for effect in effects:
            if isinstance(effect, Assignment):
                self._answer(node, effect)

    def rules_of(self, node: Node) -> ShardRules:
        """The settings of that node."""
        return self.rules if node.allocation is None else replace(self.rules, allocation=node.allocation)

    def crash(self, node: Node) -> None:
        """The node dies, and starts again."""
        node.up, node.memory = False, None
        self.note(f"{node.name} dies")
        self.later(self.dice.uniform(1.0, 15.0), lambda: self._boot(node))

    def _boot(self, node: Node) -> None:
        node.up, node.listening_since = True, max(self.now, self.outage_until)

    def tick(self, node: Node) -> None:
        """What a node does by itself: it reads the state, leads, checks."""
        self.later(TICK, lambda: self.tick(node))
        if not node.up or self.now < max(node.asleep_until, self.outage_until):
            return
        if node.memory is None or (self.now - node.read_at >= REFRESH_S and self.now >= node.blind_until):
            node.memory, node.read_at = self.row, self.now
        if self.row is None:
            return
        if self.row.pending is not None and self.row.pending.leader_id is None:
            self.transact(node, LeadTaken(node.name))
            return
        due = shards.next_action_at(self.row, node.name)
        if self.now - node.checked_at >= CHECK_S or (due is not None and due <= self.clock()):
            node.checked_at = self.now
            since = BASE + timedelta(seconds=node.listening_since)
            self.transact(node, ServiceCheck(node.name, since))

    def outage(self, seconds: float) -> None:
        """The broker is away: nothing is delivered, and nodes listen again from its end."""
        self.outage_until = self.now + seconds
        for node in self.nodes:
            node.listening_since = max(node.listening_since, self.outage_until)
        self.note(f"outage of {seconds:.0f} s")

    # The rules.

    def interrupted(self, member: SdkMember, shard: int) -> None:
        row = self.row
        if row is None or row.active is None or row.active.number != member.generation:
            return
        known = row.members.get(member.worker_id)
        is_its_own = any(first <= shard <= last for first, last in row.active.share(member.worker_id).ranges)
        if known is not None and known.instance == member.instance and is_its_own:
            self.complain(f"interrupted: {member.worker_id} stops {shard}, which is its share")

    def _judge_inactive(self, node: Node, before: ShardService, effect: MemberChange) -> None:
        member = before.members[effect.worker_id]
        seen = member.last_seen
        if member.away is AwayReason.LEFT:
            return
        if self.now - node.listening_since < self.rules.heartbeat_timeout_s:
            self.complain(f"wave: {effect.worker_id} is inactive for a node that listens for less than the time-out")
        if (self.clock() - seen).total_seconds() < self.rules.heartbeat_timeout_s:
            self.complain(f"wave: {effect.worker_id} is inactive, but was not silent")
        clients = [one for one in self.members if isinstance(one, PlainMember) and one.worker_id == effect.worker_id]
        if any(one.alive and self.now - one.born >= self.rules.heartbeat_timeout_s for one in clients):
            self.complain(f"wave: {effect.worker_id} is inactive, but a client of that id sends heartbeats")

    def _judge(self, node: Node, before: ShardService, after: ShardService) -> None:
        self._judge_generations(node, before, after)
        for (worker, instance), member in ((one, after.members.get(one[0])) for one in self.left):
            if member is not None and member.instance == instance and instance is not None and member.away is None:
                self.complain(f"ghost: {worker} {instance} has left, and is a member")
        granted = [shard for member in after.members.values() for shard in member.shards.numbers()]
        if len(granted) != len(set(granted)):
            self.complain("stored: a shard is granted twice")

    def _judge_generations(self, node: Node, before: ShardService, after: ShardService) -> None:
        was, pending, active = before.pending, after.pending, after.active
        if after.number - before.number not in (0, 1):
            self.complain(f"generations: from {before.number} to {after.number}")
        if was is not None and pending is not None:
            if pending.number != was.number and not was.is_abandoned(self.clock()):
                self.complain(f"window: generation {pending.number} begins within that of {was.number}")
            if pending.number == was.number and pending.closes_at != was.closes_at:
                self.complain(f"window: that of generation {was.number} changes")
        if active is None or (before.active is not None and before.active.number == active.number):
            return
        if was is None or was.number != active.number or active.state is not GenerationState.ACTIVE:
            self.complain(f"generations: {active.number} is active and was not pending")
            return
        if was.leader_id != node.name:
            self.complain(f"leader: {node.name} activates {was.number} of {was.leader_id}")
        if was.leader_until is None or was.leader_until < self.clock():
            self.complain(f"leader: {was.number} is activated after the time of its leader")
        if was.closes_at > self.clock():
            self.complain(f"window: {was.number} is activated before the end of its window")
        self._judge_shares(self.rules_of(node), before.active.shares if before.active else {}, after)

    def _judge_shares(self, rules: ShardRules, current: Shares, after: ShardService) -> None:
        assert after.active is not None
        active, owned = after.active, list[int]()
        for shares in active.shares.values():
            owned += shares.numbers()
        able = [worker for worker, member in after.members.items() if member.weight > 0]
        if sorted(owned) != (list(range(after.shard_count)) if able else []):
            self.complain(f"shares: {active.number} does not have each shard once")
        sizes = {active.share(worker).size for worker in able}
        if able and max(sizes) - min(sizes) > 1:
            self.complain(f"shares: {active.number} is not even")
        if rules.allocation is Allocation.MINIMAL_MOVE and able:
            fewest = _fewest_moves(after.shard_count, able, current)
            if active.moved != fewest:
                self.complain(f"moves: {active.number} moves {active.moved} shards instead of {fewest}")

    def judge_intervals(self) -> None:
        """No shard was run by two processes at a time, and epochs rise from one to the next."""
        by_shard: dict[int, list[Interval]] = defaultdict(list)
        for one in self.intervals:
            if one.end > one.start:
                by_shard[one.shard].append(one)
        for shard, found in by_shard.items():
            latest: Interval | None = None
            for one in sorted(found, key=lambda one: one.start):
                if latest is not None and one.holder != latest.holder:
                    if latest.end > one.start + 1e-6:
                        self.complain(f"two owners of {shard}: {latest} and {one}")
                    is_next_client = one.follows_id and latest.holder[0] == one.holder[0]
                    if latest.epoch >= one.epoch and not is_next_client:
                        self.complain(f"epoch of {shard}: {latest} and then {one}")
                if latest is None or one.end >= latest.end:
                    latest = one

    def judge_end(self) -> None:
        """Each shard is run by the member whose share it is, and nothing is pending."""
        row = self.row
        alive = {member.worker_id for member in self.members if member.alive}
        if row is None or row.pending is not None or row.active is None or row.is_outdated:
            self.complain(f"end: no generation is active, or one is pending: {row and row.pending}")
            return
        if set(row.members) != alive:
            self.complain(f"end: members are {sorted(row.members)}, and alive are {sorted(alive)}")
        running: dict[int, list[str]] = defaultdict(list)
        for member in self.members:
            for shard in member.running if member.alive else ():
                running[shard].append(member.worker_id)
        expected = {shard: [w] for w, share in row.active.shares.items() for shard in share.numbers()}
        if dict(running) != expected:
            self.complain(f"end: run are {dict(sorted(running.items()))} instead of {dict(sorted(expected.items()))}")
        if (row.free and alive) or any(to_release(row, member) for member in row.members.values()):
            self.complain(f"end: free are {row.free}, or some is not let go of")
        if alive and ShardRanges.up_to(row.shard_count).size != len(running):
            self.complain(f"end: {len(running)} of {row.shard_count} shards are run")


def _fewest_moves(count: int, workers: list[str], current: Shares) -> int:
    """With one weight for all: the largest members are those that are rounded up."""
    everything = ShardRanges.up_to(count)
    sizes = {worker: (shares & everything).size for worker, shares in current.items()}
    base, more = divmod(count, len(workers))
    stay = sorted((sizes.get(worker, 0) for worker in workers), reverse=True)
    kept = sum(min(size, base + (1 if place < more else 0)) for place, size in enumerate(stay))
    return sum(sizes.values()) - kept


class Nemesis:
    """What happens to the members and the nodes of a realm."""

    def __init__(self, realm: Realm) -> None:
        self.realm, self.dice = realm, realm.dice
        self.over = False

    def begin(self) -> None:
        """The first members, and then one fault after another."""
        for place in range(self.dice.randint(1, 5)):
            self.realm.later(self.dice.uniform(0.0, 3.0), lambda n=place: self.start(f"worker-{n}"))  # type: ignore[misc]
        for place, node in enumerate(self.realm.nodes):
            self.realm.later(0.11 * place, lambda n=node: self.realm.tick(n))  # type: ignore[misc]
        self.realm.later(self.dice.uniform(2.0, 8.0), self.strike)

    def strike(self) -> None:
        """One fault."""
        if self.over:
            return
        fault = self.dice.choice(self._faults())
        self.realm.note(f"fault {fault.__name__}")
        fault()
        pause = self.dice.choice(PAUSES.get(self.realm.mode, (0.3, 3.0, 12.0)))
        self.realm.later(pause * self.dice.uniform(0.5, 1.5), self.strike)

    def _faults(self) -> list[Callable[[], None]]:
        mode, members = self.realm.mode, [self.join, self.join, self.stop, self.count]
        if mode in ("rush", "late"):
            return members
        if mode == "memory":
            return [self.join, self.doze, self.doze]
        if mode == "twins":
            return [self.join, self.twin, self.twin, self.kill, self.reconnect]
        members += [self.kill, self.kill]
        if mode == "plain":
            return members
        members += [self.sleep, self.sleep, self.restart, self.restart, self.double, self.announce]
        return [*members, self.crash, self.freeze, self.freeze, self.blind, self.outage, self.storm]

    def start(self, worker_id: str) -> None:
        """A process of that worker starts."""
        realm = self.realm
        realm.instances += 1
        count = self._count()
        if realm.plain and self.dice.random() < 0.5:
            if not any(member.worker_id == worker_id and member.alive for member in realm.members):
                realm.members.append(PlainMember(realm, worker_id, count, f"at-{realm.instances:03}"))
                realm.members[-1].start()
            return
        grace = self.dice.choice((0.0, 0.0, 8.0, 25.0))
        instance = f"i-{realm.instances:03}"
        member = SdkMember(realm, self.dice, worker_id, instance, count, grace_s=grace)
        realm.members.append(member)
        realm.note(f"{worker_id} starts as {instance}")
        member.start()

    def _count(self) -> int:
        known = [member.shard_count for member in self.realm.members if member.alive]
        return known[-1] if known else self.dice.randint(3, 14)

    def _one(self) -> SdkMember | PlainMember | None:
        alive = [member for member in self.realm.members if member.alive]
        return self.dice.choice(alive) if alive else None

    def _sdk(self) -> SdkMember | None:
        alive = [member for member in self.realm.members if member.alive and isinstance(member, SdkMember)]
        return self.dice.choice(alive) if alive else None

    def join(self) -> None:
        """A new worker, or one that was there before."""
        worker = f"worker-{self.dice.randint(0, 7)}"
        if not any(member.worker_id == worker and member.alive for member in self.realm.members):
            self.start(worker)

    def stop(self) -> None:
        """One stops in good order."""
        if (member := self._sdk()) is not None:
            member.stop()

    def announce(self) -> None:
        """One hands over and stops."""
        if (member := self._sdk()) is not None:
            member.announce()

    def kill(self) -> None:
        """One dies."""
        if (member := self._one()) is not None:
            member.kill()

    def restart(self) -> None:
        """One dies or stops, and a new process of it starts soon."""
        if (member := self._sdk()) is not None:
            (member.kill if self.dice.random() < 0.5 else member.stop)()
            worker = member.worker_id
            self.realm.later(self.dice.choice((0.1, 6.0, 20.0)) * self.dice.random(), lambda: self.start(worker))

    def double(self) -> None:
        """A second process has the same id, for a while."""
        if (member := self._sdk()) is not None:
            self.start(member.worker_id)
            second = self.realm.members[-1]
            self.realm.later(self.dice.uniform(1.0, 40.0), self.dice.choice((second, member)).kill)

    def _plain(self) -> PlainMember | None:
        alive = [member for member in self.realm.members if member.alive and isinstance(member, PlainMember)]
        return self.dice.choice(alive) if alive else None

    def twin(self) -> None:
        """A second client of S1 has the same id, for a while; it sends heartbeats, and never registers.

        The first one has been answered: a register that came after the second's heartbeat would displace that at once.
        """
        realm = self.realm
        if (member := self._plain()) is not None and member.answered:
            realm.instances += 1
            second = PlainMember(realm, member.worker_id, member.shard_count, f"at-{realm.instances:03}", twin=True)
            realm.members.append(second)
            second.start()
            realm.later(self.dice.uniform(1.0, 40.0), self.dice.choice((second, member)).kill)

    def reconnect(self) -> None:
        """A client of S1 has a new connection, and knows nothing of it. Where that happens again before it is answered,
        it is not told either that another client has its place.
        """
        member = self._plain()
        if member is not None and self.realm.now - member.connected_at >= self.realm.rules.heartbeat_timeout_s:
            self.realm.instances += 1
            member.connected_at = self.realm.now
            member.address = f"at-{self.realm.instances:03}"

    def sleep(self) -> None:
        """One stands still."""
        if (member := self._sdk()) is not None:
            member.stand_still(self.dice.choice((8.0, 40.0)) * self.dice.random())

    def doze(self) -> None:
        """One stands still until its shards are others', and most nodes remember it as it was."""
        if (member := self._sdk()) is not None and self.realm.now > member.asleep_until:
            member.stand_still(self.dice.uniform(20.0, 26.0))
            for node in self.realm.nodes[1:]:
                node.blind_until = self.realm.now + 45.0

    def count(self) -> None:
        """The shard count changes."""
        member = self._one()
        count = self.dice.randint(1, 16)
        if isinstance(member, SdkMember):
            member.change_count(count)
        elif member is not None:
            member.shard_count = count

    def crash(self) -> None:
        """A node dies."""
        self.realm.crash(self.dice.choice(self.realm.nodes))

    def freeze(self) -> None:
        """A node stands still, with what it has in memory."""
        self.dice.choice(self.realm.nodes).asleep_until = self.realm.now + self.dice.uniform(1.0, 30.0)

    def blind(self) -> None:
        """A node reads nothing, and answers from what it has in memory."""
        self.dice.choice(self.realm.nodes).blind_until = self.realm.now + self.dice.uniform(5.0, 60.0)

    def outage(self) -> None:
        """The broker is away."""
        self.realm.outage(self.dice.choice((4.0, 25.0)))

    def storm(self) -> None:
        """Messages are much later than ever, for a while."""
        self.realm.weather = Weather(0.5, 25.0, 0.2, 0.2)
        self.realm.later(self.dice.uniform(2.0, 15.0), self.calm)

    def calm(self) -> None:
        """As before, unless all is healed meanwhile."""
        if not self.over:
            self.realm.weather = MODES[self.realm.mode]

    def heal(self) -> None:
        """No more faults; every message that is sent from now on arrives soon."""
        self.over = True
        self.realm.weather = Weather(0.0, 0.0, 0.0, 0.0)
        self.realm.outage_until = min(self.realm.outage_until, self.realm.now)
        for node in self.realm.nodes:
            node.asleep_until = node.blind_until = -1.0
            if not node.up:
                self._reboot(node)
        for member in self.realm.members:
            if isinstance(member, SdkMember):
                member.asleep_until = min(member.asleep_until, self.realm.now)

    def _reboot(self, node: Node) -> None:
        node.up, node.listening_since = True, self.realm.now


class Simulation:
    """Runs seeds, each in one of the modes."""

    def run(self, seed: int) -> Outcome:
        """One seed."""
        mode, dice = mode_of(seed), Random(f"shards:{seed}")
        allocation = Allocation.EVEN if mode == "late" or dice.random() < 0.5 else Allocation.MINIMAL_MOVE
        realm = Realm(seed, ShardRules(allocation=allocation, plain=PlainMode.PROTECT), mode, dice, weather=MODES[mode])
        self._change_allocation(realm)
        nemesis = Nemesis(realm)
        nemesis.begin()
        realm.run(DURATION)
        nemesis.heal()
        realm.note("healed")
        realm.run(DURATION + QUIET)
        realm.judge_end()
        realm.judge_intervals()
        return Outcome(seed, realm.wrong, realm.trace, [f"mode {mode}"], "tests.simulation.shards")

    def _change_allocation(self, realm: Realm) -> None:
        """In every fourth seed one node after another gets the other setting, as in a rolling change."""
        dice = Random(f"allocation:{realm.seed}")
        if realm.mode == "late" or dice.random() >= 0.25:
            return
        (other,) = set(Allocation) - {realm.rules.allocation}
        for node in realm.nodes:
            realm.later(dice.uniform(0.0, DURATION), partial(self._switch, realm, node, other))

    @staticmethod
    def _switch(realm: Realm, node: Node, allocation: Allocation) -> None:
        node.allocation = allocation
        realm.note(f"{node.name} divides by {allocation}")


def main() -> int:
    """The command line."""
    return replay("Simulates the members of a shard service over bad days.", Simulation().run)


if __name__ == "__main__":
    sys.exit(main())
