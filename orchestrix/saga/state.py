"""Saga state: the stored state of one saga instance, and its history rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final, TypeVar

from .definition import TERMINAL
from .trace_context import next_part

DEADLINE: Final = "deadline"
UNSENT: Final = "unsent"
RETRY: Final = "retry"
BROKER_DOWN: Final = "broker_down"
NO_CONSUMER: Final = "no_consumer"
JOB: Final = "job"
"""A job runs, whose own time counts: its saga only polls it now and then."""
BACKLOG: Final = "backlog"
"""The command still waits in its queue behind others, which does not count as its work's time."""
PAUSED: Final = "paused"
HELD: Final = "held"
"""The step has asked for a person, or has failed permanently with `on_failure=HOLD`."""
CLONED: Final = "cloned"
"""The row is a copy of another installation's: nothing is done for it before a person has decided."""
UNDO_FAILED: Final = "undo_failed"
UNSENDABLE: Final = "unsendable"
ORCHESTRATOR: Final = "orchestrator"


@dataclass(frozen=True, slots=True)
class InstanceProgress:
    """What a run stores besides its state, once something went wrong or a person intervened.

    `attempts` holds the highest attempt of each command that is not pending now, by `step` or `step:undo`; a passed one
    that is not named had one. `sent` are the command ids of this run's earlier tries of the pending command, and
    `unanswered` says that one of them ended without an answer. `error` is the last failure, for people. While it is
    compensated: `cause` is why; `todo` are the steps still to undo, the current one first; `undone` those that are;
    `awaited` is the step whose answer the compensation waits for. While it is paused: `held` is the failure to handle
    at the end of the pause, `resume` the wake-up reason to restore. While it is paused, held or cloned, `run_ms` is
    what was left of the run's own time. `left` are steps of an earlier run that were not undone, `refused` those whose
    worker reported no effects. `until` is the time that a person gave the pending job, in ISO 8601. `run` counts the
    runs: a retry of what has failed begins another. `runs` are, by step, the runs still to be undone; on the good path
    the current one is not among them, and during compensation it is the only one of a step that is not named here.
    `passed_over` are steps behind this run's state that have not run: a migration to another version skipped them.
    `named` has the first names of steps that were sent before another version of the saga renamed them: their effect
    keys keep them. `migration` says until when (`until`) the next command waits for a migration to another version;
    where it waits so, `due` is when it was to be sent. Both in ISO 8601. `retry_of` is the `trace_head` from which the
    try before the pending one was sent.
    """

    attempts: Mapping[str, int] = field(default_factory=dict)
    sent: tuple[str, ...] = ()
    unanswered: bool = False
    error: str | None = None
    todo: tuple[str, ...] = ()
    undone: tuple[str, ...] = ()
    cause: str | None = None
    awaited: str | None = None
    held: Mapping[str, Any] | None = None
    resume: str | None = None
    left: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    run_ms: int | None = None
    until: str | None = None
    run: int = 1
    runs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    named: Mapping[str, str] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()
    migration: Mapping[str, str] | None = None
    retry_of: str | None = None

    def to_json(self) -> dict[str, Any] | None:
        """What is stored: the fields that are set; None if none is."""
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in fields if value != getattr(NO_PROGRESS, name)} or None

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> InstanceProgress:
        """The reverse of `to_json`; unknown fields, of a node of another version, are ignored."""
        known = {name: stored[name] for name in cls.__slots__ if name in stored} if stored else {}
        if not known:
            return NO_PROGRESS
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in known.items()}
        if "runs" in fields:
            fields["runs"] = {step: tuple(runs) for step, runs in fields["runs"].items()}
        return cls(**fields)


NO_PROGRESS: Final = InstanceProgress()


@dataclass(frozen=True, slots=True)
class Instance:
    """One row of `apps` or `saga_instances`.

    `wait_ms` is the wait that ends at `wake_at`; `command_id` is the id of the pending command, the same over all its
    copies. A live instance has either `wake_at` and `wake_reason`, or a `blocker`; an ended one has neither. `attempt`
    is that of the pending command, counted over all runs; `tries` counts in this run. `deadline_at` is the end of the
    run's own time. `begun_id` is the last command that is known to have begun, at `begun_at`; `sent_at` is when the
    pending command was sent, where its wake-up does not imply it any more. `hindered_by` is why its worker cannot
    continue, as far as that was recorded: `unsent`, `broker_down`, `no_consumer` or `backlog`. `installation` is the id
    that its effect keys begin with; empty for one that is older than that id. `traceparent` is the root of its trace;
    `trace_head` is the span that has issued the pending command, or will send it: its next part of the trace.
    """

    id: int
    saga: str
    key: str
    created_by: str
    state: str
    version: int
    correlation_id: str
    command_id: str | None
    attempt: int
    wake_at: datetime | None
    wake_reason: str | None
    wait_ms: int
    blocker: str | None
    data: Mapping[str, Any]
    definition_version: int
    created_at: datetime
    updated_at: datetime
    traceparent: str | None = None
    tracestate: str | None = None
    tries: int = 1
    deadline_at: datetime | None = None
    begun_id: str | None = None
    sent_at: datetime | None = None
    hindered_by: str | None = None
    begun_at: datetime | None = None
    trace_head: str | None = None
    progress: InstanceProgress = NO_PROGRESS
    installation: str = field(default="", compare=False)

    @property
    def live(self) -> bool:
        """Whether the saga has not ended."""
        return self.state not in TERMINAL

    @property
    def begun(self) -> bool:
        """Whether the work on the pending command is known to have begun."""
        return self.command_id is not None and self.begun_id == self.command_id

    @property
    def sending(self) -> datetime | None:
        """When the pending command was sent, at the latest; None where that is unknown, or it was not.

        `sent_at` applies to the command that was pending when it was written: a later one came with a change. A wait
        that a person has set has no time of sending, and no length.
        """
        if self.wake_at is None or self.wake_reason in (RETRY, JOB, UNSENT):
            return None
        if self.sent_at is not None and self.sent_at >= self.updated_at:
            return self.sent_at
        if self.wake_reason == DEADLINE and self.wait_ms:
            return self.wake_at - timedelta(milliseconds=self.wait_ms)
        return None

    @property
    def trace(self) -> tuple[str | None, str | None]:
        """`traceparent` and `tracestate` of what it sends."""
        return next_part(self.traceparent, self.tracestate, self.trace_head)

    @property
    def trace_id(self) -> str | None:
        """The trace that it began in, 32 hexadecimal digits."""
        return None if self.traceparent is None else self.traceparent[3:35]

    @property
    def given(self) -> datetime | None:
        """The time that a person gave the pending job."""
        return None if self.progress.until is None else datetime.fromisoformat(self.progress.until)

    @property
    def limit(self) -> datetime | None:
        """The end of the run's own time, or before that of what a person gave its job."""
        return min((at for at in (self.deadline_at, self.given) if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class StateChange:
    """One row of history: the instance became `version` by going from `from_state` to `to_state`.

    `reason` is for people. `kind`, `step`, `error_type` and `error` are those of `ChangeCause`. `message_type` and
    `message_id` name the message that was consumed, `trace_id` its trace. `sent_at` is when the broker had confirmed
    the command that was given out with this version, which later rows name too; `begun_at` when the work of the try
    began that this change ends, where its worker has said so. Rows of earlier releases may lack all of these.
    """

    version: int
    from_state: str | None
    to_state: str
    reason: str
    actor: str
    correlation_id: str
    caused_by: str | None
    command_id: str | None
    at: datetime
    kind: str | None = None
    step: str | None = None
    message_type: str | None = None
    message_id: str | None = None
    error_type: str | None = None
    error: str | None = None
    trace_id: str | None = None
    sent_at: datetime | None = None
    begun_at: datetime | None = None


_Record = TypeVar("_Record", Instance, InstanceProgress, StateChange)
_FIELDS: Final[Mapping[type[Any], tuple[str, ...]]] = {
    cls: tuple(one.name for one in fields(cls)) for cls in (Instance, InstanceProgress, StateChange)
}
_READERS: Final = {cls: attrgetter(*names) for cls, names in _FIELDS.items()}
_PLACES: Final = {cls: {name: place for place, name in enumerate(names)} for cls, names in _FIELDS.items()}


def with_changes(record: _Record, **changes: Any) -> _Record:
    """What `dataclasses.replace` returns, in half of its time: each event makes a dozen of these. TypeError for what is
    no field."""
    cls = type(record)
    values, places = list(_READERS[cls](record)), _PLACES[cls]
    for name, value in changes.items():
        if name not in places:
            raise TypeError(f"{cls.__name__} has no field {name!r}")
        values[places[name]] = value
    return cls(*values)
