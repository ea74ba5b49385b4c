"""How is a saga written down, and is what was written complete?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import DefinitionError, OrchestrixError

COMPLETED: Final = "COMPLETED"
FAILED: Final = "FAILED"
COMPENSATING: Final = "COMPENSATING"
COMPENSATION_FAILED: Final = "COMPENSATION_FAILED"
TERMINAL: Final = frozenset({COMPLETED, FAILED})
RESERVED: Final = frozenset({COMPLETED, FAILED, COMPENSATING, COMPENSATION_FAILED})
STEP_FAILED: Final = "evt.stepFailed"
CREATED: Final = "created"
IMMEDIATE: Final = "immediate"
UNDONE: Final = "undone"
UNDO_FAILED: Final = "undo failed"
AGAIN: Final = "retry"
BY_HAND: Final = "retry or skip"
GIVEN_UP: Final = "skip or terminate"

_STATE = re.compile(r"[A-Z][A-Z0-9_]{0,39}")
_SAGA = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_STEP = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]{0,39}")
_COMMAND = re.compile(r"cmd\.[a-zA-Z][a-zA-Z0-9_.-]{0,99}")
_EVENT = re.compile(r"evt\.[a-zA-Z][a-zA-Z0-9_.-]{0,99}")
_DEAD = ".dead"
_WORK = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")
_MOST_RETRIES = 1000
_SHORTEST = timedelta(milliseconds=1)
_LONGEST = timedelta(days=3650)
_MINUTE = timedelta(seconds=60)


class FreeData(BaseModel):
    """Saga data of any shape: the model of a saga that names none."""

    model_config = ConfigDict(extra="allow")


class BadData(OrchestrixError):
    """The saga's model refuses the data. `errors` lists what is wrong and where, as pydantic reports it."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, e['loc'])) or 'data'}: {e['msg']}" for e in errors))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a step is tried before its failure counts.

    `attempts` includes the first one. The wait before attempt n is drawn from [0, min(cap, base * 2 ** (n - 2))], which
    is called full jitter. An error whose type is among `never` is not tried again, whatever the worker says.
    """

    attempts: int = 5
    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=5)
    never: tuple[str, ...] = ()

    def wait(self, tries: int, chance: float) -> timedelta:
        """The wait after that many tries in this run; `chance` is drawn from [0, 1)."""
        widest = min(self.cap.total_seconds(), self.base.total_seconds() * 2.0 ** min(tries - 1, 500))
        return timedelta(seconds=widest * chance)


_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class Job:
    """Long work that a step stands for: the function `name` (`@job("name")`) of the workers of `queue`.

    `timeout` is the time of each try, None for as long as it takes; `retries` how many more there are. The step fails
    when the job has: it has no other deadline and no other tries.
    """

    name: str
    queue: str = "default"
    timeout: timedelta | None = None
    retries: int = 0

    @property
    def timeout_ms(self) -> int | None:
        """The time of each try, in milliseconds."""
        return None if self.timeout is None else milliseconds(self.timeout)


@dataclass(frozen=True, slots=True)
class Compensation:
    """What undoes a finished step: a command, or a job, and the event that says that it is undone."""

    command: str = ""
    event: str = ""
    timeout: timedelta = _MINUTE
    retry: RetryPolicy = _POLICY
    job: Job | None = None

    @property
    def timeout_ms(self) -> int:
        """The time that the undo has, in milliseconds."""
        return milliseconds(self.timeout)


@dataclass(frozen=True, slots=True)
class NothingToUndo:
    """Says on purpose that a step leaves nothing behind; `why` is for the reader."""

    why: str


@dataclass(frozen=True, slots=True)
class Step:
    """One command, or one job, and the event that ends it. The saga is in `state` while it is out, then in `then`.

    `timeout` and `retry` are those of a command; a job brings its own.
    """

    name: str
    state: str
    command: str = ""
    event: str = ""
    then: str = ""
    undo: Compensation | NothingToUndo | None = None
    timeout: timedelta = _MINUTE
    retry: RetryPolicy = _POLICY
    job: Job | None = None

    @property
    def timeout_ms(self) -> int:
        """The time that the step has, in milliseconds."""
        return milliseconds(self.timeout)


Order = Step | Compensation
"""What has a command, the event that ends it, a timeout and a retry policy: a step, or its undo."""


def order_of(step: Step, undoes: bool) -> Order:
    """The step itself, or its undo, which must be there."""
    if not undoes:
        return step
    assert isinstance(step.undo, Compensation)
    return step.undo


def milliseconds(wait: timedelta) -> int:
    """Whole milliseconds."""
    return wait // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Edge:
    """A legal move and what causes it: an event, `created`, `immediate`, the end or failure of an undo, or a person.

    `source` is None for the start.
    """

    source: str | None
    target: str
    cause: str


@dataclass(frozen=True)
class Saga:
    """A saga as data. Checked when it is made: raises `DefinitionError` that says what to change.

    `immediate` maps a state to the one that the orchestrator takes at once after it. `timeout` is the time that the
    whole run has; None for as long as its steps take.
    """

    name: str
    steps: tuple[Step, ...]
    immediate: Mapping[str, str] = field(default_factory=dict)
    data: type[BaseModel] = FreeData
    version: int = 1
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "immediate", MappingProxyType(dict(self.immediate)))
        _check(self)

    @property
    def initial(self) -> str:
        """The state in which an instance begins."""
        return self.steps[0].state

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The states of a good run in their order."""
        return _walk(self)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Every legal move."""
        good = [Edge(None, self.initial, CREATED)]
        for state in self.path[:-1]:
            step = self.step_in(state)
            good.append(Edge(state, step.then, step.event) if step else Edge(state, self.immediate[state], IMMEDIATE))
        rest = self.path[:-1]
        failed = [Edge(state, FAILED, STEP_FAILED) for state in rest]
        return (*good, *failed, *(_undo_edges(rest) if self.undoes else ()), Edge(FAILED, self.initial, AGAIN))

    @property
    def undoes(self) -> bool:
        """Whether there is anything to undo."""
        return any(isinstance(step.undo, Compensation) for step in self.steps)

    @cached_property
    def moves(self) -> frozenset[tuple[str | None, str]]:
        """Every legal (from, to)."""
        return frozenset((edge.source, edge.target) for edge in self.edges)

    @cached_property
    def _steps_by_state(self) -> dict[str, Step]:
        return {step.state: step for step in self.steps}

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {state: place for place, state in enumerate(self.path)} | {FAILED: len(self.path)}

    def step_in(self, state: str) -> Step | None:
        """The step whose command is out while the saga is in `state`."""
        return self._steps_by_state.get(state)

    def step(self, name: str) -> Step | None:
        """The step of that name."""
        return next((step for step in self.steps if step.name == name), None)

    def position(self, state: str) -> int:
        """How far along the good run `state` lies; a state that the saga does not know lies behind all."""
        return self._positions.get(state, len(self.path))

    def check(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """`data` as a plain dict if the saga's model accepts it; raises `BadData` otherwise."""
        try:
            self.data.model_validate(data)
        except ValidationError as refused:
            raise BadData([dict(error) for error in refused.errors(include_url=False, include_context=False)]) from None
        return dict(data)


def _undo_edges(rest: tuple[str, ...]) -> list[Edge]:
    return [
        *(Edge(state, COMPENSATING, STEP_FAILED) for state in rest),
        Edge(COMPENSATING, FAILED, UNDONE),
        Edge(COMPENSATING, COMPENSATION_FAILED, UNDO_FAILED),
        Edge(COMPENSATION_FAILED, COMPENSATING, BY_HAND),
        Edge(COMPENSATION_FAILED, FAILED, GIVEN_UP),
    ]


def _check(saga: Saga) -> None:
    where = f"saga {saga.name!r}"
    _demand(bool(_SAGA.fullmatch(saga.name)), f"{where}: a name is [a-z][a-z0-9_-]*, at most 40 characters")
    _demand(bool(saga.steps), f"{where}: has no step")
    time = saga.timeout
    _demand(time is None or _SHORTEST <= time <= _LONGEST, f"{where}: the timeout must be from 1 ms to ten years")
    for step in saga.steps:
        _check_step(where, step)
    for what in ("name", "state", "event"):
        _unique(where, what, [getattr(step, what) for step in saga.steps])
    undos = [step.undo for step in saga.steps if isinstance(step.undo, Compensation)]
    orders: list[Order] = [*saga.steps, *undos]
    _unique(where, "command", [order.command for order in orders if not order.job])
    _unique(where, "event", [s.event for s in saga.steps] + [undo.event for undo in undos])
    for source, target in saga.immediate.items():
        _check_state(where, source)
        _check_state(where, target, end=True)
    lost = ({step.state for step in saga.steps} | set(saga.immediate)) - set(_walk(saga))
    _demand(not lost, f"{where}: no move leads to {', '.join(sorted(lost))}")


def _check_step(where: str, step: Step) -> None:
    at = f"{where}, step {step.name!r}"
    _demand(bool(_STEP.fullmatch(step.name)), f"{at}: a step's name is letters, digits, - and _, at most 40")
    _check_state(at, step.state)
    _check_state(at, step.then, end=True)
    _check_order(at, step)
    if isinstance(step.undo, Compensation):
        _check_order(at + ", undo", step.undo)
    else:
        _demand(step.undo is not None, f"{at}: say how it is undone: undo=Compensation(...) or NothingToUndo('why')")


def _check_order(at: str, order: Step | Compensation) -> None:
    if order.job is not None:
        _check_job(at, order, order.job)
        return
    _demand(bool(order.command), f"{at}: say what does it: command='cmd.…' or job=Job('…')")
    _check_messages(at, order.command, order.event)
    _demand(_SHORTEST <= order.timeout <= _LONGEST, f"{at}: the timeout must be from 1 ms to ten years")
    _demand(order.retry.attempts >= 1, f"{at}: attempts counts the first one too, so it is at least 1")
    waits = timedelta(0) <= order.retry.base <= order.retry.cap <= _LONGEST
    _demand(waits, f"{at}: a retry's base and cap must be in this order, from nothing to ten years")


def _check_job(at: str, order: Step | Compensation, job: Job) -> None:
    _demand(not order.command, f"{at}: a job or the command {order.command} does it, not both: leave one out")
    _check_event(at, order.event)
    own = "a job tries again by itself, and its end is the step's"
    _demand(order.retry is _POLICY, f"{at}: {own}: give Job(retries=…) instead of retry=")
    same = order.timeout is _MINUTE or order.timeout == job.timeout
    _demand(same, f"{at}: a job has a time of its own: give Job(timeout=…) instead of timeout=")
    for what, name in (("name", job.name), ("queue", job.queue)):
        _demand(bool(_WORK.fullmatch(name)), f"{at}: a job's {what} is letters, digits, ., - and _, at most 100")
    in_range = job.timeout is None or _SHORTEST <= job.timeout <= _LONGEST
    _demand(in_range, f"{at}: the job's timeout must be from 1 ms to ten years")
    _demand(0 <= job.retries <= _MOST_RETRIES, f"{at}: the job's retries must be from 0 to {_MOST_RETRIES}")


def _check_messages(at: str, command: str, event: str) -> None:
    _demand(bool(_COMMAND.fullmatch(command)), f"{at}: command {command!r} must be cmd. and a name")
    _demand(not command.endswith(_DEAD), f"{at}: {command} would share its queue with dead letters: end it otherwise")
    _check_event(at, event)


def _check_event(at: str, event: str) -> None:
    _demand(bool(_EVENT.fullmatch(event)), f"{at}: event {event!r} must be evt. and a name")
    _demand(not event.endswith(_DEAD), f"{at}: {event} would share its queue with dead letters: end it otherwise")
    _demand(event != STEP_FAILED, f"{at}: {STEP_FAILED} is the failure of every step and cannot be a success")


def _check_state(at: str, state: str, *, end: bool = False) -> None:
    _demand(bool(_STATE.fullmatch(state)), f"{at}: state {state!r} must be [A-Z][A-Z0-9_]*, at most 40 characters")
    _demand(state not in RESERVED or (end and state == COMPLETED), f"{at}: state {state} is reserved")


def _walk(saga: Saga) -> tuple[str, ...]:
    where, seen, state = f"saga {saga.name!r}", [], saga.initial
    thens = {step.state: step.then for step in saga.steps}
    both = set(thens) & set(saga.immediate)
    _demand(not both, f"{where}: {', '.join(sorted(both))} cannot wait for a step and move on at once")
    while state != COMPLETED:
        _demand(state not in seen, f"{where}: {state} is reached twice, so the saga would never end")
        seen.append(state)
        following = thens.get(state) or saga.immediate.get(state)
        _demand(following is not None, f"{where}: nothing leads on from {state}: give it a step or an immediate move")
        state = str(following)
    return (*seen, COMPLETED)


def _unique(where: str, what: str, values: list[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    _demand(not twice, f"{where}: {what} {', '.join(twice)} belongs to more than one step")


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DefinitionError(otherwise)
