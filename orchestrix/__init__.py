"""Orchestrix: durable sagas of commands and events, and long jobs, on the RabbitMQ and SQL database that you have.

    from orchestrix import COMPLETED, Command, Compensation, Context, Permanent, Saga, Step, handles

    ORDER = Saga(name="order", steps=(Step(…), …))

    @handles("cmd.reserveStock")
    async def reserve(context: Context, command: Command) -> dict[str, str]:
        return {"reservation": …}

These names, `orchestrix.testing` and the command `orchestrix` are public; every other module may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrix.cli import main
    from orchestrix.errors import ShardLost
    from orchestrix.resource import Resource
    from orchestrix.saga.definition import (
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
    from orchestrix.saga.errors import DefinitionError
    from orchestrix.saga.messages import Command, Event
    from orchestrix.server import create_app
    from orchestrix.worker.context import Context
    from orchestrix.worker.errors import Hold, Permanent, Retry, Transient, Unavailable
    from orchestrix.worker.executor.executor import Executor
    from orchestrix.worker.handlers import handles
    from orchestrix.worker.jobs.context import JobContext
    from orchestrix.worker.jobs.functions import job
    from orchestrix.worker.jobs.stop_signal import JobCancelled
    from orchestrix.worker.shards.member import ShardMember

_HOMES = {
    "orchestrix.cli": ("main",),
    "orchestrix.errors": ("ShardLost",),
    "orchestrix.resource": ("Resource",),
    "orchestrix.saga.definition": (
        "COMPLETED", "FAILED", "HOLD", "Compensation", "FreeData", "Job", "NothingToUndo", "RetryPolicy", "Saga",
        "Step",
    ),
    "orchestrix.saga.errors": ("DefinitionError",),
    "orchestrix.saga.messages": ("Command", "Event"),
    "orchestrix.server": ("create_app",),
    "orchestrix.worker.context": ("Context",),
    "orchestrix.worker.errors": ("Hold", "Permanent", "Retry", "Transient", "Unavailable"),
    "orchestrix.worker.executor.executor": ("Executor",),
    "orchestrix.worker.handlers": ("handles",),
    "orchestrix.worker.jobs.context": ("JobContext",),
    "orchestrix.worker.jobs.functions": ("job",),
    "orchestrix.worker.jobs.stop_signal": ("JobCancelled",),
    "orchestrix.worker.shards.member": ("ShardMember",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "COMPLETED",
    "FAILED",
    "HOLD",
    "Command",
    "Compensation",
    "Context",
    "DefinitionError",
    "Event",
    "Executor",
    "FreeData",
    "Hold",
    "Job",
    "JobCancelled",
    "JobContext",
    "NothingToUndo",
    "Permanent",
    "Resource",
    "Retry",
    "RetryPolicy",
    "Saga",
    "ShardLost",
    "ShardMember",
    "Step",
    "Transient",
    "Unavailable",
    "create_app",
    "handles",
    "job",
    "main",
]


def __getattr__(name: str) -> Any:
    """A public name, from its module, imported lazily: the shell and a definition need few of them."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
