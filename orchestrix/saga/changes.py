"""Changes: the kinds of changes that history records, and the cause of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orchestrix.saga.state import ORCHESTRATOR

# An operator's action has its verb as its kind (`SagaAction`); these are what happens by itself. `created`, `immediate`
# and the blockers `unsendable` and `cloned` are kinds too.
STEP_SUCCEEDED: Final = "step_succeeded"
ATTEMPT_FAILED: Final = "attempt_failed"
"""A try has failed, and another one follows."""
STEP_FAILED: Final = "step_failed"
"""A try has failed, and no other one follows: the run is given up, or an undo waits for a person."""
FAILURE_DEFERRED: Final = "failure_deferred"
"""A try has failed during a pause; what follows is decided at the end of the pause."""
STEP_HELD: Final = "step_held"
"""A try has failed, and its step waits for a person."""
STEP_UNDONE: Final = "step_undone"
COMPENSATED: Final = "compensated"
"""All that had to be undone is."""
MIGRATED: Final = "migrated"
"""It was moved to another version of its saga."""

ENDS_OF_TRIES: Final = frozenset(
    {STEP_SUCCEEDED, ATTEMPT_FAILED, STEP_FAILED, FAILURE_DEFERRED, STEP_HELD, STEP_UNDONE}
)
"""The kinds of changes that end a try."""


@dataclass(frozen=True, slots=True)
class ChangeCause:
    """Why an instance changes. `reason` is for people; programs read the other fields.

    `step` is the step that it is about, whose do or undo was in flight; `caused_by` the id of the event that it follows
    from. `error_type` and `error` are of a failure: its type, and what was said of it.
    """

    kind: str
    reason: str
    step: str | None = None
    caused_by: str | None = None
    actor: str = ORCHESTRATOR
    error_type: str | None = None
    error: str | None = None
