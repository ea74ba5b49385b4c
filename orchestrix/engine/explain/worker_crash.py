"""Crash why: what is told of a saga whose command its workers died with."""

from __future__ import annotations

from typing import Protocol

from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord

WORKERS_DIED = "workers_died"


class WorkerCrashFacts(Protocol):
    """What the answer is found from."""

    @property
    def suspect(self) -> RedeliveryRecord | None:
        """What workers have noted of the command that is out."""


def found(facts: WorkerCrashFacts) -> tuple[str, str, str] | None:
    """The entry for the catalogue, if workers have died with the command in hand."""
    if facts.suspect is None:
        return None
    return WORKERS_DIED, f"{told(facts.suspect)}.", f"Wait, or {WORKERS_DIED_ADVICE}."


def told(suspect: RedeliveryRecord) -> str:
    """How it stands, without a mark at its end."""
    return f"{suspect.deaths} workers have died with {suspect.queue} in hand; {suspect.place}"


WORKERS_DIED_ADVICE = "look into the logs of the workers, and of their machines, for what ended them"
