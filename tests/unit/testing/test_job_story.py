"""Does the story of a job end as the job does in production, and say so when it ends otherwise than expected?"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest

from orchestrix import JobContext, Permanent, Transient, job
from orchestrix.errors import ConfigError
from orchestrix.testing import StoryError, between, given_job
from orchestrix.testing.simulation.virtual_time import elapse


@job("reindex", grace=5.0)
async def reindex(context: JobContext) -> dict[str, int]:
    """Takes ten seconds for a page."""
    pages = context.payload["pages"]
    for page in range(1, pages + 1):
        context.raise_if_cancelled()
        await elapse(10.0)
        await context.log(f"page {page}")
        await context.progress(100 * page / pages)
    return {"pages": pages}


@job("prune")
def prune(context: JobContext) -> dict[str, Any]:
    """The same in a thread."""
    for page in range(1, context.payload["pages"] + 1):
        if context.wait_cancelled(10.0):
            context.log("cleans up", level="warning")
            return {}
        context.log(f"page {page}")
        context.progress({"page": page})
    return {"pages": context.payload["pages"]}


@job("stubborn", grace=5.0)
async def stubborn(context: JobContext) -> None:
    """Waits for an hour, whatever happens."""
    await elapse(3599.0)


@job("hurried")
async def hurried(context: JobContext) -> None:
    """Has a time of its own."""
    raise Transient("Timeout", "no more time")


@job("broken")
async def broken(context: JobContext) -> None:
    """Fails for good."""
    await context.log("tries", level="error")
    raise Permanent("Gone", "no such index")


def shown(story: Any, **expected: Any) -> str:
    """What `expect` says where it fails."""
    with pytest.raises(AssertionError) as wrong:
        story.expect(**expected)
    return str(wrong.value)


@pytest.mark.parametrize(("function", "progress"), [(reindex, {"percent": 100.0}), (prune, {"page": 3})])
def test_a_good_run_takes_no_time(function: Any, progress: dict[str, Any]) -> None:
    began = time.monotonic()
    story = given_job(function, payload={"pages": 3}).run()
    story.expect(
        status="SUCCEEDED",
        result={"pages": 3},
        logs=["page 1", "page 2", "page 3"],
        progress=progress,
        elapsed=30.0,
        error="",
        retryable=None,
    )
    assert [(line.at, line.level) for line in story.logs] == [(10.0, "info"), (20.0, "info"), (30.0, "info")]
    assert len(story.progress) == 3
    assert time.monotonic() - began < 2.0


def test_a_job_is_cancelled_where_the_story_says() -> None:
    for moment in ({"after": "page 2"}, {"percent": 60}, {"at": "20.5s"}):
        story = given_job(reindex, payload={"pages": 3}).cancel("not needed", **moment).run()
        assert story.ending.status == "CANCELLED"
        assert shown(story, error="needed?").startswith("error: 'needed?' is not in 'Cancelled: not needed'")
    given_job(reindex, payload={"pages": 9}).cancel(after="page 2").run().expect(logs=["page 1", "page 2"], elapsed=20)


def test_a_thread_is_cancelled_too_in_the_middle_of_a_wait() -> None:
    story = given_job(prune, payload={"pages": 3}).cancel(at="14s").run()
    story.expect(status="CANCELLED", logs=["page 1", "cleans up"], result=None, elapsed=14.0)


def test_a_job_that_does_not_listen_is_cancelled_after_its_grace() -> None:
    story = given_job(stubborn).cancel(at="1m").run()
    story.expect(status="CANCELLED", elapsed=65.0)


def test_the_end_of_a_worker_is_a_failure_that_another_attempt_mends() -> None:
    story = given_job(reindex, payload={"pages": 3}, attempt=2).worker_stops(at="15s").run()
    story.expect(status="FAILED", error="WorkerStopped", retryable=True, elapsed=15.0, logs=["page 1"])


def test_a_job_has_its_time() -> None:
    given_job(reindex, payload={"pages": 9}, timeout="30s").run().expect(status="TIMED_OUT", elapsed=between(30, 35))
    given_job(hurried).run().expect(status="TIMED_OUT", error="Timeout: no more time", retryable=True)
    given_job(stubborn, timeout="30s").run().expect(status="TIMED_OUT", elapsed=35.0)
    given_job(reindex, payload={"pages": 1}, timeout="30s").run().expect(status="SUCCEEDED")


def test_a_failure_is_told(caplog: pytest.LogCaptureFixture) -> None:
    story = given_job(broken).run()
    story.expect(status="FAILED", error="Gone: no such index", retryable=False)
    assert story.table().splitlines() == [
        "   seconds  what",
        "     0.000  error     tries",
        "     0.000  worker    job broken failed: Gone: no such index",
        "     0.000  ends      FAILED Gone: no such index",
    ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_what_is_expected_otherwise_is_named_with_all_that_happened() -> None:
    story = given_job(reindex, payload={"pages": 2}).run()
    text = shown(story, status="FAILED", logs=["page 1"], result={"pages": 3}, elapsed=5.0, progress=None)
    for sentence in (
        "status: 'SUCCEEDED', expected 'FAILED'",
        "logs: ['page 1', 'page 2'], expected ['page 1']",
        "result: {'pages': 2}, expected {'pages': 3}",
        "elapsed: 20.000 s",
        "progress: {'percent': 100.0}, expected None",
        "    10.000  info      page 1",
    ):
        assert sentence in text
    with pytest.raises(TypeError, match="'state' cannot be expected: known are status, result"):
        story.expect(state="FAILED")  # type: ignore[call-arg]


def test_a_story_that_cannot_be_played_says_why() -> None:
    with pytest.raises(ConfigError, match=r'shown is not a job: write @job\("…"\) above it'):
        given_job(shown)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give one of at="):
        given_job(reindex).cancel()
    with pytest.raises(ConfigError, match="give one of at="):
        given_job(reindex).cancel(at="1s", percent=3)
    with pytest.raises(StoryError, match=r"call run\(\) first"):
        given_job(reindex).expect(status="FAILED")
    with pytest.raises(StoryError, match="the job did not end within 60 s"):
        given_job(stubborn).run(limit="1m")


async def test_a_story_has_a_loop_of_its_own() -> None:
    with pytest.raises(StoryError, match="run it in a plain function"):
        given_job(reindex).run()


@job("forks")
def forks(context: JobContext) -> dict[str, str]:
    """Talks from a thread of its own."""
    told = []

    def talk() -> None:
        try:
            context.log("x")
        except Exception as error:
            told.append(str(error))

    thread = threading.Thread(target=talk)
    thread.start()
    thread.join()
    return {"told": told[0]}


def test_threads_of_a_jobs_own_have_no_place() -> None:
    given_job(forks).run().expect(result={"told": "the job started a thread, which cannot run on virtual time"})


@job("clings", grace=1.0)
def clings(context: JobContext) -> None:
    """Does not hear that it is to stop, and is freed with the story."""
    try:
        while True:
            context.log("still here")
            context.wait_cancelled(3600.0)
            go.wait(0.01)
    finally:
        left.set()


go, left = threading.Event(), threading.Event()


def test_a_thread_that_does_not_stop_is_freed_with_the_story() -> None:
    with pytest.raises(StoryError, match="did not end"):
        given_job(clings).run(limit="2h")
    assert left.wait(5.0)
