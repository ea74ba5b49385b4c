"""Does `config show` tell each value and where it comes from, and no password?"""

from __future__ import annotations

import pytest

from orchestrix import config
from orchestrix.cli import devfile
from orchestrix.cli.places import hidden
from tests.unit.cli.shell import Shell


def shown(shell: Shell, *arguments: str) -> dict[str, tuple[object, str]]:
    answer = shell("config", "show", "-o", "json", *arguments)
    assert answer.code == 0
    return {item["setting"]: (item["value"], item["source"]) for item in answer.json["items"]}


def test_every_setting_is_there_once(shell: Shell) -> None:
    own = ["config", "registration.provider", "git.provider", "git.root"]
    assert list(shown(shell)) == [*config.names(), *own]
    assert len(shell("config", "show").out.splitlines()) == len(config.names()) + len(own) + 1


def test_where_a_value_comes_from(shell: Shell) -> None:
    shell.set(ORCHESTRIX_WORKER__CONCURRENCY="7", PORT="81", LOG_LEVEL="DEBUG", ORCHESTRIX_LOG__LEVEL="error")
    shell.set(ORCHESTRIX_SAGAS="a.b, c")
    found = shown(shell, "--api", "http://flag:1")
    assert found["worker.concurrency"] == (7, "env ORCHESTRIX_WORKER__CONCURRENCY")
    assert found["http.port"] == (81, "alias PORT")
    assert found["log.level"] == ("error", "env ORCHESTRIX_LOG__LEVEL")
    assert found["api_url"] == ("http://flag:1", "flag")
    assert found["http.host"] == ("127.0.0.1", "default")
    assert found["sagas"] == (["sagas.app_provisioning", "a.b", "c"], "env ORCHESTRIX_SAGAS")
    assert found["database_url"] == (None, "default")


def test_a_process_name_is_a_nodes_name(shell: Shell) -> None:
    assert shown(shell)["node_id"] == ("coordinator", "default")
    shell.set(PROCESS_NAME="coordinator-2")
    assert shown(shell)["node_id"] == ("coordinator-2", "alias PROCESS_NAME")
    shell.set(ORCHESTRIX_NODE_ID="mine")
    assert shown(shell)["node_id"] == ("mine", "env ORCHESTRIX_NODE_ID")


@pytest.mark.parametrize("value", ["development", "production", ""])
def test_node_env_may_be_set_and_changes_nothing(shell: Shell, value: str) -> None:
    before = shell("config", "show")
    shell.set(NODE_ENV=value)
    after = shell("config", "show")
    assert (after.code, after.out, after.err) == (0, before.out, "")


@pytest.mark.parametrize(
    ("variable", "flags"),
    [
        ("PROCESS_NAME", []),
        ("PORT", []),
        ("LOG_LEVEL", []),
        ("ORCHESTRIX_NODE_ID", []),
        ("--database-url", ["--database-url", "not so"]),
    ],
)
def test_a_wrong_value_is_told_by_the_name_that_it_was_given_by(shell: Shell, variable: str, flags: list[str]) -> None:
    if not flags:
        shell.set(**{variable: "not so"})
    answer = shell("db", "current", *flags)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(f"error: {variable}: ")


def test_no_api_is_made_up(shell: Shell) -> None:
    assert shown(shell)["api_url"] == (None, "default")


def test_dev_is_a_source_too(shell: Shell) -> None:
    with devfile.claimed(shell.folder):
        devfile.write(shell.folder, database_url="sqlite+aiosqlite:////x", broker_url="amqp://d/", api_url="http://d")
        shell.set(ORCHESTRIX_BROKER_URL="amqp://e/")
        found = shown(shell)
    assert found["database_url"] == ("sqlite+aiosqlite:////x", "dev.json")
    assert found["broker_url"] == ("amqp://e/", "env ORCHESTRIX_BROKER_URL")
    assert found["api_url"] == ("http://d", "dev.json")


def test_a_dead_dev_is_a_warning_only(shell: Shell) -> None:
    with devfile.claimed(shell.folder):
        devfile.write(shell.folder, database_url="d", broker_url="b", api_url="http://d")
        text = devfile.path_of(shell.folder).read_text()
    devfile.path_of(shell.folder).write_text(text)
    answer = shell("config", "show")
    assert answer.code == 0
    assert "orchestrix dev" in answer.err


@pytest.mark.parametrize("output", ["table", "json"])
def test_no_password_is_shown(shell: Shell, output: str) -> None:
    shell.set(
        ORCHESTRIX_DATABASE_URL="postgresql+asyncpg://u:geheim@h/d",
        ORCHESTRIX_BROKER_URL="amqp://u:geheim@[bad/",
        ORCHESTRIX_API_URL="http://u:geheim@h",
        ORCHESTRIX_API__TOKENS="ada:geheim,bob:geheimer",
        ORCHESTRIX_API__TOKEN="geheim",
    )
    answer = shell("config", "show", "-o", output)
    assert answer.code == 0
    assert "geheim" not in answer.out + answer.err


def test_whose_tokens_there_are_is_shown(shell: Shell) -> None:
    assert (shown(shell)["api.tokens"], shown(shell)["api.token"]) == (([], "default"), (None, "default"))
    shell.set(ORCHESTRIX_API__TOKENS="ada:geheim,bob:geheimer")
    found = shown(shell, "--token", "geheim")
    assert found["api.tokens"] == (["ada:***", "bob:***"], "env ORCHESTRIX_API__TOKENS")
    assert found["api.token"] == ("***", "flag")


def test_what_cannot_be_read_is_hidden_as_a_whole() -> None:
    assert hidden("amqp://u:geheim@[bad/") == "amqp://***"
