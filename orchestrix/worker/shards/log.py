"""Member log: what a shard member writes about its shards and its lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from orchestrix.domain.shards.member_session import MemberSession, RunChanges, ShardRun, StopReason
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.quantities import counted
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER

MOST_SHOWN: Final = 20
"""Ranges of shards in a line at most."""


def log_changes(name: str, generation: int, changes: RunChanges) -> None:
    """What begins and what ends."""
    extra = {"event": log_events.SHARDS_ASSIGNED, "generation": generation}
    if changes.start:
        LOGGER.info("%s: assigned %s (generation %d)", name, shown(changes.start), generation, extra=extra)
    for reason in StopReason:
        if stopped := [run for run in changes.stop if run.stopping is reason]:
            LOGGER.info("%s: %s %s (generation %d)", name, reason, shown(stopped), generation, extra=extra)


def log_expired(name: str, session: MemberSession) -> None:
    """Its lease is over."""
    LOGGER.warning(
        "%s: no coordinator has answered for %.1f s: it stops its work for %s until one does",
        name,
        session.rules.lease_s,
        counted(len(session.runs), "shard"),
        extra={"event": log_events.SHARD_LEASE_EXPIRED},
    )


def log_unanswered(name: str, problem: str) -> None:
    """It has had no answer since its start."""
    extra = {"event": log_events.SHARD_MEMBER_REFUSED}
    LOGGER.warning("%s has no shards yet, and tries on: %s", name, problem, extra=extra)


def log_shorter_timeout(name: str, timeout_s: float, own_s: float) -> None:
    """The nodes miss it sooner than it expects."""
    LOGGER.warning(
        "%s: the nodes' heartbeat time-out is %g s and this member's %g s: it takes theirs; "
        "set ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT to the same value for both",
        name,
        timeout_s,
        own_s,
        extra={"event": log_events.SHARD_MEMBER_REFUSED},
    )


def log_abandoned(name: str, session: MemberSession, waited_s: float) -> None:
    """It leaves although something still runs."""
    runs = list(session.runs.values())
    LOGGER.error(
        "%s: the work for %s has not ended within %g s; other members get it after the heartbeat time-out",
        name,
        shown(runs),
        waited_s,
        extra={"event": log_events.SHARD_STOPPED_LATE},
    )


def log_late(name: str, runs: Sequence[ShardRun], after_s: float) -> None:
    """Work does not end; nothing where there is none."""
    if runs:
        LOGGER.warning(
            "%s: its functions for %s still run %g s after they were stopped: no other member is given them meanwhile",
            name,
            shown(runs),
            after_s,
            extra={"event": log_events.SHARD_STOPPED_LATE},
        )


def log_ended_late(name: str, run: ShardRun) -> None:
    """Such work has ended."""
    extra = {"event": log_events.SHARD_STOPPED_LATE, "shard": run.shard}
    LOGGER.info("%s: the functions for shard %d have ended", name, run.shard, extra=extra)


def log_interrupted(name: str, run: ShardRun) -> None:
    """The lease is over for so long that no part of it may run."""
    LOGGER.error(
        "%s: on_revoked of shard %d was interrupted: others may have the shard by now",
        name,
        run.shard,
        extra={"event": log_events.SHARD_STOPPED_LATE, "shard": run.shard},
    )


def shown(runs: Sequence[ShardRun]) -> str:
    """The shards of these runs for people: `shard 3`, `shards 0-3, 7`."""
    ranges = ShardRanges.of_numbers(run.shard for run in runs).ranges
    parts = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:MOST_SHOWN]]
    more = ", …" if len(ranges) > MOST_SHOWN else ""
    return f"{'shard' if len(runs) == 1 else 'shards'} {', '.join(parts)}{more}"
