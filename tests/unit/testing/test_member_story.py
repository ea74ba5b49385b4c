"""Does a story of a shard member call its functions as a member does?"""

from __future__ import annotations

import asyncio

import pytest

from orchestrix.errors import ConfigError
from orchestrix.testing import MemberStory, StoryError, given_member


async def work(shard: int, epoch: int) -> None:
    """Works until it is cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(1)


async def flush(shard: int, epoch: int) -> None:
    """Takes two seconds."""
    await asyncio.sleep(2)


async def flush_for_ever(shard: int, epoch: int) -> None:
    """Does not end."""
    await asyncio.Event().wait()


async def fail(shard: int, epoch: int) -> None:
    """Has a mistake."""
    raise ValueError(f"shard {shard} has no table")


def test_what_is_given_and_revoked_is_called_in_order() -> None:
    story = given_member(work, flush).assign(0, 1).revoke(1, at="10s").assign(2, at="20s").run("1m")
    story.expect(shards=[0, 2], revoking=[], calls=["assigned 0", "assigned 1", "revoked 1", "assigned 2"], errors=[])
    times = [(one.at, one.ended_at, one.ending) for one in story.calls if one.shard == 1]
    assert times == [(0.0, 11.0, "cancelled"), (11.0, 13.0, "returned")]
    assert [one.epoch for one in story.calls] == [1, 1, 1, 2]


def test_a_shard_that_is_given_again_begins_again_under_a_higher_epoch() -> None:
    story = given_member(work, flush).assign(0).assign(0, at="5s").run()
    assert [(one.function, one.epoch, one.at) for one in story.calls] == [
        ("assigned", 1, 0.0),
        ("revoked", 1, 6.0),
        ("assigned", 2, 8.0),
    ]


def test_without_coordinators_all_is_stopped_within_the_timeout_and_begins_again() -> None:
    story = given_member(work, flush_for_ever).assign(0).lose_coordinators(at="12s", back_after="1m").run("50s")
    story.expect(shards=[], revoking=[], calls=["assigned 0", "revoked 0"])
    (assigned, revoked) = story.calls
    assert assigned.ended_at is not None
    assert 18.0 <= assigned.ended_at - 1.0 <= 22.5
    assert revoked.ending == "cancelled"
    story.run("2m").expect(shards=[0], calls=["assigned 0", "revoked 0", "assigned 0"])


def test_what_does_not_end_is_revoking() -> None:
    given_member(work, flush_for_ever).assign(0, 1).revoke(1, at="10s").run("2m").expect(shards=[0], revoking=[1])


def test_a_mistake_is_called_again() -> None:
    story = given_member(fail).assign(3).run("5s")
    assert len(story.calls) > 2
    story.expect(shards=[3], errors=["ValueError: shard 3 has no table"] * len(story.calls))


def test_one_that_leaves_has_nothing() -> None:
    given_member(work, flush).assign(0, 1).leave(at="10s").run().expect(shards=[], revoking=[])


def test_a_difference_shows_all_that_happened() -> None:
    story = given_member(work, flush).assign(0).run()
    with pytest.raises(AssertionError) as error:
        story.expect(shards=[1], errors=["x"])
    assert "shards: [0], expected [1]" in str(error.value)
    assert "errors: [], expected ['x']" in str(error.value)
    assert "0.000  assigned 0 (epoch 1)" in str(error.value)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not an async function"):
        given_member(print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'state' cannot be expected"):
        given_member(work).assign(0).run().expect(state="x")  # type: ignore[call-arg]
    with pytest.raises(StoryError, match="not run yet"):
        _ = given_member(work).calls


async def test_a_story_has_a_loop_of_its_own() -> None:
    story: MemberStory = given_member(work)
    with pytest.raises(StoryError, match="own event loop"):
        story.run()
