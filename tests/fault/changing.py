"""A parcel whose saga changes from version to version: which one this process has the code of is in its environment.

Copied beside the processes of a test, which load it as a user's module. A worker has the handlers of all versions up to
its own: those of old commands stay beside the new ones. Each effect leaves a line in the folder of the process.
"""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from orchestrix import (
    COMPLETED,
    Command,
    Compensation,
    Context,
    NothingToUndo,
    Permanent,
    RetryPolicy,
    Saga,
    Step,
    handles,
)

CODE: Final = int(os.environ.get("CHANGING_CODE", "1"))
"""The version of this process's code."""
WORK: Final = float(os.environ.get("CHANGING_WORK", "0.05"))
"""Seconds that each step takes."""
REFUSED: Final = "refused"
"""How the keys begin of parcels whose last step fails, so that everything is undone."""
LIMIT: Final = timedelta(seconds=60)
_RETRY: Final = RetryPolicy(attempts=3, base=timedelta(milliseconds=50))


def _step(name: str, state: str, command: str, event: str, then: str, undo: str) -> Step:
    back: Compensation | NothingToUndo = NothingToUndo("it stays as it is")
    if undo:
        back = Compensation(f"cmd.{undo}", f"evt.{undo}", LIMIT, _RETRY)
    return Step(name, state, command, event, then, back, LIMIT, _RETRY)


VERSIONS: Final = {
    1: Saga(
        name="changing",
        steps=(
            _step("pack", "PACKING", "cmd.pack", "evt.packed", "SENDING", "unpack"),
            _step("send", "SENDING", "cmd.send", "evt.sent", COMPLETED, ""),
        ),
    ),
    # A renamed state, another event and another undo of the same command, and one more step.
    2: Saga(
        name="changing",
        version=2,
        steps=(
            _step("pack", "WRAPPING", "cmd.pack", "evt.wrapped", "LABELLING", "unwrap"),
            _step("label", "LABELLING", "cmd.label", "evt.labelled", "SENDING", ""),
            _step("send", "SENDING", "cmd.send", "evt.sent", COMPLETED, ""),
        ),
    ),
    # States of the first two with other steps in them, and other events of the same commands.
    3: Saga(
        name="changing",
        version=3,
        steps=(
            _step("weigh", "PACKING", "cmd.weigh", "evt.weighed", "LABELLING", ""),
            _step("label", "LABELLING", "cmd.label", "evt.tagged", "WRAPPING", "untag"),
            _step("send", "WRAPPING", "cmd.send", "evt.gone", COMPLETED, ""),
        ),
    ),
}
"""Not at the top level, where each of them would be code of every process."""
CHANGING: Final = VERSIONS[CODE]
EFFECTS: Final = Path("effects")


def _effect(context: Context, command: Command) -> None:
    with EFFECTS.open("a") as file:
        file.write(f"{context.app_id} {command.definition_version} {command.type}\n")


@handles("cmd.pack")
@handles("cmd.unpack")
async def work(context: Context, command: Command) -> dict[str, Any]:
    """Takes its time."""
    await asyncio.sleep(WORK)
    _effect(context, command)
    return {}


@handles("cmd.send")
async def send(context: Context, command: Command) -> dict[str, Any]:
    """Takes its time, and refuses where that is wanted."""
    if context.app_name.startswith(REFUSED):
        raise Permanent("NoRoad", "there is no way to it")
    return await work(context, command)


if CODE >= 2:
    handles("cmd.label")(work)
    handles("cmd.unwrap")(work)
if CODE >= 3:
    handles("cmd.weigh")(work)
    handles("cmd.untag")(work)
