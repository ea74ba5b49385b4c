"""Does a process end in time, and lose no line that it need not, whoever reads its output?"""

from __future__ import annotations

import json
import subprocess
import sys

BEGIN = """
import asyncio, logging, os, sys, time
from orchestrix.config.settings import LogSettings
from orchestrix.telemetry import logs, sinks
sinks.install()
logs.setup(LogSettings(), node="n1", role="node")
log = logging.getLogger("orchestrix.test")
"""
STALLED = (
    BEGIN
    + """
async def main():
    longest = 0.0
    for number in range(3000):
        before = time.monotonic()
        log.error("%d %s", number, "x" * 3000)
        print("a handler prints", "y" * 3000)
        await asyncio.sleep(0)
        longest = max(longest, time.monotonic() - before)
    sys.exit(0 if longest < 5 else 1)
asyncio.run(main())
"""
)


def ran(script: str, *, read: bool = True) -> tuple[int, str]:
    """The exit code, and what was written; a process whose output nobody reads has to end by itself."""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        try:
            if not read:
                return process.wait(30), ""
            said = process.communicate(timeout=30)[0]
            return process.returncode, said.decode()
        finally:
            process.kill()


def test_a_process_whose_output_nobody_reads_goes_on_and_ends() -> None:
    assert ran(STALLED, read=False) == (0, "")


def test_what_was_said_last_is_written_before_the_end() -> None:
    code, said = ran(BEGIN + "\nfor number in range(5000): log.info('line %d', number)\nprint('end', end='')\n")
    assert code == 0
    assert [json.loads(line)["message"] for line in said.splitlines()[:-1]] == [f"line {n}" for n in range(5000)]
    assert said.endswith("end")


FORKED = (
    BEGIN
    + """
import threading, warnings
warnings.simplefilter("ignore")
for number in range(100): log.info("parent %d", number)
print("begun", end="")
child = os.fork()
if not child:
    log.info("child")
    print("child prints", flush=True)
    os._exit(0)
os.waitpid(child, 0)
print()
log.info("after")
"""
)


def test_a_child_made_by_fork_has_a_log_of_its_own_and_repeats_nothing() -> None:
    code, said = ran(FORKED)
    assert code == 0
    told = [json.loads(line)["message"] for line in said.splitlines() if line.startswith("{")]
    assert sorted(told) == sorted([*(f"parent {n}" for n in range(100)), "child", "after"])
    assert said.count("child prints") == said.count("begun") == 1


def test_the_loss_is_a_line_of_the_log() -> None:
    script = BEGIN + "\nfor _ in range(300): log.info('x' * 65536)\nsys.stderr.write('full')\nsys.stderr.flush()\n"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stderr.read(4) == b"full"
            lines = [json.loads(line) for line in process.stdout]
        finally:
            process.kill()
    [loss] = [line for line in lines if "dropped here" in line["message"]]
    assert (loss["level"], loss["logger"], loss["node_id"]) == ("warning", "orchestrix.log", "n1")
    assert int(loss["message"].split()[0]) + len(lines) - 1 == 300


def test_threads_that_print_at_once_do_not_mix_their_lines() -> None:
    script = BEGIN + (
        "\nimport threading\n"
        "def say(name):\n"
        "    for _ in range(500): print(name * 50)\n"
        "threads = [threading.Thread(target=say, args=(name,)) for name in 'abcd']\n"
        "for one in threads: one.start()\n"
        "for one in threads: one.join()\n"
    )
    _, said = ran(script)
    assert {len(set(line)) for line in said.splitlines() if line} == {1}
