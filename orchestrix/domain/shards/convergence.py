"""Convergence: how members get from what they have to their shares, with each shard free in between."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta

from orchestrix.domain.shards.draft import ServiceDraft
from orchestrix.domain.shards.members import Revocation, ServiceMember
from orchestrix.domain.shards.ranges import Range, ShardRanges, union
from orchestrix.domain.shards.state import PLAIN_RELEASE_S, MemberHeartbeat, PlainMode, ShardService, free_shards


def to_release(state: ShardService | ServiceDraft, member: ServiceMember) -> ShardRanges:
    """The shards that the member has and must let go of: they are not in its share."""
    if state.active is None or not member.grants:
        return ShardRanges()
    return member.shards - state.active.share(member.worker_id)


def acknowledge(draft: ServiceDraft, member: ServiceMember, heartbeat: MemberHeartbeat) -> None:
    """Releases what the member has let go of, as far as its heartbeat proves it. What else it reports counts for
    nothing.
    """
    due = to_release(draft, member)
    if not due or draft.active is None:
        return
    absent = due - heartbeat.shards
    if member.plain:
        gone = absent & member.absent & _long_pushed(draft, member)
        member = replace(member, absent=absent)
    elif heartbeat.generation == draft.active.number:
        gone = absent
    else:
        return  # it speaks of another share
    draft.store(_revoking(draft.release(member, gone), due - gone, draft.now))


def _long_pushed(draft: ServiceDraft, member: ServiceMember) -> ShardRanges:
    """A plain client does not say which assignment it follows: what it reports can be older than the push."""
    before = draft.now - timedelta(seconds=PLAIN_RELEASE_S)
    return union(one.shards for one in member.revoking if one.since <= before)


def _revoking(member: ServiceMember, due: ShardRanges, now: datetime) -> ServiceMember:
    """The member that must let go of `due`: of what is new in it, since now. No later change postpones the rest."""
    if not due and not member.revoking:
        return member
    parts = (Revocation(one.shards & due, one.since) for one in member.revoking)
    kept = tuple(one for one in parts if one.shards)
    known = union(one.shards for one in kept)
    new = (Revocation(due - known, now),) if due - known else ()
    return replace(member, revoking=(*kept, *new), absent=member.absent & known)


def revoke(draft: ServiceDraft) -> None:
    """After a generation became active: what each member has and is no longer its share is to be let go of."""
    for member in list(draft.members.values()):
        due = to_release(draft, member)
        if member.plain and draft.rules.plain is PlainMode.PUSH:
            draft.release(member, due)
        elif due or member.revoking:
            draft.store(_revoking(member, due, draft.now))
    draft.take_freed()
    draft.free = free_shards(draft.active, draft.members)


def grant_free(draft: ServiceDraft) -> None:
    """Grants what is free to the members whose share it is, and answers them. What belongs to one that is away or gone
    stays free.
    """
    if draft.active is None or not draft.free:
        return
    given: dict[str, list[Range]] = defaultdict(list)
    for one in draft.free.ranges:
        for part, owner in draft.active.owners(one):
            if owner in draft.members and draft.members[owner].away is None:
                given[owner].append(part)
    if not given:
        return
    epoch = draft.next_count()
    for owner, ranges in given.items():
        draft.grant(draft.members[owner], ShardRanges.of(ranges), epoch)
        draft.answer(draft.members[owner])
    draft.free = draft.free - ShardRanges.of(one for ranges in given.values() for one in ranges)
