"""Shard membership: registrations, heartbeats, leaves and silence (S1: messageHandler and heartbeatMonitor)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta

from orchestrix.domain.shards.convergence import acknowledge
from orchestrix.domain.shards.draft import ServiceDraft
from orchestrix.domain.shards.generations import Cause, CauseKind
from orchestrix.domain.shards.members import (
    MOST_MEMBERS,
    AwayReason,
    Departure,
    DepartureReason,
    ServiceMember,
    believed_seen,
)
from orchestrix.domain.shards.ranges import NO_SHARDS
from orchestrix.domain.shards.state import (
    DEPARTURES_KEPT_S,
    MOST_DEPARTURES,
    Assignment,
    MemberChangeKind,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
)

TOO_MANY_MEMBERS = f"the service has {MOST_MEMBERS} members, and can have no more: stop one, or use another service"
OTHER_PROCESS = "another process runs under this workerId: stop it, or use another workerId; this one waits for its end"
OTHER_CLIENT = (
    "another client runs under this workerId: stop it, or use another workerId; this one gets shards when it "
    "registers, or when the other one is silent"
)
GONE = "this process has left: register under a new instance"


def register(draft: ServiceDraft, asked: MemberRegistration) -> None:
    """A member registers: a new one is answered when its first generation is active, a known one at once.

    It counts as a report of the shard count, unless a newer message of that process was there before.
    """
    if _has_left(draft, asked.worker_id, asked.instance):
        _refuse(draft, asked, GONE)
        return
    known = draft.members.get(asked.worker_id)
    if known is None or (known.away is not None and known.instance != asked.instance):
        _join(draft, _new(draft, asked), known)
    elif known.instance != asked.instance:
        successor = _new(draft, asked)
        draft.successors[asked.worker_id] = successor
        draft.answer(successor, OTHER_PROCESS)
    else:
        _register_again(draft, known, asked)
        return
    if asked.worker_id in draft.members:  # not refused
        _count_reported(draft, asked.worker_id, asked.shard_count)


def _register_again(draft: ServiceDraft, known: ServiceMember, asked: MemberRegistration) -> None:
    is_newer = known.plain or asked.seq > known.seq
    draft.store(_seen(draft, known))
    if is_newer:
        _report(draft, asked)
        _count_reported(draft, asked.worker_id, asked.shard_count)
    if known.answered:
        draft.answer(known)


def _report(draft: ServiceDraft, asked: MemberRegistration | MemberHeartbeat) -> None:
    """What the newest message of a member says about it."""
    known = draft.members[asked.worker_id]
    member = replace(
        known,
        seq=asked.seq,
        reply_to=asked.reply_to or known.reply_to,
        via=asked.via if asked.reply_to is not None else known.via,
        absent=NO_SHARDS if _is_from_elsewhere(known, asked) else known.absent,
        shard_count=asked.shard_count,
        weight=known.weight if asked.weight is None else asked.weight,
        grace_s=known.grace_s if asked.grace_s is None else asked.grace_s,
    )
    if member != replace(known, seq=asked.seq):
        member = replace(member, version=draft.next_count())
    draft.store(member)
    if member.weight != known.weight:
        draft.changed(Cause(CauseKind.WEIGHT if member.weight else CauseKind.LEAVING, member.worker_id))


def receive_heartbeat(draft: ServiceDraft, heartbeat: MemberHeartbeat) -> None:
    """A sign of life. One that is newer than all before of that process also reports its shard count and its shards.

    A process that is not known is registered by it. One of a plain client from another address than the member's is
    refused until that one is silent: only a registration takes its place at once.
    """
    if _has_left(draft, heartbeat.worker_id, heartbeat.instance):
        return  # overtaken by the leave
    known = draft.members.get(heartbeat.worker_id)
    if known is None:
        _join(draft, replace(_new(draft, heartbeat), answered=True), None)
        if heartbeat.worker_id in draft.members:
            draft.answer(draft.members[heartbeat.worker_id])
        return
    if known.instance != heartbeat.instance:
        _heartbeat_of_another(draft, known, heartbeat)
        return
    if _is_from_elsewhere(known, heartbeat) and not _is_quiet(draft, known):
        _refuse(draft, heartbeat, OTHER_CLIENT)
        return
    draft.store(_seen(draft, known))
    if known.plain or heartbeat.seq > known.seq:
        _report(draft, heartbeat)
        if heartbeat.shard_count != known.shard_count:
            _count_reported(draft, known.worker_id, heartbeat.shard_count)
        member = draft.members[known.worker_id]
        draft.store(replace(member, generation=max(member.generation, heartbeat.generation)))
        acknowledge(draft, draft.members[known.worker_id], heartbeat)
    draft.answer(known)


def _is_from_elsewhere(known: ServiceMember, message: MemberRegistration | MemberHeartbeat | MemberLeave) -> bool:
    """Whether another plain client says this: it is known by its address alone."""
    return known.plain and None not in (known.reply_to, message.reply_to) and known.reply_to != message.reply_to


def _is_quiet(draft: ServiceDraft, known: ServiceMember) -> bool:
    silent_s = (draft.now - believed_seen(known.last_seen, draft.now)).total_seconds()
    return silent_s >= draft.rules.plain_silence_s


def _heartbeat_of_another(draft: ServiceDraft, known: ServiceMember, heartbeat: MemberHeartbeat) -> None:
    """A process that is not the member's: one waits for the end of the member's process, the others are refused."""
    if known.away is not None:
        _join(draft, replace(_new(draft, heartbeat), answered=True), known)
        draft.answer(draft.members[heartbeat.worker_id])
        return
    waiting = draft.successors.get(heartbeat.worker_id)
    if waiting is not None and waiting.instance != heartbeat.instance:
        _refuse(draft, heartbeat, OTHER_PROCESS)
        return
    successor = _new(draft, heartbeat) if waiting is None else waiting
    seq = max(successor.seq, heartbeat.seq)
    draft.successors[heartbeat.worker_id] = replace(successor, last_seen=draft.now, seq=seq)
    draft.answer(successor, OTHER_PROCESS)


def leave(draft: ServiceDraft, left: MemberLeave) -> None:
    """The process has stopped all its shards. Its successor takes its place, or its share waits for its grace."""
    waiting = draft.successors.get(left.worker_id)
    if waiting is not None and waiting.instance == left.instance:
        del draft.successors[left.worker_id]
    if left.instance is not None:
        draft.depart((left.worker_id, left.instance), DepartureReason.LEFT)
    known = draft.members.get(left.worker_id)
    if known is None or known.instance != left.instance or known.away is AwayReason.LEFT:
        return
    if _is_from_elsewhere(known, left):
        return
    if waiting is not None:
        promote(draft, known, waiting)
    elif known.grace_s > 0 and not known.plain:
        _set_away(draft, known, AwayReason.LEFT)
    else:
        draft.remove(known, DepartureReason.LEFT)
        draft.note(known, MemberChangeKind.LEFT)
        draft.changed(Cause(CauseKind.LEFT, known.worker_id))


def check_silence(draft: ServiceDraft, listening_since: datetime) -> None:
    """Members that were silent for the time-out lose their shards: to a successor, for their grace, or for good."""
    timeout_s, now = draft.rules.heartbeat_timeout_s, draft.now
    for worker, waiting in list(draft.successors.items()):
        if waiting.is_silent(now, listening_since, timeout_s):
            del draft.successors[worker]
    for member in list(draft.members.values()):
        if member.last_seen > believed_seen(member.last_seen, now):
            member = replace(member, last_seen=now)
            draft.store(member)
        if member.away is not None and member.grace_is_over(now, listening_since):
            _become_inactive(draft, member)
        elif member.away is None and member.is_silent(now, listening_since, timeout_s):
            _end_of_silent(draft, member)
    _prune_departures(draft)


def has_old_departures(departures: Collection[Departure], now: datetime) -> bool:
    """Whether some of them are to be forgotten."""
    since = now - timedelta(seconds=DEPARTURES_KEPT_S)
    return len(departures) > MOST_DEPARTURES or any(one.at <= since for one in departures)


def _prune_departures(draft: ServiceDraft) -> None:
    if not has_old_departures(draft.departures.values(), draft.now):
        return
    since = draft.now - timedelta(seconds=DEPARTURES_KEPT_S)
    latest = sorted(draft.departures.values(), key=lambda one: one.at, reverse=True)[:MOST_DEPARTURES]
    draft.departures = {(one.worker_id, one.instance): one for one in latest if one.at > since}


def _end_of_silent(draft: ServiceDraft, member: ServiceMember) -> None:
    waiting = draft.successors.get(member.worker_id)
    if waiting is not None:
        promote(draft, member, waiting)
    elif member.grace_s > draft.rules.heartbeat_timeout_s:
        _set_away(draft, member, AwayReason.SILENT)
    else:
        _become_inactive(draft, member)


def _become_inactive(draft: ServiceDraft, member: ServiceMember) -> None:
    draft.remove(member, DepartureReason.INACTIVE)
    draft.note(member, MemberChangeKind.INACTIVE)
    draft.changed(Cause(CauseKind.INACTIVE, member.worker_id))


def _set_away(draft: ServiceDraft, member: ServiceMember, reason: AwayReason) -> None:
    """Its shards are free, but stay in its share until its grace is over."""
    member = draft.release(member)
    since = draft.now if reason is AwayReason.LEFT else member.last_seen
    version = draft.next_count()  # also without shards: a node that remembers it as it was must not answer it
    draft.store(replace(member, away=reason, away_at=since, revoking=(), absent=NO_SHARDS, version=version))
    draft.note(member, MemberChangeKind.AWAY)


def promote(draft: ServiceDraft, former: ServiceMember, successor: ServiceMember) -> None:
    """The process that waited for the end of the member's takes its place, and no share changes."""
    draft.release(former)
    draft.successors.pop(former.worker_id, None)
    draft.store(replace(successor, version=draft.next_count(), answered=True))
    draft.note(successor, MemberChangeKind.REPLACED)
    draft.answer(successor)
    if successor.weight != former.weight:  # as that of one that has announced its leave
        draft.changed(Cause(CauseKind.REPLACED, successor.worker_id))


def _join(draft: ServiceDraft, member: ServiceMember, away: ServiceMember | None) -> None:
    """A new member, or a new process of one that is away, which finds its share as it was."""
    if away is not None:
        promote(draft, away, member)
        return
    if len(draft.members) >= MOST_MEMBERS:
        _refuse(draft, member, TOO_MANY_MEMBERS)
        return
    draft.store(member)
    draft.note(member, MemberChangeKind.JOINED)
    draft.changed(Cause(CauseKind.JOINED, member.worker_id))


def _new(draft: ServiceDraft, asked: MemberRegistration | MemberHeartbeat) -> ServiceMember:
    draft.departures.pop((asked.worker_id, asked.instance), None)
    return ServiceMember(
        worker_id=asked.worker_id,
        instance=asked.instance,
        joined_at=draft.now,
        last_seen=draft.now,
        shard_count=asked.shard_count,
        reply_to=asked.reply_to,
        via=asked.via,
        seq=asked.seq,
        weight=1 if asked.weight is None else asked.weight,
        grace_s=asked.grace_s or 0.0,
        version=draft.next_count(),
    )


def _seen(draft: ServiceDraft, member: ServiceMember) -> ServiceMember:
    """A sign of life, also of one whose grace for silence runs: it has its share again."""
    if member.away is AwayReason.SILENT:
        draft.note(member, MemberChangeKind.RETURNED)
        member = replace(member, away=None, away_at=None, version=draft.next_count())
    return replace(member, last_seen=max(draft.now, believed_seen(member.last_seen, draft.now)))


def _count_reported(draft: ServiceDraft, worker_id: str, count: int) -> None:
    """The last reported shard count is that of the service (S1)."""
    if count != draft.shard_count:
        draft.shard_count = count
        draft.changed(Cause(CauseKind.SHARD_COUNT, worker_id))


def _has_left(draft: ServiceDraft, worker_id: str, instance: str | None) -> bool:
    """Whether that process has left, so that all that comes of it now is late. Plain clients look alike."""
    if instance is None:
        return False
    gone = draft.departures.get((worker_id, instance))
    return gone is not None and gone.reason is DepartureReason.LEFT


def _refuse(draft: ServiceDraft, asked: MemberRegistration | MemberHeartbeat | ServiceMember, problem: str) -> None:
    number = draft.active.number if draft.active is not None else 0
    draft.effect(Assignment(asked.worker_id, asked.instance, asked.reply_to, number, asked.seq, (), problem, asked.via))
