"""Which words are sagas written in?

A saga is data: its steps, the states between them, and how each step is undone. See `app_provisioning.py`.
"""

from sagas.engine.definition import (
    COMPLETED,
    FAILED,
    HOLD,
    Compensation,
    FreeData,
    Job,
    NothingToUndo,
    RetryPolicy,
    Saga,
    Step,
)
from sagas.engine.errors import DefinitionError, IllegalTransition
from sagas.engine.messages import Command, Event

__all__ = [
    "COMPLETED",
    "FAILED",
    "HOLD",
    "Command",
    "Compensation",
    "DefinitionError",
    "Event",
    "FreeData",
    "IllegalTransition",
    "Job",
    "NothingToUndo",
    "RetryPolicy",
    "Saga",
    "Step",
]
