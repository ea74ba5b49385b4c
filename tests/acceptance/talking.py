"""Which executor talks for as long as it is let, so that a test can see whether every word has come?

Copied beside the processes of a test, and run as one: `python talking.py APP ADMINS HEARTBEAT_S ADDRESS[=LISTEN]…`. It
is an executor at each of the addresses, and prints each beginning of an attempt.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from orchestrix import Executor, JobContext, job


@job("talk")
async def talk(context: JobContext) -> dict[str, int]:
    """Logs `line 1`, `line 2`, … and says how many, every `pause` seconds, until the file `until` is there."""
    print("begins", context.history_id, flush=True)
    enough, pause = Path(context.payload["until"]), float(context.payload["pause"])
    said = 0
    while not enough.exists():
        said += 1
        await context.log(f"line {said}")
        await context.progress({"lines": said})
        await context.wait_cancelled(pause)
        context.raise_if_cancelled()
    return {"lines": said}


@job("shard")
async def shard(context: JobContext) -> dict[str, Any]:
    """Waits for the file `until`, if there is one in the payload; without `only`, or where that is it, it succeeds."""
    print("begins", context.history_id, context.shard_index, flush=True)
    given: dict[str, Any] = context.payload
    while "until" in given and not (
        Path(given["until"]).exists() and given.get("only", context.shard_index) == context.shard_index
    ):
        await context.wait_cancelled(0.05)
        context.raise_if_cancelled()
    return {"shard": context.shard_index}


async def main(app: str, admins: str, heartbeat: str, *places: str) -> None:
    """Serves until it is told to stop."""
    async with AsyncExitStack() as stack:
        made = []
        for place in places:
            address, _, listen = place.partition("=")
            made.append(
                Executor(
                    app,
                    address,
                    admins,
                    token=os.environ.get("REGISTRY_TOKEN"),
                    beat=float(heartbeat),
                    listen=listen or address.removeprefix("http://"),
                    jobs=[talk, shard],
                )
            )
        await asyncio.gather(*map(stack.enter_async_context, made))
        print("ready", flush=True)
        await made[0].wait_for_stop()
        for one in made:
            one.drain()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
