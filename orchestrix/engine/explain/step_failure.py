"""Step failure: which step has failed a saga, when, why and at which attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from orchestrix.persistence.engine import Connection
from orchestrix.persistence.sagas import history
from orchestrix.persistence.sagas.saga_tables import saga_tables_of
from orchestrix.saga.definition import FAILED, Saga
from orchestrix.saga.retry import EXPIRED
from orchestrix.saga.state import Instance


@dataclass(frozen=True, slots=True)
class StepFailure:
    """The failure that ended a run. `step`, `attempt` and `error` are None where history does not say them."""

    at: datetime
    step: str | None
    attempt: int | None
    error: str | None

    def describe(self, saga: Saga, at: str) -> str:
        """The failure as a part of a sentence; `at` is its time in words."""
        step = saga.step(self.step or "")
        attempt = None
        if self.attempt is not None and (step is None or step.job is None):  # a job counts its attempts itself
            attempt = f"attempt {self.attempt}{f' of {step.retry.attempts}' if step is not None else ''}"
        where = f"step {self.step}" if self.step is not None else None
        facts = ", ".join(fact for fact in (where, attempt, f"at {at}") if fact is not None)
        return facts if self.error is None else f"{facts}: {self.error}"


async def failure_of(connection: Connection, instance: Instance) -> StepFailure | None:
    """What has failed the present run, where history says it. Raises `Unavailable`."""
    if instance.state != FAILED:
        return None
    pair = saga_tables_of(instance.saga)
    began = await history.run_began(connection, pair, instance.id)
    row = await history.failure_of_run(connection, pair, instance.id, began)
    if row is None:
        return None
    attempt = await history.attempts_until(connection, pair, instance.id, began, row)
    expired = (row.error_type, row.error) == (EXPIRED.type, EXPIRED.reason)
    return StepFailure(row.at, row.step, attempt, "timed out" if expired else row.error)
