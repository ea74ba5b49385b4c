"""Shard service: what becomes of a service by an event, and when a node has to act for it next."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from orchestrix.domain.shards import generations, membership
from orchestrix.domain.shards.allocation import allocate, moved
from orchestrix.domain.shards.convergence import grant_free, revoke, to_release
from orchestrix.domain.shards.draft import ServiceDraft, assignment
from orchestrix.domain.shards.generations import Cause, CauseKind
from orchestrix.domain.shards.state import (
    Assignment,
    Effect,
    Event,
    LeadTaken,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
    ServiceCheck,
    ShardRules,
    ShardService,
)


def new_service(name: str, shard_count: int) -> ShardService:
    """A service without members, whose first one reports that shard count."""
    return ShardService(name=name, shard_count=shard_count)


def apply(
    service: ShardService, events: Iterable[Event], now: datetime, rules: ShardRules
) -> tuple[ShardService, list[Effect]]:
    """The state after these events, in this order, and the effects. These are for after the commit: an answer that is
    sent for a heartbeat that is not stored would extend a lease that no node knows of.
    """
    draft = ServiceDraft(service, now, rules)
    for event in events:
        _apply(draft, event)
        if draft.take_freed() or draft.free:
            grant_free(draft)
    return draft.finished()


def _apply(draft: ServiceDraft, event: Event) -> None:
    match event:
        case MemberRegistration():
            membership.register(draft, event)
        case MemberHeartbeat():
            membership.receive_heartbeat(draft, event)
        case MemberLeave():
            membership.leave(draft, event)
        case LeadTaken():
            _take_lead(draft, event)
        case ServiceCheck():
            membership.check_silence(draft, event.listening_since)
            _advance(draft, event.node_id)


def _take_lead(draft: ServiceDraft, taken: LeadTaken) -> None:
    """The first node that asks leads the pending generation."""
    if draft.pending is not None and draft.pending.leader_id is None:
        draft.pending = generations.led(draft.pending, taken.node_id, draft.now)


def _advance(draft: ServiceDraft, node_id: str) -> None:
    """Ends an abandoned generation, begins the one that is missing, and activates the one that this node leads."""
    pending = draft.pending
    if pending is not None and pending.is_abandoned(draft.now):
        draft.end_pending()
        draft.begin(Cause(CauseKind.ABANDONED))
    elif pending is not None and pending.is_led_by(node_id, draft.now) and pending.has_closed(draft.now):
        _activate(draft)
    elif pending is None and draft.revision > (draft.active.revision if draft.active else 0):
        draft.begin(Cause(CauseKind.ABANDONED))


def _activate(draft: ServiceDraft) -> None:
    """The pending generation becomes active, for the members of this moment; all of them are answered."""
    if draft.pending is None:
        return
    current = draft.active.shares if draft.active is not None else {}
    weights = {worker: member.weight for worker, member in draft.members.items()}
    shares = allocate(draft.rules.allocation, draft.shard_count, weights, current)
    generation = generations.activated(
        draft.pending,
        draft.now,
        revision=draft.revision,
        shard_count=draft.shard_count,
        shares=shares,
        moved=moved(current, shares),
    )
    draft.replace_active(generation)
    revoke(draft)
    for member in list(draft.members.values()):
        if not member.answered:
            draft.store(replace(member, answered=True))
        if member.away is None:
            draft.answer(member)


def is_routine(service: ShardService, heartbeat: MemberHeartbeat) -> bool:
    """Whether a heartbeat changes nothing but the time and the number of its member's last sign of life.

    Such a one is answered from memory, once it is stored under the `version` that the member has here; where that one
    is no longer stored, `apply` decides.
    """
    member = service.members.get(heartbeat.worker_id)
    if member is None or member.instance != heartbeat.instance or member.away is not None or service.active is None:
        return False
    if member.instance is not None and (heartbeat.seq <= member.seq or heartbeat.generation != service.active.number):
        return False
    repeated = (heartbeat.reply_to, heartbeat.via, heartbeat.shard_count, heartbeat.weight, heartbeat.grace_s)
    known = (member.reply_to, member.via, member.shard_count, member.weight, member.grace_s)
    if any(new is not None and new != old for new, old in zip(repeated, known, strict=True)):
        return False
    return member.generation == heartbeat.generation and not to_release(service, member)


def routine_answer(service: ShardService, heartbeat: MemberHeartbeat, rules: ShardRules) -> Assignment:
    """The answer to a heartbeat that `is_routine` and is stored."""
    sent = assignment(service, service.members[heartbeat.worker_id])
    return replace(sent, seq=heartbeat.seq, timeout_s=rules.heartbeat_timeout_s)


def needs_check(service: ShardService, now: datetime, listening_since: datetime, rules: ShardRules) -> bool:
    """Whether a check may change something of a service whose members are not silent; who is, the database knows: signs
    of life of members are not in this state.
    """
    if service.pending is not None or service.is_outdated:
        return True
    silence = rules.heartbeat_timeout_s
    return (
        any(one.grace_is_over(now, listening_since) for one in service.members.values() if one.away is not None)
        or any(one.is_silent(now, listening_since, silence) for one in service.successors.values())
        or membership.has_old_departures(service.departures.values(), now)
    )


def next_action_at(service: ShardService, node_id: str) -> datetime | None:
    """When a check by that node advances the pending generation; None if there is none that it can advance by then."""
    pending = service.pending
    if pending is None or pending.leader_id is None:
        return None
    return pending.closes_at if pending.leader_id == node_id else pending.leader_until
