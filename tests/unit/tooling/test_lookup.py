"""Are the places asked in order, and does the first that has the server win?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers import ensure as ensuring
from tests.servers import lookup, postgres
from tests.servers.__main__ import main
from tests.servers.lookup import RABBITMQ, Source


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(RABBITMQ.variable, raising=False)
    monkeypatch.setattr(lookup, "docker_answers", lambda: False)
    lookup.find.cache_clear()
    yield
    lookup.find.cache_clear()


def test_an_address_beats_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RABBITMQ.variable, "amqp://there")
    assert lookup.find(replace(RABBITMQ, binaries=unasked)) is Source.GIVEN


def test_binaries_beat_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "docker_answers", unasked)
    assert lookup.find(replace(RABBITMQ, binaries=lambda: "/bin")) is Source.BINARIES


def test_docker_is_the_last_place(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(RABBITMQ, binaries=lambda: None)
    assert lookup.find(absent) is None
    lookup.find.cache_clear()
    monkeypatch.setattr(lookup, "docker_answers", lambda: True)
    assert lookup.find(absent) is Source.DOCKER


def test_what_is_missing_is_installed_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    programs = {"node": "/bin/node", "npm": "/bin/npm"}
    monkeypatch.setattr("shutil.which", lambda name: "/bin/promtool" if installed else programs.get(name))
    there = replace(RABBITMQ, name="There", binaries=lambda: "/there/bin")
    late = replace(RABBITMQ, name="Late", package="late", binaries=lambda: "/late/bin" if installed else None)
    monkeypatch.setattr(ensuring, "KINDS", (there, late))
    monkeypatch.setattr(ensuring, "install", lambda packages, say: installed.extend(packages))
    said: list[str] = []
    ensuring.ensure(said.append)
    assert installed == ["late", "prometheus"]
    assert said == [
        "There: binaries in /there/bin",
        "Late: not found",
        "promtool: not found",
        "node: /bin/node",
        "npm: /bin/npm",
        "promtool: /bin/promtool",
        "Late: binaries in /late/bin",
    ]


def test_without_root_the_line_to_type_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ensuring, "KINDS", (replace(RABBITMQ, binaries=lambda: None),))
    monkeypatch.setattr(ensuring, "root_prefix", lambda: None)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/apt-get")
    assert main(["ensure"]) == 1
    printed = capsys.readouterr()
    assert "type: sudo apt-get install rabbitmq-server" in printed.err
    assert "Installing" not in printed.out


def test_without_apt_the_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ensuring, "KINDS", (replace(RABBITMQ, binaries=lambda: None),))
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert main(["ensure"]) == 1
    assert "no apt-get" in capsys.readouterr().err


def test_a_missing_server_is_an_error_and_no_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = replace(RABBITMQ, private=lambda _: None)
    with pytest.raises(lookup.Missing, match="make services"):
        lookup.private_server(absent, object())  # type: ignore[arg-type]


def test_the_newest_postgres_from_15_on_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    versions = {"/usr/lib/postgresql/13/bin": 13, "/usr/lib/postgresql/15/bin": 15, "/usr/lib/postgresql/9/bin": 9}
    monkeypatch.setattr(Path, "glob", lambda self, _: map(Path, versions) if self.name == "postgresql" else iter(()))
    monkeypatch.setattr(Path, "exists", lambda self: self.name in {"postgres", "initdb"})
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr(postgres, "_version", lambda folder: versions[str(folder)])
    assert postgres.find() == Path("/usr/lib/postgresql/15/bin")
    del versions["/usr/lib/postgresql/15/bin"]
    assert postgres.find() is None


def unasked() -> object:
    raise AssertionError("asked although an earlier place has it")
