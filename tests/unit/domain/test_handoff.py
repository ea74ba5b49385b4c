"""What does a node do while it waits for another to take a job?"""

from __future__ import annotations

import pytest

from orchestrix.domain.handoff import HandoffLimits, HandoffProgress, HandoffStep, next_check, next_step

LIMITS = HandoffLimits()


@pytest.mark.req("S0-47", "S0-48", "S0-49", "S0-50", "S0-52")
@pytest.mark.parametrize(
    ("case", "offer", "elapsed", "step"),
    [
        ("A", HandoffProgress(), 0.0, HandoffStep.PUBLISH),
        ("A", HandoffProgress(1), 0.0, HandoffStep.WAIT),
        ("A", HandoffProgress(1), 4.99, HandoffStep.WAIT),
        ("A", HandoffProgress(1, acked=True), 0.1, HandoffStep.REMOVED),
        ("B", HandoffProgress(1), 5.0, HandoffStep.PUBLISH),
        ("B", HandoffProgress(2), 5.0, HandoffStep.WAIT),
        ("B", HandoffProgress(2), 10.0, HandoffStep.PUBLISH),
        ("B", HandoffProgress(3), 10.0, HandoffStep.WAIT),
        ("B", HandoffProgress(3), 14.99, HandoffStep.WAIT),
        ("B", HandoffProgress(3, acked=True), 14.99, HandoffStep.REMOVED),
        ("C", HandoffProgress(3), 15.0, HandoffStep.ORPHAN_PENDING),
        ("C", HandoffProgress(0), 15.0, HandoffStep.ORPHAN_PENDING),
        ("C", HandoffProgress(3, marked=True), 15.0, HandoffStep.WAIT),
        ("C", HandoffProgress(3, acked=True, marked=True), 40.0, HandoffStep.REMOVED),
        ("C", HandoffProgress(3, marked=True), 44.99, HandoffStep.WAIT),
        ("C", HandoffProgress(3, marked=True), 45.0, HandoffStep.FORCE_SHUTDOWN),
        ("D", HandoffProgress(3), 60.0, HandoffStep.FORCE_SHUTDOWN),
        ("D", HandoffProgress(0), 61.0, HandoffStep.FORCE_SHUTDOWN),
        ("D", HandoffProgress(3, acked=True), 61.0, HandoffStep.REMOVED),
    ],
)
def test_the_four_cases(case: str, offer: HandoffProgress, elapsed: float, step: HandoffStep) -> None:
    assert next_step(offer, elapsed, LIMITS) is step, case


@pytest.mark.parametrize(
    ("offer", "at"),
    [
        (HandoffProgress(), 0.0),
        (HandoffProgress(1), 5.0),
        (HandoffProgress(2), 10.0),
        (HandoffProgress(3), 15.0),
        (HandoffProgress(3, marked=True), 45.0),
    ],
)
def test_when_there_is_something_to_do_again(offer: HandoffProgress, at: float) -> None:
    assert next_check(offer, LIMITS) == at
    if at:
        assert next_step(offer, at - 0.01, LIMITS) is HandoffStep.WAIT
    assert next_step(offer, at, LIMITS) is not HandoffStep.WAIT


def test_the_hard_limit_cuts_the_wait_for_late_answers_short() -> None:
    short = HandoffLimits(ack=1.0, tries=3, hard=10.0)
    assert next_check(HandoffProgress(3, marked=True), short) == 10.0
    assert next_step(HandoffProgress(3, marked=True), 10.0, short) is HandoffStep.FORCE_SHUTDOWN


def test_an_offer_without_answer_is_made_three_times() -> None:
    offer, made, at = HandoffProgress(), [], 0.0
    while (step := next_step(offer, at, LIMITS)) is not HandoffStep.ORPHAN_PENDING:
        if step is HandoffStep.PUBLISH:
            offer = HandoffProgress(offer.offers + 1)
            made.append(at)
        at += 0.5
    assert (made, at) == ([0.0, 5.0, 10.0], 15.0)
