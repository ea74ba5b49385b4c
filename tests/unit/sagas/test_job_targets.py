"""Job targets: the columns of a job for a queue and for a group, and what routing refuses."""

from __future__ import annotations

import pytest

from orchestrix.saga.job_targets import GROUP_TIMEOUT_MS, BroadcastEnd, JobTarget, Routing, Strategy


def test_a_queue_has_no_group_and_no_timeout_of_its_own() -> None:
    target = JobTarget(queue="reports")
    assert target.columns() == {"queue": "reports"}
    assert target.timeout_ms(None) is None


def test_a_group_is_routed_in_turn_and_times_out_after_an_hour() -> None:
    target = JobTarget(group="billing")
    columns = target.columns()
    assert (columns["queue"], columns["executor_group"], columns["routing"]) == (None, "billing", "ROUND_ROBIN")
    assert columns["broadcast_end"] is None
    assert target.timeout_ms(None) == GROUP_TIMEOUT_MS == 60 * 60 * 1000
    assert target.timeout_ms(5) == 5


@pytest.mark.parametrize(("end", "stored"), [(None, "all"), (BroadcastEnd.ANY, "any")])
def test_a_broadcast_ends_with_all_unless_any_is_enough(end: BroadcastEnd | None, stored: str) -> None:
    routing = Routing(Strategy.SHARDING_BROADCAST, end=end)
    assert JobTarget(group="billing", routing=routing).columns()["broadcast_end"] == stored
    assert routing.faults() == []


@pytest.mark.parametrize(
    ("routing", "field"),
    [
        (Routing(Strategy.ADDRESS), "address"),
        (Routing(Strategy.FIRST, address="http://a:1"), "address"),
        (Routing(Strategy.FIRST, end=BroadcastEnd.ANY), "end"),
    ],
)
def test_what_a_strategy_needs_or_has_no_use_for_is_named(routing: Routing, field: str) -> None:
    [(name, sentence)] = routing.faults()
    assert name == field
    assert routing.strategy in sentence


def test_an_address_and_a_key_are_taken_where_they_have_a_use() -> None:
    assert Routing(Strategy.ADDRESS, address="http://a:1").faults() == []
    assert Routing(Strategy.CONSISTENT_HASH, key="customer 7").faults() == []
