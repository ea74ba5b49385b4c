"""Which mistakes about shards are planted to see that the simulation finds them?

Each is one that a hurried change could bring in. They are put around the product, and around the members, from
outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pytest

from orchestrix.domain.shards import allocation, convergence, membership, service
from orchestrix.domain.shards.allocation import Shares
from orchestrix.domain.shards.draft import ServiceDraft
from orchestrix.domain.shards.generations import Cause, Generation
from orchestrix.domain.shards.member_session import MemberSession
from orchestrix.domain.shards.members import ServiceMember
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import (
    Assignment,
    MemberHeartbeat,
    MemberLeave,
    MemberRegistration,
    ShardRules,
    ShardService,
)
from tests.simulation.shards import Node, Realm
from tests.simulation.shards_members import PlainMember, SdkMember

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Found:
    """By which words the simulation names it, one of these, and in which mode; in any if there is none."""

    words: tuple[str, ...]
    mode: str | None = None


# What a member has let go of.


def shards_are_granted_before_they_are_let_go_of(patch: pytest.MonkeyPatch) -> None:
    """What a generation takes away from a member is free at once."""

    def free(active: Generation | None, members: dict[str, ServiceMember]) -> ShardRanges:
        everything = ShardRanges.up_to(active.shard_count if active else 0)
        for member in members.values():
            share = active.share(member.worker_id) if active else ShardRanges()
            everything = everything - (member.shards & share)
        return everything

    patch.setattr(convergence, "free_shards", free)


def any_heartbeat_acknowledges(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat that follows an older generation counts as an acknowledgement of the active one."""
    acknowledge = convergence.acknowledge

    def careless(draft: ServiceDraft, member: ServiceMember, heartbeat: MemberHeartbeat) -> None:
        number = draft.active.number if draft.active is not None else 0
        acknowledge(draft, member, replace(heartbeat, generation=number))

    patch.setattr(membership, "acknowledge", careless)


def a_heartbeat_lets_go_of_all(patch: pytest.MonkeyPatch) -> None:
    """Whoever follows the active generation has let go of all that it takes away, whatever is still reported."""
    acknowledge = convergence.acknowledge

    def careless(draft: ServiceDraft, member: ServiceMember, heartbeat: MemberHeartbeat) -> None:
        acknowledge(draft, member, replace(heartbeat, shards=ShardRanges()))

    patch.setattr(membership, "acknowledge", careless)


def one_heartbeat_of_a_plain_client_is_enough(patch: pytest.MonkeyPatch) -> None:
    """A plain client has let go of what its next heartbeat does not have: it may be older than the push."""

    def early(draft: ServiceDraft, member: ServiceMember) -> ShardRanges:
        return member.shards

    acknowledge = convergence.acknowledge

    def careless(draft: ServiceDraft, member: ServiceMember, heartbeat: MemberHeartbeat) -> None:
        acknowledge(draft, replace(member, absent=member.shards) if member.plain else member, heartbeat)

    patch.setattr(convergence, "_long_pushed", early)
    patch.setattr(membership, "acknowledge", careless)


# The lease.


def the_lease_is_longer_than_the_time_out(patch: pytest.MonkeyPatch) -> None:
    """A member works on although it had no answer for longer than the time-out."""
    patch.setattr(ShardRules, "lease_s", property(lambda rules: rules.heartbeat_timeout_s * 2))


def the_lease_counts_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """The lease begins when an answer comes, and not when its heartbeat was sent."""
    receive = MemberSession.receive

    def late(session: MemberSession, got: Assignment, now: float) -> bool:
        session._sent[got.seq] = now
        return receive(session, got, now)

    patch.setattr(MemberSession, "receive", late)


def heartbeats_are_answered_before_they_are_stored(patch: pytest.MonkeyPatch) -> None:
    """A node answers from memory, and its statement that stores the sign of life comes too late, or never."""

    def lost(realm: Realm, node: Node, memory: ShardService, event: MemberHeartbeat) -> bool:
        return True

    patch.setattr(Realm, "stored", lost)


def answers_from_memory_count_under_any_version(patch: pytest.MonkeyPatch) -> None:
    """A node answers from an old memory what a member has not had since."""
    patch.setattr(Realm, "is_same", lambda realm, stored, known: True)


def assignments_count_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """A member follows an older generation after a newer one."""

    def follows(session: MemberSession, got: Assignment) -> bool:
        session.generation = 0
        return True

    patch.setattr(MemberSession, "follows", follows)


def the_lease_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """A member works on until it is answered."""
    patch.setattr(MemberSession, "check_lease", lambda session, now: True)


def shards_are_not_reported_while_they_are_stopped(patch: pytest.MonkeyPatch) -> None:
    """A member acknowledges before its work has ended."""
    heartbeat = MemberSession.heartbeat

    def early(session: MemberSession, now: float) -> MemberHeartbeat:
        return replace(heartbeat(session, now), shards=ShardRanges.of_numbers(session.running))

    patch.setattr(MemberSession, "heartbeat", early)


def answers_count_for_any_process(patch: pytest.MonkeyPatch) -> None:
    """A member follows what another process of its id is given, which reaches it, too."""
    receive = MemberSession.receive

    def careless(session: MemberSession, got: Assignment, now: float) -> bool:
        return receive(session, replace(got, instance=session.instance), now)

    def everywhere(realm: Realm, got: Assignment) -> list[SdkMember | PlainMember]:
        return [member for member in realm.members if member.worker_id == got.worker_id]

    patch.setattr(MemberSession, "receive", careless)
    patch.setattr(Realm, "readers", everywhere)


def a_member_leaves_before_it_stops(patch: pytest.MonkeyPatch) -> None:
    """The leave is sent while the work still ends."""

    def early(member: SdkMember) -> None:
        if member.alive and not member._is_asleep(lambda: early(member)):
            ends = [member.world.now + member.dice.uniform(0.0, 4.0) for _ in member.running]
            member.alive = False
            for one, end in zip(member.running.values(), ends, strict=True):
                one.end = min(one.end, end, member.session.stop_until)
            member.world.send(MemberLeave(member.worker_id, member.instance))

    patch.setattr(SdkMember, "stop", early)


def silence_counts_before_a_node_has_listened(patch: pytest.MonkeyPatch) -> None:
    """After an outage all members are silent for the first check."""
    is_silent = ServiceMember.is_silent

    def at_once(member: ServiceMember, now: datetime, listening_since: datetime, timeout_s: float) -> bool:
        return is_silent(member, now, member.joined_at, timeout_s)

    patch.setattr(ServiceMember, "is_silent", at_once)


# Two processes with one id.


def a_heartbeat_from_elsewhere_takes_the_place_of_a_plain_client(patch: pytest.MonkeyPatch) -> None:
    """Two clients of S1 with one id are both given what it has."""
    patch.setattr(membership, "_is_from_elsewhere", lambda known, message: False)


def a_plain_client_is_quiet_too_soon(patch: pytest.MonkeyPatch) -> None:
    """Another client of the same id takes the place of one between two of its heartbeats."""
    patch.setattr(ShardRules, "plain_silence_s", property(lambda rules: 2.0))


def a_heartbeat_from_elsewhere_is_never_taken(patch: pytest.MonkeyPatch) -> None:
    """A client that has connected again is refused for ever."""
    patch.setattr(membership, "_is_quiet", lambda draft, known: False)


def a_new_process_takes_over_at_once(patch: pytest.MonkeyPatch) -> None:
    """A registration under the id of a member ends that one, which works on."""
    register = membership.register

    def at_once(draft: ServiceDraft, asked: MemberRegistration) -> None:
        register(draft, asked)
        known, waiting = draft.members.get(asked.worker_id), draft.successors.get(asked.worker_id)
        if known is not None and waiting is not None:
            membership.promote(draft, known, waiting)

    patch.setattr(membership, "register", at_once)


def heartbeats_are_the_same_of_any_process(patch: pytest.MonkeyPatch) -> None:
    """Two processes with one id are not told apart."""
    receive = membership.receive_heartbeat

    def alike(draft: ServiceDraft, heartbeat: MemberHeartbeat) -> None:
        known = draft.members.get(heartbeat.worker_id)
        receive(draft, replace(heartbeat, instance=known.instance) if known is not None else heartbeat)

    patch.setattr(membership, "receive_heartbeat", alike)


def late_messages_of_one_that_left_count(patch: pytest.MonkeyPatch) -> None:
    """A heartbeat that was overtaken by the leave makes a member of a process that is gone."""
    patch.setattr(membership, "_has_left", lambda draft, worker_id, instance: False)


def a_leave_of_any_process_counts(patch: pytest.MonkeyPatch) -> None:
    """The leave of one that waited ends the member of the same id."""
    leave = membership.leave

    def careless(draft: ServiceDraft, left: MemberLeave) -> None:
        known = draft.members.get(left.worker_id)
        leave(draft, replace(left, instance=known.instance) if known is not None else left)

    patch.setattr(membership, "leave", careless)


def the_epoch_is_the_number_of_the_generation(patch: pytest.MonkeyPatch) -> None:
    """A shard that goes from process to process within one generation has the same epoch for both."""
    grant = ServiceDraft.grant

    def by_number(draft: ServiceDraft, member: ServiceMember, shards: ShardRanges, epoch: int) -> None:
        grant(draft, member, shards, draft.active.number if draft.active is not None else 0)

    patch.setattr(ServiceDraft, "grant", by_number)


# Generations.


def each_change_begins_a_generation(patch: pytest.MonkeyPatch) -> None:
    """A change within the window of a pending generation begins another one."""

    def changed(draft: ServiceDraft, cause: Cause) -> None:
        draft.revision += 1
        draft.end_pending()
        draft.begin(cause)

    patch.setattr(ServiceDraft, "changed", changed)


def each_change_prolongs_the_window(patch: pytest.MonkeyPatch) -> None:
    """A stream of joins postpones the next generation for ever."""
    changed = ServiceDraft.changed

    def prolonging(draft: ServiceDraft, cause: Cause) -> None:
        changed(draft, cause)
        if draft.pending is not None:
            window = draft.pending.closes_at - draft.pending.began_at
            draft.pending = replace(draft.pending, closes_at=draft.now + window)

    patch.setattr(ServiceDraft, "changed", prolonging)


def changes_within_the_window_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A change that comes while the leader computes the shares is neither in these nor begins a generation."""

    def stale(draft: ServiceDraft, node_id: str) -> None:
        if draft.pending is not None and draft.pending.is_led_by(node_id, draft.now):
            young = (draft.now - draft.pending.began_at).total_seconds() / 2
            late = [w for w, one in draft.members.items() if 0 < (draft.now - one.joined_at).total_seconds() < young]
            members = {worker: one for worker, one in draft.members.items() if worker not in late}
            draft.members, kept = members, draft.members
            advance(draft, node_id)
            draft.members = {**kept, **draft.members}
            return
        advance(draft, node_id)

    advance = service._advance
    patch.setattr(service, "_advance", stale)


def any_node_activates(patch: pytest.MonkeyPatch) -> None:
    """The leader of a generation is not asked for."""
    patch.setattr(Generation, "is_led_by", lambda one, node_id, now: not one.is_abandoned(now))


def an_abandoned_generation_is_activated(patch: pytest.MonkeyPatch) -> None:
    """A leader that slept activates its generation long after its time."""
    patch.setattr(Generation, "is_abandoned", lambda one, now: False)


def the_window_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    """A generation is activated as soon as it has a leader."""
    patch.setattr(Generation, "has_closed", lambda one, now: True)


# Shares.


def more_shards_move_than_must(patch: pytest.MonkeyPatch) -> None:
    """What is left over by rounding goes to the first members, whatever they have."""
    quotas = allocation.quotas
    patch.setattr(allocation, "quotas", lambda count, weights, present: quotas(count, weights, {}))


def shares_begin_anew_each_time(patch: pytest.MonkeyPatch) -> None:
    """The rule of fewest moves does not know what members have."""
    minimal = allocation.minimal_move

    def forgetful(count: int, weights: dict[str, int], current: Shares) -> Shares:
        return minimal(count, weights, {})

    patch.setattr(allocation, "minimal_move", forgetful)


def one_that_announces_its_leave_has_a_share(patch: pytest.MonkeyPatch) -> None:
    """Weight 0 is taken for weight 1, so that another member gets its shards only when it is gone."""

    def allocate(rule: object, count: int, weights: dict[str, int], current: Shares) -> Shares:
        return allocation.even(count, weights)

    patch.setattr(service, "allocate", allocate)


def silent_members_keep_their_shards(patch: pytest.MonkeyPatch) -> None:
    """A member that is removed takes its shards with it."""
    release = ServiceDraft.release

    def keeping(draft: ServiceDraft, member: ServiceMember, shards: ShardRanges | None = None) -> ServiceMember:
        return member if shards is None else release(draft, member, shards)

    patch.setattr(ServiceDraft, "release", keeping)


PLANTS: Final[dict[Plant, Found]] = {
    shards_are_granted_before_they_are_let_go_of: Found(("two owners", "granted twice")),
    any_heartbeat_acknowledges: Found(("two owners",), "late"),
    a_heartbeat_lets_go_of_all: Found(("two owners",)),
    one_heartbeat_of_a_plain_client_is_enough: Found(("two owners",), "plain"),
    the_lease_is_longer_than_the_time_out: Found(("two owners",), "memory"),
    the_lease_counts_from_the_answer: Found(("two owners",), "memory"),
    heartbeats_are_answered_before_they_are_stored: Found(("two owners",)),
    answers_from_memory_count_under_any_version: Found(("two owners",), "memory"),
    assignments_count_in_any_order: Found(("two owners",), "late"),
    the_lease_is_not_looked_at: Found(("two owners",), "memory"),
    shards_are_not_reported_while_they_are_stopped: Found(("two owners",)),
    answers_count_for_any_process: Found(("two owners",), "mixed"),
    a_member_leaves_before_it_stops: Found(("two owners",)),
    silence_counts_before_a_node_has_listened: Found(("wave",), "mixed"),
    a_heartbeat_from_elsewhere_takes_the_place_of_a_plain_client: Found(("two owners",), "twins"),
    a_plain_client_is_quiet_too_soon: Found(("two owners",), "twins"),
    a_heartbeat_from_elsewhere_is_never_taken: Found(("wave",), "twins"),
    a_new_process_takes_over_at_once: Found(("two owners",), "mixed"),
    heartbeats_are_the_same_of_any_process: Found(("two owners", "end: run are"), "mixed"),
    late_messages_of_one_that_left_count: Found(("ghost",), "rush"),
    a_leave_of_any_process_counts: Found(("two owners",), "mixed"),
    the_epoch_is_the_number_of_the_generation: Found(("epoch of",), "mixed"),
    each_change_begins_a_generation: Found(("window",)),
    each_change_prolongs_the_window: Found(("window",)),
    changes_within_the_window_are_forgotten: Found(("shares",)),
    any_node_activates: Found(("leader",)),
    an_abandoned_generation_is_activated: Found(("leader",)),
    the_window_is_not_waited_for: Found(("window",)),
    more_shards_move_than_must: Found(("moves",)),
    shares_begin_anew_each_time: Found(("moves",)),
    one_that_announces_its_leave_has_a_share: Found(("shares",), "mixed"),
    silent_members_keep_their_shards: Found(("end",), "mixed"),
}
"""Each plant, and how it is found."""
