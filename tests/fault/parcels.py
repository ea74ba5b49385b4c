"""Sagas and jobs of the outside trials: an order of five steps with three undos, a parcel and a note of one step
each, an errand whose step is a job; what each does is in its key.

Copied beside the processes of a test, which load it as a user's module. Every step that is undone leaves a file in the
folder of the process, named by the instance, which holds its effect key; each beginning of `pack`, `ship` and a job a
line.
"""

from __future__ import annotations

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from orchestrix import (
    COMPLETED,
    Command,
    Compensation,
    Context,
    Job,
    JobContext,
    NothingToUndo,
    Permanent,
    RetryPolicy,
    Saga,
    Step,
    Transient,
    handles,
    job,
)

WORK: Final = float(os.environ.get("PARCELS_WORK", "0"))
"""Seconds that `ship` takes, and the `pack` of a parcel whose key begins with SLOW."""
QUICK: Final = float(os.environ.get("PARCELS_QUICK", "0"))
"""Seconds that every other `pack` takes."""
LIMIT: Final = float(os.environ.get("PARCELS_LIMIT", "60"))
"""Seconds that a note may take; `pack` too, or thrice as long as it takes."""
TOLD_WITHIN: Final = float(os.environ.get("PARCELS_TOLD_WITHIN", "10"))
"""Seconds that the last step of an order may take."""
SLOW, POISON, LATE = "slow", "poison", "late"
"""How the keys begin of parcels that take their time, of those that kill their worker, and of orders whose last step
never ends by itself: the designed end by deadline."""
CARRIERS: Final = "carriers"
"""The queue of the jobs."""
MADE, BEGUN = Path("made"), Path("begun")

_RETRY: Final = RetryPolicy(attempts=3, base=timedelta(milliseconds=50))
_UNDO: Final = RetryPolicy(attempts=10, base=timedelta(milliseconds=100))


def _undo(command: str, event: str) -> Compensation:
    return Compensation(command=command, event=event, timeout=timedelta(seconds=60), retry=_UNDO)


ORDER: Final = Saga(
    name="parcels-order",
    steps=(
        Step(
            name="reserve",
            state="RESERVING",
            command="cmd.reserve",
            event="evt.reserved",
            then="CHARGING",
            undo=_undo("cmd.release", "evt.released"),
            retry=_RETRY,
        ),
        Step(
            name="charge",
            state="CHARGING",
            command="cmd.charge",
            event="evt.charged",
            then="CHECKING",
            undo=_undo("cmd.refund", "evt.refunded"),
            retry=_RETRY,
        ),
        Step(
            name="check",
            state="CHECKING",
            command="cmd.check",
            event="evt.checked",
            then="SHIPPING",
            undo=NothingToUndo("what was looked at stays as it is"),
            retry=_RETRY,
        ),
        Step(
            name="ship",
            state="SHIPPING",
            command="cmd.ship",
            event="evt.shipped",
            then="TELLING",
            undo=_undo("cmd.recall", "evt.recalled"),
            timeout=timedelta(seconds=max(30.0, 3 * WORK)),
            retry=_RETRY,
        ),
        Step(
            name="tell",
            state="TELLING",
            command="cmd.tellBuyer",
            event="evt.buyerTold",
            then=COMPLETED,
            undo=NothingToUndo("what was told cannot be taken back"),
            timeout=timedelta(seconds=TOLD_WITHIN),
            retry=RetryPolicy(attempts=1),
        ),
    ),
)
PARCEL: Final = Saga(
    name="parcel",
    steps=(
        Step(
            name="pack",
            state="PACKING",
            command="cmd.pack",
            event="evt.packed",
            then=COMPLETED,
            undo=NothingToUndo("a parcel hurts nobody"),
            timeout=timedelta(seconds=max(LIMIT, 3 * WORK)),
            retry=_RETRY,
        ),
    ),
)
NOTE: Final = Saga(
    name="note",
    steps=(
        Step(
            name="note",
            state="NOTING",
            command="cmd.note",
            event="evt.noted",
            then=COMPLETED,
            undo=NothingToUndo("what was noted hurts nobody"),
            timeout=timedelta(seconds=LIMIT),
            retry=_RETRY,
        ),
    ),
)
ERRAND: Final = Saga(
    name="errand",
    steps=(
        Step(
            name="carry",
            state="CARRYING",
            event="evt.carried",
            then=COMPLETED,
            undo=NothingToUndo("it was carried for nothing"),
            job=Job("carry", queue=CARRIERS),
        ),
    ),
)


def _make(context: Context, step: str) -> None:
    folder = MADE / step
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(context.app_id)).write_text(context.effect_key)


def _unmake(context: Context, step: str) -> None:
    (MADE / step / str(context.app_id)).unlink(missing_ok=True)


def _begin(name: str) -> None:
    with BEGUN.open("a") as file:
        file.write(f"{name} {os.getpid()}\n")


@handles("cmd.reserve")
def reserve(context: Context, command: Command) -> None:
    """Instant."""
    _make(context, "reserve")


@handles("cmd.release")
def release(context: Context, command: Command) -> None:
    """Its undo."""
    _unmake(context, "reserve")


@handles("cmd.charge")
async def charge(context: Context, command: Command) -> dict[str, Any]:
    """Nearly instant."""
    await asyncio.sleep(0.02)
    _make(context, "charge")
    return {"charged": True}


@handles("cmd.refund")
async def refund(context: Context, command: Command) -> None:
    """Its undo."""
    _unmake(context, "charge")


@handles("cmd.check")
async def check(context: Context, command: Command) -> None:
    """Fails at the first attempt of every third order."""
    if context.app_id % 3 == 0 and context.attempt == 1:
        raise Transient("Flaky", "every third one fails once")


@handles("cmd.ship")
async def ship(context: Context, command: Command) -> None:
    """Takes its time."""
    _begin(context.app_name)
    await asyncio.sleep(WORK)
    _make(context, "ship")


@handles("cmd.recall")
async def recall(context: Context, command: Command) -> None:
    """Its undo."""
    _unmake(context, "ship")


@handles("cmd.tellBuyer")
async def tell(context: Context, command: Command) -> None:
    """Never ends by itself where that is the design."""
    if context.app_name.startswith(LATE):
        await asyncio.sleep(100 * TOLD_WITHIN)


@handles("cmd.pack")
async def pack(context: Context, command: Command) -> None:
    """Takes as long as its key says, or ends the whole process."""
    _begin(context.app_name)
    if context.app_name.startswith(POISON):
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.sleep(WORK if context.app_name.startswith(SLOW) else QUICK)
    _make(context, "pack")


@handles("cmd.note")
async def note(context: Context, command: Command) -> None:
    """Instant."""


@job("carry", queue=CARRIERS)
async def carry(context: JobContext) -> dict[str, Any]:
    """Says a line and ends."""
    _begin(context.job_id)
    await context.log(f"carried {context.payload}")
    return {"carried": True}


@job("wait", queue=CARRIERS)
async def wait(context: JobContext) -> None:
    """Goes on until it is told to stop."""
    _begin(context.job_id)
    await context.log("waits")
    await context.wait_cancelled()
    context.raise_if_cancelled()


@job("talk", queue=CARRIERS)
async def talk(context: JobContext) -> dict[str, int]:
    """Says a number every 10 ms for as many `seconds` as its payload says, and how many lines that were."""
    _begin(context.job_id)
    loop, said = asyncio.get_running_loop(), 0
    ends = loop.time() + float(context.payload["seconds"])
    while loop.time() < ends:
        await context.log(str(said))
        said += 1
        await context.wait_cancelled(0.01)
        context.raise_if_cancelled()
    return {"lines": said}


@job("grumble", queue=CARRIERS)
async def grumble(context: JobContext) -> None:
    """Fails with many words."""
    raise Permanent("Grumble", "why " * (int(context.payload["characters"]) // 4))
