"""Is a repository taken away when its step is undone, and does it stay away whatever comes late?"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrix import Command, Context, Permanent, Transient, crash
from orchestrix.worker.handlers import HandlerTable
from tests.service import CREATE, DELETE, git_handlers
from tests.support import eventually, eventually_sync
from workers import git_marks, git_repo

from .world import World

ORDER = Command("m", CREATE, "app", 7, "shop", "c", "APP_INITIATED", "createGitRepo", 1, 60_000, "key", {})


class Repos:
    """The handlers of one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.table: HandlerTable = git_handlers(root)

    async def run(self, for_: Context) -> dict[str, Any]:
        """Does the step, or undoes it."""
        answer = self.table[DELETE if for_.undoes else CREATE](for_, ORDER)
        assert asyncio.iscoroutine(answer)
        made: dict[str, Any] = await answer
        return made

    async def refused(self, for_: Context) -> str:
        """The type of the error that no other try can change."""
        with pytest.raises(Permanent) as refused:
            await self.run(for_)
        return refused.value.type

    @property
    def names(self) -> list[str]:
        """What is there to be cloned, or half-made."""
        return sorted(name for name in os.listdir(self.root) if name not in {".archive", ".locks", ".tombstones"})

    @property
    def archive(self) -> list[str]:
        """What was taken away."""
        return sorted(os.listdir(self.root / ".archive")) if (self.root / ".archive").exists() else []

    def tombstone(self, app_id: int = 7) -> dict[str, Any]:
        """What is refused."""
        found: dict[str, Any] = json.loads((self.root / ".tombstones" / f"{app_id}.json").read_bytes())
        return found


@pytest.fixture
def repos(tmp_path: Path) -> Repos:
    return Repos(tmp_path / "the repos")


def do(attempt: int = 1, app_id: int = 7, app_name: str = "shop", correlation_id: str = "c-7") -> Context:
    key = f"i:app:{app_id}:1000:createGitRepo"
    return Context(app_id, app_name, "app", "createGitRepo", correlation_id, attempt, "-", effect_key=key)


def undo(undoes: int = 1, app_id: int = 7, app_name: str = "shop", correlation_id: str = "c-7") -> Context:
    fresh = do(1, app_id, app_name, correlation_id)
    return replace(fresh, undoes_attempt=undoes)


@pytest.mark.req("S3-43")
async def test_an_undone_repository_is_kept_in_the_archive(repos: Repos, tmp_path: Path) -> None:
    await repos.run(do())
    answer = await repos.run(undo())
    assert answer == {"archivedAs": (repos.root / ".archive" / "7-1.git").as_uri()}
    assert (repos.names, repos.archive) == ([], ["7-1.git"])
    subprocess.run(["git", "clone", "--quiet", answer["archivedAs"], str(tmp_path / "copy")], check=True)
    assert (tmp_path / "copy" / "README.md").read_text() == "# shop\n"


async def test_what_was_never_made_is_undone_at_once_and_remembered(repos: Repos) -> None:
    assert await repos.run(undo(2)) == {}
    assert (repos.names, repos.archive) == ([], [])
    assert repos.tombstone() == {
        "effectKey": "i:app:7:1000:createGitRepo",
        "appId": 7,
        "appName": "shop",
        "correlationId": "c-7",
        "undoesAttempt": 2,
    }


@pytest.mark.req("S3-54")
async def test_the_same_undo_again_and_ten_at_once_answer_the_same(repos: Repos) -> None:
    await repos.run(do())
    answers = await asyncio.gather(*(repos.run(undo()) for _ in range(10)))
    assert answers == [{"archivedAs": (repos.root / ".archive" / "7-1.git").as_uri()}] * 10
    assert await repos.run(undo()) == answers[0]
    assert (repos.names, repos.archive) == ([], ["7-1.git"])


async def test_a_step_that_comes_after_its_undo_leaves_nothing(repos: Repos) -> None:
    await repos.run(undo(2))
    assert await repos.refused(do(1)) == "Undone"
    assert await repos.refused(do(2)) == "Undone"
    assert repos.names == []


async def test_a_step_that_is_undone_while_it_builds_leaves_nothing(
    repos: Repos, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = git_repo._build

    async def build(draft: Path, context: Context) -> None:
        await original(draft, context)
        assert await repos.run(undo()) == {}

    monkeypatch.setattr(git_repo, "_build", build)
    assert await repos.refused(do()) == "Undone"
    assert (repos.names, repos.archive) == ([], [])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that somebody has asked for a lock, until now."""
    flock, asked = fcntl.flock, []

    def seen(handle: int, operation: int) -> None:
        asked.append(handle)
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", seen)
    return asked


async def test_an_undo_that_comes_at_the_rename_waits_for_it(
    repos: Repos, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    appear, inside = git_repo._appear, threading.Event()

    def slow(draft: Path, final: Path, context: Context) -> None:
        inside.set()
        eventually_sync(lambda: len(asked) == 3, deadline=10, message="the undo asks for its turn")
        assert not (repos.root / ".tombstones").exists(), "it does nothing before that"
        appear(draft, final, context)

    monkeypatch.setattr(git_repo, "_appear", slow)
    doing = asyncio.create_task(repos.run(do()))
    await eventually(inside.is_set, deadline=10)
    assert await repos.run(undo()) == {"archivedAs": (repos.root / ".archive" / "7-1.git").as_uri()}
    assert await doing == {"repoUrl": (repos.root / "7.git").as_uri()}
    assert repos.names == []


@pytest.mark.req("S3-43", "S3-54")
async def test_twenty_steps_and_twenty_undos_at_once_leave_nothing(repos: Repos) -> None:
    works = [repos.run(kind(app_id=id)) for id in range(1, 11) for kind in (do, undo, do, undo)]
    answers = await asyncio.gather(*works, return_exceptions=True)
    done, undone = answers[0::2], answers[1::2]
    for one in done:
        assert isinstance(one, dict) or (isinstance(one, Permanent) and one.type == "Undone"), one
    assert all(isinstance(one, dict) for one in undone), undone
    assert repos.names == []


async def test_many_tries_and_one_undo_of_all_leave_nothing(repos: Repos) -> None:
    works = [repos.run(undo(20)), *(repos.run(do(attempt)) for attempt in range(1, 21))]
    answers = await asyncio.gather(*works, return_exceptions=True)
    assert isinstance(answers[0], dict)
    assert {one.type for one in answers if isinstance(one, Permanent)} <= {"Undone"}
    assert repos.names == []


def foreign(root: Path) -> None:
    (root / "7.git").mkdir()


def anothers(root: Path) -> None:
    foreign(root)
    (root / "7.git" / "orchestrix.json").write_text('{"effectKey": "i:app:9:1000:createGitRepo"}')


def a_file(root: Path) -> None:
    (root / "7.git").write_text("mine")


@pytest.mark.parametrize("there", [foreign, anothers, a_file])
async def test_what_somebody_else_made_is_not_undone(repos: Repos, there: Callable[[Path], None]) -> None:
    there(repos.root)
    assert await repos.refused(undo()) == "ForeignRepository"
    assert (repos.names, repos.archive) == (["7.git"], [])


@pytest.mark.parametrize("other", [{"app_name": "bank"}, {"correlation_id": "c-8"}])
async def test_the_repository_of_the_same_id_in_an_older_database_is_not_undone(
    repos: Repos, other: dict[str, str]
) -> None:
    await repos.run(do(**other))  # type: ignore[arg-type]
    assert await repos.refused(undo()) == "ForeignRepository"
    assert repos.names == ["7.git"]


async def test_a_tombstone_of_an_older_database_refuses_nothing_and_gives_way(repos: Repos) -> None:
    await repos.run(do(app_name="bank"))
    await repos.run(undo(5, app_name="bank"))
    assert await repos.run(do(1))
    assert await repos.run(undo(1))
    assert (repos.tombstone()["appName"], repos.tombstone()["undoesAttempt"]) == ("shop", 1)
    assert repos.archive == ["7-1.git", "7-5.git"]


async def test_a_place_in_the_archive_that_is_taken_is_left_alone(repos: Repos) -> None:
    await repos.run(do(app_name="bank"))
    await repos.run(undo(app_name="bank"))
    await repos.run(do())
    answer = await repos.run(undo())
    assert len(repos.archive) == 2
    first = json.loads((repos.root / ".archive" / "7-1.git" / "orchestrix.json").read_bytes())
    assert first["appName"] == "bank"
    assert answer["archivedAs"].startswith((repos.root / ".archive" / "7-1-").as_uri())


async def test_a_person_can_let_the_step_be_done_again(repos: Repos) -> None:
    await repos.run(do(1))
    await repos.run(undo(1))
    assert await repos.run(do(2)) == {"repoUrl": (repos.root / "7.git").as_uri()}
    assert repos.names == ["7.git"]
    assert await repos.run(undo(2)) == {"archivedAs": (repos.root / ".archive" / "7-2.git").as_uri()}
    assert (repos.names, repos.archive) == ([], ["7-1.git", "7-2.git"])


@pytest.mark.parametrize("undone", [True, False])
async def test_an_undo_that_comes_late_leaves_a_later_run_alone(repos: Repos, undone: bool) -> None:
    await repos.run(do(1))
    if undone:
        await repos.run(undo(1))
    await repos.run(do(2))
    assert await repos.run(undo(1)) == {}
    assert repos.names == ["7.git"], "the second run has its repository"


async def test_a_late_attempt_does_not_give_away_what_a_later_one_has_taken_over(repos: Repos) -> None:
    await repos.run(do(2))
    assert await repos.run(do(1)), "it is done"
    await repos.run(undo(1))
    assert repos.names == ["7.git"]


async def test_an_older_undo_after_a_younger_one_allows_nothing(repos: Repos) -> None:
    await repos.run(undo(3))
    await repos.run(undo(1))
    assert await repos.refused(do(3)) == "Undone"
    assert await repos.run(do(4))


async def test_a_broken_tombstone_is_written_anew(repos: Repos) -> None:
    await repos.run(undo())
    (repos.root / ".tombstones" / "7.json").write_text("[]")
    await repos.run(undo())
    assert await repos.refused(do()) == "Undone"


KILLED = """
import asyncio, os, sys
from orchestrix import crash
from orchestrix import Context
from workers import git_repo
crash.arm(os.environ)
key = "i:app:7:1000:createGitRepo"
settings = git_repo.GitSettings(root=sys.argv[1])
context = Context(7, "shop", "app", "createGitRepo", "c-7", 1, "-", undoes_attempt=1, effect_key=key, settings=settings)
asyncio.run(git_repo.delete(context, None))
"""


@pytest.mark.req("S3-54")
async def test_an_undo_whose_worker_is_killed_is_gone_on_with(repos: Repos) -> None:
    await repos.run(do())
    env = {**os.environ, "ORCHESTRIX_TESTING": "1", "ORCHESTRIX_CRASH_AT": "git.in_undo:1"}
    killed = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED, str(repos.root), env=env)
    async with asyncio.timeout(30):
        assert await killed.wait() == crash.EXIT_CODE
    assert (repos.names, repos.archive, repos.tombstone()["undoesAttempt"]) == (["7.git"], [], 1)
    assert await repos.refused(do()) == "Undone", "nobody can take what will be taken away for done"
    assert await repos.run(undo()) == {"archivedAs": (repos.root / ".archive" / "7-1.git").as_uri()}
    assert repos.names == []


HOLDING = """
import sys
from pathlib import Path
from workers.git_marks import alone
with alone(Path(sys.argv[1]), 7):
    print("held", flush=True)
    sys.stdin.read()
"""


async def test_a_killed_worker_lets_go_of_the_repository(repos: Repos) -> None:
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDING, str(repos.root), stdin=pipe, stdout=pipe
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    undoing = asyncio.create_task(repos.run(undo()))
    assert not (await asyncio.wait([undoing], timeout=0.2))[0]
    holder.send_signal(signal.SIGKILL)
    assert await undoing == {}
    await holder.wait()


async def test_a_step_cancelled_at_its_rename_leaves_all_or_nothing(
    repos: Repos, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, held, free = git_repo._build, threading.Event(), threading.Event()

    def hold() -> None:
        with git_marks.alone(repos.root, 7):
            held.set()
            assert free.wait(10)

    async def build(draft: Path, context: Context) -> None:
        await original(draft, context)
        holder.start()
        await eventually(held.is_set, deadline=10)

    holder = threading.Thread(target=hold)
    monkeypatch.setattr(git_repo, "_build", build)
    doing = asyncio.create_task(repos.run(do()))
    await eventually(lambda: len(asked) == 3, deadline=10, message="the step asks for its turn to publish")
    doing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await doing
    free.set()
    await eventually(lambda: repos.names == ["7.git"], deadline=10)
    holder.join()
    subprocess.run(["git", "fsck", "--full", "--strict"], cwd=repos.root / "7.git", check=True)
    assert (repos.root / "7.git" / "refs" / "heads" / "main").exists()


async def test_a_disk_that_cannot_be_written_fails_the_undo_for_now(
    repos: Repos, monkeypatch: pytest.MonkeyPatch
) -> None:
    await repos.run(do())

    def full(path: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(git_marks, "sync", full)
        with pytest.raises(Transient, match=r"cannot store the repository in .*: No space left on device") as failed:
            await repos.run(undo())
    assert (failed.value.type, repos.names) == ("Storage", ["7.git"]), "nothing moves before the tombstone is safe"
    await repos.run(undo())
    assert repos.names == []


async def test_a_root_that_has_vanished_has_nothing_to_undo(repos: Repos) -> None:
    shutil.rmtree(repos.root)
    assert await repos.run(undo()) == {}
    assert await repos.refused(do()) == "Undone"


@pytest.mark.parametrize("provider", ["none", "simulated"])
async def test_without_repositories_an_undo_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    monkeypatch.setattr("workers.simulated.SECONDS", 0.0)
    handler = git_handlers(tmp_path / "none", provider)[DELETE]
    assert await handler(undo(), ORDER) is None  # type: ignore[misc]
    assert not (tmp_path / "none").exists()


@pytest.mark.req("S3-43")
async def test_an_undo_command_is_answered_while_the_app_is_undone(world: World, tmp_path: Path) -> None:
    repos = Repos(tmp_path / "repos")
    await world.worker(repos.table)
    row, command = await world.undone("shop", "createGitRepo")
    await repos.run(replace(do(1, row.id, "shop", row.correlation_id), effect_key=command.effect_key))
    await world.send(command)
    (event,) = await world.events(1)
    assert (event["type"], event["appId"], event["causationId"]) == ("evt.gitRepoDeleted", row.id, command.id)
    assert event["data"] == {"archivedAs": (repos.root / ".archive" / f"{row.id}-1.git").as_uri()}
    assert repos.names == []


# Marks of earlier runs, and from before there were effect keys.


def former(context: Context) -> Context:
    """That of a saga that is older than effect keys."""
    return replace(context, effect_key=f"app:{context.app_id}:createGitRepo:do")


def in_run(context: Context, run: int) -> Context:
    return replace(context, effect_key=f"{context.effect_key}:run{run}")


def rename_keys(path: Path) -> None:
    """As the release before has written it."""
    fields = json.loads(path.read_bytes())
    fields["idempotencyKey"] = fields.pop("effectKey")
    path.write_text(json.dumps(fields))


async def test_a_repository_with_a_mark_from_before_is_found_by_do_and_undo(repos: Repos) -> None:
    await repos.run(former(do()))
    rename_keys(repos.root / "7.git" / "orchestrix.json")
    assert await repos.run(former(do(2))) == {"repoUrl": (repos.root / "7.git").as_uri()}
    rename_keys(repos.root / "7.git" / "orchestrix.json")
    assert await repos.run(former(undo(2))) == {"archivedAs": (repos.root / ".archive" / "7-2.git").as_uri()}
    assert await repos.run(former(undo(2))) == {"archivedAs": (repos.root / ".archive" / "7-2.git").as_uri()}


async def test_a_tombstone_from_before_still_refuses(repos: Repos) -> None:
    await repos.run(former(undo(2)))
    rename_keys(repos.root / ".tombstones" / "7.json")
    with pytest.raises(Permanent, match="was undone before it ran"):
        await repos.run(former(do(2)))
    await repos.run(former(undo(1)))
    assert repos.tombstone()["undoesAttempt"] == 2


async def test_a_mark_from_before_is_nothing_to_a_newer_saga_of_the_same_id(repos: Repos) -> None:
    await repos.run(former(do()))
    rename_keys(repos.root / "7.git" / "orchestrix.json")
    with pytest.raises(Permanent, match="was not created by this step"):
        await repos.run(do())


async def test_another_run_takes_over_what_an_earlier_one_has_left(repos: Repos) -> None:
    await repos.run(do(1))
    assert await repos.run(in_run(do(2), 2)) == {"repoUrl": (repos.root / "7.git").as_uri()}
    assert await repos.run(in_run(undo(2), 2)) == {"archivedAs": (repos.root / ".archive" / "7-2.git").as_uri()}
    await repos.run(undo(2))
    with pytest.raises(Permanent, match="was undone before it ran"):
        await repos.run(in_run(do(2), 2))
    assert (repos.names, repos.archive) == ([], ["7-2.git"])


async def test_the_same_step_in_another_installation_is_somebody_else(repos: Repos) -> None:
    await repos.run(do())
    with pytest.raises(Permanent, match="was not created by this step"):
        await repos.run(replace(do(), effect_key="j:app:7:1000:createGitRepo"))
