"""Saga facts: what the explanation of a saga is found from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrix.engine.broker_status import Counts, needed
from orchestrix.engine.explain.job import AwaitedJob
from orchestrix.engine.explain.operator_actions import OperatorEnding
from orchestrix.engine.explain.step_failure import StepFailure
from orchestrix.engine.explain.workers import UnconsumedQueues
from orchestrix.persistence.audit import AuditRow
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas.redelivered_commands import RedeliveryRecord
from orchestrix.saga.commands import NEVER, PendingCommand, expected, pending_command
from orchestrix.saga.definition import Saga
from orchestrix.saga.state import JOB, PAUSED, Instance


@dataclass(frozen=True, slots=True)
class SagaFacts:
    """What the explanation is found from. `queues` has those whose consumers it needs, as far as they are known.

    `last_action` says who has paused it, or has cancelled the deadline where there is none; `ending` who has given it
    up, `failure` which step has failed it. `dead_letter` is a dead letter: an answer to its present command that could
    not be used. `phase` as in `SagaExplainer`.
    """

    saga: Saga
    instance: Instance
    now: datetime
    unsent: OutboxRow | None
    problem: str | None
    queues: Counts
    last_action: AuditRow | None = None
    dead_letter: DeadLetter | None = None
    job: AwaitedJob | None = None
    phase: str | None = None
    ending: OperatorEnding | None = None
    suspect: RedeliveryRecord | None = None
    failure: StepFailure | None = None

    @property
    def command(self) -> PendingCommand | None:
        """The command in flight."""
        return pending_command(self.saga, self.instance)

    @property
    def queue(self) -> tuple[int, int] | None:
        """(messages, consumers) of the queue of the command in flight; None if that is unknown."""
        return None if self.command is None else self.queues.get(self.command.order.command)

    @property
    def unconsumed(self) -> UnconsumedQueues:
        """The queues that it needs and that have no consumer. What a worker has begun needs none."""
        if self.instance.begun:
            return UnconsumedQueues({})
        counts = {name: self.queues[name] for name in needed(self.saga, self.instance) if name in self.queues}
        silent = {name: messages for name, (messages, consumers) in counts.items() if not consumers}
        order = expected(self.saga, self.instance) if self.unsent is None else None
        return UnconsumedQueues(silent, order.command if order is not None else None, self.phase == "stopping")

    @property
    def seconds(self) -> int:
        """Whole seconds until the wake-up."""
        at = self.instance.wake_at
        return max(0, round((at - self.now).total_seconds())) if at is not None else 0

    @property
    def unlimited(self) -> bool:
        """Whether it waits without a deadline."""
        return self.instance.wake_at is not None and self.instance.wake_at >= NEVER

    @property
    def tries(self) -> str:
        """Which attempt of how many."""
        here = self.command
        return f"{self.instance.tries} of {here.order.retry.attempts}" if here is not None else "1"

    @property
    def work(self) -> str:
        """What is waited for, as a text."""
        here = self.command
        if here is None:
            return f"step {self.instance.progress.awaited}" if self.instance.progress.awaited else self.instance.state
        return f"the undo of step {here.step.name}" if here.undoes else f"step {here.step.name}"


def row_says_all(one: Instance) -> bool:
    """Whether the row of a stuck instance shows all but its outbox row, its dead letters and its queues."""
    if one.blocker is not None:
        return one.blocker != PAUSED
    return one.live and one.wake_reason != JOB and one.wake_at is not None and one.wake_at < NEVER
