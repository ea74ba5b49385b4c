"""Who may lead, when, and what becomes of a token?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from orchestrix.domain.leases import (
    DEPOSE_DELAY_S,
    INITIAL_TOKEN,
    NOBODY,
    RESIGNED_DELAY_S,
    RETAKE_DELAY_S,
    Candidacy,
    ElectionReason,
    Fence,
    LeaderMode,
    LeaderToken,
    Lease,
    TokenHandling,
    WaitingCandidate,
    campaign_delay_s,
    election_reason,
    handling,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIVE = Lease(7, "a-1", LeaderMode.BROKER, NOW + timedelta(seconds=20), NOW - timedelta(seconds=10), None, NOW)
LAPSED = replace(LIVE, lease_until=NOW)
LEFT = replace(LIVE, lease_until=NOW, resigned_at=NOW)
ALONE = replace(LIVE, mode=LeaderMode.BROKERLESS)
UNUSED = replace(LAPSED, term=0, holder=NOBODY)
WAITING = WaitingCandidate("b-1", waited=0.0, linked=60.0, lease=30.0, jitter=0.0)


def bid(node: str = "b-1", *, by_token: bool = False, mode: LeaderMode = LeaderMode.BROKER) -> Candidacy:
    return Candidacy(node, mode, by_token)


@pytest.mark.parametrize(
    ("lease", "wish", "reason"),
    [
        (None, bid(), ElectionReason.FIRST),
        (UNUSED, bid(), ElectionReason.FIRST),
        (LIVE, bid(), None),
        (LIVE, bid(by_token=True), ElectionReason.LOST),
        (LIVE, bid("a-1"), ElectionReason.RETAKEN),
        (LIVE, bid("a-1", by_token=True), ElectionReason.RETAKEN),
        (LAPSED, bid(), ElectionReason.EXPIRED),
        (LAPSED, bid(mode=LeaderMode.BROKERLESS), ElectionReason.EXPIRED),
        (LAPSED, bid(by_token=True), ElectionReason.EXPIRED),
        (LEFT, bid(), ElectionReason.RESIGNED),
        (LEFT, bid(by_token=True), ElectionReason.RESIGNED),
        (replace(LEFT, lease_until=NOW + timedelta(seconds=1)), bid(), None),
        (ALONE, bid(), ElectionReason.DEPOSED),
        (ALONE, bid(by_token=True), ElectionReason.DEPOSED),
        (ALONE, bid(mode=LeaderMode.BROKERLESS), None),
    ],
)
def test_who_may_begin_the_next_term(lease: Lease | None, wish: Candidacy, reason: ElectionReason | None) -> None:
    assert election_reason(wish, lease) is reason


@pytest.mark.req("S0-10")
def test_a_lease_that_runs_is_waited_for_and_a_little_longer() -> None:
    assert campaign_delay_s(WAITING, LIVE) == pytest.approx(20.6)
    assert campaign_delay_s(replace(WAITING, jitter=1.0), LIVE) == pytest.approx(23.0)
    assert campaign_delay_s(WAITING, LAPSED) == pytest.approx(0.6)
    assert campaign_delay_s(WAITING, replace(LAPSED, now=NOW + timedelta(seconds=1))) < 0


def test_nobody_has_to_wait_long_for_the_first_term() -> None:
    for lease in (None, UNUSED):
        assert campaign_delay_s(WAITING, lease) <= 0
        assert campaign_delay_s(replace(WAITING, jitter=1.0), lease) <= RESIGNED_DELAY_S
        assert campaign_delay_s(replace(WAITING, linked=0.0, waited=0.5), lease) == DEPOSE_DELAY_S - 0.5, (
            "for the broker"
        )


def test_after_a_resignation_the_token_has_the_first_word() -> None:
    assert campaign_delay_s(WAITING, LEFT) == RESIGNED_DELAY_S
    assert campaign_delay_s(replace(WAITING, jitter=1.0), LEFT) == 2 * RESIGNED_DELAY_S


def test_a_node_takes_its_own_lease_again_after_a_while() -> None:
    mine = replace(WAITING, node_id="a-1")
    assert campaign_delay_s(mine, LIVE) == RETAKE_DELAY_S
    assert campaign_delay_s(replace(mine, waited=RETAKE_DELAY_S), LIVE) <= 0
    assert campaign_delay_s(replace(mine, waited=RETAKE_DELAY_S), LAPSED) <= 0, (
        "which also is the quickest way when it has lapsed"
    )


def test_a_leader_without_broker_is_deposed_by_a_settled_link_alone() -> None:
    assert campaign_delay_s(replace(WAITING, linked=0.5), ALONE) == pytest.approx(DEPOSE_DELAY_S - 0.5)
    assert campaign_delay_s(replace(WAITING, linked=60.0), ALONE) < 0
    assert campaign_delay_s(replace(WAITING, linked=0.0), ALONE) == pytest.approx(20.6)


def test_who_brings_its_own_broker_waits_for_nobody() -> None:
    sole = replace(WAITING, single_node=True)
    assert campaign_delay_s(sole, LIVE) <= 0
    assert campaign_delay_s(replace(sole, node_id="a-1"), LIVE) == RETAKE_DELAY_S, "but for itself"


@pytest.mark.parametrize(
    ("token", "leading", "fate"),
    [
        (LeaderToken(7, "a-1"), None, TokenHandling.CAMPAIGN),
        (INITIAL_TOKEN, None, TokenHandling.CAMPAIGN),
        (LeaderToken(7, "a-1"), Fence(7, "a-1"), TokenHandling.KEEP),
        (LeaderToken(6, "b-1"), Fence(7, "a-1"), TokenHandling.DROP),
        (INITIAL_TOKEN, Fence(1, "a-1"), TokenHandling.DROP),
        (LeaderToken(8, "b-1"), Fence(7, "a-1"), TokenHandling.CAMPAIGN),
        (LeaderToken(7, "b-1"), Fence(7, "a-1"), TokenHandling.CAMPAIGN),
    ],
)
def test_what_becomes_of_a_token(token: LeaderToken, leading: Fence | None, fate: TokenHandling) -> None:
    assert handling(token, leading) is fate


def test_a_lease_knows_how_long_it_runs() -> None:
    assert (LIVE.left, LIVE.lapsed, LIVE.fence) == (20.0, False, Fence(7, "a-1"))
    assert (LAPSED.left, LAPSED.lapsed) == (0.0, True)
