"""Which saga has deadlines that a test can wait for, and which handlers do its work?

Copied beside the processes of a test, which load it as a user's module. `grab` leaves a file in the folder of the
process, which its undo removes; what becomes of it is in the key.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from orchestrix import COMPLETED, Command, Compensation, NothingToUndo, RetryPolicy, Saga, Step
from orchestrix.worker.context import Context
from orchestrix.worker.handlers import handles

SECONDS = float(os.environ.get("BRIEF_SECONDS", "0.5"))
"""How long `tell` may take, and `grab` too where it is more than ten."""
WORK = float(os.environ.get("BRIEF_WORK", "0.05"))
"""How long it takes."""
QUICK = RetryPolicy(attempts=3, base=timedelta(milliseconds=50))
BRIEF = Saga(
    name="brief",
    steps=(
        Step(
            name="grab",
            state="GRABBING",
            command="cmd.grab",
            event="evt.grabbed",
            then="TELLING",
            undo=Compensation(command="cmd.drop", event="evt.dropped", timeout=timedelta(seconds=10), retry=QUICK),
            timeout=timedelta(seconds=max(10.0, SECONDS)),
            retry=QUICK,
        ),
        Step(
            name="tell",
            state="TELLING",
            command="cmd.tell",
            event="evt.told",
            then=COMPLETED,
            undo=NothingToUndo("what was told cannot be taken back"),
            timeout=timedelta(seconds=SECONDS),
            retry=RetryPolicy(attempts=1),
        ),
    ),
)
GRABBED = Path("grabbed")
DEADLY = "deadly"
"""A key that begins so kills its worker, after the effect of `grab`."""


@handles("cmd.grab")
def grab(context: Context, command: Command) -> dict[str, Any]:
    """Leaves the file."""
    GRABBED.mkdir(exist_ok=True)
    (GRABBED / f"{context.app_id}").write_text(context.effect_key)
    if context.app_name.startswith(DEADLY):
        time.sleep(0.02)  # so that others come to their end beside it now and then
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


@handles("cmd.drop")
def drop(context: Context, command: Command) -> None:
    """Removes the file, which may be gone."""
    (GRABBED / f"{context.app_id}").unlink(missing_ok=True)


@handles("cmd.tell")
async def tell(context: Context, command: Command) -> None:
    """Takes a moment, and leaves nothing."""
    await asyncio.sleep(WORK)
