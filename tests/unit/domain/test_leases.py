"""Who may lead, when, and what becomes of a token?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from orchestrix.domain.leases import (
    LINKED,
    NOBODY,
    RESIGNED,
    RETAKE,
    SEED,
    Bid,
    Fence,
    Handling,
    Lease,
    Mode,
    Reason,
    Token,
    Waiting,
    ground,
    handling,
    patience,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIVE = Lease(7, "a-1", Mode.BROKER, NOW + timedelta(seconds=20), NOW - timedelta(seconds=10), None, NOW)
LAPSED = replace(LIVE, lease_until=NOW)
LEFT = replace(LIVE, lease_until=NOW, resigned_at=NOW)
ALONE = replace(LIVE, mode=Mode.ALONE)
UNUSED = replace(LAPSED, term=0, holder=NOBODY)
WAITING = Waiting("b-1", waited=0.0, linked=60.0, lease=30.0, jitter=0.0)


def bid(node: str = "b-1", *, by_token: bool = False, mode: Mode = Mode.BROKER) -> Bid:
    return Bid(node, mode, by_token)


@pytest.mark.parametrize(
    ("lease", "wish", "reason"),
    [
        (None, bid(), Reason.FIRST),
        (UNUSED, bid(), Reason.FIRST),
        (LIVE, bid(), None),
        (LIVE, bid(by_token=True), Reason.LOST),
        (LIVE, bid("a-1"), Reason.RETAKEN),
        (LIVE, bid("a-1", by_token=True), Reason.RETAKEN),
        (LAPSED, bid(), Reason.EXPIRED),
        (LAPSED, bid(mode=Mode.ALONE), Reason.EXPIRED),
        (LAPSED, bid(by_token=True), Reason.EXPIRED),
        (LEFT, bid(), Reason.RESIGNED),
        (LEFT, bid(by_token=True), Reason.RESIGNED),
        (replace(LEFT, lease_until=NOW + timedelta(seconds=1)), bid(), None),
        (ALONE, bid(), Reason.DEPOSED),
        (ALONE, bid(by_token=True), Reason.DEPOSED),
        (ALONE, bid(mode=Mode.ALONE), None),
    ],
)
def test_who_may_begin_the_next_term(lease: Lease | None, wish: Bid, reason: Reason | None) -> None:
    assert ground(wish, lease) is reason


@pytest.mark.req("S0-10")
def test_a_lease_that_runs_is_waited_for_and_a_little_longer() -> None:
    assert patience(WAITING, LIVE) == pytest.approx(20.6)
    assert patience(replace(WAITING, jitter=1.0), LIVE) == pytest.approx(23.0)
    assert patience(WAITING, LAPSED) == pytest.approx(0.6)
    assert patience(WAITING, replace(LAPSED, now=NOW + timedelta(seconds=1))) < 0


def test_nobody_has_to_wait_long_for_the_first_term() -> None:
    for lease in (None, UNUSED):
        assert patience(WAITING, lease) <= 0
        assert patience(replace(WAITING, jitter=1.0), lease) <= RESIGNED
        assert patience(replace(WAITING, linked=0.0, waited=0.5), lease) == LINKED - 0.5, "for the broker"


def test_after_a_resignation_the_token_has_the_first_word() -> None:
    assert patience(WAITING, LEFT) == RESIGNED
    assert patience(replace(WAITING, jitter=1.0), LEFT) == 2 * RESIGNED


def test_a_node_takes_its_own_lease_again_after_a_while() -> None:
    mine = replace(WAITING, node_id="a-1")
    assert patience(mine, LIVE) == RETAKE
    assert patience(replace(mine, waited=RETAKE), LIVE) <= 0
    assert patience(replace(mine, waited=RETAKE), LAPSED) <= 0, "which also is the quickest way when it has lapsed"


def test_a_leader_without_broker_is_deposed_by_a_settled_link_alone() -> None:
    assert patience(replace(WAITING, linked=0.5), ALONE) == pytest.approx(LINKED - 0.5)
    assert patience(replace(WAITING, linked=60.0), ALONE) < 0
    assert patience(replace(WAITING, linked=0.0), ALONE) == pytest.approx(20.6)


def test_who_brings_its_own_broker_waits_for_nobody() -> None:
    sole = replace(WAITING, sole=True)
    assert patience(sole, LIVE) <= 0
    assert patience(replace(sole, node_id="a-1"), LIVE) == RETAKE, "but for itself"


@pytest.mark.parametrize(
    ("token", "leading", "fate"),
    [
        (Token(7, "a-1"), None, Handling.CAMPAIGN),
        (SEED, None, Handling.CAMPAIGN),
        (Token(7, "a-1"), Fence(7, "a-1"), Handling.HOLD),
        (Token(6, "b-1"), Fence(7, "a-1"), Handling.DROP),
        (SEED, Fence(1, "a-1"), Handling.DROP),
        (Token(8, "b-1"), Fence(7, "a-1"), Handling.CAMPAIGN),
        (Token(7, "b-1"), Fence(7, "a-1"), Handling.CAMPAIGN),
    ],
)
def test_what_becomes_of_a_token(token: Token, leading: Fence | None, fate: Handling) -> None:
    assert handling(token, leading) is fate


def test_a_lease_knows_how_long_it_runs() -> None:
    assert (LIVE.left, LIVE.lapsed, LIVE.fence) == (20.0, False, Fence(7, "a-1"))
    assert (LAPSED.left, LAPSED.lapsed) == (0.0, True)
