"""Commands: the pending command of an instance, and how the next one is issued."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from orchestrix.saga.definition import COMPENSATING, Compensation, Job, Order, Saga, Step, milliseconds, order_of
from orchestrix.saga.effect_keys import effect_key, first_name
from orchestrix.saga.messages import Command
from orchestrix.saga.state import (
    BACKLOG,
    DEADLINE,
    JOB,
    NO_PROGRESS,
    PAUSED,
    RETRY,
    UNSENT,
    Instance,
    InstanceProgress,
    StateChange,
    with_changes,
)

MAX_REASON: Final = 500
NEVER: Final = datetime(9999, 12, 31, tzinfo=UTC)
"""The wake-up of an instance whose deadline a person has cancelled."""
JOB_POLL_INTERVAL: Final = timedelta(minutes=5)
"""How often a saga polls its job. The end of a job is notified by an event; polling finds one that was lost."""
LAST_JOB_POLL_MARGIN: Final = timedelta(seconds=10)
"""The last poll comes so long before the deadline of the run, or a person's: a lost end can still count."""


@dataclass(frozen=True, slots=True)
class TransitionInputs:
    """The inputs of a pure transition: the time, an id for the next command, a random number from [0, 1), and the
    `traceparent` of the span that makes it, if there is one.
    """

    now: datetime
    command_id: str
    jitter: float = 0.5
    trace_head: str | None = None


@dataclass(frozen=True, slots=True)
class SagaTransition:
    """The instance as it is from now on, the history rows to insert, and the command to send, if any."""

    instance: Instance
    history: tuple[StateChange, ...]
    command: Command | None


class PendingCommand(NamedTuple):
    """What an instance waits for: a step, or its compensation."""

    step: Step
    undoes: bool

    @property
    def order(self) -> Order:
        """The step or compensation with the command and the event."""
        return order_of(self.step, self.undoes)

    @property
    def job(self) -> Job | None:
        """The job that it runs, if any."""
        return self.order.job

    @property
    def wait(self) -> timedelta:
        """The time until its deadline, or until the next poll of its job."""
        return self.order.timeout if self.job is None else JOB_POLL_INTERVAL

    @property
    def reason(self) -> str:
        """The reason of the wake-up after this time."""
        return DEADLINE if self.job is None else JOB

    @property
    def key(self) -> str:
        """Its key among the attempts."""
        return key_of(self.step, self.undoes)


def key_of(step: Step, undoes: bool) -> str:
    """The key of a step, or its compensation, among the attempts of `InstanceProgress`."""
    return f"{step.name}:undo" if undoes else step.name


def pending_command(saga: Saga, instance: Instance) -> PendingCommand | None:
    """The pending command; None where the instance waits for none, or only for the answer of a cancelled step."""
    progress = instance.progress
    if progress.awaited is not None:
        return None
    if progress.todo:
        step = saga.step(progress.todo[0])
        return PendingCommand(step, True) if step is not None and isinstance(step.undo, Compensation) else None
    here = saga.step_in(instance.state)
    return PendingCommand(here, False) if here is not None else None


def expected(saga: Saga, instance: Instance) -> Order | None:
    """The step or compensation whose answer the instance waits for, also that of a cancelled step."""
    here = pending_command(saga, instance)
    return here.order if here is not None else saga.step(instance.progress.awaited or "")


def step_at_work(saga: Saga, instance: Instance) -> str | None:
    """The name of the step whose answer, or whose undo's, the instance waits for."""
    here = pending_command(saga, instance)
    return here.step.name if here is not None else instance.progress.awaited


def job_at_work(saga: Saga, instance: Instance) -> str | None:
    """The id of the job that the instance waits for; it is that of the pending command."""
    here, awaited = pending_command(saga, instance), saga.step(instance.progress.awaited or "")
    job = here.job if here is not None else awaited.job if awaited is not None else None
    return instance.command_id if job is not None else None


def job_cancel_cause(saga: Saga, before: Instance, after: Instance) -> str | None:
    """The id of the job that `before` waited for and `after` does not, whether it has ended or not."""
    here, job = pending_command(saga, after), job_at_work(saga, before)
    wanted = after.command_id if here is not None and here.job is not None else None
    return job if job != wanted else None


def command_for(saga: Saga, instance: Instance, now: datetime | None = None) -> Command | None:
    """The pending command, as it is sent `now`, or was at the last change; None where the instance waits for none.

    Its work never has more time than what is left of the run.
    """
    here = pending_command(saga, instance)
    if here is None or instance.command_id is None:
        return None
    return Command(
        id=instance.command_id,
        type=here.order.command if here.job is None else here.job.name,
        saga=saga.name,
        app_id=instance.id,
        app_name=instance.key,
        correlation_id=instance.correlation_id,
        expected_state=instance.state,
        step=here.step.name,
        attempt=instance.attempt,
        timeout_ms=_time_of(here, instance, now or instance.updated_at),
        idempotency_key=_idempotency_key(saga, instance, here),
        data=instance.data,
        undoes_attempt=instance.progress.attempts.get(here.step.name, 1) if here.undoes else None,
        job=here.job,
        event=here.order.event if here.job is not None else "",
        effect_key=effect_key(instance, here.step.name, undoes=here.undoes),
        definition_version=instance.definition_version,
    )


def _idempotency_key(saga: Saga, instance: Instance, here: PendingCommand) -> str:
    name = first_name(instance, here.step.name)
    return f"{saga.name}:{instance.id}:{name}:{'undo' if here.undoes else 'do'}"


def _time_of(here: PendingCommand, instance: Instance, now: datetime) -> int:
    """The milliseconds that the work has, at least one: the end of the run's time is handled elsewhere."""
    if instance.deadline_at is None:
        return here.order.timeout_ms
    return max(1, min(here.order.timeout_ms, milliseconds(instance.deadline_at - now)))


def to_send(saga: Saga, instance: Instance) -> Command | None:
    """The command to send now: none while the instance is held by a person, or its time is still to come."""
    return None if instance.blocker or instance.wake_reason == RETRY else command_for(saga, instance)


def sent_exactly(saga: Saga, instance: Instance) -> tuple[str, datetime] | None:
    """The queue of the pending command, and when it was sent, where that is certain.

    It is not certain for a command that may have several copies, nor where a person has changed its time.
    """
    here = pending_command(saga, instance)
    unsure = instance.begun or instance.progress.unanswered or instance.wake_at == NEVER
    if here is None or here.job is not None or unsure:
        return None
    exact = instance.wait_ms == here.order.timeout_ms
    if instance.wake_reason == BACKLOG or (instance.wake_reason == DEADLINE and exact):
        return (here.order.command, sent) if (sent := instance.sending) is not None else None
    return None


def unfrozen(instance: Instance, now: datetime) -> Instance:
    """`instance`, whose run's own time continues from now with what was left when it was stopped."""
    run_ms = instance.progress.run_ms
    if run_ms is None:
        return instance
    return with_changes(progressed(instance, run_ms=None), deadline_at=now + timedelta(milliseconds=run_ms))


def issued(saga: Saga, instance: Instance, inputs: TransitionInputs) -> Instance:
    """`instance` with a first try of the step or compensation of its state and progress, if there is one."""
    progress = instance.progress
    if progress is not NO_PROGRESS:
        progress = with_changes(progress, sent=(), unanswered=False, held=None, until=None, retry_of=None)
        if progress.migration is not None and migrates_until(instance, inputs.now) is None:
            progress = with_changes(progress, migration=None)
    if progress is not instance.progress or instance.tries != 1:
        instance = with_changes(instance, progress=progress, tries=1)
    here = pending_command(saga, instance)
    if here is None:
        return without_timer(instance)
    instance = with_changes(
        instance,
        command_id=inputs.command_id,
        attempt=progress.attempts.get(here.key, 0) + 1,
        trace_head=inputs.trace_head or instance.trace_head,
    )
    if instance.blocker == PAUSED:
        return armed(instance, UNSENT, here.wait, inputs.now)
    if progress.migration is not None:
        return retrying(instance, timedelta(0), inputs.now)
    return armed(instance, here.reason, here.wait, inputs.now)


def retrying(instance: Instance, wait: timedelta, now: datetime) -> Instance:
    """`instance`, whose command is sent after `wait`; later if it is to be moved to another version before."""
    until = migrates_until(instance, now + wait)
    if until is None:
        return armed(instance, RETRY, wait, now)
    due = {"until": until.isoformat(), "due": (now + wait).isoformat()}
    return armed(progressed(instance, migration=due), RETRY, until - now, now)


def migrates_until(instance: Instance, now: datetime) -> datetime | None:
    """Until when the next command waits for a migration, if that is later than `now`."""
    marked = instance.progress.migration
    until = None if marked is None else datetime.fromisoformat(marked["until"])
    return until if until is not None and until > now else None


def migration_due(instance: Instance, now: datetime) -> datetime | None:
    """When the command was to be sent that waits for a migration; None where nothing waits for one."""
    marked = instance.progress.migration
    if marked is None or "due" not in marked or instance.wake_reason != RETRY or migrates_until(instance, now) is None:
        return None
    return datetime.fromisoformat(marked["due"])


def without_timer(instance: Instance) -> Instance:
    """`instance` waiting for nothing."""
    return with_changes(
        instance, command_id=None, wake_at=None, wake_reason=None, wait_ms=0, blocker=None, hindered_by=None
    )


def armed(instance: Instance, reason: str, wait: timedelta, now: datetime) -> Instance:
    """`instance` to be woken after `wait`, or at the end of its run's own time; while it is paused, after the pause."""
    if instance.blocker == PAUSED:
        held = with_changes(instance.progress, resume=reason)
        wait_ms = milliseconds(wait)
        return with_changes(instance, progress=held, wake_at=None, wake_reason=None, wait_ms=wait_ms, hindered_by=None)
    if instance.deadline_at is not None:
        wait = min(wait, max(timedelta(0), instance.deadline_at - now))
    return with_changes(
        instance,
        blocker=None,
        hindered_by=None,
        wake_at=now + wait,
        wake_reason=reason,
        wait_ms=milliseconds(wait),
    )


def blocked(instance: Instance, blocker: str) -> Instance:
    """`instance` waiting for a person."""
    return with_changes(instance, blocker=blocker, wake_at=None, wake_reason=None, wait_ms=0, hindered_by=None)


def given(instance: Instance, at: datetime | None, now: datetime) -> Instance:
    """`instance`, whose job has time until then, as a person decided; None means as long as it takes."""
    return polling(progressed(instance, until=None if at is None else at.isoformat()), now)


def polling(instance: Instance, now: datetime) -> Instance:
    """`instance` to be woken for the next poll of its job, or at the end of the time that it has."""
    if instance.limit is None:
        return armed(instance, JOB, JOB_POLL_INTERVAL, now)
    rest = instance.limit - now
    if rest > LAST_JOB_POLL_MARGIN:
        return armed(instance, JOB, min(JOB_POLL_INTERVAL, rest - LAST_JOB_POLL_MARGIN), now)
    return armed(instance, JOB if instance.given is None else DEADLINE, rest, now)


def left(instance: Instance, key: str) -> Mapping[str, int]:
    """The attempts once the command of that key is not pending any more."""
    before = instance.progress.attempts
    return before if instance.attempt == 1 and key not in before else {**before, key: instance.attempt}


def progressed(instance: Instance, **changes: Any) -> Instance:
    """`instance` with changed progress."""
    return with_changes(instance, progress=with_changes(instance.progress, **changes))


def cleared(instance: Instance) -> InstanceProgress:
    """The progress to keep once a step or compensation has succeeded: its attempts, and what earlier runs left."""
    before = instance.progress
    if before is NO_PROGRESS:
        return before
    return InstanceProgress(
        attempts=before.attempts,
        left=before.left,
        undone=before.undone,
        refused=before.refused,
        run_ms=before.run_ms,
        run=before.run,
        runs=before.runs,
        named=before.named,
        passed_over=before.passed_over,
        migration=before.migration,
    )


def doubted(instance: Instance) -> Instance:
    """`instance`, whose command is sent again: whatever its answer says, an earlier copy may have been executed.

    A job is never sent twice.
    """
    is_job = instance.wake_reason == JOB or instance.given is not None
    kept = instance.state == COMPENSATING or instance.wake_reason == RETRY or is_job
    return instance if kept else progressed(instance, unanswered=True)
