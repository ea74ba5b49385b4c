"""Does a node that skips a check of a service ever skip one that would have changed it?"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from orchestrix.domain.shards.service import apply, needs_check
from orchestrix.domain.shards.state import ServiceCheck
from orchestrix.domain.stored_times import CLOCK_TOLERANCE
from tests.unit.domain.shards.cluster import NODE, Driver, seconds


def is_silent(driver: Driver) -> bool:
    """What the database is asked: whether a member is silent, or was seen ahead of the clock."""
    before = driver.now - seconds(driver.rules.heartbeat_timeout_s)
    after = driver.now + CLOCK_TOLERANCE
    found = driver.state.members.values()
    return any((one.away is None and one.last_seen <= before) or one.last_seen > after for one in found)


def step(driver: Driver, dice: Random) -> None:
    worker, instance = f"w-{dice.randint(0, 4)}", dice.choice(("i-1", "i-2", None))
    more: dict[str, Any] = {"shard_count": dice.randint(8, 10)}
    what = dice.randrange(6)
    if what == 0:
        driver.register(worker, instance, **more, grace_s=dice.choice((0.0, 30.0)))
    elif what <= 2:
        driver.report(worker, instance=instance, **more)
    elif what == 3:
        driver.leave(worker, instance)
    elif what == 4:
        driver.lead()
    else:
        driver.check()
    driver.wait(dice.choice((0.1, 1.0, 3.0, 20.0, 4000.0 if dice.random() < 0.1 else 5.0)))
    if dice.random() < 0.05:
        driver.wait(-60.0)
    driver.listening_since = driver.now - seconds(dice.choice((0, 10, 10_000)))


@pytest.mark.parametrize("part", range(4))
def test_no_check_that_changes_something_is_skipped(part: int) -> None:
    needed = skipped = 0
    for seed in range(part * 50, part * 50 + 50):
        driver, dice = Driver(), Random(f"needs:{seed}")
        for _ in range(60):
            step(driver, dice)
            check = ServiceCheck(NODE, driver.listening_since)
            after, effects = apply(driver.state, [check], driver.now, driver.rules)
            found = needs_check(driver.state, driver.now, driver.listening_since, driver.rules) or is_silent(driver)
            if after != driver.state or effects:
                assert found, f"seed {seed}: the check changes {driver.state} into {after}"
                needed += 1
            elif not found:
                skipped += 1
    assert needed > 100
    assert skipped > 50


def test_a_service_without_changes_needs_none() -> None:
    driver = Driver().start("w-1", "w-2")
    assert not needs_check(driver.state, driver.now, driver.listening_since, driver.rules)
    assert needs_check(replace(driver.state, revision=99), driver.now, driver.listening_since, driver.rules)
