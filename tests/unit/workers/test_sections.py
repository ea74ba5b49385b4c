"""Sections: the settings that a module of workers declares, and what its handlers and jobs get of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from orchestrix.config import load
from orchestrix.config_file import NAME, read
from orchestrix.errors import ConfigError
from orchestrix.worker.authored import Work, load_work
from orchestrix.worker.handlers import registered
from orchestrix.worker.jobs.functions import registered_jobs

MODULE = """
from typing import ClassVar, Literal
from pydantic import BaseModel, Field, SecretStr
from orchestrix import handles, job

class MailSettings(BaseModel):
    host: str = "localhost"
    port: int = Field(25, ge=1, le=65535)
    passWord: SecretStr | None = None
    kind: Literal["plain", "tls"] = "plain"

    def check(self) -> str:
        if self.port == 99:
            raise ValueError("port 99 is closed", "open it")
        return "all is well"

SETTINGS = MailSettings

@handles("cmd.send")
def send(context, command):
    return {}

@job("digest")
def digest(context):
    return {}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The project's folder, whose modules are forgotten at the end."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before, handlers, jobs = set(sys.modules), list(registered), list(registered_jobs)
    (tmp_path / "postbox.py").write_text(MODULE)
    yield tmp_path
    registered[:], registered_jobs[:] = handlers, jobs
    for name in set(sys.modules) - before:
        del sys.modules[name]


def work(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> Work:
    if "workers" not in text:
        text = f'workers = ["postbox"]\n{text}'
    (folder / NAME).write_text(text)
    return load_work(load(environ or {}, file=read(folder / NAME, "test")))


def test_a_handler_and_a_job_have_the_settings_of_their_module(folder: Path) -> None:
    found = work(folder, '[postbox]\nhost = "mx"\n', {"ORCHESTRIX_POSTBOX__PORT": "26"})
    settings = found.sections.of(found.handlers["cmd.send"])
    assert settings is not None
    assert settings.model_dump() == {"host": "mx", "port": 26, "passWord": None, "kind": "plain"}
    assert found.jobs["digest"].settings is settings
    assert found.sections.names == ["postbox.host", "postbox.port", "postbox.passWord", "postbox.kind"]


def test_the_environment_beats_the_file_and_knows_no_case(folder: Path) -> None:
    environ = {"ORCHESTRIX_POSTBOX__HOST": "env", "ORCHESTRIX_POSTBOX__PASSWORD": "secret"}
    found = work(folder, '[postbox]\nhost = "file"\n', environ)
    settings = found.sections.of(found.handlers["cmd.send"])
    assert settings is not None
    assert settings.host == "env"  # type: ignore[attr-defined]
    assert settings.passWord.get_secret_value() == "secret"  # type: ignore[attr-defined]


def test_a_section_may_have_another_name(folder: Path) -> None:
    (folder / "postbox.py").write_text(
        MODULE.replace("    host: str", '    section: ClassVar[str] = "mail"\n    host: str')
    )
    assert work(folder, "[mail]\nport = 27").sections.names[0] == "mail.host"


def test_a_package_has_the_settings_of_all_its_modules(folder: Path) -> None:
    (folder / "own_work").mkdir()
    (folder / "own_work" / "__init__.py").write_text("from own_work import mail, other")
    (folder / "own_work" / "mail.py").write_text(MODULE)
    (folder / "own_work" / "other.py").write_text("from own_work.mail import SETTINGS\n")
    found = work(folder, 'workers = ["own_work"]\n[mail]\nport = 27\n')
    assert [section for section, _ in found.sections] == ["mail", "other"]
    assert found.sections.of(found.handlers["cmd.send"]).port == 27  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "environ", "sentence"),
    [
        ("[postbox]\nport = 0", {}, r"orchestrix.toml: postbox.port: write a whole number from 1 to 65535"),
        ("", {"ORCHESTRIX_POSTBOX__PORT": "x"}, "ORCHESTRIX_POSTBOX__PORT: write a whole number from 1 to 65535"),
        (
            "",
            {"ORCHESTRIX_POSTBOX__KIND": "tsl"},
            "POSTBOX__KIND: write one of plain, tls: did you mean tls",
        ),
        ("[postbox]\nhst = 'x'", {}, r"orchestrix.toml: postbox.hst is no setting: did you mean host\?"),
    ],
)
def test_a_wrong_value_is_told_by_the_name_that_it_was_given_by(
    folder: Path, text: str, environ: Mapping[str, str], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        work(folder, text, environ)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("SETTINGS = MailSettings", "SETTINGS = 7"), r"postbox.SETTINGS must be a class below pydantic.BaseModel"),
        (("    host: str", '    section: ClassVar[str] = "http"\n    host: str'), r"'http' cannot be its section"),
        (("    host: str", '    section: ClassVar[str] = "a b"\n    host: str'), r"'a b' cannot be its section"),
    ],
)
def test_a_model_that_is_none_or_takes_our_place_is_refused(
    folder: Path, change: tuple[str, str], sentence: str
) -> None:
    (folder / "postbox.py").write_text(MODULE.replace(*change))
    with pytest.raises(ConfigError, match=sentence):
        work(folder)


def test_two_models_for_one_section_are_refused(folder: Path) -> None:
    for name in ("own_one", "own_two"):
        text = MODULE.replace("    host: str", '    section: ClassVar[str] = "mail"\n    host: str')
        (folder / f"{name}.py").write_text(text.replace("cmd.send", f"cmd.{name}").replace("digest", name))
    with pytest.raises(ConfigError, match=r"own_two.SETTINGS: section mail has another model already"):
        work(folder, 'workers = ["own_one", "own_two"]')


def test_what_a_machine_lacks_is_told_before_the_work_begins(folder: Path) -> None:
    found = work(folder, "[postbox]\nport = 99")
    with pytest.raises(ConfigError, match=r"^port 99 is closed: open it$"):
        found.sections.check([found.handlers["cmd.send"]])
    found.sections.check([print])
