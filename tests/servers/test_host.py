"""Do several test processes have one server of each kind, which ends with the last of them?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.servers import host, lookup
from tests.servers.host import ServerHost
from tests.servers.postgres import PostgresServer
from tests.servers.run import Run
from tests.servers.sql import answers_sql

TESTS = """
import json, os, pytest
from pathlib import Path
@pytest.mark.parametrize("turn", range(8))
def test_it(rabbitmq_server, turn):
    rabbitmq_server.change_vhosts([f"test_{turn}"], [])
    with Path("seen").open("a") as seen:
        print(json.dumps([os.getpid(), rabbitmq_server.url()]), file=seen)
"""


@pytest.mark.servers
def test_who_asks_at_once_gets_the_same_server(server_run: Run) -> None:
    made = ServerHost()
    try:
        with ThreadPoolExecutor(4) as pool:
            one, *others = pool.map(lambda _: host.ask(made.address, lookup.POSTGRESQL, server_run), range(4))
        assert isinstance(one, PostgresServer)
        assert {other.port for other in others} == {one.port}
        assert answers_sql(one.url())
        assert not one.running, "who has not started it does not end it"
    finally:
        made.close()
    assert not answers_sql(one.url())
    assert not made.address.exists()


def test_what_does_not_start_is_told_to_who_asks(server_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(kind: lookup.Kind, run: Run) -> None:
        raise lookup.Missing("nowhere")

    monkeypatch.setattr(lookup, "private_server", missing)
    made = ServerHost()
    try:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="Missing: nowhere"):
                host.ask(made.address, lookup.POSTGRESQL, server_run)
    finally:
        made.close()


@pytest.mark.servers
def test_all_processes_of_a_run_have_one_server(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", "2", "-p", "no:cacheprovider", "--rootdir", "."]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop(lookup.RABBITMQ.variable, None)
    result = subprocess.run(
        [*command, "-c", os.devnull, "test_it.py"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    seen = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert len(seen) == 8
    assert len({pid for pid, _ in seen}) == 2
    assert len({url for _, url in seen}) == 1
