"""Service draft: the state of a shard service while events change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from orchestrix.domain.shards import generations
from orchestrix.domain.shards.generations import Cause, Generation
from orchestrix.domain.shards.grants import added, within
from orchestrix.domain.shards.members import Departure, DepartureReason, Process, ServiceMember
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import (
    Assignment,
    Effect,
    GenerationChange,
    MemberChange,
    MemberChangeKind,
    ShardRules,
    ShardService,
)


class ServiceDraft:
    """The state of a service that events change at `now`, and what follows from them. Its copies cost one pass."""

    def __init__(self, service: ShardService, now: datetime, rules: ShardRules) -> None:
        self.now, self.rules = now, rules
        self.members = dict(service.members)
        self.successors = dict(service.successors)
        self.departures = dict(service.departures)
        self.active, self.pending = service.active, service.pending
        self.shard_count, self.revision = service.shard_count, service.revision
        self.counter, self.number, self.free = service.counter, service.number, service.free
        self._service = service
        self._effects: list[Effect] = []
        self._answers: dict[tuple[str, str | None], str | None] = {}
        self._freed: list[ShardRanges] = []

    def finished(self) -> tuple[ShardService, list[Effect]]:
        """The new state and the effects, the assignments last."""
        state = replace(
            self._service,
            members=self.members,
            successors=self.successors,
            departures=self.departures,
            active=self.active,
            pending=self.pending,
            shard_count=self.shard_count,
            revision=self.revision,
            counter=self.counter,
            number=self.number,
            free=self.free,
        )
        return state, [*self._effects, *self._assignments(state)]

    def _assignments(self, state: ShardService) -> Iterator[Assignment]:
        for (worker, instance), problem in self._answers.items():
            member = member_of(state, worker, instance)
            if member is not None:
                timeout_s = self.rules.heartbeat_timeout_s
                yield replace(assignment(state, member), problem=problem, timeout_s=timeout_s)

    def answer(self, member: ServiceMember, problem: str | None = None) -> None:
        """The member is sent what it has, as it is at the end."""
        self._answers[member.worker_id, member.instance] = problem

    def effect(self, effect: Effect) -> None:
        """Something that is to be sent or logged as it is."""
        self._effects.append(effect)

    def note(self, member: ServiceMember, kind: MemberChangeKind) -> None:
        """Something became of a member."""
        self._effects.append(MemberChange(member.worker_id, member.instance, kind))

    def next_count(self) -> int:
        """A number that was never given out for this service."""
        self.counter += 1
        return self.counter

    def store(self, member: ServiceMember) -> None:
        """The member as it is from now on."""
        self.members[member.worker_id] = member

    def changed(self, cause: Cause) -> None:
        """Members or shard count have changed: begins a generation, unless one is pending, which will include it."""
        self.revision += 1
        if self.pending is None:
            self.begin(cause)

    def begin(self, cause: Cause) -> None:
        """The next generation begins."""
        self.number += 1
        self.pending = generations.begun(self.number, cause, self.now, self.rules.window_s)
        self._changed_to(self.pending)

    def end_pending(self) -> None:
        """The pending generation is superseded."""
        if self.pending is not None:
            self._changed_to(generations.superseded(self.pending, self.now))
            self.pending = None

    def replace_active(self, generation: Generation) -> None:
        """The generation, which was pending, is active from now on."""
        if self.active is not None:
            self._changed_to(generations.superseded(self.active, self.now))
        self.active, self.pending = generation, None
        self._changed_to(generation)

    def _changed_to(self, one: Generation) -> None:
        change = GenerationChange(one.number, one.state, one.cause, one.moved, one.shard_count, len(one.shares))
        self._effects.append(change)

    def grant(self, member: ServiceMember, shards: ShardRanges, epoch: int) -> None:
        """The member has these shards too, which are free, under that epoch."""
        grants = added(member.grants, shards, epoch)
        self.store(replace(member, grants=grants, version=self.next_count()))

    def release(self, member: ServiceMember, shards: ShardRanges | None = None) -> ServiceMember:
        """The member without these of its shards, or without any; they are free at the end of the event."""
        gone = member.shards if shards is None else shards & member.shards
        if not gone:
            return member
        self._freed.append(gone)
        kept = () if shards is None else within(member.grants, member.shards - shards)
        member = replace(member, grants=kept, version=self.next_count())
        self.store(member)
        return member

    def take_freed(self) -> bool:
        """Adds what was released to the free shards; whether there was anything."""
        freed, self._freed = self._freed, []
        known = ShardRanges.up_to(self.active.shard_count if self.active else 0)
        for shards in freed:
            self.free = self.free | (shards & known)
        return bool(freed)

    def remove(self, member: ServiceMember, reason: DepartureReason) -> None:
        """It is no member any more, and its shards are free."""
        self.release(member)
        del self.members[member.worker_id]
        self.depart((member.worker_id, member.instance), reason)

    def depart(self, process: Process, reason: DepartureReason) -> None:
        """The process is no member, and is known to be gone. One that has left stays one that has left."""
        former = self.departures.get(process)
        if former is None or former.reason is not DepartureReason.LEFT:
            self.departures[process] = Departure(*process, reason, self.now)


def member_of(state: ShardService, worker_id: str, instance: str | None) -> ServiceMember | None:
    """The member, or the successor of one, that runs as this instance."""
    for found in (state.members.get(worker_id), state.successors.get(worker_id)):
        if found is not None and found.instance == instance:
            return found
    return None


def assignment(state: ShardService, member: ServiceMember) -> Assignment:
    """What the member or successor is to run: what it has of its share."""
    active = state.active
    is_current = member.worker_id in state.members and state.members[member.worker_id].instance == member.instance
    share = active.share(member.worker_id) if active is not None and is_current else ShardRanges()
    return Assignment(
        member.worker_id,
        member.instance,
        member.reply_to,
        active.number if active is not None else 0,
        member.seq,
        within(member.grants, share),
        via=member.via,
    )
