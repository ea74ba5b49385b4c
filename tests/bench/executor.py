"""Which executor runs the jobs of the bench?  `python -m tests.bench.executor APP ADDRESS ADMINS SLOTS`."""

from __future__ import annotations

import asyncio
import sys

from orchestrix import Executor
from tests.bench import work


async def main(app: str, address: str, admins: str, slots: str) -> None:
    """Serves until it is told to stop."""
    listen = address.removeprefix("http://")
    async with Executor(app, address, admins, listen=listen, jobs=[work.nothing], slots=int(slots)) as executor:
        await executor.wait_for_stop()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
