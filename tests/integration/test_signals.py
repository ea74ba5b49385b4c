"""Does a process end when it is told to, and at once, after a last word, when it is told twice?"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest

from orchestrix.bootstrap.stop_signals import StopSignals

STUBBORN = """
import asyncio, threading
from orchestrix.bootstrap.stop_signals import StopSignals

def last():
    print("cut off", flush=True)
    raise RuntimeError("whatever it is")

async def main():
    with StopSignals(last) as signals:
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


BUSY = """
import asyncio, time
from orchestrix.bootstrap.stop_signals import StopSignals

async def main():
    with StopSignals(lambda: print("cut off", flush=True)):
        print("runs", flush=True)
        time.sleep(60)

asyncio.run(main())
"""


def test_a_second_order_to_stop_ends_a_process_whose_loop_is_held_by_a_function() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "runs\n"
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) in (-signal.SIGINT, -signal.SIGTERM)
            assert process.stdout.read() == "cut off\n"
        finally:
            process.kill()


async def test_afterwards_signals_do_what_they_did_before() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
        async with asyncio.timeout(5):
            await signals.stop.wait()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
