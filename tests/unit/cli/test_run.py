"""With what are `dev`, `serve` and `worker` started, and what do they leave behind?"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrix.bootstrap.dev_recovery import PreviousDev
from orchestrix.bootstrap.listening_socket import nearby
from orchestrix.cli import devfile
from orchestrix.config.settings import Settings
from orchestrix.errors import SchemaMismatch
from tests.unit.cli.shell import Shell

DATABASE = "postgresql+asyncpg://u:secret@db/d"
BROKER = "amqp://u:secret@mq/"


@dataclass
class Running:
    """What a started process tells, in the words of `orchestrix.server`."""

    api_url: str | None
    broker_url: str
    database_url: str
    roles: tuple[str, ...] = ("api", "coordinator", "orchestrator")
    node: str = "node-1"
    notes: tuple[str, ...] = ()


class Runtime:
    """Stands in for `orchestrix.server` and `orchestrix.bootstrap`: keeps what it was started with and ends at once."""

    PreviousDev = PreviousDev

    def __init__(self) -> None:
        self.notes: tuple[str, ...] = ()
        self.calls: list[SimpleNamespace] = []
        self.while_running: Callable[[], None] = lambda: None
        self.taken: set[int] = set()
        self.error: Exception | None = None

    async def run_dev(self, settings: Settings, **given: Any) -> None:
        call = self._called(settings, given)
        api, broker = self._free(call.api_ports), self._free(call.broker_ports)
        running = Running(
            api_url=f"http://127.0.0.1:{api}",
            broker_url=f"amqp://guest:guest@127.0.0.1:{broker}/",
            database_url=f"sqlite+aiosqlite:///{call.folder}/orchestrix.db",
            notes=self.notes,
            node=f"node-{len(self.calls)}",
        )
        call.ready(running)
        self.while_running()

    def _free(self, wanted: list[int]) -> int:
        return next(port for port in nearby(*wanted) if port not in self.taken)

    async def run_serve(self, settings: Settings, **given: Any) -> None:
        call = self._called(settings, given)
        call.ready(Running("http://127.0.0.1:1", call.broker_url(), settings.database_url or ""))

    async def run_worker(self, settings: Settings, **given: Any) -> None:
        call = self._called(settings, given)
        call.ready(call.queues)

    def openapi(self, settings: Settings) -> dict[str, Any]:
        return {"openapi": "3.1.0", "x": "é"}

    def _called(self, settings: Settings, given: dict[str, Any]) -> SimpleNamespace:
        call = SimpleNamespace(settings=settings, **given)
        self.calls.append(call)
        if self.error is not None:
            raise self.error
        return call


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    fake = Runtime()
    monkeypatch.setitem(sys.modules, "orchestrix.server", fake)
    monkeypatch.setitem(sys.modules, "orchestrix.bootstrap", fake)
    return fake


@pytest.fixture
def served(shell: Shell) -> Shell:
    shell.set(ORCHESTRIX_DATABASE_URL=DATABASE, ORCHESTRIX_BROKER_URL=BROKER)
    return shell


def test_dev_tells_the_folder_where_it_is_while_it_runs(shell: Shell, runtime: Runtime) -> None:
    seen: list[devfile.DevFile | None] = []
    runtime.while_running = lambda: seen.append(devfile.running(shell.folder))
    answer = shell("dev", "--port", "7001")
    assert (answer.code, answer.err) == (0, "")
    [found] = seen
    assert found is not None
    assert found.api_url == "http://127.0.0.1:7001"
    assert found.database_url == f"sqlite+aiosqlite:///{shell.folder}/.orchestrix/orchestrix.db"
    assert runtime.calls[0].folder == shell.folder / ".orchestrix"
    assert not devfile.path_of(shell.folder).exists()


def test_the_banner_has_what_a_newcomer_needs(shell: Shell, runtime: Runtime) -> None:
    lines = shell("dev", "--port", "7001").out.splitlines()
    words = {line.split()[0]: line for line in lines}
    assert "http://127.0.0.1:7001/docs" in words["API"]
    assert "embedded (development only)" in words["Broker"]
    assert "sqlite ./.orchestrix/orchestrix.db" in words["Database"]
    assert words["Roles"].split()[1:] == ["api,", "orchestrator,", "coordinator,", "workers"]
    assert "curl -X POST http://127.0.0.1:7001/apps" in words["Try"]
    assert "its messages are lost when it stops" in words["Note"]
    assert lines[-2].startswith("Ready in ")
    assert lines[-2].endswith("s. Ctrl-C to stop.")


def test_a_taken_port_is_passed_over_and_told(shell: Shell, runtime: Runtime) -> None:
    runtime.taken = {5673, 7001}
    answer = shell("dev", "--port", "7001")
    assert answer.code == 0
    assert "port 7001 is taken, so the API listens on 7002" in answer.out
    assert "port 5673 is taken, so the broker listens on 5674" in answer.out


def test_dev_tries_its_last_ports_first(shell: Shell, runtime: Runtime) -> None:
    runtime.taken = {8080}
    assert "port 8080 is taken" in shell("dev").out
    runtime.taken = {5673}
    assert "port 5673 is taken" in shell("dev").out
    runtime.taken = set()
    answer = shell("dev")
    assert (runtime.calls[-1].api_ports, runtime.calls[-1].broker_ports) == ([8081, 8080], [5674, 5673])
    assert "is taken" not in answer.out


def test_a_port_from_the_environment_beats_the_last_one(shell: Shell, runtime: Runtime) -> None:
    shell("dev", "--port", "7001")
    shell.set(PORT="7002")
    shell("dev")
    assert runtime.calls[-1].api_ports == [7002]


def test_a_second_dev_is_exit_code_4(shell: Shell, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devfile, "CLAIM_TIMEOUT_S", 0.05)
    with devfile.claimed(shell.folder):
        answer = shell("dev")
    assert answer.code == 4
    assert "already" in answer.err
    assert runtime.calls == []


@pytest.mark.parametrize("cut_off", [False, True])
def test_the_next_dev_knows_the_one_that_was_killed(shell: Shell, runtime: Runtime, cut_off: bool) -> None:
    life = shell.folder / ".orchestrix" / "life.json"
    left: list[bytes] = []

    def keep() -> None:
        if cut_off:
            runtime.calls[-1].cut_off(f"node-{len(runtime.calls)}")
        left.append(life.read_bytes())

    runtime.while_running = keep
    shell("dev")
    shell("dev")
    life.write_bytes(left[0])
    runtime.notes = ("the previous `orchestrix dev` was killed with jobs running: 1 job restarted",)
    answer = shell("dev")
    assert [call.former for call in runtime.calls] == [None, None, PreviousDev("node-1", cut_off)]
    assert "Note      the previous `orchestrix dev` was killed with jobs running: 1 job restarted" in answer.out
    assert not life.exists()


@pytest.mark.parametrize(
    "left", ["not ours", "{}", "[]", '{"nodeId": "node-1"}', '{"nodeId": "node-1", "cutOff": false, "lock": 1}']
)
def test_a_file_that_does_not_tell_who_was_killed_says_nothing(shell: Shell, runtime: Runtime, left: str) -> None:
    (shell.folder / ".orchestrix").mkdir()
    (shell.folder / ".orchestrix" / "life.json").write_text(left)
    assert shell("dev").code == 0
    assert runtime.calls[-1].former is None


def test_dev_ends_with_the_error_of_its_own_file(
    shell: Shell, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(devfile, "write", full)
    answer = shell("dev", "--port", "7001")
    assert answer.code == 1
    assert "No space left" in answer.err


def test_dev_is_quiet_unless_asked(shell: Shell, runtime: Runtime) -> None:
    runtime.while_running = lambda: logging.getLogger("orchestrix").info("a detail")
    assert "a detail" not in shell("dev", "--port", "0").err
    shell.set(LOG_LEVEL="info")
    assert "a detail" in shell("dev", "--port", "0").err


def test_the_banner_says_what_the_log_of_the_embedded_broker_would(shell: Shell, runtime: Runtime) -> None:
    broker = logging.getLogger("orchestrix.broker.embedded.server")

    def work() -> None:
        broker.warning("for development only")
        broker.error("it broke")

    runtime.while_running = work
    answer = shell("dev", "--port", "0")
    assert "for development only" not in answer.err
    assert "it broke" in answer.err
    assert broker.filters == [], "the filter is that run's alone"


def test_serve_has_all_roles_and_settings_by_default(served: Shell, runtime: Runtime) -> None:
    answer = served("serve")
    assert (answer.code, answer.err) == (0, "")
    [call] = runtime.calls
    assert call.roles == {"api", "orchestrator", "coordinator"}
    assert (call.settings.database_url, call.broker_url()) == (DATABASE, BROKER)
    assert [json.loads(line)["event"] for line in answer.out.splitlines()] == ["process.ready", "process.stopped"]
    assert "secret" not in answer.out


def test_flags_beat_the_environment(served: Shell, runtime: Runtime) -> None:
    served.set(ORCHESTRIX_HTTP__PORT="1", ORCHESTRIX_HTTP__HOST="127.0.0.2")
    arguments = ["--host", "127.0.0.3", "--port", "3", "--roles", "api", "--broker-url", "amqps://flag/"]
    assert served("serve", *arguments, "--database-url", "mysql+asyncmy://flag/d").code == 0
    [call] = runtime.calls
    assert (call.settings.http.host, call.settings.http.port, call.roles) == ("127.0.0.3", 3, {"api"})
    assert (call.settings.database_url, call.broker_url()) == ("mysql+asyncmy://flag/d", "amqps://flag/")


@pytest.mark.parametrize("roles", ["nonsense", "api,nonsense", "", ",", "API"])
def test_bad_roles_are_refused(served: Shell, runtime: Runtime, roles: str) -> None:
    answer = served("serve", "--roles", roles)
    assert (answer.code, runtime.calls) == (2, [])
    assert "orchestrator" in answer.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "api.example.org", "127.0.0.1.example.org", ""])
def test_an_open_door_is_refused(served: Shell, runtime: Runtime, host: str) -> None:
    answer = served("serve", "--host", host)
    assert (answer.code, answer.out, runtime.calls) == (2, "", [])
    assert "ORCHESTRIX_API__TOKENS=name:secret" in answer.err
    assert "ORCHESTRIX_API__AUTH=none" in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_this_machine_alone_is_no_open_door(served: Shell, runtime: Runtime, host: str) -> None:
    answer = served("serve", "--host", host)
    assert (answer.code, len(runtime.calls)) == (0, 1)
    assert "everyone who can reach" not in answer.out


def test_tokens_close_the_door(served: Shell, runtime: Runtime) -> None:
    served.set(ORCHESTRIX_API__TOKENS="ada:geheim")
    answer = served("serve", "--host", "0.0.0.0")
    assert (answer.code, len(runtime.calls)) == (0, 1)
    assert "everyone who can reach" not in answer.out
    assert "geheim" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"API": "ada:geheim", "REGISTRY": "geheim"}, "for ada, registry.token"),
        ({"REGISTRY": "shop:geheim,mail:geheim-of-16-chars"}, "for registry.token shop"),
        ({"REGISTRY": "geheim-of-16-char"}, None),
    ],
)
def test_secrets_that_can_be_guessed_are_named(
    environ: dict[str, str], named: str | None, served: Shell, runtime: Runtime
) -> None:
    names = {"API": "ORCHESTRIX_API__TOKENS", "REGISTRY": "ORCHESTRIX_REGISTRY__TOKEN"}
    served.set(**{names[key]: text for key, text in environ.items()})
    answer = served("serve")
    messages = [json.loads(line)["message"] for line in answer.out.splitlines()]
    said = [message.partition("use longer ones ")[2] for message in messages if "can be guessed" in message]
    assert (answer.code, said) == (0, [named] if named else [])
    assert "geheim" not in answer.out + answer.err


def test_a_door_that_is_to_be_open_is_told(served: Shell, runtime: Runtime) -> None:
    served.set(ORCHESTRIX_API__AUTH="none")
    answer = served("serve", "--host", "0.0.0.0")
    assert (answer.code, len(runtime.calls)) == (0, 1)
    assert "anyone who can reach 0.0.0.0:8080" in answer.out


def test_a_node_without_api_has_no_door(served: Shell, runtime: Runtime) -> None:
    answer = served("serve", "--host", "0.0.0.0", "--roles", "orchestrator")
    assert (answer.code, len(runtime.calls)) == (0, 1)
    assert "everyone who can reach" not in answer.out


def test_dev_tells_that_its_door_is_open(shell: Shell, runtime: Runtime) -> None:
    assert "everyone who can reach" not in shell("dev", "--port", "0").err
    shell.set(ORCHESTRIX_HTTP__HOST="0.0.0.0")
    assert "anyone who can reach 0.0.0.0" in shell("dev", "--port", "0").err


def test_a_worker_serves_what_it_is_told(served: Shell, runtime: Runtime) -> None:
    assert served("worker", "-q", "cmd.a", "--queue", "cmd.b", "--concurrency", "3").code == 0
    [call] = runtime.calls
    assert (call.queues, call.settings.worker.concurrency) == (["cmd.a", "cmd.b"], 3)
    assert served("worker").code == 0
    assert (runtime.calls[-1].queues, runtime.calls[-1].job_queues) == ([], [])


def test_a_worker_is_called_alike_on_the_wire_and_in_each_line_of_its_log(served: Shell, runtime: Runtime) -> None:
    served.set(ORCHESTRIX_NODE_ID="anna")
    answer = served("worker")
    [call] = runtime.calls
    assert re.fullmatch("anna-[0-9a-f]{8}", call.name)
    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert [line["event"] for line in lines] == ["process.ready", "process.stopped"]
    assert {(line["worker_id"], line["node_id"]) for line in lines} == {(call.name, "anna")}


def test_a_worker_runs_the_jobs_that_it_is_told(served: Shell, runtime: Runtime) -> None:
    assert served("worker", "--job-queue", "search", "--job-queue", "bulk").code == 0
    [call] = runtime.calls
    assert (call.queues, call.job_queues) == ([], ["search", "bulk"])


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_serve_and_worker_find_dev_and_follow_it(shell: Shell, runtime: Runtime, command: str) -> None:
    with devfile.claimed(shell.folder):
        devfile.write(shell.folder, database_url=DATABASE, broker_url="amqp://one/", api_url="http://x")
        assert shell(command).code == 0
        [call] = runtime.calls
        assert (call.settings.database_url, call.broker_url()) == (DATABASE, "amqp://one/")
        devfile.write(shell.folder, database_url=DATABASE, broker_url="amqp://two/", api_url="http://x")
        assert call.broker_url() == "amqp://two/"


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_without_any_place_it_is_exit_code_2(shell: Shell, runtime: Runtime, command: str) -> None:
    answer = shell(command)
    assert answer.code == 2
    assert "ORCHESTRIX_BROKER_URL" in answer.err
    shell.set(ORCHESTRIX_BROKER_URL=BROKER)
    assert "ORCHESTRIX_DATABASE_URL" in shell(command).err


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_embedded_is_refused(served: Shell, runtime: Runtime, command: str) -> None:
    served.set(ORCHESTRIX_BROKER_URL="embedded")
    answer = served(command)
    assert (answer.code, runtime.calls) == (2, [])
    assert "orchestrix dev" in answer.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SchemaMismatch("run `orchestrix db upgrade`"), 1),
        (ExceptionGroup("tasks", [SchemaMismatch("run `orchestrix db upgrade`")]), 1),
    ],
)
def test_a_foreseen_error_is_one_line(served: Shell, runtime: Runtime, error: Exception, code: int) -> None:
    runtime.error = error
    answer = served("serve")
    assert (answer.code, answer.err) == (code, "error: run `orchestrix db upgrade`\n")


def test_an_unforeseen_error_shows_its_trace_only_on_request(served: Shell, runtime: Runtime) -> None:
    runtime.error = RuntimeError("what\x1b now")
    answer = served("worker")
    assert answer.code == 1
    assert answer.err.splitlines()[0] == "error: unexpected RuntimeError: what\\x1b now"
    assert "ORCHESTRIX_LOG__LEVEL=debug" in answer.err
    assert "Traceback" not in answer.err
    served.set(ORCHESTRIX_LOG__LEVEL="debug")
    assert "Traceback" in served("worker").err


def test_unknown_variables_are_named_with_the_nearest_match(served: Shell, runtime: Runtime) -> None:
    served.set(ORCHESTRIX_WORKER__CONCURENCY="3", HEARTBEAT_TIMEOUT_SECONDS="15", SHARD_COORDINATOR_BIND_PORT="5555")
    answer = served("worker")
    assert answer.code == 0
    assert answer.err.count("warning: ") == 1
    assert "ORCHESTRIX_WORKER__CONCURENCY" in answer.err
    assert "ORCHESTRIX_WORKER__CONCURRENCY" in answer.err


def test_a_wrong_setting_is_named(served: Shell, runtime: Runtime) -> None:
    served.set(ORCHESTRIX_WORKER__CONCURRENCY="many")
    answer = served("worker")
    assert answer.code == 2
    assert "ORCHESTRIX_WORKER__CONCURRENCY" in answer.err


def test_dev_says_that_it_stopped(shell: Shell, runtime: Runtime) -> None:
    answer = shell("dev", "--port", "7001")
    assert (answer.code, answer.out.splitlines()[-1].split()[0]) == (0, "Stopped.")


def test_ctrl_c_before_dev_is_ready_is_no_error(
    shell: Shell, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrix.cli.commands.processes._dev_ports", interrupted)
    answer = shell("dev")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("Stopped.")
    assert not devfile.path_of(shell.folder).exists()


def test_ctrl_c_is_quiet(served: Shell, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("orchestrix.cli.endpoints.broker", interrupted)
    answer = served("serve")
    assert (answer.code, answer.out, answer.err) == (130, "", "")


def test_openapi_is_printed(shell: Shell, runtime: Runtime) -> None:
    assert shell("openapi").json == {"openapi": "3.1.0", "x": "é"}


def test_files_of_others_do_not_matter(shell: Shell, runtime: Runtime) -> None:
    home = Path(shell.folder / ".orchestrix")
    home.mkdir()
    (home / "last.json").write_text("not ours")
    assert shell("dev", "--port", "7001").code == 0
