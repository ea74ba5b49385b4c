"""Can an author say how the job of a step ends, and is that all that it takes?"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import COMPLETED, Command, Compensation, Context, Job, NothingToUndo, Permanent, Saga, Step
from orchestrix.errors import ConfigError
from orchestrix.saga.errors import OrchestrixError
from orchestrix.testing import given

TAG = Step("tag", "TAGGING", "cmd.tag", "evt.tagged", "BUILDING", Compensation("cmd.untag", "evt.untagged"))
BUILD = Step(
    "build",
    "BUILDING",
    job=Job("build-image", timeout=timedelta(minutes=10), retries=3),
    event="evt.built",
    then=COMPLETED,
    undo=Compensation("cmd.drop", "evt.dropped"),
)
RELEASE = Saga("release", (TAG, BUILD))


async def _nothing(context: Context, command: Command) -> None:
    return


HANDLERS = {"cmd.tag": _nothing, "cmd.untag": _nothing, "cmd.drop": _nothing}


def test_a_job_succeeds() -> None:
    story = given(RELEASE, handlers=HANDLERS)
    story.when("build-image").succeeds({"image": "sha256:1"})
    story.run()
    story.expect(
        state="COMPLETED",
        path=["TAGGING", "BUILDING", "COMPLETED"],
        commands=["cmd.tag", "build-image"],
        data={"image": "sha256:1"},
    )


def test_a_job_fails_for_good_and_is_not_undone_itself() -> None:
    story = given(RELEASE, handlers=HANDLERS)
    story.when("build-image").fails("NoSpace", "disk full")
    story.run()
    story.expect(state="FAILED", undone=["tag"], attempts={"build-image": 1}, error="NoSpace: disk full")


def test_a_result_that_cannot_be_sent_fails_the_job_as_it_does_in_production() -> None:
    async def build(context: Context, command: Command) -> Any:
        return {"layers": {1, 2}}

    story = given(RELEASE, handlers={**HANDLERS, "build-image": build}).run()
    error = "BadResult: the job's result cannot be sent: ['layers'] is a set, which JSON cannot hold"
    story.expect(state="FAILED", error=error)


def test_a_verdict_in_a_group_of_errors_is_the_jobs() -> None:
    async def build(context: Context, command: Command) -> None:
        raise ExceptionGroup("", [Permanent("NoSpace", "disk full")])

    story = given(RELEASE, handlers={**HANDLERS, "build-image": build}).run()
    story.expect(state="FAILED", error="NoSpace: disk full")


class Stop(BaseException):
    """What no `except Exception` catches."""


@pytest.mark.parametrize("error", [Stop("enough"), SystemExit("enough")])
def test_whatever_a_double_raises_fails_its_job_and_no_more(error: BaseException) -> None:
    async def build(context: Context, command: Command) -> None:
        raise error

    story = given(RELEASE, handlers={**HANDLERS, "build-image": build}).run()
    story.expect(state="FAILED", error=f"{type(error).__name__}: enough")


def test_whatever_a_handler_raises_is_told_in_the_table_of_its_story() -> None:
    async def tag(context: Context, command: Command) -> None:
        raise Stop("enough")

    story = given(RELEASE, handlers={**HANDLERS, "cmd.tag": tag, "build-image": _nothing}).run()
    with pytest.raises(AssertionError, match=r"fails cmd\.tag Stop: enough"):
        story.expect(state="COMPLETED")


def test_a_job_takes_as_long_as_its_double_takes() -> None:
    async def build(context: Context, command: Command) -> dict[str, str]:
        return {"of": command.idempotency_key}

    story = given(RELEASE, handlers={**HANDLERS, "build-image": build})
    story.when("build-image").takes("9m")
    story.run()
    story.expect(state="COMPLETED", elapsed="9m", data={"of": "release:1:build:do"})


def test_a_job_that_never_ends_ends_with_its_time() -> None:
    story = given(RELEASE, handlers=HANDLERS)
    story.when("build-image").never_answers()
    story.run()
    story.expect(state="FAILED", undone=["build", "tag"], error="Timeout: timed out after 10 min")


def test_a_person_cancels_meanwhile() -> None:
    story = given(RELEASE, handlers=HANDLERS)
    story.when("build-image").takes("9m")
    story.run(until="5m")
    story.cancel("wrong version").run()
    story.expect(state="FAILED", undone=["tag"], error="cancel: wrong version", elapsed="5m")


def test_every_crash_leaves_one_job_and_one_end() -> None:
    built: list[str] = []

    async def build(context: Context, command: Command) -> dict[str, str]:
        built.append(command.id)
        return {"image": "sha256:1"}

    def one_job() -> None:
        assert len(set(built)) == 1, built

    story = given(RELEASE, handlers={**HANDLERS, "build-image": build})
    places = story.crash_everywhere(fresh=built.clear, check=one_job, state="COMPLETED")
    assert {"before build-image", "after build-image"} <= {str(place) for place in places}


def test_an_undo_that_is_a_job() -> None:
    drop = Compensation(event="evt.dropped", job=Job("drop-image"))
    ship = Step("ship", "SHIPPING", "cmd.ship", "evt.shipped", COMPLETED, NothingToUndo("it is gone"))
    saga = Saga("release", (replace(BUILD, then="SHIPPING", undo=drop), ship))
    story = given(saga)
    story.when("build-image").succeeds()
    story.when("cmd.ship").fails("NoTruck", retryable=False)
    story.when("drop-image").succeeds()
    story.run()
    story.expect(state="FAILED", undone=["build"], commands=["build-image", "cmd.ship", "drop-image"])
    story.crash_everywhere()


def test_a_job_without_an_end_is_named() -> None:
    with pytest.raises(ConfigError, match=r'build-image has no handler: give one, or use story.when\("build-image"\)'):
        given(RELEASE, handlers=HANDLERS).run()
    with pytest.raises(OrchestrixError, match=r"has no command paint; it has cmd.tag, .*, build-image"):
        given(RELEASE, handlers=HANDLERS).when("paint")


INDEX = Step(
    "index",
    "BUILDING",
    job=Job("index", group="{key}", routing="SHARDING_BROADCAST", end="any", timeout=timedelta(minutes=2)),
    event="evt.indexed",
    then="SHIPPING",
    undo=Compensation(event="evt.emptied", job=Job("empty", group="{key}", routing="CONSISTENT_HASH")),
)
TAGS = {"cmd.tag": _nothing, "cmd.untag": _nothing}
SEARCH = Saga(
    "search",
    (TAG, INDEX, Step("ship", "SHIPPING", "cmd.ship", "evt.shipped", COMPLETED, NothingToUndo("it is gone"))),
)


def test_a_job_for_a_group_is_done_by_whoever_answers_a_job() -> None:
    async def index(context: Context, command: Command) -> dict[str, str]:
        return {"of": command.idempotency_key}

    story = given(SEARCH, key="shop", handlers={**TAGS, "index": index, "empty": _nothing, "cmd.ship": _nothing})
    story.run()
    story.expect(state="COMPLETED", commands=["cmd.tag", "index", "cmd.ship"], data={"of": "search:1:index:do"})


def test_a_job_for_a_group_fails_times_out_and_is_undone_by_another() -> None:
    handlers = {**TAGS, "empty": _nothing, "cmd.ship": _nothing}
    story = given(SEARCH, handlers=handlers)
    story.when("index").fails("NoExecutors", "the group has none")
    story.run()
    story.expect(state="FAILED", undone=["tag"], error="NoExecutors: the group has none")
    story = given(SEARCH, handlers=handlers)
    story.when("index").never_answers()
    story.run()
    story.expect(state="FAILED", undone=["index", "tag"], error="Timeout: timed out after 2 min", elapsed="2m")
    story = given(SEARCH, handlers=handlers)
    story.when("index").succeeds()
    story.when("cmd.ship").fails("NoTruck", retryable=False)
    story.run()
    story.expect(
        state="FAILED", undone=["index", "tag"], commands=["cmd.tag", "index", "cmd.ship", "empty", "cmd.untag"]
    )


def test_a_person_cancels_a_job_for_a_group() -> None:
    story = given(SEARCH, handlers={**TAGS, "index": _nothing, "empty": _nothing, "cmd.ship": _nothing})
    story.when("index").takes("90s")
    story.run(until="1m")
    story.cancel("wrong version").run()
    story.expect(state="FAILED", undone=["tag"], error="cancel: wrong version", elapsed="1m")
