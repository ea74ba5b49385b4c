"""Which changes of which files does `dev --reload` see?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrix.cli.commands.reload import SourceWatch, is_wanted, watched
from orchestrix.config.settings import load


@pytest.mark.req("S1-8", "S1-42")
@pytest.mark.parametrize(
    ("flag", "environ", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"NODE_ENV": "development"}, True),
        (False, {"NODE_ENV": "production"}, False),
        (True, {"NODE_ENV": "production"}, True),
    ],
)
def test_it_is_on_by_the_flag_or_where_node_env_says_development(
    flag: bool, environ: dict[str, str], wanted: bool
) -> None:
    assert is_wanted(flag, environ) is wanted


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small service with an environment of Python in it."""
    made = tmp_path / "shop"
    for name in ("shop/saga.py", "shop/deep/er/worker.py", "orchestrix.toml", ".venv/lib/x.py", "env/pyvenv.cfg"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text("1")
    (made / "env" / "lib").mkdir()
    (made / "node_modules").mkdir()
    return made


def write(path: Path) -> None:
    path.write_text("other text")


def touch(path: Path) -> None:
    os.utime(path, (1, 1))


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("shop/saga.py", write),
        ("shop/saga.py", touch),
        ("shop/deep/er/worker.py", remove),
        ("shop/new.py", write),
        ("orchestrix.toml", write),
    ],
)
def test_a_file_that_is_changed_new_or_gone_is_seen_once(
    folder: Path, name: str, change: Callable[[Path], None]
) -> None:
    watch = SourceWatch([folder])
    assert watch.changed() is None
    change(folder / name)
    assert watch.changed() == str(folder / name)
    assert watch.wait() == str(folder / name)
    assert SourceWatch([folder]).changed() is None


@pytest.mark.parametrize(
    "name", [".venv/lib/x.py", "env/lib/x.py", "node_modules/x.py", "shop/notes.txt", "shop/__pycache__/x.py"]
)
def test_what_is_no_source_of_the_user_is_not_looked_at(folder: Path, name: str) -> None:
    watch = SourceWatch([folder])
    (folder / name).parent.mkdir(exist_ok=True)
    write(folder / name)
    assert watch.changed() is None
    assert watch.wait(lambda: True) is None


def test_packages_that_lie_elsewhere_are_watched_too_without_being_imported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "far_away").mkdir(parents=True)
    (elsewhere / "far_away" / "__init__.py").write_text("raise RuntimeError('imported')")
    (elsewhere / "far_module.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(elsewhere))
    monkeypatch.syspath_prepend(str(folder))
    settings = load({}, sagas="far_away.sagas,shop.saga,not_there", workers="far_module")
    assert watched(settings, folder) == [folder, elsewhere / "far_away", elsewhere / "far_module.py"]
    assert "far_away" not in sys.modules
    watch = SourceWatch(watched(settings, folder))
    write(elsewhere / "far_module.py")
    assert watch.changed() == str(elsewhere / "far_module.py")
