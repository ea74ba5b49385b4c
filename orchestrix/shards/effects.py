"""Shard effects: what is sent and logged once a change of a service is stored."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from orchestrix.domain.shards import messages
from orchestrix.domain.shards.generations import GenerationState
from orchestrix.domain.shards.members import Process
from orchestrix.domain.shards.state import Assignment, Effect, GenerationChange, MemberChange, MemberChangeKind
from orchestrix.quantities import counted
from orchestrix.shards.rabbitmq import MemberAnswer
from orchestrix.telemetry import log_events

log = logging.getLogger("orchestrix.shards")


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


def log_changes(service: str, effects: Iterable[Effect]) -> None:
    """Says what has become of members and generations."""
    for one in effects:
        if isinstance(one, MemberChange):
            _log_member(service, one)
        elif isinstance(one, GenerationChange):
            _log_generation(service, one)


def _log_member(service: str, change: MemberChange) -> None:
    level = logging.WARNING if change.kind is MemberChangeKind.INACTIVE else logging.INFO
    extra = {"event": log_events.SHARD_MEMBER, "service": service, "member": change.worker_id}
    log.log(level, "%s: member %s %s", service, change.worker_id, change.kind.value, extra=extra)


def _log_generation(service: str, change: GenerationChange) -> None:
    extra = {"event": log_events.SHARD_GENERATION, "service": service, "generation": change.number}
    reason = f"{change.cause.kind.value} {change.cause.worker_id or ''}".rstrip()
    moved = f", {counted(change.moved, 'shard')} moved" if change.state is GenerationState.ACTIVE else ""
    log.info("%s: generation %d %s (%s)%s", service, change.number, change.state.value, reason, moved, extra=extra)
