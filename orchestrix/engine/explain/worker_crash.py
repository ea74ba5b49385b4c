"""Worker crash explanation: what is said of a saga whose command crashed its workers."""

from __future__ import annotations

from typing import Protocol

from orchestrix.engine.explain.workers import UnconsumedQueues
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.quantities import counted


class WorkerCrashFacts(Protocol):
    """What the explanation is found from."""

    @property
    def suspect(self) -> RedeliveryRecord | None:
        """What workers have noted of the command in flight."""

    @property
    def unconsumed(self) -> UnconsumedQueues:
        """The queues without a consumer that the saga needs."""


def found(facts: WorkerCrashFacts) -> tuple[str, str, str] | None:
    """The entry for the catalogue, if workers have died while they handled the command."""
    if facts.suspect is None:
        return None
    if facts.unconsumed:  # maybe since the last one has died: another would die too
        sentence = f"{describe(facts.suspect)}. {facts.unconsumed.describe()}."
        return "workers_died", sentence, f"{WORKERS_DIED_ADVICE.capitalize()}; then: {facts.unconsumed.helps()}."
    return "workers_died", f"{describe(facts.suspect)}.", f"Wait, or {WORKERS_DIED_ADVICE}."


def describe(suspect: RedeliveryRecord) -> str:
    """The state as a text, without a full stop."""
    return f"{counted(suspect.deaths, 'worker')} died while processing {suspect.queue}; {suspect.place}"


WORKERS_DIED_ADVICE = "see the logs of the workers and of their machines for the cause"
