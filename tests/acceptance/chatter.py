"""Which job talks for as long as it is let, so that a test can see whether every word has come?

Copied beside the processes of a test, which load it as a user's module.
"""

from __future__ import annotations

from pathlib import Path

from orchestrix.worker.jobs.context import JobContext
from orchestrix.worker.jobs.functions import job

NAME = "chatter"


@job(NAME, queue=NAME)
async def chatter(context: JobContext) -> dict[str, int]:
    """Logs `line 1`, `line 2`, … and says how many, every `pause` seconds, until the file `until` is there."""
    enough, pause = Path(context.payload["until"]), float(context.payload["pause"])
    said = 0
    while not enough.exists():
        said += 1
        await context.log(f"line {said}")
        await context.progress({"lines": said})
        await context.wait_cancelled(pause)
        context.raise_if_cancelled()
    return {"lines": said}
