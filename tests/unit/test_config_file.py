"""Configuration file: where it is found, what may stand in it, and what beats what."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrix.config.file import NAME, VARIABLE, found, read
from orchestrix.config.settings import Settings, load
from orchestrix.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))


def written(folder: Path, text: str, name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def settings(folder: Path, text: str, environ: Mapping[str, str] | None = None, **flags: object) -> Settings:
    return load(environ or {}, file=read(written(folder, text), "test"), **flags)


def test_it_is_looked_for_in_this_order(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    assert found(None, {}, here) is None
    installed = written(tmp_path / "prefix", "")
    local, named, given = (written(here, ""), written(tmp_path, "", "named.toml"), written(tmp_path, "", "given.toml"))
    environ = {VARIABLE: str(named)}
    order = [found(str(given), environ, here), found(None, environ, here), found(None, {}, here)]
    order.append(found(None, {}, tmp_path))
    assert [one and (one.path, one.source) for one in order] == [
        (given, "--config"),
        (named, VARIABLE),
        (local, "working directory"),
        (installed, "installation"),
    ]


def test_names_count_from_the_file_that_a_link_leads_to(tmp_path: Path) -> None:
    target = written(tmp_path / "project", "")
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix" / NAME).symlink_to(target)
    file = found(None, {}, tmp_path)
    assert file is not None
    assert (file.path, file.folder) == (tmp_path / "prefix" / NAME, tmp_path / "project")


@pytest.mark.parametrize("kind", ["a link to nowhere", "a folder"])
@pytest.mark.parametrize("place", ["here", "prefix"])
def test_what_stands_in_its_place_is_not_passed_over(tmp_path: Path, place: str, kind: str) -> None:
    written(tmp_path / "prefix", "")
    (tmp_path / "prefix" / NAME).rename(tmp_path / "prefix" / "aside.toml")
    (tmp_path / "here").mkdir()
    if kind == "a folder":
        (tmp_path / place / NAME).mkdir()
    else:
        (tmp_path / place / NAME).symlink_to(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match=rf"{place}/{NAME} cannot be read \(.*\): fix or remove it$"):
        found(None, {}, tmp_path / "here")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, r"nowhere.toml cannot be read \(No such file or directory\): --config must point to an orchestrix.toml"),
        (b"a = \nb = 1", r"nowhere.toml is not valid TOML: .*line 1"),
        (b"a = '\xff'", r"nowhere.toml is not UTF-8: save it as UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: bytes | None, sentence: str) -> None:
    if text is not None:
        (tmp_path / "nowhere.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=sentence):
        found(str(tmp_path / "nowhere.toml"), {}, tmp_path)


def test_every_setting_stands_in_its_section(tmp_path: Path) -> None:
    made = settings(
        tmp_path,
        'node_id = "n"\nsagas = ["a", "b"]\n[http]\nport = 81\nallowed_hosts = ["x.org"]\n'
        '[api]\ntokens = { ada = "secret", bob = "geheim" }\n[cluster]\nlease = 40\n',
    )
    assert (made.node_id, made.sagas, made.http.port, made.http.allowed_hosts) == ("n", ("a", "b"), 81, ("x.org",))
    assert {name: one.get_secret_value() for name, one in made.api.tokens.items()} == {"ada": "secret", "bob": "geheim"}
    assert made.cluster.lease == 40
    assert made.origin.listed == {
        "node_id", "sagas", "http.port", "http.allowed_hosts", "api.tokens", "cluster.lease",
    }  # fmt: skip


def test_flag_beats_environment_beats_file_beats_alias(tmp_path: Path) -> None:
    text, alias, own = "[http]\nport = 2\n", {"PORT": "1"}, {"ORCHESTRIX_HTTP__PORT": "3"}
    assert load(alias).http.port == 1
    assert settings(tmp_path, text, alias).http.port == 2
    assert settings(tmp_path, text, alias | own).http.port == 3
    assert settings(tmp_path, text, alias | own, http__port=4).http.port == 4


def test_the_environment_adds_modules_to_those_of_the_file(tmp_path: Path) -> None:
    environ = {"ORCHESTRIX_SAGAS": "c, a", "ORCHESTRIX_WORKERS": "x"}
    made = settings(tmp_path, 'sagas = ["a", "b"]\nworkers = "w"', environ)
    assert (made.sagas, made.workers) == (("a", "b", "c"), ("w", "x"))
    assert made.origin.workers == ("w",)


def test_resources_of_the_environment_take_the_place_of_the_files(tmp_path: Path) -> None:
    text = 'resources = ["a"]'
    assert settings(tmp_path, text).resources == ("a",)
    assert settings(tmp_path, text, {"ORCHESTRIX_RESOURCES": "b, c"}).resources == ("b", "c")


def test_what_counts_of_the_file_is_known(tmp_path: Path) -> None:
    text = 'api_url = "http://a"\nnode_id = "n"\n[api]\ntoken = "secret"\n'
    assert settings(tmp_path, text, {"PROCESS_NAME": "alias"}).origin.counting == {"api_url", "node_id", "api.token"}
    assert settings(tmp_path, text, {"ORCHESTRIX_API_URL": "http://a"}, node_id="m").origin.counting == {"api.token"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nod_id = 'x'", r"orchestrix.toml: nod_id is not a setting: did you mean node_id\?"),
        ("origin = 'x'", "orchestrix.toml: origin is not a setting"),
        ("[http]\nprt = 1", r"orchestrix.toml: \[http\] prt is not a setting: did you mean port\?"),
        ("[registry]\nswep = 1", r"orchestrix.toml: \[registry\] swep is not a setting: did you mean sweep\?"),
        ("[registry]\ncleanup = 1", r"orchestrix.toml: \[registry\] cleanup is not a setting"),
        ("[registry]\nsweep = 0", r"orchestrix.toml: registry.sweep: write a number"),
        ("http = 1", r"orchestrix.toml: http: write a section \[http\]$"),
        ("[[http]]\nport = 1", r"orchestrix.toml: http: write a section \[http\]$"),
        ("sagas = 5", r'orchestrix.toml: sagas: write a list of module names, e.g. sagas = \["shop.sagas"\]$'),
        ("workers = true", "orchestrix.toml: workers: write a list of module names"),
        ('sagas = [["a"]]', "orchestrix.toml: sagas: write a list of module names"),
        ("resources = [1]", "orchestrix.toml: resources: write a list of module names"),
        ("[api.tokens]\nada = 5", "^orchestrix.toml: api.tokens: write a table of strings$"),
        ("[http]\nallowed_hosts = [1]", "^orchestrix.toml: http.allowed_hosts: write names separated by commas$"),
        ("[http]\nport = 'x'", "orchestrix.toml: http.port: write a whole number from 0 to 65535"),
        ("[api.tokens]\nada = 'x'", "orchestrix.toml: api.tokens: the secret of token 1 is too short"),
        ("[sagas]\na = 1", "orchestrix.toml: sagas: write a list of module names"),
        ("[log]\nlevel = 'loud'", "orchestrix.toml: log.level: write one of debug, info, warning, error"),
    ],
)
def test_what_is_wrong_is_told_by_its_place_in_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        settings(tmp_path, text)


@pytest.mark.parametrize("text", ["http = 1", "sagas = 5", "workers = [1]"])
def test_a_variable_changes_nothing_about_that(tmp_path: Path, text: str) -> None:
    environ = {"ORCHESTRIX_HTTP__PORT": "9", "ORCHESTRIX_SAGAS": "a", "ORCHESTRIX_WORKERS": "b"}
    with pytest.raises(ConfigError, match=r"orchestrix.toml: (http|sagas|workers): write a"):
        settings(tmp_path, text, environ)


def test_other_sections_are_kept_as_they_are_given(tmp_path: Path) -> None:
    environ = {"ORCHESTRIX_GIT__ROOT": "/r", "ORCHESTRIX_MAIL__HOST": "h", "ORCHESTRIX_TEST_X__Y": "no"}
    origin = settings(tmp_path, '[git]\nprovider = "none"\nroot = "x"\n', environ).origin
    assert origin.sections == {"git": {"provider": "none", "root": "/r"}, "mail": {"host": "h"}}
    assert origin.named == {
        "git.provider": "orchestrix.toml: git.provider",
        "git.root": "ORCHESTRIX_GIT__ROOT",
        "mail.host": "ORCHESTRIX_MAIL__HOST",
    }
