"""Finished wait: what is said of a saga whose row still names a wait that is over."""

from __future__ import annotations

from typing import Final

from orchestrix.engine.explain.facts import SagaFacts
from orchestrix.saga.state import BROKER_DOWN, JOB, NO_CONSUMER, RETRY, UNSENT

_WAITED: Final = {
    UNSENT: "for its command to leave the outbox",
    BROKER_DOWN: "for the broker",
    NO_CONSUMER: "for a worker",
}


def found(facts: SagaFacts) -> tuple[str, str, str] | None:
    """What its row says, and the lists of stuck sagas with it: its code, a sentence, and what helps."""
    instance = facts.instance
    recorded = NO_CONSUMER if instance.hindered_by == NO_CONSUMER else instance.wake_reason
    if recorded not in _WAITED or instance.wake_reason in (RETRY, JOB):
        return None
    return recorded, f"{facts.work[0].upper()}{facts.work[1:]} waited {_WAITED[recorded]}; that is over.", "Wait."
