"""Does `config show` tell each value and where it comes from, and no password?"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from orchestrix.cli import devfile
from orchestrix.cli.api_request import api_at
from orchestrix.cli.endpoints import hidden
from orchestrix.config import file as config_file
from orchestrix.config import settings
from orchestrix.worker import module_loader
from orchestrix.worker.jobs import functions
from tests.unit.cli.shell import Shell


def shown(shell: Shell, *arguments: str) -> dict[str, tuple[object, str]]:
    answer = shell("config", "show", "-o", "json", *arguments)
    assert answer.code == 0
    return {item["setting"]: (item["value"], item["source"]) for item in answer.json["items"]}


def test_every_setting_is_there_once(shell: Shell) -> None:
    own = ["config", "registration.provider", "git.provider", "git.root"]
    assert list(shown(shell)) == [*settings.names(), *own]
    assert len(shell("config", "show").out.splitlines()) == len(settings.names()) + len(own) + 1


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


def test_the_registrys_settings_are_shown(shell: Shell) -> None:
    shell.set(ORCHESTRIX_REGISTRY__SWEEP="20", ORCHESTRIX_REGISTRY__ALLOW="10.0.0.0/8,h:80")
    found = shown(shell)
    assert found["registry.sweep"] == (20.0, "env ORCHESTRIX_REGISTRY__SWEEP")
    assert found["registry.allow"] == (["10.0.0.0/8", "h:80"], "env ORCHESTRIX_REGISTRY__ALLOW")
    assert found["registry.token"] == (None, "default")


def test_a_process_name_is_a_nodes_name(shell: Shell) -> None:
    assert shown(shell)["node_id"] == ("coordinator", "default")
    shell.set(PROCESS_NAME="coordinator-2")
    assert shown(shell)["node_id"] == ("coordinator-2", "alias PROCESS_NAME")
    shell.set(ORCHESTRIX_NODE_ID="mine")
    assert shown(shell)["node_id"] == ("mine", "env ORCHESTRIX_NODE_ID")


@pytest.mark.parametrize("value", ["development", "production", ""])
def test_node_env_may_be_set_and_changes_no_setting(shell: Shell, value: str) -> None:
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
        ORCHESTRIX_REGISTRY__TOKEN="shop:geheim",
    )
    answer = shell("config", "show", "-o", output)
    assert answer.code == 0
    assert "geheim" not in answer.out + answer.err


SECRETS = """
import enum
from datetime import timedelta
from pathlib import Path
from typing import Any
from pydantic import BaseModel, Field, PostgresDsn, SecretBytes, SecretStr, field_serializer
from orchestrix import job

class Kind(enum.Enum):
    A = "amqp://u:geheim@h/"

class Server(BaseModel):
    url: str = "http://u:geheim@h/"
    word: SecretStr = SecretStr("geheim")

class SETTINGS(BaseModel):
    model_config = {"arbitrary_types_allowed": True}
    dsn: PostgresDsn = PostgresDsn("postgresql://u:geheim@h/d")
    many: list[str] = ["http://a:geheim@h/", "http://b:geheim@h/"]
    pair: tuple[str, str] = ("http://a:geheim@h/", "x")
    text: str = "http://a:geheim@h/, http://b:geheim@h/"
    words: list[SecretStr] = [SecretStr("geheim")]
    byte: SecretBytes = SecretBytes(b"geheim")
    table: dict[str, str] = {"x": "http://a:geheim@h/"}
    server: Server = Server()
    kind: Kind = Kind.A
    out: str = Field("geheim", exclude=True)
    silent: str = Field("geheim", repr=False)
    written: str = "geheim"
    folder: Path = Path("/x")
    wait: timedelta = timedelta(seconds=1)
    most: float = float("inf")
    names: set[str] = {"a"}
    passWord: str | None = None

    @field_serializer("written")
    def _written(self, value):
        return "mine"
THING
@job("digest")
def digest(context):
    pass
"""


@pytest.mark.parametrize("thing", ["", "    thing: Any = object()\n"], ids=["", "and what JSON cannot hold"])
@pytest.mark.parametrize("output", ["table", "json"])
def test_no_password_of_a_section_is_shown(
    shell: Shell, output: str, thing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_modules(shell, monkeypatch, SECRETS.replace("THING", thing))
    answer = shell("config", "show", "-o", output)
    assert (answer.code, answer.err) == (0, "")
    assert "geheim" not in answer.out
    if output == "json":
        found = {item["setting"].removeprefix("own_box."): item["value"] for item in answer.json["items"]}
        assert found["many"] == ["http://a:***@h/", "http://b:***@h/"]
        assert found["text"] == "http://a:***@h/, http://b:***@h/"
        assert (found["words"], found["byte"], found["out"], found["silent"]) == (["***"], "***", "***", "***")
        assert (found["server"], found["wait"], found["most"]) == (
            {"url": "http://u:***@h/", "word": "***"}, "PT1S", "inf",
        )  # fmt: skip
        assert found.get("thing", "<object>") == "<object>"


def test_a_setting_of_a_section_knows_no_case(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    own_modules(shell, monkeypatch, SECRETS.replace("THING", ""), '[own_box]\npassWord = "x"\nFOLDER = "/y"\n')
    found = shown(shell)
    assert found["own_box.passWord"] == ("x", "file orchestrix.toml")
    assert found["own_box.folder"] == ("/y", "file orchestrix.toml")
    shell.set(ORCHESTRIX_OWN_BOX__PASSWORD="y")
    assert shown(shell)["own_box.passWord"] == ("y", "env ORCHESTRIX_OWN_BOX__PASSWORD")


def own_modules(shell: Shell, monkeypatch: pytest.MonkeyPatch, module: str, text: str = "") -> None:
    """A project in the shell's folder with that module."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(functions, "registered_jobs", [])
    monkeypatch.setattr(module_loader, "registered_jobs", functions.registered_jobs)
    monkeypatch.delitem(sys.modules, "own_box", raising=False)
    (shell.folder / "own_box.py").write_text(module)
    (shell.folder / "orchestrix.toml").write_text(f'workers = ["own_box"]\n{text}')


@pytest.mark.parametrize(
    ("file", "environ", "named"),
    [
        ('api_url = "http://h"', {}, False),
        ('api_url = "http://h"', {"ORCHESTRIX_API_URL": "http://h"}, True),
        ('api_url = "http://h"\n[api]\ntoken = "secret-of-the-file"', {}, True),
        ("", {"ORCHESTRIX_API_URL": "http://h"}, True),
    ],
)
def test_the_token_goes_to_no_address_of_a_folder_alone(
    shell: Shell, file: str, environ: dict[str, str], named: bool
) -> None:
    (shell.folder / "orchestrix.toml").write_text(file)
    if "token" not in file:
        environ = environ | {"ORCHESTRIX_API__TOKEN": "secret-of-ada"}
    assert sends_token(shell.folder, environ) is named


def test_nor_does_the_token_of_the_environment_if_the_folder_has_one_too(shell: Shell) -> None:
    (shell.folder / "orchestrix.toml").write_text('api_url = "http://h"\n[api]\ntoken = "secret-of-the-file"')
    assert sends_token(shell.folder, {}) is True
    assert sends_token(shell.folder, {"ORCHESTRIX_API__TOKEN": "secret-of-ada"}) is False


def test_a_file_that_is_named_names_the_address_too(shell: Shell) -> None:
    place = shell.folder / "orchestrix.toml"
    place.write_text('api_url = "http://h"')
    token = {"ORCHESTRIX_API__TOKEN": "secret-of-ada"}
    assert sends_token(shell.folder, {"ORCHESTRIX_CONFIG": str(place), **token}) is True
    assert sends_token(shell.folder, token) is False
    assert sends_token(shell.folder, token, api_url="http://h") is True


def sends_token(folder: Path, environ: dict[str, str], **flags: str) -> bool:
    """Whether the client sends a token to the API that the settings name."""
    api = api_at(settings.load(environ, file=config_file.found(None, environ, folder), **flags), folder)
    return bool(api._access)


def test_whose_tokens_there_are_is_shown(shell: Shell) -> None:
    assert (shown(shell)["api.tokens"], shown(shell)["api.token"]) == (([], "default"), (None, "default"))
    shell.set(ORCHESTRIX_API__TOKENS="ada:geheim,bob:geheimer")
    found = shown(shell, "--token", "geheim")
    assert found["api.tokens"] == (["ada:***", "bob:***"], "env ORCHESTRIX_API__TOKENS")
    assert found["api.token"] == ("***", "flag")


def test_what_cannot_be_read_is_hidden_as_a_whole() -> None:
    assert hidden("amqp://u:geheim@[bad/") == "amqp://***"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("postgresql://u:geheim@h/x?sslmode=require", "write postgresql+asyncpg://u:***@h/x?sslmode=require"),
        ("postgres://h/x", "write postgresql+asyncpg://h/x"),
        ("postgresql+psycopg2://u:geheim@h/x", "write postgresql+asyncpg://u:***@h/x"),
        ("mysql+pymysql://u:geheim@h/x", "write mysql+asyncmy://u:***@h/x"),
        ("mariadb://h/x", "write mysql+asyncmy://h/x"),
        ("sqlite:///x.db", "write sqlite+aiosqlite:///x.db"),
        ("oracle://u:geheim@h/x", "write sqlite+aiosqlite://…, postgresql+asyncpg://… or mysql+asyncmy://…"),
    ],
)
def test_a_database_url_for_another_driver_is_written_as_it_must_be(shell: Shell, given: str, meant: str) -> None:
    answer = shell("db", "upgrade", "--database-url", given)
    assert (answer.code, answer.err) == (2, f"error: --database-url: {meant}\n")
