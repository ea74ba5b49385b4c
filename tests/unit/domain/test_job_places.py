"""Has each queue of jobs its share of the places?"""

from __future__ import annotations

import pytest

from orchestrix.domain.dispatch_capacity import DispatchCapacity, OpenJobs, fair, share


@pytest.mark.parametrize(("most", "part"), [(1, 1), (3, 1), (5, 1), (8, 2), (1000, 250)])
def test_a_quarter_of_the_places_at_least_one(most: int, part: int) -> None:
    assert share(most) == part


def test_what_nobody_serves_holds_no_place() -> None:
    open = {"dead": OpenJobs(not_started=5), "gone": OpenJobs(not_started=40)}
    room = DispatchCapacity.of(["dead", "alive"], open, {"alive"}, 8)
    assert (room.served, room.queues["alive"], room.queues["dead"]) == (8, 2, 0)
    assert room.unserved == 0


def test_what_is_begun_holds_one_and_so_does_what_is_served() -> None:
    open = {"alive": OpenJobs(not_started=1, others=3), "dead": OpenJobs(not_started=1, others=2)}
    room = DispatchCapacity.of(["alive", "dead", "new"], open, {"alive", "new"}, 8)
    assert (room.served, room.unserved) == (2, 7)
    assert room.queues == {"alive": 1, "dead": 1, "new": 2}
    assert DispatchCapacity.of(["alive"], {"alive": OpenJobs(others=9)}, {"alive"}, 8).served == 0


def test_queues_take_turns() -> None:
    waiting = {"many": [f"m{n}" for n in range(9)], "few": ["f0"], "dead": ["d0", "d1"]}
    room = DispatchCapacity({"many": 5, "few": 5, "dead": 1}, served=4, unserved=7)
    assert fair(waiting, room, {"many", "few"}, 100) == ["m0", "f0", "d0", "m1", "m2"]
    assert fair(waiting, room, {"many", "few"}, 2) == ["m0", "f0"]
    assert fair(waiting, DispatchCapacity({}, 9, 9), {"many"}, 100) == []
    assert fair({}, room, set(), 9) == []
