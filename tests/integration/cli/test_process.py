"""How does `orchestrix` behave as a real process?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.integration.cli.fake_api import FakeApi, Reply, app
from tests.processes import ORCHESTRIX, Processes
from tests.processor_time import least_cpu_seconds

BAD = {
    "unknown command": (["nonsense"], {}, 2),
    "a later command": (["jobs", "list"], {}, 2),
    "bad id": (["jobs", "show", "1e3"], {}, 2),
    "bad port": (["dev", "--port", "x"], {}, 2),
    "bad data": (["apps", "create", "x", "--by", "y", "--data", "{"], {}, 2),
    "no API": (["apps", "list", "--api", "http://127.0.0.1:1"], {}, 5),
    "no host": (["apps", "list", "--api", "http://nowhere.invalid"], {}, 5),
    "no URL": (["apps", "list", "--api", "nonsense"], {}, 2),
    "no broker": (["worker"], {}, 2),
    "embedded": (["serve"], {"ORCHESTRIX_BROKER_URL": "embedded"}, 2),
    "bad broker": (["serve"], {"ORCHESTRIX_BROKER_URL": "http://x"}, 2),
    "bad database": (["db", "current"], {"ORCHESTRIX_DATABASE_URL": "oracle://x"}, 2),
    "unreadable database": (["db", "upgrade", "--database-url", "sqlite+aiosqlite:////dev/null/x.db"], {}, 2),
    "bad setting": (["config", "show"], {"ORCHESTRIX_WORKER__CONCURRENCY": "0"}, 2),
    "missing saga": (["openapi"], {"ORCHESTRIX_SAGAS": "no.such.module"}, 2),
    "no role": (["serve", "--roles", "king"], {}, 2),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_a_sentence_and_never_a_stack_trace(processes: Processes, case: str) -> None:
    arguments, env, code = BAD[case]
    answer = processes.run(*arguments, env=env)
    assert answer.returncode == code
    assert answer.stdout == ""
    assert answer.stderr.startswith("error: ")
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_worker_refuses_a_queue_whose_jobs_it_would_fail(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text('from orchestrix import job\n@job("render")\nasync def render(context): ...\n')
    (tmp_path / "film.py").write_text(
        "from orchestrix import COMPLETED, Job, NothingToUndo, Saga, Step\n"
        'draw = Step("draw", "DRAWING", job=Job("draw", queue="gpu"), event="evt.drawn", then=COMPLETED, '
        'undo=NothingToUndo("paper"))\n'
        'FILM = Saga("film", steps=(draw,))\n'
    )
    env = {"ORCHESTRIX_WORKERS": "mine", "ORCHESTRIX_SAGAS": "film", "ORCHESTRIX_BROKER_URL": "amqp://127.0.0.1:1"}
    env["ORCHESTRIX_DATABASE_URL"] = f"sqlite+aiosqlite:///{tmp_path}/x.db"
    answer = processes.run("worker", "--job-queue", "gpu", env=env, cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error: no job of this worker is for queue gpu; it has render (default): ")


def test_help_is_quick_and_brings_nothing_heavy_along() -> None:
    program = (
        "import sys\nfrom orchestrix.cli import main\n"
        "try: main(['apps', 'create', '--help'])\nexcept SystemExit: pass\n"
        "heavy = {'pydantic', 'sqlalchemy', 'fastapi', 'aio_pika', 'asyncio', 'alembic'} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_help_takes_less_than_it_may(programs: Processes) -> None:
    def once() -> float:
        began = time.monotonic()
        assert programs.run("--help").returncode == 0
        return time.monotonic() - began

    assert min(once() for _ in range(5)) < 0.4


@pytest.mark.parametrize("words", [["--help"], ["apps", "--help"], ["apps", "list", "--help"]])
def test_help_takes_little_of_the_processor(words: list[str]) -> None:
    """Beside the bare interpreter, for the machine may be busy: 0.06 s where that starts in 0.011 s."""
    bare = least_cpu_seconds([sys.executable, "-c", "pass"], runs=10)
    assert least_cpu_seconds([str(ORCHESTRIX), *words], runs=10) <= 5.5 * bare


@pytest.mark.parametrize("named", [None, "", "own.toml"])
def test_python_m_app_is_the_same_with_the_services_file(tmp_path: Path, named: str | None) -> None:
    (tmp_path / "own.toml").write_text('node_id = "mine"\n')
    env = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRIX_")}
    if named is not None:
        env["ORCHESTRIX_CONFIG"] = named
    command = [sys.executable, "-m", "app", "config", "show", "-o", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=env, timeout=30)
    found = {item["setting"]: (item["value"], item["source"]) for item in json.loads(answer.stdout)["items"]}
    file = str(tmp_path / named) if named else str(ROOT / "orchestrix.toml")
    assert (found["config"], answer.stderr) == ((file, "ORCHESTRIX_CONFIG"), "")
    assert found["sagas"][0] == ([] if named else ["sagas.app_provisioning"])


def test_python_m_app_ends_as_the_command_does() -> None:
    answer = subprocess.run([sys.executable, "-m", "app", "nonsense"], capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: ")


def test_a_reader_that_leaves_is_no_error(processes: Processes, api: FakeApi) -> None:
    many = [app(id=number, appName="x" * 200) for number in range(1, 1001)]
    api.on("GET", "/apps", Reply(body={"items": many, "nextCursor": None}))
    answer = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {ORCHESTRIX} apps list --api {api.url} | head -1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert answer.stdout.split()[:2] == ["ID", "NAME"]
    assert (answer.returncode, answer.stderr) == (141, "")


def test_names_survive_a_terminal_that_lacks_their_letters(programs: Processes, api: FakeApi) -> None:
    api.on("GET", "/apps/42", Reply(body=app(appName="日本😀")))
    ascii_only = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    answer = programs.run("apps", "show", "42", "--api", api.url, env=ascii_only)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "\\u65e5\\u672c\\U0001f600" in answer.stdout


def test_a_full_disk_is_told(api: FakeApi) -> None:
    api.on("GET", "/apps/42", Reply(body=app()))
    with Path("/dev/full").open("w") as full:
        command = [str(ORCHESTRIX), "apps", "show", "42", "--api", api.url]
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert answer.returncode == 1
    assert "No space left" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_dev_ends_where_nobody_can_be_told_that_it_is_ready(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [str(ORCHESTRIX), "dev", "--port", "0"]
        answer = subprocess.run(
            command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=30
        )
    assert answer.returncode == 1
    assert "error: No space left on device" in answer.stderr.splitlines()
    assert not (tmp_path / ".orchestrix" / "dev.json").exists()


def test_a_closed_output_is_no_error() -> None:
    for command in ("config show >&-", "nonsense 2>&-"):
        answer = subprocess.run(["bash", "-c", f"{ORCHESTRIX} {command}"], capture_output=True, check=False)
        assert (answer.returncode, answer.stdout, answer.stderr) == (0 if "show" in command else 2, b"", b"")


def test_openapi_needs_neither_server_nor_database(processes: Processes, tmp_path: Path) -> None:
    answer = processes.run("openapi")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "/apps/{id}/history" in json.loads(answer.stdout)["paths"]
    assert list(tmp_path.iterdir()) == []
