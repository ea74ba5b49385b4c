"""Which functions do which jobs?"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from orchestrix import JobContext, job
from orchestrix.broker.port import Broker
from orchestrix.config.settings import Settings
from orchestrix.errors import ConfigError
from orchestrix.persistence.engine import Database
from orchestrix.saga.catalog import Catalog
from orchestrix.worker.composition import assemble
from orchestrix.worker.jobs.functions import JobFunction, JobTable, registered_jobs
from orchestrix.worker.module_loader import load_handlers, load_jobs, load_sagas
from orchestrix.worker.worker import Worker
from tests.fakes.broker import FakeBroker
from tests.fakes.rows import Rows
from tests.service import WORKERS
from tests.unit.workers.rig import CATALOG

pytestmark = pytest.mark.usefixtures("forgotten")

JOBS = """
from orchestrix import JobContext, job

@job("reindex", queue="search")
async def reindex(context: JobContext): ...

@job("prune", grace=2)
def prune(context: JobContext): ...
"""

STEP_OF_A_JOB = """
from orchestrix import COMPLETED, Compensation, Job, Saga, Step

undo = Compensation(event="evt.undrawn", job=Job("NAME", queue="cpu"))
draw = Step("draw", "DRAWING", job=Job("NAME", queue="gpu"), event="evt.drawn", then=COMPLETED, undo=undo)
FILM = Saga("film", steps=(draw,))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory with the module `my_jobs`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "my_jobs.py").write_text(JOBS)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def made(
    queues: list[str],
    job_queues: list[str],
    *,
    workers: Sequence[str] = ("my_jobs",),
    catalog: Catalog = CATALOG,
    **settings: Any,
) -> Worker:
    origin = {"workers": WORKERS, "sections": {"git": {"provider": "none"}}}
    plain = {"workers": [*WORKERS, *workers], "origin": origin, **settings}
    database, broker = cast(Database, Rows()), cast(Broker, FakeBroker())
    return assemble(Settings.model_validate(plain), database, broker, catalog, queues, job_queues, name="w-1")


def served(worker: Worker) -> tuple[int, tuple[str, ...] | None]:
    """How many command queues, and which job queues."""
    return len(worker.queues), worker.jobs.queues if worker.jobs is not None else None


def test_a_module_of_jobs_alone_is_a_good_module(folder: Path) -> None:
    assert dict(load_handlers(["my_jobs"])) == {}
    table = load_jobs(["my_jobs"])
    assert {name: (one.queue, one.grace) for name, one in table.items()} == {
        "reindex": ("search", 10.0),
        "prune": ("default", 2.0),
    }
    assert table.queues == ("search", "default")


def test_without_a_choice_a_worker_serves_all_that_it_can(folder: Path) -> None:
    assert served(made([], [])) == (4, ("search", "default"))
    assert served(made([], [], workers=[])) == (4, None)


def test_what_is_chosen_is_all_that_is_served(folder: Path) -> None:
    assert served(made(["cmd.registerApp"], [])) == (1, None)
    assert served(made([], ["search"])) == (0, ("search",))
    assert served(made(["cmd.registerApp"], ["search"])) == (1, ("search",))


def test_any_queue_can_be_served_by_name(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert served(made([], ["urgent"])) == (0, ("urgent",))
    assert "job queue urgent: none of the jobs here names it (reindex (search), prune (default))" in caplog.text


def test_the_queue_of_a_step_is_served_by_who_has_its_job(folder: Path) -> None:
    (folder / "my_saga.py").write_text(STEP_OF_A_JOB.replace("NAME", "prune"))
    catalog = Catalog(load_sagas(["my_saga"]))
    assert served(made([], ["gpu"], catalog=catalog)) == (0, ("gpu",))
    assert served(made([], ["cpu"], catalog=catalog)) == (0, ("cpu",)), "that of its undo"


def test_the_queue_of_a_step_whose_job_is_elsewhere_is_refused(folder: Path) -> None:
    (folder / "my_saga.py").write_text(STEP_OF_A_JOB.replace("NAME", "render"))
    with pytest.raises(ConfigError, match=r"write @job\('render'\) above the function of its jobs"):
        made([], ["gpu"], catalog=Catalog(load_sagas(["my_saga"])))


def test_a_function_may_be_for_several_queues(folder: Path) -> None:
    both = '@job("prune")\n@job("prune", queue="gpu")'
    (folder / "my_jobs.py").write_text(JOBS.replace('@job("prune", grace=2)', both))
    assert load_jobs(["my_jobs"]).queues == ("search", "gpu", "default")
    assert served(made([], ["default"])) == (0, ("default",))
    assert served(made([], ["gpu"])) == (0, ("gpu",))


def test_jobs_and_commands_have_places_of_their_own(folder: Path) -> None:
    worker = made([], [], worker={"concurrency": 3, "stop_timeout": 7}, jobs={"beat": 4, "silent": 20})
    runner = worker.jobs
    assert runner is not None
    assert (runner._slot_count, runner._stop_timeout, runner._heartbeat_s, runner.worker_id) == (3, 7.0, 4.0, "w-1")
    assert worker._settings.concurrency == 3


def test_a_queue_of_jobs_needs_jobs(folder: Path) -> None:
    with pytest.raises(ConfigError, match="this worker has no jobs"):
        made([], ["search"], workers=[])


def test_a_module_without_anything_is_refused(folder: Path) -> None:
    (folder / "my_empty.py").write_text("")
    with pytest.raises(ConfigError, match=r"module 'my_empty' .* has no handler and no job: write @handles.* or @job"):
        load_handlers(["my_empty"])


def test_two_functions_for_one_job_are_refused(folder: Path) -> None:
    (folder / "my_more.py").write_text(JOBS)
    with pytest.raises(ConfigError, match=r"job 'reindex' has two functions, my_jobs.reindex and my_more.reindex"):
        load_jobs(["my_jobs", "my_more"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"name": ""}, r"@job\(''\): a job's name must have 1 to 200 code points, not 0"),
        ({"name": "a "}, r"@job\('a '\): a job's name must not begin or end with white space"),
        ({"name": "a\0"}, "a job's name must not contain control characters"),
        ({"name": print}, r"@job\(builtins.print\): write the job's name, as in @job"),
        ({"name": None}, r"@job\(None\): write the job's name, as in @job"),
        ({"name": "x", "queue": "a/b"}, "'a/b' cannot be a job queue"),
        ({"name": "x", "queue": 7}, "7 cannot be a job queue"),
        ({"name": "x", "grace": -1}, r"@job\('x', grace=-1\): expected a number of seconds from 0 to ten years"),
        ({"name": "x", "grace": float("inf")}, "grace=inf.*from 0 to ten years, e.g. grace=30"),
        ({"name": "x", "grace": 1e300}, "from 0 to ten years"),
        ({"name": "x", "grace": 10**400}, "from 0 to ten years"),
        ({"name": "x", "grace": 315_360_001}, "from 0 to ten years"),
        ({}, r'@job\(\): name is missing: write @job\("reindex", queue="search", grace=10\)'),
        ({"name": "x", "graze": 5}, r"unknown argument graze=; did you mean grace=\?"),
        (
            {"name": "x", "grace": "5"},
            r"@job\('x', grace='5'\): expected a number of seconds from 0 to ten years, e.g. grace=5",
        ),
        ({"name": "x", "grace": timedelta(minutes=1)}, "ten years, e.g. grace=60"),
        ({"name": "x", "grace": None}, "expected a number of seconds from 0 to ten years"),
        ({"name": "x", "grace": float("nan")}, "from 0 to ten years"),
        ({"name": "x", "queue": None}, "None cannot be a job queue"),
    ],
)
def test_a_decorator_that_cannot_be_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        job(**arguments)


def test_a_name_is_that_under_which_jobs_are_submitted() -> None:
    @job("cafe\u0301 tables/all")
    def plain(context: JobContext) -> None: ...

    assert registered_jobs[-1].name == "caf\u00e9 tables/all"


def test_a_function_that_yields_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pages is an async generator function \(it has a yield\): return a map"):

        @job("x")
        async def pages(context: JobContext) -> AsyncIterator[int]:
            yield 1

    with pytest.raises(ConfigError, match="lines is a generator function"):

        @job("x")
        def lines(context: JobContext) -> Iterator[int]:
            yield 1

    class Pages:
        async def __call__(self, context: JobContext) -> AsyncIterator[int]:
            yield 1

    with pytest.raises(ConfigError, match="is an async generator function"):
        job("x")(Pages())

    with pytest.raises(ConfigError, match="Pages is a class: write def or async def below the decorator"):
        job("x")(Pages)

    with pytest.raises(ConfigError, match="is not a function: write def or async def below the decorator"):
        job("x")(cast(Any, 5))


def test_a_function_takes_the_context_alone() -> None:
    with pytest.raises(ConfigError, match="must take one argument, the context"):

        @job("x")
        async def none() -> None: ...

    with pytest.raises(ConfigError, match="must take one argument, the context"):

        @job("x")
        def two(context: JobContext, command: object) -> None: ...


def test_the_function_stays_what_it_was() -> None:
    @job("x")
    def plain(context: JobContext) -> dict[str, int]:
        return {"x": 1}

    assert plain(cast(JobContext, None)) == {"x": 1}
    assert registered_jobs[-1] == JobFunction("x", "default", plain, 10.0)
    table = JobTable(registered_jobs[-1:])
    table.add(registered_jobs[-1])
    assert (list(table), len(table)) == (["x"], 1)
