"""Crash points of scenarios: the points where killing a process makes a difference.

A process is visible to others by its effects: a commit, a message that the broker has accepted, the work of a handler.
Between two of these nothing is visible, so that all crashes between them are equivalent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrix.crash import is_own
from orchestrix.errors import ConfigError
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import COMPENSATING, COMPENSATION_FAILED, FAILED, Saga

Moment = Literal["before", "during", "after", "at"]
BEFORE: Final[Moment] = "before"
DURING: Final[Moment] = "during"
AFTER: Final[Moment] = "after"
AT: Final[Moment] = "at"
"""The moment of a `crash_point`, which has no duration."""
SENT: Final = " sent"
OTHER: Final = "outbox"
"""The subject of a commit that changes no saga: the node claims or deletes rows of the outbox, or handles retries."""


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """The `nth` time that a process reaches the point `before`, during or after a subject.

    `cmd.pay` is the work of its handler, `cmd.pay sent` and `evt.paid` the message once the broker has it, a state the
    commit that leads to it. Any other name is a `crash_point` in the handlers.
    """

    moment: Moment
    subject: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.moment} {self.subject}" + (f", time {self.nth}" if self.nth > 1 else "")


@dataclass(frozen=True, slots=True)
class PlannedCrash:
    """A process is killed at a crash point, and is started again `back_after` seconds later."""

    place: CrashPoint
    back_after: float = 1.0


@dataclass(slots=True)
class CrashPointTracker:
    """The crash points that were passed, in their order, and the crashes planned there."""

    crashes: Sequence[PlannedCrash]
    passed: list[CrashPoint] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)

    def through(self, moment: Moment, subject: str) -> tuple[CrashPoint, PlannedCrash | None]:
        """Records one more passage; returns it with the crash that is planned there."""
        self.counts[moment, subject] += 1
        place = CrashPoint(moment, subject, self.counts[moment, subject])
        self.passed.append(place)
        return place, next((crash for crash in self.crashes if crash.place == place), None)

    def missed(self) -> list[CrashPoint]:
        """The planned crashes whose point was never reached."""
        return [crash.place for crash in self.crashes if crash.place not in self.passed]


def crash_point_of(saga: Saga, before: str | None, during: str | None, after: str | None, nth: int) -> CrashPoint:
    """The crash point that an author names. Raises `ConfigError` that lists the valid names."""
    named: list[tuple[Moment, str]] = []
    for moment, subject in ((BEFORE, before), (DURING, during), (AFTER, after)):
        named += [(moment, subject)] if subject is not None else []
    if len(named) != 1 or nth < 1:
        raise ConfigError("give exactly one of before=, during= or after=; nth counts from 1")
    ((moment, subject),) = named
    if is_own(subject) and moment != DURING:
        return CrashPoint(AT, subject, nth)
    catalog = Catalog([saga])
    if moment == BEFORE and (owner := catalog.event(subject)) is not None:
        job = owner.order.job
        return CrashPoint(AFTER, owner.order.command if job is None else job.name, nth)
    if subject not in _subjects(saga, catalog, moment):
        raise ConfigError(f"a crash cannot be {moment} {subject!r}: write {_choice(saga, catalog, moment)}")
    return CrashPoint(moment, subject, nth)


def _choice(saga: Saga, catalog: Catalog, moment: Moment) -> str:
    names = ", ".join(_subjects(saga, catalog, moment))
    return names if moment == DURING else f"{names}, or the name of a crash_point, e.g. mail.sent"


def _subjects(saga: Saga, catalog: Catalog, moment: Moment) -> list[str]:
    if moment == DURING:
        return [*catalog.commands, *catalog.jobs]
    commits = [*saga.path, FAILED, *([COMPENSATING, COMPENSATION_FAILED] if saga.undoes else [])]
    if moment == BEFORE:
        return [*catalog.commands, *catalog.jobs, *commits]
    sent = [command + SENT for command in catalog.commands]
    return [*catalog.commands, *catalog.jobs, *sent, *catalog.events, *commits, OTHER]
