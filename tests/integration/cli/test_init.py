"""Does `orchestrix init` write a service that passes its own test, and nothing over what is there?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrix.cli import init
from tests.unit.cli.shell import Shell

FILES = {
    *{"README.md", "orchestrix.toml", "tests/test_order.py"},
    *(f"shop/{name}.py" for name in ("__init__", "api", "saga", "worker")),
}
RULES = "E,F,W,I,UP,B,SIM,C4,PT,RUF,ASYNC,PERF,PIE,RET,T20"


def below(folder: Path) -> set[str]:
    """Every file there."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_writes_into_a_folder_that_it_makes(shell: Shell) -> None:
    answer = shell("init", "my shops/first")
    assert (answer.code, answer.err) == (0, "")
    assert below(shell.folder / "my shops" / "first") == FILES
    assert [line.split("#")[0].strip() for line in answer.out.splitlines()[1:]] == [
        "",
        "cd 'my shops/first'",
        "orchestrix dev",
        "python -m pytest",
    ]


def test_here_is_the_default_and_may_hold_other_things(shell: Shell) -> None:
    (shell.folder / "shop").mkdir()
    (shell.folder / "shop" / "stock.py").write_text("mine")
    answer = shell("init")
    assert (answer.code, below(shell.folder)) == (0, {*FILES, "shop/stock.py"})
    assert "cd " not in answer.out


@pytest.mark.parametrize(
    ("mine", "named"),
    [
        (["README.md"], "README.md"),
        (["shop/saga.py", "tests/test_order.py"], "shop/saga.py, tests/test_order.py"),
        (["shop"], "shop/__init__.py, shop/api.py, shop/saga.py, shop/worker.py"),
    ],
)
def test_what_is_there_is_kept(shell: Shell, mine: list[str], named: str) -> None:
    for name in mine:
        (shell.folder / name).parent.mkdir(exist_ok=True)
        (shell.folder / name).write_text("mine")
    answer = shell("init")
    assert answer.code == 4
    assert answer.err == f"error: . has {named} already, so that nothing was written: name another folder\n"
    assert below(shell.folder) == set(mine)
    assert all((shell.folder / name).read_text() == "mine" for name in mine)


def test_a_link_to_nowhere_is_there_too(shell: Shell) -> None:
    (shell.folder / "orchestrix.toml").symlink_to("elsewhere")
    answer = shell("init")
    assert answer.code == 4
    assert "orchestrix.toml already" in answer.err
    assert below(shell.folder) == set()


@pytest.mark.parametrize("place", ["/proc/shop", "file/shop", "x" * 300, "a\0b"])
def test_a_folder_that_cannot_be_written_to_is_a_sentence(shell: Shell, place: str) -> None:
    (shell.folder / "file").write_text("mine")
    answer = shell("init", place)
    assert answer.code == 1
    assert "cannot be written to" in answer.err
    assert answer.err.endswith("): name a folder of your own\n")
    assert answer.err.count("\n") == 1


def test_a_file_is_no_folder(shell: Shell) -> None:
    (shell.folder / "file").write_text("mine")
    answer = shell("init", "file")
    assert (answer.code, answer.err) == (1, "error: file is no folder: name another\n")


def test_a_file_that_comes_meanwhile_is_kept_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell.folder / "orchestrix.toml").write_text("mine")
    monkeypatch.setattr(init, "_is_taken", lambda folder, path: False)
    answer = shell("init")
    assert answer.code == 4
    assert "orchestrix.toml has just come into being, so that nothing was written" in answer.err
    assert (below(shell.folder), (shell.folder / "orchestrix.toml").read_text()) == ({"orchestrix.toml"}, "mine")


def test_a_disk_that_fills_up_leaves_nothing_behind(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Path.open

    def full(path: Path, *arguments: Any, **more: Any) -> Any:
        if path.name == "worker.py":
            raise OSError(28, "No space left on device")
        return whole(path, *arguments, **more)

    monkeypatch.setattr(Path, "open", full)
    answer = shell("init")
    assert (answer.code, below(shell.folder)) == (1, set())
    assert "(No space left on device)" in answer.err


def test_its_own_test_passes(shell: Shell) -> None:
    assert shell("init").code == 0
    command = [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:asyncio", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=shell.folder, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout


def test_its_code_is_in_order(shell: Shell) -> None:
    assert shell("init").code == 0
    ruff = [str(Path(sys.executable).with_name("ruff")), "--isolated"]
    for command in (
        ["check", "--select", RULES, "--line-length", "120"],
        ["format", "--check", "--line-length", "120"],
    ):
        ended = subprocess.run([*ruff, *command, "."], cwd=shell.folder, capture_output=True, text=True, timeout=60)
        assert ended.returncode == 0, ended.stdout


def test_its_readme_is_short_and_names_what_is_there(shell: Shell) -> None:
    assert shell("init").code == 0
    text = (shell.folder / "README.md").read_text()
    assert len(text.splitlines()) <= 20
    assert {name for name in FILES if f"`{name}`" in text} == FILES - {"README.md", "shop/__init__.py"}


def test_no_tool_takes_the_template_for_code() -> None:
    assert {path.suffix for path in init.TEMPLATE.rglob("*") if path.is_file()} == {".tmpl"}


def test_a_script_reads_what_was_written(shell: Shell) -> None:
    answer = shell("init", "shop", "-o", "json")
    assert answer.code == 0
    assert answer.json["folder"] == str(shell.folder / "shop")
    assert all((shell.folder / "shop" / name).is_file() for name in answer.json["files"])
