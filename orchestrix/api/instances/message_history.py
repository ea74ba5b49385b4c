"""Message history: the commands and events that a history tells of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from orchestrix.saga.definition import (
    COMPENSATING,
    COMPENSATION_FAILED,
    FAILED,
    STEP_FAILED,
    Compensation,
    Order,
    Saga,
    Step,
)
from orchestrix.saga.state import Instance, StateChange

_UNDOING: Final = (COMPENSATING, COMPENSATION_FAILED, FAILED)
_FAILURE: Final = re.compile(r"(retry [0-9]+|held): ")
_UNDONE: Final = "undone "


class MessageHistory(NamedTuple):
    """A message, by the row that speaks of it. `said` is what a failure said."""

    type: str
    change: StateChange
    said: str | None = None


def events(saga: Saga, changes: Iterable[StateChange]) -> Iterator[MessageHistory]:
    """The events that were accepted. A failure that a pause held back is told once, though two rows speak of it."""
    known = {step.event for step in saga.steps} | {STEP_FAILED}
    held: set[tuple[str | None, str]] = set()
    for change in changes:
        match = _FAILURE.match(change.reason)
        text = change.reason[match.end() :] if match else change.reason
        name, _, said = text.partition(": ")
        step = saga.step(change.reason.removeprefix(_UNDONE)) if change.caused_by else None
        if change.reason.startswith(_UNDONE) and step and isinstance(step.undo, Compensation):
            yield MessageHistory(step.undo.event, change)
        elif name in known and (change.caused_by, text) not in held:
            yield MessageHistory(name, change, said or None)
        if match and match[1] == "held":
            held.add((change.caused_by, text))


def commands(saga: Saga, instance: Instance, changes: Sequence[StateChange]) -> list[MessageHistory]:
    """The commands that were given out, each by the first row that names it."""
    seen: set[str] = set()
    found: list[tuple[Step | _Undo, StateChange]] = []
    undos: list[_Undo] = []
    for change in changes:
        if undos and not undos[-1].over:
            undos[-1].hear(saga, change)
        if change.command_id is None or change.command_id in seen:
            continue
        seen.add(change.command_id)
        step = saga.step_in(change.to_state)
        if step is None and (not undos or undos[-1].over):
            undos.append(_Undo(change))
        found.append((step or undos[-1], change))
    if undos and not undos[-1].over and instance.progress.todo:
        undos[-1].step = saga.step(instance.progress.todo[0])
    _name(saga, undos)
    return [MessageHistory(name, change) for whose, change in found if (name := _command(whose))]


@dataclass(slots=True)
class _Undo:
    """The undo of one step, with all its tries. History names the step only once it is undone."""

    began: StateChange
    step: Step | None = None
    over: bool = False

    def hear(self, saga: Saga, change: StateChange) -> None:
        """Takes from the row whether it is over."""
        named = change.reason.startswith(_UNDONE)
        skipped = change.from_state == COMPENSATION_FAILED and change.reason.startswith("skip: ")
        self.step = saga.step(change.reason.removeprefix(_UNDONE)) if named else None
        self.over = named or skipped or change.to_state not in _UNDOING


def _name(saga: Saga, undos: Sequence[_Undo]) -> None:
    """Finds the steps of those that were skipped, or never ended, by those beside them: undo goes in reverse order."""
    order = [step for step in reversed(saga.steps) if isinstance(step.undo, Compensation)]
    for undo, after in reversed(list(pairwise(undos))):
        if undo.step is None and after.step in order[1:]:
            undo.step = order[order.index(after.step) - 1]
    for before, undo in pairwise(undos):
        if undo.step is None and before.step in order[:-1]:
            undo.step = order[order.index(before.step) + 1]
    if undos and undos[0].step is None:
        undos[0].step = _first(saga, order, undos[0].began)


def _first(saga: Saga, order: Sequence[Step], began: StateChange) -> Step | None:
    """The step that is undone first: the one that was out, if nobody has said that it did nothing, else the last."""
    here = saga.position(began.from_state or saga.initial) - began.reason.startswith(STEP_FAILED)
    return next((step for step in order if saga.position(step.state) <= here), None)


def _command(whose: Step | _Undo) -> str | None:
    if isinstance(whose, Step):
        return _work(whose)
    undo = whose.step.undo if whose.step else None
    return _work(undo) if isinstance(undo, Compensation) else None


def _work(order: Order) -> str:
    return order.command if order.job is None else order.job.name
