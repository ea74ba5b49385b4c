"""Worker crash explanation: what is said of a saga whose command crashed its workers."""

from __future__ import annotations

from typing import Final, Protocol

from orchestrix.engine.explain.workers import UnconsumedQueues
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.quantities import counted
from orchestrix.saga.actions.apply import allowed
from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.definition import Saga
from orchestrix.saga.state import Instance

_ENDS: Final = (SagaAction.CANCEL, SagaAction.SKIP, SagaAction.TERMINATE)


class WorkerCrashFacts(Protocol):
    """What the explanation is found from."""

    @property
    def saga(self) -> Saga:
        """In the version that the instance has."""

    @property
    def instance(self) -> Instance:
        """Its row."""

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
        return "workers_died", sentence, f"{_advice(facts).capitalize()} Then: {facts.unconsumed.helps()}."
    return "workers_died", f"{describe(facts.suspect)}.", f"Wait, or {_advice(facts)}"


def _advice(facts: WorkerCrashFacts) -> str:
    """The cause is the handler's; what takes the command away keeps the next worker alive."""
    verbs = allowed(facts.saga, facts.instance)
    verb = next(one.value for one in _ENDS if one in verbs)
    return f"fix what the logs of the workers and of their machines show, or `{verb}` it: then no worker runs it."


def describe(suspect: RedeliveryRecord) -> str:
    """The state as a text, without a full stop."""
    return f"{counted(suspect.deaths, 'worker')} died while processing {suspect.queue}; {suspect.place}"
