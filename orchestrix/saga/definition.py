"""Saga definition: a saga as data, checked for completeness when it is made."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrix.saga.validation.arguments import (
    SPAN,
    TEXT,
    WHOLE,
    WORDS,
    ArgumentKind,
    brief,
    demand,
    listed,
    of,
    perhaps,
)
from orchestrix.saga.validation.model_errors import MAX_ERRORS, errors_of
from orchestrix.saga.validation.round_trip import unsupported_default
from orchestrix.saga.validation.signatures import made_as

from .errors import OrchestrixError
from .steps import (
    AGAIN,
    BY_HAND,
    COMPENSATING,
    COMPENSATION_FAILED,
    COMPLETED,
    CREATED,
    FAILED,
    GIVEN_UP,
    HOLD,
    IMMEDIATE,
    MAX_TIMEOUT,
    MIN_TIMEOUT,
    RESERVED,
    STEP_FAILED,
    STEP_STARTED,
    TERMINAL,
    UNDO_FAILED,
    UNDONE,
    Compensation,
    Job,
    NothingToUndo,
    Order,
    RetryPolicy,
    Step,
    check_state,
    check_step,
    milliseconds,
    order_of,
    require,
)

__all__ = [
    "AGAIN",
    "BY_HAND",
    "COMPENSATING",
    "COMPENSATION_FAILED",
    "COMPLETED",
    "CREATED",
    "FAILED",
    "GIVEN_UP",
    "HOLD",
    "IMMEDIATE",
    "RESERVED",
    "STEP_FAILED",
    "STEP_STARTED",
    "TERMINAL",
    "UNDONE",
    "UNDO_FAILED",
    "Compensation",
    "FreeData",
    "InvalidDataError",
    "Job",
    "NothingToUndo",
    "Order",
    "RetryPolicy",
    "Saga",
    "StateEdge",
    "Step",
    "milliseconds",
    "order_of",
]

_SAGA = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_MAX_VERSION = 2**31


class FreeData(BaseModel):
    """Saga data of any shape: the model of a saga that names none."""

    model_config = ConfigDict(extra="allow")


class InvalidDataError(OrchestrixError):
    """The saga's model rejects the data. `errors` lists what is wrong and where, as pydantic reports it."""

    def __init__(self, errors: list[dict[str, Any]]) -> None:
        texts = [f"{'.'.join(map(str, e['loc']))[:200] or 'data'}: {e['msg'][:500]}" for e in errors[:MAX_ERRORS]]
        super().__init__("; ".join(texts))
        self.errors = errors


@dataclass(frozen=True, slots=True)
class StateEdge:
    """A legal transition and what causes it: an event, `created`, `immediate`, the end or failure of a compensation, or
    a person.

    `source` is None for the start.
    """

    source: str | None
    target: str
    cause: str


_STEPS: Final = of("a tuple of steps", "(Step(…), Step(…))", tuple)
_MODEL: Final = ArgumentKind(
    lambda value: isinstance(value, type) and issubclass(value, BaseModel),
    "a subclass of pydantic's BaseModel",
    lambda _value: "Order after class Order(BaseModel)",
)


@made_as('Saga("order", steps=(Step(…), Step(…)))')
@dataclass(frozen=True)
class Saga:
    """A saga as data. Checked when it is made: raises `DefinitionError` that says what to change.

    `immediate` maps a state to the one that the orchestrator enters at once after it. `timeout` is the time that the
    whole run has; None for as long as its steps take.
    """

    name: str
    steps: tuple[Step, ...]
    immediate: Mapping[str, str] = field(default_factory=dict)
    data: type[BaseModel] = FreeData
    version: int = 1
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", listed(self.steps))
        demand(self, name=TEXT, steps=_STEPS, immediate=WORDS, data=_MODEL, version=WHOLE, timeout=perhaps(SPAN))
        object.__setattr__(self, "immediate", MappingProxyType(dict(self.immediate)))
        _check(self)

    @property
    def initial(self) -> str:
        """The state in which an instance begins."""
        return self.steps[0].state

    @cached_property
    def path(self) -> tuple[str, ...]:
        """The states of a successful run in their order."""
        return _walk(self)

    @cached_property
    def edges(self) -> tuple[StateEdge, ...]:
        """Every legal transition."""
        good = [StateEdge(None, self.initial, CREATED)]
        for state in self.path[:-1]:
            step = self.step_in(state)
            good.append(
                StateEdge(state, step.then, step.event) if step else StateEdge(state, self.immediate[state], IMMEDIATE)
            )
        rest = self.path[:-1]
        failed = [StateEdge(state, FAILED, STEP_FAILED) for state in rest]
        return (*good, *failed, *(_undo_edges(rest) if self.undoes else ()), StateEdge(FAILED, self.initial, AGAIN))

    @property
    def undoes(self) -> bool:
        """Whether any step has a compensation."""
        return any(isinstance(step.undo, Compensation) for step in self.steps)

    @cached_property
    def has_jobs(self) -> bool:
        """Whether any step, or compensation, is a job."""
        undos = [step.undo for step in self.steps if isinstance(step.undo, Compensation)]
        orders: list[Order] = [*self.steps, *undos]
        return any(order.job is not None for order in orders)

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
        """The step whose command is pending while the saga is in `state`."""
        return self._steps_by_state.get(state)

    def step(self, name: str) -> Step | None:
        """The step of that name."""
        return next((step for step in self.steps if step.name == name), None)

    def position(self, state: str) -> int:
        """The position of `state` in a successful run; a state that the saga does not know comes after all."""
        return self._positions.get(state, len(self.path))

    def check(self, data: Mapping[str, Any], *, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """`data` as a plain dict if the saga's model accepts it; raises `InvalidDataError` otherwise.

        `before` are data of the saga that were accepted once. Where the model does not take those as they are, because
        an older release had converted what it checked, it may convert these too.
        """
        try:
            self.read(data)
        except InvalidDataError:
            if before is None or self._takes(before):
                raise
            if getattr(self.data, "by_schema", False):  # a schema checks less than the author's model, absent here
                return dict(data)
            self._read(self.data.model_validate, data)
        return dict(data)

    def read(self, data: Mapping[str, Any]) -> BaseModel:
        """What the model makes of `data`, converting nothing that JSON has a type for: handlers get what was sent.
        Raises `InvalidDataError`.

        An unexpected error of a validator counts as a rejection too, with that error as its cause.
        """
        return self._read(self._strictly, data)

    def _strictly(self, data: Any) -> BaseModel:
        return self.data.model_validate_json(json.dumps(data, allow_nan=False), strict=True)

    def _read(self, validate: Callable[[Any], BaseModel], data: Mapping[str, Any]) -> BaseModel:
        try:
            return validate(data)
        except ValidationError as refused:
            raise InvalidDataError(errors_of(refused, validate, data)) from None
        except KeyboardInterrupt:
            raise
        except BaseException as broken:
            text = f"the model {self.data.__name__} cannot check it: its own code failed with {type(broken).__name__}"
            raise InvalidDataError([{"loc": (), "msg": f"{text}: {broken}", "type": "broken_model"}]) from broken

    def _takes(self, data: Mapping[str, Any]) -> bool:
        try:
            self.read(data)
        except InvalidDataError:
            return False
        return True


def _undo_edges(rest: tuple[str, ...]) -> list[StateEdge]:
    return [
        *(StateEdge(state, COMPENSATING, STEP_FAILED) for state in rest),
        StateEdge(COMPENSATING, FAILED, UNDONE),
        StateEdge(COMPENSATING, COMPENSATION_FAILED, UNDO_FAILED),
        StateEdge(COMPENSATION_FAILED, COMPENSATING, BY_HAND),
        StateEdge(COMPENSATION_FAILED, FAILED, GIVEN_UP),
    ]


def _check(saga: Saga) -> None:
    where = f"saga {brief(saga.name)}"
    require(bool(_SAGA.fullmatch(saga.name)), f"{where}: a name must be [a-z][a-z0-9_-]*, at most 40 characters")
    require(bool(saga.steps), f"{where}: has no step")
    time = saga.timeout
    require(time is None or MIN_TIMEOUT <= time <= MAX_TIMEOUT, f"{where}: the timeout must be from 1 ms to ten years")
    require(1 <= saga.version < _MAX_VERSION, f"{where}: the version must be from 1 to {_MAX_VERSION - 1}")
    require((lost := unsupported_default(saga.data)) is None, f"{where}: {lost}")
    for step in saga.steps:
        require(isinstance(step, Step), f"{where}: {brief(step)} is not a step: write Step(…)")
        check_step(where, step)
    for what in ("name", "state", "event"):
        _unique(where, what, [getattr(step, what) for step in saga.steps])
    undos = [step.undo for step in saga.steps if isinstance(step.undo, Compensation)]
    orders: list[Order] = [*saga.steps, *undos]
    _unique(where, "command", [order.command for order in orders if not order.job])
    _unique(where, "event", [s.event for s in saga.steps] + [undo.event for undo in undos])
    for source, target in saga.immediate.items():
        check_state(where, source)
        check_state(where, target, end=True)
    unreachable = ({step.state for step in saga.steps} | set(saga.immediate)) - set(_walk(saga))
    require(not unreachable, f"{where}: no transition leads to {', '.join(sorted(unreachable))}")


def _walk(saga: Saga) -> tuple[str, ...]:
    where, seen, state = f"saga {brief(saga.name)}", [], saga.initial
    thens = {step.state: step.then for step in saga.steps}
    both = set(thens) & set(saga.immediate)
    require(not both, f"{where}: {', '.join(sorted(both))} cannot both wait for a step and move on immediately")
    while state != COMPLETED:
        require(state not in seen, f"{where}: {state} is reached twice, so the saga would never end")
        seen.append(state)
        following = thens.get(state) or saga.immediate.get(state)
        require(following is not None, f"{where}: {state} has no transition: add a step or an immediate one")
        state = str(following)
    return (*seen, COMPLETED)


def _unique(where: str, what: str, values: list[str]) -> None:
    twice = sorted({value for value in values if values.count(value) > 1})
    require(not twice, f"{where}: {what} {', '.join(twice)} belongs to more than one step")
