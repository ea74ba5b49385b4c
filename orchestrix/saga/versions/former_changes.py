"""Former changes: reads rows of history that nodes of an earlier release, which know no kinds, have written."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.changes import ATTEMPT_FAILED, FAILURE_DEFERRED, STEP_FAILED, STEP_SUCCEEDED, STEP_UNDONE
from orchestrix.saga.definition import STEP_FAILED as FAILURE_EVENT
from orchestrix.saga.state import ORCHESTRATOR, StateChange

FAILURES: Final = frozenset({ATTEMPT_FAILED, FAILURE_DEFERRED, STEP_FAILED})
_VERBS: Final = frozenset(verb.value for verb in SagaAction)
_FORMS: Final = (
    (ATTEMPT_FAILED, re.compile(rf"retry [0-9]+: ({re.escape(FAILURE_EVENT)}(?=: ))?")),
    (FAILURE_DEFERRED, re.compile(rf"held: ({re.escape(FAILURE_EVENT)}(?=: ))?")),
    (STEP_FAILED, re.compile(rf"({re.escape(FAILURE_EVENT)}(?=: ))|deadline$|QueueTimeout: ")),
    (STEP_UNDONE, re.compile(r"undone ([^\s:]+)$")),
    (STEP_SUCCEEDED, re.compile(r"(evt\.[^\s:]+)$")),
)
"""The forms of its texts. A hold is taken for a deferred failure: answers need no difference."""


def completed(change: StateChange) -> StateChange:
    """`change` with the kind, message type and undone step that its text has, where it has no kind of its own."""
    if change.kind is not None:
        return change
    if change.actor != ORCHESTRATOR:
        verb = change.reason.partition(":")[0]
        return replace(change, kind=verb) if verb in _VERBS else change
    for kind, form in _FORMS:
        if (found := form.match(change.reason)) is not None:
            return _named(change, kind, found[1])
    return change


def _named(change: StateChange, kind: str, name: str | None) -> StateChange:
    if kind == STEP_UNDONE:
        return replace(change, kind=kind, step=name)
    hold = kind == FAILURE_DEFERRED and change.caused_by is not None
    return replace(change, kind=kind, message_type=name or (FAILURE_EVENT if hold else None))
