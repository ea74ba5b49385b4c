"""Which executors run the numbered jobs?

Copied beside them, and run as a process: `python executing.py APP ADDRESS,… ADMINS`.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import numbered  # type: ignore[import-not-found]  # beside this file, where it runs

from orchestrix import Executor


async def main(app: str, addresses: str, admins: str) -> None:
    """Serves until it is told to stop."""
    jobs = [numbered.count, numbered.patient]
    async with AsyncExitStack() as stack:
        for address in addresses.split(","):
            one = Executor(app, address, admins, listen=address.removeprefix("http://"), jobs=jobs, beat=0.3)
            executor = await stack.enter_async_context(one)
        await executor.wait_for_stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
