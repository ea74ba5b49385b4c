"""Which handlers does a worker get?"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from orchestrix.broker.port import Broker
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.worker.composition import assemble
from orchestrix.worker.handlers import registered
from orchestrix.worker.jobs.functions import registered_jobs
from orchestrix.worker.module_loader import load_sagas
from orchestrix.worker.worker import Worker
from tests.fakes.broker import FakeBroker
from tests.fakes.rows import Rows
from tests.service import WORKERS
from workers.app_registration import RegistrationSettings
from workers.git_repo import GitSettings

from .rig import CATALOG

ALL = ("cmd.registerApp", "cmd.unregisterApp", "cmd.createGitRepo", "cmd.deleteGitRepo")
ORDER = """
from orchestrix import COMPLETED, Compensation, Saga, Step
from orchestrix import handles
UNDO = Compensation("cmd.cancelOrder", "evt.orderCancelled")
ORDER = Saga("order", (Step("place", "PLACING", "cmd.placeOrder", "evt.orderPlaced", then=COMPLETED, undo=UNDO),))
@handles("cmd.placeOrder")
async def place(context, command): ...
"""


def made(
    queues: list[str], *, git: dict[str, str] | None = None, workers: Sequence[str] = (), sagas: Sequence[str] = ()
) -> Worker:
    """A worker of the service, as its file says, and of the modules that the environment adds."""
    origin = {"workers": WORKERS, "sections": {"git": git or {"provider": "none"}}}
    settings = Settings.model_validate({"workers": [*WORKERS, *workers], "sagas": sagas, "origin": origin})
    database, broker = cast(Database, Rows()), cast(Broker, FakeBroker())
    return assemble(settings, database, broker, Catalog([*CATALOG, *load_sagas(sagas)]), queues)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, whose modules can be imported and are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before, handlers, jobs = set(sys.modules), list(registered), list(registered_jobs)
    yield tmp_path
    registered[:], registered_jobs[:] = handlers, jobs
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_without_a_choice_a_worker_serves_all_that_it_can() -> None:
    assert made([]).queues == ALL


def test_a_worker_serves_the_chosen_queues() -> None:
    assert made(["cmd.registerApp"]).queues == ("cmd.registerApp",)


def test_an_unknown_queue_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no handler for cmd\.x; it has cmd\.registerApp, cmd\.unreg") as refused:
        made(["cmd.x"])
    assert str(refused.value).endswith(": add its module to ORCHESTRIX_WORKERS or orchestrix.toml")


def test_git_is_needed_only_where_repositories_are_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    local = {"provider": "local", "root": str(tmp_path)}
    assert made(["cmd.registerApp"], git=local)
    with pytest.raises(ConfigError, match=r"needs git.*apt-get install git"):
        made([], git=local)


def test_a_root_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"GIT__ROOT: .*/file/repos cannot be used, for .*/file is not a folder"):
        made([], git={"provider": "local", "root": str(tmp_path / "file" / "repos")})


def test_a_handler_that_the_environment_adds_replaces_the_files(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = 'from orchestrix import handles\n@handles("cmd.createGitRepo")\nasync def mine(context, command): ...\n'
    (folder / "my_git.py").write_text(text)
    worker = made([], workers=["my_git"])
    assert worker.queues == ALL
    assert worker._handlers["cmd.createGitRepo"].__module__ == "my_git"
    assert "cmd.createGitRepo is undone by cmd.deleteGitRepo of orchestrix.toml" in caplog.text


def test_so_does_a_job(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("my_listed_job", "my_added_job"):
        (folder / f"{name}.py").write_text('from orchestrix import job\n@job("digest")\ndef digest(context): ...\n')
    settings = Settings.model_validate(
        {"workers": ["my_listed_job", "my_added_job"], "origin": {"workers": ["my_listed_job"]}}
    )
    assemble(settings, cast(Database, Rows()), cast(Broker, FakeBroker()), CATALOG)
    said = "job digest: a module of ORCHESTRIX_WORKERS replaces the one of orchestrix.toml"
    assert [record.getMessage() for record in caplog.records] == [said]


@pytest.mark.parametrize(("queues", "warned"), [([], True), (["cmd.placeOrder"], True), (["cmd.registerApp"], False)])
def test_a_step_without_anybody_to_undo_it_is_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, queues: list[str], warned: bool
) -> None:
    (folder / "my_order.py").write_text(ORDER)
    worker = made(queues, workers=["my_order"], sagas=["my_order"])
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    said = "cmd.placeOrder has a handler here, but its undo cmd.cancelOrder has none: another worker must serve it"
    assert warnings == ([said] if warned else [])
    assert worker.queues == (tuple(queues) or (*ALL, "cmd.placeOrder"))


def test_a_step_and_its_undo_are_nothing_to_warn_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = ORDER + '@handles("cmd.cancelOrder")\nasync def cancel(context, command): ...\n'
    (folder / "my_cancelled_order.py").write_text(text)
    worker = made([], workers=["my_cancelled_order"], sagas=["my_cancelled_order"])
    assert worker.queues[-2:] == ("cmd.placeOrder", "cmd.cancelOrder")
    assert made(["cmd.placeOrder"], workers=["my_cancelled_order"], sagas=["my_cancelled_order"])
    assert caplog.records == []


def test_the_specifications_simulated_work_is_not_what_one_gets_unasked() -> None:
    assert (GitSettings().provider, RegistrationSettings().provider) == ("local", "database")


RELEASE = """
from orchestrix import COMPLETED, Compensation, Job, Saga, Step
from orchestrix import handles, job
UNTAG = Compensation(event="evt.untagged", job=Job("untag", queue="builders"))
TAG = Step("tag", "TAGGING", "cmd.tag", "evt.tagged", then="BUILDING", undo=UNTAG)
DROP = Compensation("cmd.drop", "evt.dropped")
BUILD = Step("build", "BUILDING", job=Job("build", queue="builders"), event="evt.built", then=COMPLETED, undo=DROP)
RELEASE = Saga("release", (TAG, BUILD))
@handles("cmd.tag")
async def tag(context, command): ...
@job("build", queue="builders")
async def build(context): ...
"""
UNDOS = """
@handles("cmd.drop")
async def drop(context, command): ...
@job("untag", queue="builders")
async def untag(context): ...
"""
TAG_LACKS = (
    "cmd.tag has a handler here, but its undo, the job untag, has none: another worker of queue builders must have it"
)
BUILD_LACKS = "build has a function here, but its undo cmd.drop has none: another worker must serve it"


@pytest.mark.parametrize(
    ("queues", "more", "warnings"),
    [
        ([], "", [TAG_LACKS, BUILD_LACKS]),
        (["cmd.tag"], "", [TAG_LACKS]),
        ([], UNDOS, []),
        (["cmd.tag"], UNDOS, []),
    ],
)
def test_an_undo_that_is_a_job_needs_a_function_and_that_of_a_job_a_handler(
    folder: Path, caplog: pytest.LogCaptureFixture, queues: list[str], more: str, warnings: list[str]
) -> None:
    (folder / "my_release.py").write_text(RELEASE + more)
    made(queues, workers=["my_release"], sagas=["my_release"])
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == warnings


GROUPED = RELEASE.replace('Job("untag", queue="builders")', 'Job("untag", group="{key}")').replace(
    'Job("build", queue="builders")', 'Job("build", group="builders", routing="FAILOVER")'
)


@pytest.mark.parametrize("functions", [True, False], ids=["with its functions", "without them"])
def test_what_executors_do_asks_nothing_of_a_worker(
    folder: Path, caplog: pytest.LogCaptureFixture, functions: bool
) -> None:
    assert GROUPED.count("group=") == 2
    text = GROUPED if functions else GROUPED[: GROUPED.index("@job(")]
    (folder / "my_grouped_release.py").write_text(text)
    for queues in ([], ["cmd.tag"]):
        worker = made(queues, workers=["my_grouped_release"], sagas=["my_grouped_release"])
        assert "cmd.tag" in worker.queues
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING] == []
