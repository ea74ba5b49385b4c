"""Does a process end when it is told to, and at once, after a last word, when it is told twice?"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STUBBORN = """
import asyncio, threading
from app.bootstrap.parts import Signals

def last():
    print("cut off", flush=True)
    raise RuntimeError("whatever it is")

async def main():
    with Signals(last) as signals:
        hangs = asyncio.create_task(asyncio.to_thread(threading.Event().wait))
        print("runs", flush=True)
        await signals.stop.wait()
        print("stops", flush=True)
        await hangs

asyncio.run(main())
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_order_to_stop_ends_a_process_that_hangs(first: signal.Signals, second: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            process.send_signal(first)
            assert process.stdout.readline() == "stops\n"
            process.send_signal(second)
            assert process.wait(10) == -second
            assert process.stdout.read() == "cut off\n"
        finally:
            process.kill()
