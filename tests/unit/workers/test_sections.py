"""Sections: the settings that a module of workers declares, and what its handlers and jobs get of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrix.config.file import NAME, read
from orchestrix.config.settings import load
from orchestrix.errors import ConfigError
from orchestrix.worker.author_code import AuthorCode, load_author_code
from orchestrix.worker.handlers import registered
from orchestrix.worker.jobs.functions import registered_jobs
from orchestrix.worker.settings_sections import checked

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


def work(folder: Path, text: str = "", environ: Mapping[str, str] | None = None) -> AuthorCode:
    if "workers" not in text:
        text = f'workers = ["postbox"]\n{text}'
    (folder / NAME).write_text(text)
    return load_author_code(load(environ or {}, file=read(folder / NAME, "test")))


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
        ("[postbox]\nhst = 'x'", {}, r"orchestrix.toml: postbox.hst is not a setting: did you mean host\?"),
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
        (
            ("SETTINGS = MailSettings", "from pydantic import RootModel\nSETTINGS = RootModel[dict[str, str]]"),
            "with fields",
        ),
        (
            ("    host: str", '    section: ClassVar[str] = "test_mail"\n    host: str'),
            r"'test_mail' cannot be its section",
        ),
        (("    host: str", '    section: ClassVar[str] = "a b"\n    host: str'), r"'a b' cannot be its section"),
    ],
)
def test_a_model_that_is_none_or_takes_our_place_is_refused(
    folder: Path, change: tuple[str, str], sentence: str
) -> None:
    (folder / "postbox.py").write_text(MODULE.replace(*change))
    with pytest.raises(ConfigError, match=sentence):
        work(folder)


@pytest.mark.parametrize(
    ("model", "text", "sentence"),
    [
        ("    pass\n", "x = 1", "^orchestrix.toml: postbox.x is not a setting$"),
        (
            "    model_config = {'arbitrary_types_allowed': True}\n"
            "    thing: type(enum) | None = None\n    port: int = 1\n",
            "port = 'x'",
            "^orchestrix.toml: postbox.port: this value cannot be used$",
        ),
        (
            "    port: int = 1\n    @field_validator('port')\n    @classmethod\n"
            "    def _known(cls, value):\n        return {}[value]\n",
            "port = 2",
            "^postbox.SETTINGS raised KeyError: 2$",
        ),
        (
            "    port: int = 1\n    @field_validator('port')\n    @classmethod\n"
            "    def _known(cls, value):\n        assert value < 2, 'one will do'\n",
            "port = 2",
            "^orchestrix.toml: postbox.port: one will do$",
        ),
        ("    tls: bool = False\n", "tls = 5", "^orchestrix.toml: postbox.tls: write true or false$"),
        (
            "    ports: list[int] = []\n",
            "ports = [1, 'x']",
            "^orchestrix.toml: postbox.ports: write names separated by commas",
        ),
        ("    box: Box = Box()\n", "box = { size = 'x' }", "^orchestrix.toml: postbox.box: write a table$"),
        ("    kind: Kind = Kind.A\n", "kind = 'c'", "^orchestrix.toml: postbox.kind: write one of a, b"),
        (
            "    port: int = 1\n    @model_validator(mode='after')\n"
            "    def _fits(self):\n        raise ValueError('they do not fit')\n",
            "port = 2",
            r"^\[postbox\]: they do not fit$",
        ),
    ],
    ids=["no fields", "no schema", "KeyError", "assert", "bool", "list", "model", "enum", "whole"],
)
def test_whatever_an_authors_model_does_is_a_sentence(folder: Path, model: str, text: str, sentence: str) -> None:
    (folder / "postbox.py").write_text(
        "import enum\nfrom pydantic import BaseModel, field_validator, model_validator\nfrom orchestrix import job\n"
        "class Box(BaseModel):\n    size: int = 1\n\nclass Kind(enum.Enum):\n    A = 'a'\n    B = 'b'\n\n"
        f"class SETTINGS(BaseModel):\n{model}\n@job('digest')\ndef digest(context):\n    pass\n"
    )
    with pytest.raises(ConfigError, match=sentence):
        work(folder, f"[postbox]\n{text}")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("OSError('disk gone')", "postbox.MailSettings.check raised OSError: disk gone"),
        ("KeyError('x')", "postbox.MailSettings.check raised KeyError: 'x'"),
        (
            "UnicodeDecodeError('utf-8', b'x', 0, 1, 'bad')",
            "postbox.MailSettings.check raised UnicodeDecodeError: ",
        ),
        ("ValueError()", "it cannot be used"),
    ],
)
def test_whatever_a_check_raises_is_a_finding(folder: Path, raised: str, said: str) -> None:
    (folder / "postbox.py").write_text(MODULE.replace('ValueError("port 99 is closed", "open it")', raised))
    ((_, values),) = work(folder, "[postbox]\nport = 99").sections
    well, wrong, fix = checked(values)
    assert (well, wrong[: len(said)], fix) == ("", said, "")


ADDED = """
from typing import ClassVar
from pydantic import BaseModel
from orchestrix import handles, job

class SETTINGS(BaseModel):
    section: ClassVar[str] = "postbox"
    host: str = "added"
    copies: int = 1

@handles("cmd.send")
def send(context, command):
    return {}

@job("digest")
def digest(context):
    return {}
"""


def test_a_module_of_the_environment_takes_the_place_of_the_files(folder: Path) -> None:
    (folder / "own_added.py").write_text(ADDED)
    found = work(folder, "[postbox]\ncopies = 2", {"ORCHESTRIX_WORKERS": "own_added"})
    assert found.handlers["cmd.send"].__module__ == found.jobs["digest"].function.__module__ == "own_added"
    ((section, values),) = found.sections
    assert (section, values.model_dump()) == ("postbox", {"host": "added", "copies": 2})
    assert found.jobs["digest"].settings is found.sections.of(found.handlers["cmd.send"]) is values
    assert (found.replaced, found.replaced_jobs) == (["cmd.send"], ["digest"])


def test_what_only_the_file_has_stays(folder: Path) -> None:
    text = ADDED.replace('"digest"', '"other"').replace("cmd.send", "cmd.other").replace('"postbox"', '"another"')
    (folder / "own_added.py").write_text(text)
    found = work(folder, "", {"ORCHESTRIX_WORKERS": "own_added"})
    assert (set(found.handlers), set(found.jobs)) == ({"cmd.send", "cmd.other"}, {"digest", "other"})
    assert {section for section, _ in found.sections} == {"postbox", "another"}
    assert (found.replaced, found.replaced_jobs) == ([], [])


def test_two_models_for_one_section_are_refused(folder: Path) -> None:
    for name in ("own_one", "own_two"):
        text = MODULE.replace("    host: str", '    section: ClassVar[str] = "mail"\n    host: str')
        (folder / f"{name}.py").write_text(text.replace("cmd.send", f"cmd.{name}").replace("digest", name))
    with pytest.raises(ConfigError, match=r"own_two.SETTINGS: section mail already has another model"):
        work(folder, 'workers = ["own_one", "own_two"]')


def test_what_a_machine_lacks_is_told_before_the_work_begins(folder: Path) -> None:
    found = work(folder, "[postbox]\nport = 99")
    with pytest.raises(ConfigError, match=r"^port 99 is closed: open it$"):
        found.sections.check([found.handlers["cmd.send"]])
    found.sections.check([print])


@pytest.mark.parametrize(
    ("text", "hosts", "limits"),
    [
        ("a, b", ["a", "b"], "{}"),
        ('["a", "b"]', ["a", "b"], '{"deep": 5}'),
        ("a", ["a"], "{}"),
        ("", [], "{}"),
    ],
)
def test_a_variable_gives_a_list_by_commas_or_as_json_and_a_table_as_json(
    folder: Path, text: str, hosts: list[str], limits: str
) -> None:
    inner = "class Limits(BaseModel):\n    deep: int = 0\n\nclass MailSettings(BaseModel):\n"
    fields = "    hosts: list[str] = []\n    pair: tuple[str, ...] = ()\n    limits: Limits = Limits()\n"
    (folder / "postbox.py").write_text(MODULE.replace("class MailSettings(BaseModel):\n", inner + fields))
    names = ("HOSTS", "PAIR", "LIMITS")
    environ = {f"ORCHESTRIX_POSTBOX__{name}": one for name, one in zip(names, (text, text, limits), strict=True)}
    found = work(folder, "", environ)
    settings: Any = found.sections.of(found.handlers["cmd.send"])
    assert (settings.hosts, list(settings.pair)) == (hosts, hosts)
    assert settings.limits.deep == (5 if "deep" in limits else 0)
