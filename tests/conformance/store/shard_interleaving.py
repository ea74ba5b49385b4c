"""What may several nodes do to one service of shards at the same time, and what must be true of all that they store?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import combinations
from random import Random
from typing import Any

from orchestrix.domain.shards.allocation import Allocation, even
from orchestrix.domain.shards.generations import TRANSITIONS, Generation, GenerationState
from orchestrix.domain.shards.ranges import NO_SHARDS, ShardRanges, union
from orchestrix.domain.shards.service import apply
from orchestrix.domain.shards.state import (
    Event,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
    ServiceCheck,
    ShardRules,
    ShardService,
)
from orchestrix.errors import ConflictError, Contention
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.shards import generations, service_store, services

SERVICE = "orders"
NODES = ("node-1", "node-2", "node-3")
WORKERS = 6


@dataclass
class Interleaving:
    """Several nodes that do random things to one service at the same time; what is wrong with what they store."""

    databases: Sequence[Database]
    rules: ShardRules
    dice: Random
    now: datetime
    seen: dict[int, GenerationState] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    async def run(self, steps: int) -> None:
        """So many steps of each node."""
        async with self.databases[0].begin() as tx:
            await services.insert_if_absent(tx, SERVICE, 10, self.now)
        await asyncio.gather(*(self._node(place, steps) for place in range(len(NODES))))

    async def _node(self, place: int, steps: int) -> None:
        database, name = self.databases[place % len(self.databases)], NODES[place]
        for _ in range(steps):
            self.now += timedelta(seconds=self.dice.choice((0.1, 0.7, 3.0)))
            if self.dice.random() < 0.3:
                await database.run(lambda tx: generations.acquire_leader_lock(tx, name, self.now))
            await database.run(lambda tx: self._step(tx, name))

    async def _step(self, tx: Transaction, node: str) -> None:
        before, now = await self._stored(tx), self.now
        after, _ = apply(before, [self._event(before, node, now)], now, self.rules)
        try:
            await service_store.save(tx, before, after, now)
        except ConflictError as error:  # as the coordinator: another node has just begun to lead
            raise Contention(str(error)) from error
        stored = await self._stored(tx)
        assert _without_leader(stored) == _without_leader(after), "what is read is what was computed"
        history = {one.number: GenerationState(one.state) for one in await generations.history(tx, SERVICE, 10_000)}
        tx.then(lambda: self._judge(before, stored, history))

    async def _stored(self, tx: Transaction) -> ShardService:
        found = await service_store.lock(tx, SERVICE)
        assert found is not None
        return found.state

    def _event(self, state: ShardService, node: str, now: datetime) -> Event:
        dice, worker = self.dice, f"worker-{self.dice.randrange(WORKERS)}"
        known = state.members.get(worker)
        kind = dice.choices(("check", "register", "heartbeat", "leave"), (4, 3, 4, 1))[0]
        if kind == "check":
            return ServiceCheck(node, now - timedelta(seconds=dice.choice((0, 60))))
        instance = known.instance if known is not None else dice.choice(("i-1", None))
        more: dict[str, Any] = {"worker_id": worker, "instance": instance, "reply_to": f"to {worker}"}
        more["seq"] = known.seq + 1 if known is not None else 1
        if kind == "register" or known is None:
            count = dice.choice((state.shard_count, state.shard_count, dice.randint(1, 40)))
            return MemberRegistration(**more, shard_count=count)
        if kind == "leave":
            return MemberLeave(worker, instance)
        share = state.active.share(worker) if state.active is not None else NO_SHARDS
        shards = dice.choice((known.shards & share, known.shards, NO_SHARDS))
        number = state.active.number if state.active is not None else 0
        return MemberHeartbeat(**more, shard_count=known.shard_count, shards=shards, generation=number)

    # What must be true of every committed state.

    def _judge(self, before: ShardService, after: ShardService, history: dict[int, GenerationState]) -> None:
        self._judge_chain(after, history)
        grants = [member.shards for member in after.members.values()]
        assert not any(one & other for one, other in combinations(grants, 2)), "a shard is granted twice"
        active = after.active
        if active is not None and (before.active is None or before.active.number != active.number):
            self._count("activations")
            self._judge_shares(before.active, active, after)

    def _judge_chain(self, after: ShardService, history: dict[int, GenerationState]) -> None:
        assert sorted(history) == list(range(1, after.number + 1)), "each number once, without a gap"
        live = [number for number, state in sorted(history.items()) if state is not GenerationState.SUPERSEDED]
        states = [history[number] for number in live]
        legal: tuple[list[GenerationState], ...] = ([], [GenerationState.PENDING], [GenerationState.ACTIVE])
        assert states in (*legal, [GenerationState.ACTIVE, GenerationState.PENDING]), f"{history}"
        if GenerationState.PENDING in states:
            assert live[-1] == after.number, "the pending one is the newest"
        for number, state in history.items():
            former = self.seen.get(number, GenerationState.PENDING)
            direct = state is former or state in TRANSITIONS[former]
            assert direct, f"generation {number} goes from {former} to {state}"
            if former is GenerationState.PENDING and state is GenerationState.SUPERSEDED:
                self._count("abandoned")
        self.seen = history

    def _judge_shares(self, former: Generation | None, active: Generation, after: ShardService) -> None:
        able, everything = sorted(after.members), ShardRanges.up_to(after.shard_count)
        shares = {worker: active.share(worker) for worker in able}
        assert set(active.shares) <= set(able)
        if not able:
            return
        sizes = [share.size for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1, f"shares are {sizes}"
        assert union(shares.values()) == everything, "each shard is in a share"
        assert sum(sizes) == everything.size, "no shard is in two"
        if self.rules.allocation is Allocation.EVEN:
            assert shares == even(after.shard_count, able), "the same members have the same shares"
        elif former is not None:
            for worker in able:
                had = former.share(worker) & everything
                assert (had & shares[worker]).size == min(had.size, shares[worker].size), "what it can keep, it keeps"

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _without_leader(state: ShardService) -> ShardService:
    """Another node may begin to lead the pending generation at any time, without the service's lock."""
    if state.pending is None:
        return state
    return replace(state, pending=replace(state.pending, leader_id=None, leader_until=None))
