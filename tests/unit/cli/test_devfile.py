"""Is the running `dev` found, and no other?"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url

from orchestrix.cli import devfile
from orchestrix.cli.banner import database
from orchestrix.config.urls import sqlite_url
from orchestrix.errors import ConfigError, Unavailable

URLS = {
    "database_url": "sqlite+aiosqlite:////tmp/x.db",
    "broker_url": "amqp://127.0.0.1:5673/",
    "api_url": "http://127.0.0.1:8080",
}


def write_by_hand(folder: Path, pid: object, **more: object) -> None:
    path = devfile.path_of(folder)
    path.parent.mkdir(exist_ok=True)
    known = {"pid": pid, "startedAt": "now", "databaseUrl": "d", "brokerUrl": "amqp://old/", "apiUrl": "http://x"}
    path.write_text(json.dumps({**known, **more}))


@pytest.fixture
def dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_what_is_written_is_read(tmp_path: Path) -> None:
    with devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        found = devfile.running(tmp_path)
    assert found is not None
    assert (found.pid, found.database_url, found.broker_url, found.api_url) == (os.getpid(), *URLS.values())
    assert found.started_at.endswith("Z")


def test_the_file_has_the_names_of_the_contract_and_is_private(tmp_path: Path) -> None:
    with devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        path = tmp_path / ".orchestrix" / "dev.json"
        assert set(json.loads(path.read_text())) == {"pid", "startedAt", "databaseUrl", "brokerUrl", "apiUrl"}
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666, 0o777])
def test_a_file_that_others_may_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    with devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        devfile.path_of(tmp_path).chmod(mode)
        with pytest.raises(ConfigError, match="can be written by others, so it is not trusted"):
            devfile.running(tmp_path)
        assert devfile.broker_url(tmp_path, "amqp://first/")() == "amqp://first/"


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644])
def test_a_file_that_others_may_only_read_is_believed(tmp_path: Path, mode: int) -> None:
    with devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        devfile.path_of(tmp_path).chmod(mode)
        assert devfile.running(tmp_path) is not None


def test_a_file_of_another_user_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        devfile.keep_life(tmp_path, devfile.DevRun("node-1"))
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(ConfigError, match="belongs to another user"):
            devfile.running(tmp_path)
        assert devfile._left_by_one_that_was_killed(tmp_path) is None


def test_the_folder_is_this_users_alone(tmp_path: Path) -> None:
    with devfile.claimed(tmp_path):
        assert stat.S_IMODE((tmp_path / ".orchestrix").stat().st_mode) == 0o700


def test_a_clean_stop_removes_the_file_and_so_does_an_error(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), devfile.claimed(tmp_path):
        devfile.write(tmp_path, **URLS)
        raise ZeroDivisionError
    assert devfile.running(tmp_path) is None


@pytest.mark.parametrize("name", ["a%20b", "a?b", "a#b", "a b", "мой сад", "a+b", "%", "a:b@c", "?x=1&y=2"])
def test_a_path_is_no_part_of_a_url(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    url = sqlite_url(folder / "x.db")
    assert make_url(url).database == str(folder / "x.db")
    assert devfile.absolute(url, tmp_path) == url
    assert make_url(devfile.absolute("sqlite+aiosqlite:///x%3F.db?timeout=1", folder)).database == str(folder / "x?.db")
    assert database(url) == f"sqlite {folder / 'x.db'}"


def test_a_relative_database_path_is_made_absolute(tmp_path: Path) -> None:
    assert devfile.absolute("sqlite+aiosqlite:///a.db", tmp_path) == f"sqlite+aiosqlite:///{tmp_path}/a.db"
    for url in ("sqlite+aiosqlite:////a.db", "sqlite+aiosqlite:///:memory:", "postgresql+asyncpg://u@h/d"):
        assert devfile.absolute(url, tmp_path) == url


def test_a_pid_that_went_to_another_process_is_not_taken_for_dev(tmp_path: Path) -> None:
    with devfile.claimed(tmp_path):
        pass
    write_by_hand(tmp_path, os.getpid())
    with pytest.raises(Unavailable):
        devfile.running(tmp_path)


def test_without_a_lock_the_pid_decides(tmp_path: Path, dead_pid: int) -> None:
    write_by_hand(tmp_path, os.getpid())
    assert devfile.running(tmp_path) is not None
    write_by_hand(tmp_path, dead_pid)
    with pytest.raises(Unavailable):
        devfile.running(tmp_path)


def test_a_dev_that_is_just_starting_is_no_absent_one(tmp_path: Path) -> None:
    assert devfile.running(tmp_path) is None
    with devfile.claimed(tmp_path), pytest.raises(Unavailable, match="not ready yet"):
        devfile.running(tmp_path)


def test_the_broker_is_looked_up_again_before_each_connect(tmp_path: Path) -> None:
    current = devfile.broker_url(tmp_path, "amqp://first/")
    assert current() == "amqp://first/", "without a file the last known one counts"
    write_by_hand(tmp_path, os.getpid(), brokerUrl="amqp://second/")
    assert current() == "amqp://second/"
    devfile.path_of(tmp_path).write_text("{ha")
    assert current() == "amqp://second/"
    devfile.path_of(tmp_path).unlink()
    assert current() == "amqp://second/"


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"pid": 1}', "\x00", "[" * 100_000])
def test_a_file_that_is_not_ours_is_named(tmp_path: Path, text: str) -> None:
    devfile.path_of(tmp_path).parent.mkdir()
    devfile.path_of(tmp_path).write_text(text)
    with pytest.raises(ConfigError, match=r"dev\.json"):
        devfile.read(tmp_path)


@pytest.mark.parametrize("pid", [0, -1, True, "12", None, 1.5])
def test_a_pid_must_be_one(tmp_path: Path, pid: object) -> None:
    write_by_hand(tmp_path, pid)
    with pytest.raises(ConfigError, match=r"dev\.json"):
        devfile.read(tmp_path)


def test_a_huge_pid_is_dead(tmp_path: Path) -> None:
    write_by_hand(tmp_path, 10**30)
    with pytest.raises(Unavailable):
        devfile.running(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / devfile.FOLDER).write_text("a file")
    with (
        pytest.raises(ConfigError, match=f"{devfile.FOLDER} is a file but must be a folder"),
        devfile.claimed(tmp_path),
    ):
        pass
    with pytest.raises(ConfigError, match=f"{devfile.FOLDER} is a file but must be a folder"):
        devfile.running(tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / devfile.FOLDER / "dev.lock").mkdir(parents=True)
    with pytest.raises(ConfigError, match="choose another folder"), devfile.claimed(tmp_path):
        pass


def test_the_last_ports_survive_the_stop(tmp_path: Path) -> None:
    assert devfile.last_ports(tmp_path) == devfile.LastPorts()
    with devfile.claimed(tmp_path):
        devfile.keep_ports(tmp_path, api=8081, broker=5674)
    assert devfile.last_ports(tmp_path) == devfile.LastPorts(8081, 5674)
    (tmp_path / devfile.FOLDER / "last.json").write_text("{}")
    assert devfile.last_ports(tmp_path) == devfile.LastPorts()


def killed(folder: Path, node: str) -> None:
    """A `dev` of this folder was at work, and took no leave."""
    with devfile.claimed(folder):
        devfile.keep_life(folder, devfile.DevRun(node))
        left = (folder / ".orchestrix" / "life.json").read_bytes()
    (folder / ".orchestrix" / "life.json").write_bytes(left)


def test_in_a_copy_of_the_folder_nobody_was_killed(tmp_path: Path) -> None:
    killed(tmp_path / "first", "node-1")
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    with devfile.claimed(tmp_path / "copy") as last:
        assert last is None
    with devfile.claimed(tmp_path / "first") as last:
        assert last == devfile.DevRun("node-1")


def test_one_that_was_killed_is_told_of_until_the_next_has_begun(tmp_path: Path) -> None:
    killed(tmp_path, "node-1")
    with suppress(ZeroDivisionError), devfile.claimed(tmp_path):
        raise ZeroDivisionError
    with devfile.claimed(tmp_path) as last:
        devfile.keep_life(tmp_path, devfile.DevRun("node-2"))
    assert last == devfile.DevRun("node-1")
    with devfile.claimed(tmp_path) as last:
        assert last is None


@pytest.mark.parametrize("node", ["\0", "\ud800"])
def test_a_name_that_no_database_takes_is_nobodys(tmp_path: Path, node: str) -> None:
    killed(tmp_path, node)
    with devfile.claimed(tmp_path) as last:
        assert last is None
