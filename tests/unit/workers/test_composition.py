"""Which handlers does a worker get?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from app.broker.port import Broker
from app.config import Settings
from app.errors import ConfigError
from app.persistence.engine import Database
from tests.fakes.broker import FakeBroker
from tests.fakes.rows import Rows
from workers import Worker
from workers.sdk import assemble

from .rig import CATALOG


def made(queues: list[str], **settings: Any) -> Worker:
    plain = {"git": {"provider": "none"}} | settings
    database, broker = cast(Database, Rows()), cast(Broker, FakeBroker())
    return assemble(Settings.model_validate(plain), database, broker, CATALOG, queues)


def test_without_a_choice_a_worker_serves_all_that_it_can() -> None:
    assert made([]).queues == ("cmd.createGitRepo", "cmd.registerApp")


def test_a_worker_serves_the_chosen_queues() -> None:
    assert made(["cmd.registerApp"]).queues == ("cmd.registerApp",)


def test_an_unknown_queue_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no handler for cmd\.x; it has cmd\.createGitRepo, cmd\.registerApp"):
        made(["cmd.x"])


def test_git_is_needed_only_where_repositories_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    local = {"provider": "local", "root": str(tmp_path)}
    assert made(["cmd.registerApp"], git=local)
    with pytest.raises(ConfigError, match=r"needs git.*apt-get install git"):
        made([], git=local)


def test_a_root_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"ORCHESTRIX_GIT__ROOT: .*/file/repos cannot be used: Not a directory"):
        made([], git={"provider": "local", "root": str(tmp_path / "file" / "repos")})


def test_a_users_handler_replaces_the_built_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    text = 'from workers import handles\n@handles("cmd.createGitRepo")\nasync def mine(context, command): ...\n'
    (tmp_path / "my_git.py").write_text(text)
    worker = made([], workers=["my_git"])
    assert worker.queues == ("cmd.createGitRepo", "cmd.registerApp")
    assert worker._handlers["cmd.createGitRepo"].__module__ == "my_git"


def test_the_specifications_simulated_work_is_not_what_one_gets_unasked() -> None:
    assert (Settings().git.provider, Settings().registration.provider) == ("local", "database")
