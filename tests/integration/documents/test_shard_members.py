"""Does the member of docs/shard-members.md share the shards of a service with `dev`, and is the page complete?"""

from __future__ import annotations

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from orchestrix import ShardMember
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.ranges import ShardRanges
from orchestrix.domain.shards.state import MemberHeartbeat, MemberLeave, MemberRegistration
from orchestrix.testing import MemberStory
from orchestrix.worker.shards.member import MemberState
from tests.documents import ROOT, block
from tests.processes import Processes
from tests.servers.run import Run
from tests.support import eventually_sync

PAGE = ROOT / "docs" / "shard-members.md"
DEADLINE_S = 30.0
KINDS = ("register", "heartbeat", "leave", "assignment")

Start = Callable[[str, str], Popen[bytes]]


@pytest.fixture
def start(server_run: Run, tmp_path: Path) -> Iterator[Start]:
    """Starts the page's member."""
    (tmp_path / "orders.py").write_text(block(PAGE, "python", "python orders.py"))
    started: list[Popen[bytes]] = []

    def run(worker: str, broker_url: str) -> Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "ORCHESTRIX_BROKER_URL": broker_url}
        argv = [sys.executable, "orders.py", worker]
        started.append(server_run.spawn(argv, env=environment, cwd=tmp_path, log=tmp_path / f"{worker}.log"))
        return started[-1]

    yield run
    for one in started:
        server_run.kill(one)


def test_two_share_eight_shards_and_one_takes_over_when_the_other_stops(
    processes: Processes, start: Start, tmp_path: Path
) -> None:
    dev = processes.spawn("dev", "--port", "0")
    dev.wait_for_line_sync(r"^Ready in")
    broker_url = json.loads((tmp_path / ".orchestrix" / "dev.json").read_text())["brokerUrl"]
    members = [start(worker, broker_url) for worker in ("worker-1", "worker-2")]

    def working(worker: str) -> set[str]:
        """Its shards: what was begun and not let go of."""
        log = (tmp_path / f"{worker}.log").read_text()
        last = dict(re.findall(r"^shard (\d): (looking|let)", log, re.MULTILINE))
        return {shard for shard, what in last.items() if what == "looking"}

    def shared() -> bool:
        return [len(working(worker)) for worker in ("worker-1", "worker-2")] == [4, 4]

    eventually_sync(shared, deadline=DEADLINE_S, message="each has four shards")
    assert working("worker-1") | working("worker-2") == set("01234567")
    members[0].send_signal(signal.SIGTERM)
    eventually_sync(lambda: members[0].poll() == 0, deadline=DEADLINE_S, message="it ends in good order")
    eventually_sync(lambda: len(working("worker-2")) == 8, deadline=DEADLINE_S, message="the other has all")
    assert working("worker-1") == set()
    members[1].send_signal(signal.SIGINT)
    eventually_sync(lambda: members[1].poll() == 0, deadline=DEADLINE_S)
    assert "Traceback" not in "".join((tmp_path / f"worker-{n}.log").read_text() for n in (1, 2))
    dev.terminate()
    assert dev.exited_sync() == 0


def test_the_test_of_the_page_runs_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(block(PAGE, "python", "python orders.py"))
    test = "test_a_shard_is_flushed_when_it_is_revoked"
    (tmp_path / "test_orders.py").write_text(f"{block(PAGE, 'python', 'given_member(')}\n\n{test}()\nprint('passed')\n")
    run = [sys.executable, "-W", "error", "test_orders.py"]
    ended = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.endswith("passed\n")


def test_the_messages_of_the_page_are_understood() -> None:
    found = block(PAGE, "json", '"type": "register"').replace("\n  ", " ").splitlines()
    sent = {kind: next(one for one in found if f'"type": "{kind}"' in one).encode() for kind in KINDS}
    registration, heartbeat, left = (messages.read(sent[kind], None).event for kind in KINDS if kind != "assignment")
    assert isinstance(registration, MemberRegistration)
    assert isinstance(heartbeat, MemberHeartbeat)
    assert heartbeat.shards == ShardRanges.of([(0, 1), (4, 7)])
    assert left == MemberLeave("w-1", registration.instance)
    answer = messages.read_assignment(sent["assignment"], "w-1")
    assert (answer.seq, answer.generation, answer.timeout_s) == (heartbeat.seq, heartbeat.generation, 15.0)


def test_all_that_there_is_to_say_is_documented() -> None:
    text = PAGE.read_text()
    kinds = (ShardMember, MemberStory)
    names = [name for kind in kinds for name in vars(kind) if not name.startswith("_") and name != "leave"]
    parameters = [name for name in inspect.signature(ShardMember).parameters if name != "service"]
    states = [str(state) for state in MemberState]
    assert [name for name in (*names, *parameters, *states) if f"`{name}" not in text and f".{name}" not in text] == []
