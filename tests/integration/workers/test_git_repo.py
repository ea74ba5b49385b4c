"""Is a real repository made, once, whatever happens meanwhile?"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrix import Command, Context, Permanent, Transient, Unavailable
from orchestrix.worker.handlers import Handler
from tests.service import CREATE, git_handlers
from workers import git_repo

KEY = "i:app:7:1000:createGitRepo"

ORDER = Command("m", CREATE, "app", 7, "shop", "c", "APP_INITIATED", "createGitRepo", 1, 60_000, "key", {})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "the repos"


@pytest.fixture
def create(root: Path) -> Handler:
    return git_handlers(root)[CREATE]


def context(app_name: str = "shop", correlation_id: str = "c-7") -> Context:
    return Context(7, app_name, "app", "createGitRepo", correlation_id, 1, "-", effect_key=KEY)


async def run(handler: Handler, for_: Context) -> dict[str, Any]:
    answer = handler(for_, ORDER)
    assert asyncio.iscoroutine(answer)
    made: dict[str, Any] = await answer
    return made


def names(root: Path) -> list[str]:
    """What is in the root, also half-made; the locks stay for ever."""
    return sorted(name for name in os.listdir(root) if name != ".locks")


def everything(root: Path) -> list[tuple[str, list[str], list[str]]]:
    """Every folder and file, without the locks."""
    found = [(folder, [name for name in inside if name != ".locks"], files) for folder, inside, files in os.walk(root)]
    return sorted(one for one in found if not one[0].endswith("/.locks"))


def git(*arguments: str, cwd: Path) -> str:
    env = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    done = subprocess.run(["git", *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


async def test_it_can_be_cloned_and_has_a_first_commit(create: Handler, root: Path, tmp_path: Path) -> None:
    answer = await run(create, context())
    assert answer == {"repoUrl": (root / "7.git").as_uri()}
    git("clone", "--quiet", answer["repoUrl"], "copy", cwd=tmp_path)
    copy = tmp_path / "copy"
    assert (copy / "README.md").read_text() == "# shop\n"
    assert git("log", "--format=%an <%ae> %s", cwd=copy) == "Orchestrix <orchestrix@localhost> First commit"
    assert git("branch", "--show-current", cwd=copy) == "main"
    assert git("fsck", "--full", "--strict", cwd=root / "7.git") == ""
    assert names(root) == ["7.git"]


async def test_it_says_which_step_made_it(create: Handler, root: Path) -> None:
    await run(create, context())
    marker = json.loads((root / "7.git" / "orchestrix.json").read_bytes())
    assert marker == {
        "effectKey": KEY,
        "appId": 7,
        "appName": "shop",
        "correlationId": "c-7",
        "attempt": 1,
    }


NAMES = ["🚀 shop", "../../etc/passwd", "--upload-pack=x", "'; rm -rf ~; '", '"', "$HOME", "%s", "shop\\", "x" * 200]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_is_text_and_nothing_else(create: Handler, root: Path, tmp_path: Path, name: str) -> None:
    answer = await run(create, context(name))
    git("clone", "--quiet", answer["repoUrl"], "copy", cwd=tmp_path)
    assert (tmp_path / "copy" / "README.md").read_text(encoding="utf-8") == f"# {name}\n"
    assert sorted(os.listdir(tmp_path)) == ["copy", "the repos"]


@pytest.mark.req("S3-54")
async def test_the_same_step_again_changes_nothing_and_answers_the_same(create: Handler, root: Path) -> None:
    first = await run(create, context())
    before = git("rev-parse", "main", cwd=root / "7.git")
    assert await run(create, context()) == first
    assert git("rev-parse", "main", cwd=root / "7.git") == before


@pytest.mark.req("S3-54")
async def test_ten_at_once_make_one_and_all_succeed(create: Handler, root: Path) -> None:
    answers = await asyncio.gather(*(run(create, context()) for _ in range(10)))
    assert answers == [{"repoUrl": (root / "7.git").as_uri()}] * 10
    assert names(root) == ["7.git"]
    assert git("rev-list", "--count", "main", cwd=root / "7.git") == "1"


def foreign(root: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", str(root / "7.git")], check=True)


def anothers(root: Path) -> None:
    foreign(root)
    (root / "7.git" / "orchestrix.json").write_text('{"effectKey": "i:app:9:1000:createGitRepo"}')


def broken(root: Path) -> None:
    foreign(root)
    (root / "7.git" / "orchestrix.json").write_text('["effectKey"')


def a_file(root: Path) -> None:
    (root / "7.git").write_text("mine")


def empty(root: Path) -> None:
    (root / "7.git").mkdir()


@pytest.mark.parametrize("there", [foreign, anothers, broken, a_file, empty])
async def test_what_somebody_else_made_is_left_alone(
    create: Handler, root: Path, there: Callable[[Path], None]
) -> None:
    there(root)
    before = everything(root)
    with pytest.raises(Permanent, match=r"7\.git already exists and was not created by this step"):
        await run(create, context())
    assert everything(root) == before


@pytest.mark.parametrize("other", [context("bank"), context(correlation_id="c-8")])
async def test_the_repository_of_the_same_id_in_an_older_database_is_not_taken_for_ones_own(
    create: Handler, root: Path, other: Context
) -> None:
    await run(create, other)
    before = everything(root)
    with pytest.raises(
        Permanent, match=rf"app '{other.app_name}' \(correlation id {other.correlation_id}\)"
    ) as refused:
        await run(create, context())
    assert (refused.value.type, everything(root)) == ("ForeignRepository", before)


async def test_somebody_who_is_faster_is_noticed_at_the_rename(
    create: Handler, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = git_repo._seal

    def seal(draft: Path, for_: Context) -> None:
        original(draft, for_)
        foreign(root)

    monkeypatch.setattr(git_repo, "_seal", seal)
    with pytest.raises(Permanent):
        await run(create, context())
    assert names(root) == ["7.git"]


async def test_what_a_killed_worker_left_behind_is_no_obstacle(create: Handler, root: Path) -> None:
    old, young = root / ".unfinished-7-aa", root / ".unfinished-7-bb"
    for leftover in (old, young):
        (leftover / "objects").mkdir(parents=True)
    os.utime(old, (0, 0))
    assert await run(create, context())
    git_repo._sweep(root)
    assert names(root) == [".unfinished-7-bb", "7.git"], "the young one may be somebody's work"


def test_a_worker_starts_while_another_finishes_its_repository(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    (root / ".unfinished-8-old").mkdir()
    os.utime(root / ".unfinished-8-old", (0, 0))
    left = [root / ".unfinished-7-seen-and-gone", root / ".unfinished-8-old"]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter(left))
    git_repo._sweep(root)
    assert names(root) == [], "the one that is gone does not keep it from the next one"


async def test_a_cancelled_step_leaves_neither_process_nor_folder(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo, tools = tmp_path / "fifo", tmp_path / "bin"
    os.mkfifo(fifo)
    tools.mkdir()
    (tools / "git").write_text(f"#!/bin/sh\necho $$ > {fifo}\nexec sleep 1000\n")
    (tools / "git").chmod(0o755)
    create = git_handlers(root)[CREATE]
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    task = asyncio.create_task(run(create, context()))
    pid = int(await asyncio.to_thread(fifo.read_text))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not Path(f"/proc/{pid}").exists()
    assert names(root) == []


async def test_gits_own_words_say_what_is_wrong(
    create: Handler, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "git").write_text("#!/bin/sh\necho 'fatal: No space left on device' >&2\nexit 128\n")
    (tmp_path / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(Transient, match=r"git exited with code 128: fatal: No space left on device") as failed:
        await run(create, context())
    assert (failed.value.type, names(root)) == ("GitFailed", [])


async def test_a_disk_that_cannot_be_written_fails_the_step_for_now(
    create: Handler, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(git_repo, "sync", full)
    with pytest.raises(Transient, match=r"cannot store the repository in .*: No space left on device"):
        await run(create, context())
    assert names(root) == []


async def test_git_that_has_gone_is_this_workers_trouble_alone(
    create: Handler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match=r"git is no longer on this machine"):
        await run(create, context())


async def test_a_users_own_configuration_of_git_has_no_say(
    create: Handler, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = tmp_path / "template"
    (template / "hooks").mkdir(parents=True)
    (template / "hooks" / "update").write_text("exit 1")
    config = f"[init]\n\ttemplateDir = {template}\n\tdefaultBranch = trunk\n[user]\n\tname = Eve\n"
    (tmp_path / ".gitconfig").write_text(config)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / ".gitconfig"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    await run(create, context())
    assert not (root / "7.git" / "hooks").exists()
    assert (root / "7.git" / "HEAD").read_text() == "ref: refs/heads/main\n"


async def test_the_root_may_vanish_meanwhile(create: Handler, root: Path) -> None:
    root.rmdir()
    assert await run(create, context())


async def test_the_provider_none_makes_nothing(root: Path) -> None:
    create = git_handlers(root, "none")[CREATE]
    assert await create(context(), ORDER) is None  # type: ignore[misc]
    assert not root.exists()
