"""Member log: what a shard member writes about its shards and its lease."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from orchestrix import clock
from orchestrix.domain.shards.member_session import MemberSession, RunChanges, ShardRun, StopReason
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.quantities import counted
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.error_mapping import printable
from orchestrix.worker.errors import text_of

MOST_SHOWN: Final = 20
"""Ranges of shards in a line at most."""
GATHER_S: Final = 10.0
LATE_AFTER_S: Final = 5.0
"""Seconds after which work that was stopped and has not ended is logged."""


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


@dataclass(slots=True)
class _Failures:
    """Further errors of one kind until they are logged together."""

    until: float
    count: int = 0
    text: str = ""
    runs: dict[int, ShardRun] = field(default_factory=dict)


class ShardRunLog:
    """What is logged about runs: a thousand shards that have the same trouble are one line, not a thousand.

    The first error of a kind is logged at once, with its stack trace; those that follow within `GATHER_S` seconds as
    one line that names their shards. `flush` is to be called all the time.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._failures: dict[tuple[str, str], _Failures] = {}
        self._late, self._ended_late, self._interrupted = list[ShardRun](), list[ShardRun](), list[ShardRun]()

    def failed(self, run: ShardRun, function: str, error: BaseException, wait_s: float) -> None:
        """The function has raised this, and is called again after so many seconds; not if it is stopping."""
        kind, text = (function, type(error).__name__), text_of(error)
        known = self._failures.get(kind)
        if known is not None:
            known.count, known.text = known.count + 1, text
            known.runs[run.shard] = run
            return
        self._failures[kind] = _Failures(clock.boottime() + GATHER_S)
        LOGGER.error(
            "%s: %s of shard %d (epoch %d) failed%s: %s: %s",
            self._name,
            function,
            run.shard,
            run.epoch,
            f", called again in {wait_s:.1f} s" if wait_s else " while it was stopped",
            kind[1],
            text,
            exc_info=printable(error),
            extra={"event": log_events.SHARD_FUNCTION_FAILED, "shard": run.shard},
        )

    def late(self, run: ShardRun) -> None:
        """Its work does not end."""
        self._late.append(run)

    def ended_late(self, run: ShardRun) -> None:
        """Such work has ended."""
        self._ended_late.append(run)

    def interrupted(self, run: ShardRun) -> None:
        """The lease is over for so long that no part of it may run."""
        self._interrupted.append(run)

    def flush(self) -> None:
        """Logs what has been gathered."""
        extra = {"event": log_events.SHARD_STOPPED_LATE}
        if self._late:
            LOGGER.warning(
                "%s: its functions for %s still run %g s after they were stopped: no other member is given them "
                "meanwhile",
                self._name,
                shown(self._late),
                LATE_AFTER_S,
                extra=extra,
            )
        if self._interrupted:
            LOGGER.error(
                "%s: on_revoked was interrupted: others may have the shards by now: %s",
                self._name,
                shown(self._interrupted),
                extra=extra,
            )
        if self._ended_late:
            LOGGER.info("%s: its functions for %s have ended", self._name, shown(self._ended_late), extra=extra)
        self._late, self._ended_late, self._interrupted = [], [], []
        self._flush_failures(clock.boottime())

    def _flush_failures(self, now: float) -> None:
        for kind, known in list(self._failures.items()):
            if now < known.until:
                continue
            if not known.count:
                del self._failures[kind]
                continue
            self._failures[kind] = _Failures(now + GATHER_S)
            LOGGER.error(
                "%s: %s failed %s more, for %s: %s: %s",
                self._name,
                kind[0],
                counted(known.count, "time"),
                shown(list(known.runs.values())),
                kind[1],
                known.text,
                extra={"event": log_events.SHARD_FUNCTION_FAILED},
            )


def shown(runs: Sequence[ShardRun]) -> str:
    """The shards of these runs for people: `shard 3`, `shards 0-3, 7`."""
    ranges = ShardRanges.of_numbers(run.shard for run in runs).ranges
    parts = [f"{first}" if first == last else f"{first}-{last}" for first, last in ranges[:MOST_SHOWN]]
    more = ", …" if len(ranges) > MOST_SHOWN else ""
    return f"{'shard' if len(runs) == 1 else 'shards'} {', '.join(parts)}{more}"
