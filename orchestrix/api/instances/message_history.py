"""Message history: the commands and events that a history names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.changes import STEP_UNDONE
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
from orchestrix.saga.versions.former_changes import completed

_UNDOING: Final = (COMPENSATING, COMPENSATION_FAILED, FAILED)


class MessageHistory(NamedTuple):
    """A message, by the row that names it. `detail` is the text of a failure."""

    type: str
    change: StateChange
    detail: str | None = None


def events(saga: Saga, changes: Iterable[StateChange]) -> Iterator[MessageHistory]:
    """The events that were accepted, each by the row of the change that consumed it.

    Migration 0010 has named a long failure that a pause held back in the row after the pause too, in some databases.
    """
    texts: set[str] = set()
    for change in map(completed, changes):
        name = change.message_type or _undone(saga, change)
        named_before = name == STEP_FAILED and change.caused_by in texts
        if name is not None and not named_before:
            yield MessageHistory(name, change, change.error)
        if change.caused_by is not None:
            texts.add(change.caused_by)


def _undone(saga: Saga, change: StateChange) -> str | None:
    """The type of the event behind the row of an undone step that does not name it."""
    step = saga.step(change.step or "") if change.kind == STEP_UNDONE and change.caused_by is not None else None
    return step.undo.event if step is not None and isinstance(step.undo, Compensation) else None


def commands(saga: Saga, instance: Instance, changes: Sequence[StateChange]) -> list[MessageHistory]:
    """The commands that were given out, each by the first row that names it."""
    seen: set[str] = set()
    found: list[tuple[Step | _Undo, StateChange]] = []
    undos: list[_Undo] = []
    for change in map(completed, changes):
        if undos and not undos[-1].over:
            undos[-1].apply(saga, change)
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
    """The undo of one step, with all its tries. The step is named by the rows of what happens to the undo."""

    began: StateChange
    step: Step | None = None
    over: bool = False

    def apply(self, saga: Saga, change: StateChange) -> None:
        """Takes from the row whether it is over."""
        skipped = change.from_state == COMPENSATION_FAILED and change.kind == SagaAction.SKIP.value
        if change.step is not None:
            self.step = saga.step(change.step)
        self.over = change.kind == STEP_UNDONE or skipped or change.to_state not in _UNDOING


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
    """The step that is undone first: the one in flight, unless it is known to have done nothing, else the last."""
    here = saga.position(began.from_state or saga.initial) - (began.message_type == STEP_FAILED)
    return next((step for step in order if saga.position(step.state) <= here), None)


def _command(whose: Step | _Undo) -> str | None:
    if isinstance(whose, Step):
        return _work(whose)
    undo = whose.step.undo if whose.step else None
    return _work(undo) if isinstance(undo, Compensation) else None


def _work(order: Order) -> str:
    return order.command if order.job is None else order.job.name
