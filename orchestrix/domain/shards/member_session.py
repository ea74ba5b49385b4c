"""Member session: what one process of a service may run, by the answers that it has received and by its lease."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import islice
from math import inf
from typing import Final

from orchestrix.domain.shards.grants import NO_GRANTS, Grant, Grants, joined
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import Assignment, MemberHeartbeat, MemberLeave, MemberRegistration, ShardRules

MOST_STARTS: Final = 1_000
"""Shards that begin at once."""


class StopReason(StrEnum):
    """Why the work for a shard is to end."""

    REVOKED = "revoked"
    """It is not the member's any more."""
    RENEWED = "renewed"
    """It was granted again, under a higher epoch, under which the work begins again."""
    EXPIRED = "expired"
    """The lease is over."""
    LEAVING = "leaving"
    """The process leaves."""


@dataclass(slots=True, eq=False)
class ShardRun:
    """The work for a shard under one epoch, until it has really ended. `stopping_since` is on the caller's clock."""

    shard: int
    epoch: int
    stopping: StopReason | None = None
    stopping_since: float = inf


@dataclass(frozen=True, slots=True)
class RunChanges:
    """What is to begin, and what is to be stopped."""

    start: Sequence[ShardRun] = ()
    stop: Sequence[ShardRun] = ()


@dataclass
class MemberSession:
    """One process of a service, as it sees itself. Times are seconds on a clock that counts suspension.

    It may run what the newest generation gives it, from when no former work for the shard is left, and until its lease
    is over: so long after the sending of the newest message that a coordinator has stored and answered. A shard is
    reported until its work has ended, for a report without it lets others have it.

    After each call that may change something, `changes` returns what is to begin and to end; `ended` is to be called
    once for each run that was to be stopped.
    """

    worker_id: str
    instance: str
    shard_count: int
    rules: ShardRules
    weight: int = 1
    grace_s: float = 0.0
    reply_to: str | None = None
    seq: int = 0
    generation: int = 0
    answered: bool = False
    leaving: bool = False
    count_due: bool = False
    lease_until: float = -inf
    runs: dict[int, ShardRun] = field(default_factory=dict)
    _assigned: dict[int, int] = field(default_factory=dict)
    _sent: dict[int, float] = field(default_factory=dict)
    _applied: tuple[int, Grants] = (0, NO_GRANTS)
    _changed: bool = False
    _count_seq: int = 0

    # What it sends.

    def report_count(self, count: int) -> None:
        """Says that the service has so many shards: a registration says it also where this member said the same before
        and another has changed it since. Until one is answered no heartbeat is to be sent, which could overtake it."""
        self.shard_count, self.count_due, self._count_seq = count, True, self.seq + 1

    @property
    def must_register(self) -> bool:
        """Whether a registration is to be sent, not a heartbeat."""
        return self.count_due or not self.answered

    def register(self, now: float) -> MemberRegistration:
        """The registration that is to be sent now."""
        return MemberRegistration(
            worker_id=self.worker_id,
            instance=self.instance,
            shard_count=self.shard_count,
            seq=self._next_seq(now),
            weight=self.weight,
            grace_s=self.grace_s,
            reply_to=self.reply_to,
        )

    def heartbeat(self, now: float) -> MemberHeartbeat:
        """The heartbeat that is to be sent now: it reports all that has not ended."""
        return MemberHeartbeat(
            worker_id=self.worker_id,
            instance=self.instance,
            shard_count=self.shard_count,
            shards=ShardRanges.of_numbers(self.runs),
            seq=self._next_seq(now),
            generation=self.generation,
            weight=self.weight,
            grace_s=self.grace_s,
            reply_to=self.reply_to,
        )

    @property
    def grants(self) -> Grants:
        """The shards of a heartbeat with their epochs."""
        return tuple(joined(sorted(Grant(one.shard, one.shard, one.epoch) for one in self.runs.values())))

    def leave(self) -> MemberLeave:
        """The leave, for when nothing runs any more. Raises ValueError before."""
        if self.runs:
            raise ValueError(f"the work for {len(self.runs)} shards has not ended")
        return MemberLeave(self.worker_id, self.instance)

    def _next_seq(self, now: float) -> int:
        self.seq += 1
        self._sent = {seq: at for seq, at in self._sent.items() if now < at + self.rules.lease_s}
        self._sent[self.seq] = now
        return self.seq

    # What it receives.

    def receive(self, got: Assignment, now: float) -> bool:
        """Follows an assignment; whether it counts. One that answers what was sent a lease ago or earlier does not:
        what it says may be over."""
        if got.instance != self.instance:
            return False
        self.check_lease(now)
        if not self.follows(got):
            return False
        self.answered = True
        self.count_due = self.count_due and got.seq < self._count_seq
        is_shorter = self._adopt_timeout(got)
        lease_until = self.lease_of(got)
        if is_shorter:
            self.lease_until = min(self.lease_until, lease_until)
        if now >= lease_until:
            return False
        self.lease_until = max(lease_until, self.lease_until)
        if (got.generation, got.grants) != self._applied and not self.leaving:
            self._apply(got)
        return True

    def _adopt_timeout(self, got: Assignment) -> bool:
        """Takes the shortest that any node has said, or others would have its shards while it still works; whether it
        is shorter than the one before. While it is changed, answers of nodes with either one come in turn.
        """
        if got.timeout_s is None or got.timeout_s >= self.rules.heartbeat_timeout_s:
            return False
        self.rules = replace(self.rules, heartbeat_timeout_s=got.timeout_s)
        return True

    def follows(self, got: Assignment) -> bool:
        """Whether the assignment is not older than the one that it follows."""
        return got.generation >= self.generation

    def lease_of(self, got: Assignment) -> float:
        """Until when a member may work that has received this: it counts from before the sending of the message that
        is answered."""
        return self._sent.get(got.seq, -inf) + self.rules.lease_s

    def _apply(self, got: Assignment) -> None:
        shards = {shard: one.epoch for one in got.grants for shard in range(one.first, one.last + 1)}
        if got.generation == self.generation:  # within one generation a member is only given more
            for shard, epoch in self._assigned.items():
                shards[shard] = max(epoch, shards.get(shard, 0))
        self.generation, self._assigned = got.generation, shards
        self._applied, self._changed = (got.generation, got.grants), True

    # What follows.

    def is_leased(self, now: float) -> bool:
        """Whether it may work."""
        return now < self.lease_until

    @property
    def stop_until(self) -> float:
        """Until when work that is to be stopped must have ended, for then others may have its shard."""
        return self.lease_until + max(self.rules.heartbeat_timeout_s - self.rules.lease_s, 0.0)

    def check_lease(self, now: float) -> bool:
        """Whether it may work; at the end of the lease all is to be stopped."""
        if self.is_leased(now):
            return True
        if self._assigned or self._applied != (0, NO_GRANTS):
            self._assigned, self._applied, self._changed = {}, (0, NO_GRANTS), True
        return False

    def begin_leave(self) -> None:
        """It begins nothing more, and stops all."""
        self.leaving, self._assigned, self._changed = True, {}, True

    def changes(self, now: float) -> RunChanges:
        """What is to begin and to end now; each is returned once. While `has_changes`, there is more: a process that
        began a hundred thousand at once would miss its heartbeats."""
        if not self._changed:
            return RunChanges()
        self._changed = False
        stop = [run for run in self.runs.values() if run.stopping is None and self._is_over(run)]
        for run in stop:
            run.stopping, run.stopping_since = self._stop_reason(run, now), now
        if self.leaving or not self.is_leased(now):
            return RunChanges(stop=stop)
        due = (ShardRun(shard, epoch) for shard, epoch in self._assigned.items() if shard not in self.runs)
        start = list(islice(due, MOST_STARTS))
        self._changed = len(start) == MOST_STARTS
        self.runs.update((run.shard, run) for run in start)
        return RunChanges(start, stop)

    @property
    def has_changes(self) -> bool:
        """Whether `changes` may return something."""
        return self._changed

    def _is_over(self, run: ShardRun) -> bool:
        return self._assigned.get(run.shard) != run.epoch

    def _stop_reason(self, run: ShardRun, now: float) -> StopReason:
        if self.leaving:
            return StopReason.LEAVING
        if not self.is_leased(now):
            return StopReason.EXPIRED
        return StopReason.RENEWED if run.shard in self._assigned else StopReason.REVOKED

    def ended(self, run: ShardRun) -> None:
        """The work for a shard has really ended: from now on it is not reported, and may begin again."""
        if self.runs.get(run.shard) is run:
            del self.runs[run.shard]
            self._changed = True

    @property
    def running(self) -> Mapping[int, int]:
        """The epochs of the shards whose work runs and is not to be stopped."""
        return {shard: run.epoch for shard, run in self.runs.items() if run.stopping is None}

    @property
    def stopping(self) -> Sequence[ShardRun]:
        """The work that is to be stopped and has not ended."""
        return [run for run in self.runs.values() if run.stopping is not None]
