"""Shard effects: what is sent, logged and counted once a change of a service is stored."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from orchestrix.dead_letters.retry_buffer import LogRateLimiter
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.draft import assignment, member_of
from orchestrix.domain.shards.generations import GenerationState
from orchestrix.domain.shards.grants import shards_of
from orchestrix.domain.shards.members import Process
from orchestrix.domain.shards.state import (
    PLAIN_RELEASE_S,
    Assignment,
    Effect,
    GenerationChange,
    MemberChange,
    MemberChangeKind,
    ShardService,
)
from orchestrix.quantities import counted
from orchestrix.shards.rabbitmq import MemberAnswer
from orchestrix.telemetry import log_events
from orchestrix.telemetry.metrics.catalogue import SHARD_REBALANCES
from orchestrix.telemetry.metrics.instruments import counter

log = logging.getLogger("orchestrix.shards")
_rebalances = counter(SHARD_REBALANCES)

STALE_S: Final = PLAIN_RELEASE_S / 2
"""Seconds since the beginning of a transaction after which a plain member is not sent what it has assigned: it could be
another member's, and nothing in the message shows how old it is.
"""


def renewed(effect: Effect, state: ShardService | None) -> Effect | None:
    """The effect, where it assigns shards to a plain member with what that one has in `state`; None if it is gone."""
    if not isinstance(effect, Assignment) or effect.instance is not None or effect.problem is not None:
        return effect
    member = member_of(state, effect.worker_id, None) if state is not None else None
    if state is None or member is None or member.reply_to != effect.reply_to:
        return None
    return replace(assignment(state, member), seq=effect.seq)


def answers(effects: Iterable[Effect], asked: Mapping[Process, str | None]) -> list[MemberAnswer]:
    """The assignments among the effects, for those who can be reached; `asked` are the correlation ids of requests."""
    return [
        answer(one, asked.get((one.worker_id, one.instance)))
        for one in effects
        if isinstance(one, Assignment) and one.reply_to is not None
    ]


def answer(sent: Assignment, correlation_id: str | None) -> MemberAnswer:
    """The assignment for a member that can be reached."""
    assert sent.reply_to is not None, "it can be reached"
    return MemberAnswer(sent.reply_to, messages.assignment(sent), correlation_id, sent.via)


class ChangeLog:
    """Says what has become of members and generations, and who is refused. Assignments are lines of level debug."""

    def __init__(self) -> None:
        self._refusals = LogRateLimiter()

    def write(self, service: str, effects: Iterable[Effect]) -> None:
        """A line for each of these effects, after their commit."""
        for one in effects:
            if isinstance(one, MemberChange):
                _log_member(service, one)
            elif isinstance(one, GenerationChange):
                _log_generation(service, one)
            elif one.problem is None:
                _log_assignment(service, one)
            elif self._refusals.allows():  # it asks again with each heartbeat
                _log_refusal(service, one, one.problem)


_BECAME: Final[Mapping[MemberChangeKind, str]] = {
    MemberChangeKind.JOINED: "joined",
    MemberChangeKind.LEFT: "left",
    MemberChangeKind.INACTIVE: "is inactive: it was silent for the time-out, or its grace is over",
    MemberChangeKind.AWAY: "is away: its share waits for its return",
    MemberChangeKind.RETURNED: "returned",
    MemberChangeKind.REPLACED: "is another process now",
}


def _log_member(service: str, change: MemberChange) -> None:
    level = logging.WARNING if change.kind is MemberChangeKind.INACTIVE else logging.INFO
    extra = {"event": log_events.SHARD_MEMBER, "service": service, "member": change.worker_id}
    log.log(level, "%s: member %s %s", service, change.worker_id, _BECAME[change.kind], extra=extra)


def _log_generation(service: str, change: GenerationChange) -> None:
    if change.state is GenerationState.ACTIVE:
        _rebalances.at(service).add()
    extra = {"event": log_events.SHARD_GENERATION, "service": service, "generation": change.number}
    cause = f"{change.cause.kind.value} {change.cause.worker_id or ''}".rstrip()
    shares = ""
    if change.state is GenerationState.ACTIVE:
        shares = f": {counted(change.shard_count, 'shard')}, {counted(change.members, 'member')}, {change.moved} moved"
    log.info("%s: generation %d %s (%s)%s", service, change.number, change.state.value, cause, shares, extra=extra)


def _log_assignment(service: str, sent: Assignment) -> None:
    if log.isEnabledFor(logging.DEBUG):
        extra = {"event": log_events.SHARD_ANSWERED, "service": service, "member": sent.worker_id}
        shards = counted(shards_of(sent.grants).size, "shard")
        log.debug(
            "%s: member %s has %s in generation %d", service, sent.worker_id, shards, sent.generation, extra=extra
        )


def _log_refusal(service: str, sent: Assignment, problem: str) -> None:
    extra = {"event": log_events.SHARD_REFUSED, "service": service, "member": sent.worker_id, "reason": problem}
    log.warning("%s: member %s gets no shards: %s", service, sent.worker_id, problem, extra=extra)
