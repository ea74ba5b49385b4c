"""Is it logged what becomes of members and generations, and who is refused?"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from orchestrix.domain.shards.grants import Grant
from orchestrix.domain.shards.members import MOST_MEMBERS
from orchestrix.domain.shards.membership import TOO_MANY_MEMBERS
from orchestrix.domain.shards.state import Assignment
from orchestrix.shards.effects import ChangeLog
from orchestrix.telemetry import log_events
from tests.unit.domain.shards.cluster import Driver

Lines = list[tuple[str, str, str]]


class Written(logging.Handler):
    """Level, event and text of each line."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Lines = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelname, vars(record)["event"], record.getMessage()))

    def take(self) -> Lines:
        found, self.lines = self.lines, []
        return found


@pytest.fixture
def written() -> Iterator[Written]:
    logger, handler = logging.getLogger("orchestrix.shards"), Written()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_each_change_of_members_and_generations_is_one_line(written: Written) -> None:
    driver, changes = Driver(), ChangeLog()

    def log() -> list[str]:
        changes.write("orders", driver.effects)
        return [text for _, _, text in written.take()]

    driver.register("a")
    assert log() == ["orders: member a joined", "orders: generation 1 pending (joined a)"]
    driver.register("b", grace_s=60.0)
    assert log() == ["orders: member b joined"]
    driver.activate()
    assert log() == ["orders: generation 1 active (joined a): 10 shards, 2 members, 0 moved"]
    driver.leave("b")
    assert log() == ["orders: member b is away: its share waits for its return"]
    driver.register("b", "i-2", grace_s=60.0)
    assert log() == ["orders: member b is another process now"]
    driver.wait(15.0)
    driver.report("a")
    driver.check()
    assert log() == ["orders: member b is away: its share waits for its return"]
    driver.report("b", [], "i-2")
    assert log() == ["orders: member b returned"]
    driver.register("a", shard_count=4)
    assert log() == ["orders: generation 2 pending (shard count a)"]
    driver.activate()
    assert log() == [
        "orders: generation 1 superseded (joined a)",
        "orders: generation 2 active (shard count a): 4 shards, 2 members, 2 moved",
    ]
    driver.leave("a")
    assert log() == ["orders: member a left", "orders: generation 3 pending (left a)"]


@pytest.mark.req("S1-5", "S1-35")
def test_an_inactive_member_is_a_warning_and_names_its_event(written: Written) -> None:
    driver = Driver().start("a", "b")
    driver.wait(15.0)
    driver.report("a")
    driver.check()
    ChangeLog().write("orders", driver.effects)
    assert written.take() == [
        (
            "WARNING",
            log_events.SHARD_MEMBER,
            "orders: member b is inactive: it was silent for the time-out, or its grace is over",
        ),
        ("INFO", log_events.SHARD_GENERATION, "orders: generation 2 pending (inactive b)"),
    ]


@pytest.mark.virtual_time
async def test_who_is_refused_is_told_once_a_minute(written: Written) -> None:
    driver, changes = Driver(), ChangeLog()
    for place in range(MOST_MEMBERS):
        driver.register(f"m{place:04}")
    for _ in range(10):
        driver.register("one-more")
        changes.write("orders", driver.effects)
    assert written.take() == [
        ("WARNING", log_events.SHARD_REFUSED, f"orders: member one-more gets no shards: {TOO_MANY_MEMBERS}")
    ]


def test_answers_are_lines_for_who_wants_to_see_them(written: Written) -> None:
    sent = Assignment("a", "i-1", None, 7, 1, (Grant(0, 3, 1), Grant(8, 8, 1)))
    ChangeLog().write("orders", [sent])
    assert written.take() == []
    logging.getLogger("orchestrix.shards").setLevel(logging.DEBUG)
    ChangeLog().write("orders", [sent])
    assert written.take() == [("DEBUG", log_events.SHARD_ANSWERED, "orders: member a has 5 shards in generation 7")]
