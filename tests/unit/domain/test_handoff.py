"""What does a node do while it waits for another to take a job?"""

from __future__ import annotations

import pytest

from orchestrix.domain.handoff import Limits, Offer, Step, next_look, next_step

LIMITS = Limits()


@pytest.mark.req("S0-47", "S0-48", "S0-49", "S0-50", "S0-52")
@pytest.mark.parametrize(
    ("case", "offer", "elapsed", "step"),
    [
        ("A", Offer(), 0.0, Step.PUBLISH),
        ("A", Offer(1), 0.0, Step.WAIT),
        ("A", Offer(1), 4.99, Step.WAIT),
        ("A", Offer(1, acked=True), 0.1, Step.REMOVED),
        ("B", Offer(1), 5.0, Step.PUBLISH),
        ("B", Offer(2), 5.0, Step.WAIT),
        ("B", Offer(2), 10.0, Step.PUBLISH),
        ("B", Offer(3), 10.0, Step.WAIT),
        ("B", Offer(3), 14.99, Step.WAIT),
        ("B", Offer(3, acked=True), 14.99, Step.REMOVED),
        ("C", Offer(3), 15.0, Step.ORPHAN_PENDING),
        ("C", Offer(0), 15.0, Step.ORPHAN_PENDING),
        ("C", Offer(3, marked=True), 15.0, Step.WAIT),
        ("C", Offer(3, acked=True, marked=True), 40.0, Step.REMOVED),
        ("C", Offer(3, marked=True), 44.99, Step.WAIT),
        ("C", Offer(3, marked=True), 45.0, Step.FORCE),
        ("D", Offer(3), 60.0, Step.FORCE),
        ("D", Offer(0), 61.0, Step.FORCE),
        ("D", Offer(3, acked=True), 61.0, Step.REMOVED),
    ],
)
def test_the_four_cases(case: str, offer: Offer, elapsed: float, step: Step) -> None:
    assert next_step(offer, elapsed, LIMITS) is step, case


@pytest.mark.parametrize(
    ("offer", "at"),
    [(Offer(), 0.0), (Offer(1), 5.0), (Offer(2), 10.0), (Offer(3), 15.0), (Offer(3, marked=True), 45.0)],
)
def test_when_there_is_something_to_do_again(offer: Offer, at: float) -> None:
    assert next_look(offer, LIMITS) == at
    if at:
        assert next_step(offer, at - 0.01, LIMITS) is Step.WAIT
    assert next_step(offer, at, LIMITS) is not Step.WAIT


def test_the_hard_limit_cuts_the_wait_for_late_answers_short() -> None:
    short = Limits(ack=1.0, tries=3, hard=10.0)
    assert next_look(Offer(3, marked=True), short) == 10.0
    assert next_step(Offer(3, marked=True), 10.0, short) is Step.FORCE


def test_an_offer_without_answer_is_made_three_times() -> None:
    offer, made, at = Offer(), [], 0.0
    while (step := next_step(offer, at, LIMITS)) is not Step.ORPHAN_PENDING:
        if step is Step.PUBLISH:
            offer = Offer(offer.offers + 1)
            made.append(at)
        at += 0.5
    assert (made, at) == ([0.0, 5.0, 10.0], 15.0)
