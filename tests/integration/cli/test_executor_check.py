"""Does `executor-check` pass who follows the protocol, and name each fault of who does not?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Final

import pytest

from tests.documents import ROOT, block
from tests.processes import Processes
from tests.servers.tools import NODE_JS
from tests.support import free_port

TOKEN: Final = "a-secret-of-more-than-sixteen"
EXECUTORS: Final = ROOT / "docs" / "executors.md"
NODE: Final = ROOT / "tests" / "fault" / "talking.mjs"
FAULTS: Final = {
    "begins before RUNNING is answered": (
        "            self.changed.wait_for(lambda: not self.waiting)  # it begins only once RUNNING was answered\n",
        "            pass\n",
        {"cancel in an answer"},
    ),
    "runs twice": ('            if call["historyId"] not in runs:', "            if True:", {"once"}),
    "sends once": (
        "        return 200 <= status < 300 or status in",
        "        return True or status in",
        {"report again"},
    ),
    "is deaf to answers": ('self.cancelled or answer.get("cancel") or', "self.cancelled or", {"cancel in an answer"}),
    "is deaf to calls": ('run.cancelled = run.cancelled or call["reason"]', "pass", {"cancel"}),
    "calls everything busy": ("return 422 if call", "return 409 if call", {"unknown job"}),
    "takes old signatures": ("<= 60", "<= 10**9", {"signature"}),
    "takes any signature": ("return hmac.compare_digest(made.encode(), given.encode()) and", "return", {"signature"}),
    "counts from ten": ('"seq": self.seq,', '"seq": self.seq + 9,', {"seq"}),
    "forgets its lines": ('"lastLogSeq": self.last_log,', '"lastLogSeq": 0,', {"seq"}),
    "has every attempt": ('200 if known or self.path == "/health" else 404', "200", {"runs"}),
    "insists on its result": ("if status in (400, 413, 415, 422) and", "if False and", {"unreadable report"}),
    "says no goodbye": ('send_to_one(ADMINS, "/api/registryRemove", REGISTRATION, TOKEN)', "", {"graceful stop"}),
}
"""Faults planted into the example of docs/executors.md, and the rules that name each."""


def verdicts(
    processes: Processes, script: str, *arguments: str, handler: str = "count", payload: str = '{"to":3}'
) -> tuple[int, dict[str, tuple[str, str]], str]:
    """The exit code, the verdicts by rule, and what was said besides, of an executor by that command line."""
    url = f"http://127.0.0.1:{free_port()}"
    done = processes.run(
        *("executor-check", url, "--group", "shop", "--handler", handler, "--payload", payload, "-o", "json"),
        *("--start", script.replace("URL", url), *arguments),
        env={"REGISTRY_TOKEN": TOKEN},
        timeout=120,
    )
    assert done.stdout, done.stderr
    items = json.loads(done.stdout)["items"]
    return done.returncode, {one["rule"]: (one["status"], one["detail"]) for one in items}, done.stderr


def example(
    processes: Processes, folder: Path, before: str = "", after: str = ""
) -> tuple[int, dict[str, tuple[str, str]]]:
    """The example of the document, with that replaced."""
    text = block(EXECUTORS, "python", "ThreadingHTTPServer").replace("RETRY_S, MEMORY_S", "_, MEMORY_S")
    text = text.replace("\nAPP, ADDRESS", "\nRETRY_S = 0.05\nAPP, ADDRESS", 1)
    assert before in text
    (folder / "executor.py").write_text(text.replace(before, after) if before else text)
    line = f"{sys.executable} executor.py shop URL {{admin}}"
    code, found, _ = verdicts(
        processes, line, "--slow", '{"to":20,"pause":0.05}', "--timeout", "3", "--stop-timeout", "10"
    )
    return code, found


def test_the_example_passes(processes: Processes, tmp_path: Path) -> None:
    code, found = example(processes, tmp_path)
    assert (code, {status for status, _ in found.values()}) == (0, {"ok"}), found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(processes: Processes, tmp_path: Path, fault: str) -> None:
    before, after, rules = FAULTS[fault]
    code, found = example(processes, tmp_path, before, after)
    assert code == 1, found
    assert rules <= {rule for rule, (status, _) in found.items() if status == "fail"}, found


def test_our_own_executor_passes(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        dedent("""
        import asyncio, os, sys
        from orchestrix import Executor, job

        @job("count", grace=0.2)
        async def count(context):
            for number in range(context.payload["to"]):
                await context.log(f"counted {number}")
                await asyncio.sleep(context.payload.get("pause", 0))
            return {"counted": context.payload["to"]}

        async def main():
            url = sys.argv[1]
            where = url.removeprefix("http://")
            token = os.environ["REGISTRY_TOKEN"]
            async with Executor("shop", url, [sys.argv[2]], token, listen=where, jobs=[count]) as one:
                await one.wait_for_stop()

        asyncio.run(main())
        """)
    )
    code, found, said = verdicts(
        processes,
        f"{sys.executable} own.py URL {{admin}}",
        *("--slow", '{"to":20,"pause":0.05}', "--timeout", "8", "--stop-timeout", "20"),
    )
    assert (code, {status for status, _ in found.values()}) == (0, {"ok"}), (found, said)


def test_the_node_example_passes(processes: Processes, tmp_path: Path) -> None:
    assert NODE_JS.find(), "run `make services`: the example needs Node.js"
    (tmp_path / "ended").touch()
    code, found, said = verdicts(
        processes,
        f"node {NODE} shop {{admin}} 30 URL",
        *("--timeout", "6", "--stop-timeout", "20"),
        handler="talk",
        payload=json.dumps({"until": str(tmp_path / "ended"), "pause": 0.05}),
    )
    assert (code, {rule for rule, (status, _) in found.items() if status != "ok"}) == (0, {"cancel"}), (found, said)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["ftp://x", "--group", "a", "--handler", "b"], 2, "is no address of an executor"),
        (["http://127.0.0.1:1", "--group", "a", "--handler", "b", "--payload", "x"], 2, "--payload is not JSON"),
        (["http://127.0.0.1:1", "--group", "a", "--handler", "b", "--start", "x"], 2, "--start: write {admin} where"),
        (["http://127.0.0.1:1", "--group", "a", "--handler", "b", "--timeout", "1"], 5, "no executor answers at"),
        (
            [
                *("http://127.0.0.1:1", "--group", "a", "--handler", "b", "--timeout", "1"),
                *("--start", "sh -c 'exit 7' {admin}"),
            ],
            5,
            " with exit code 7; see what it printed above",
        ),
        (["http://127.0.0.1:1", "--handler", "b"], 2, "--group"),
    ],
)
def test_what_cannot_be_checked_is_a_sentence(processes: Processes, arguments: list[str], code: int, said: str) -> None:
    done = processes.run("executor-check", *arguments, timeout=60)
    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False), done.stderr
