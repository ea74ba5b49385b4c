"""What does an executor's answer lead to, and when is its attempt lost?"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from orchestrix.domain.registry.executor_calls import (
    MOST_PAUSE_S,
    CallAnswer,
    CallState,
    Next,
    candidate,
    is_restarted,
    is_silent,
    next_step,
    no_executors,
    no_group,
    not_reached,
    pause_s,
    refused,
)
from orchestrix.domain.registry.routing import Strategy

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
FIRST, UNSURE = CallState(unsure=False), CallState(unsure=True)


@pytest.mark.parametrize("strategy", list(Strategy))
@pytest.mark.parametrize("state", [FIRST, UNSURE])
def test_answers_that_mean_the_same_for_all(strategy: Strategy, state: CallState) -> None:
    assert next_step(strategy, state, CallAnswer.TAKEN) is Next.FOLLOW
    assert next_step(strategy, state, CallAnswer.REFUSED) is Next.END
    assert next_step(strategy, state, CallAnswer.UNKNOWN) is Next.SAME
    assert next_step(strategy, state, CallAnswer.BUSY) is Next.OTHER


def test_failover_moves_on_only_where_the_last_one_surely_did_not_take_it() -> None:
    assert next_step(Strategy.FAILOVER, FIRST, CallAnswer.NOT_REACHED) is Next.OTHER
    assert next_step(Strategy.FIRST, FIRST, CallAnswer.NOT_REACHED) is Next.END
    for strategy in Strategy:
        assert next_step(strategy, UNSURE, CallAnswer.NOT_REACHED) is Next.SAME
        assert next_step(strategy, FIRST.called(CallAnswer.UNKNOWN), CallAnswer.NOT_REACHED) is Next.SAME


@pytest.mark.parametrize("strategy", list(Strategy))
def test_what_was_not_called_is_given_to_another_one_unless_it_may_have_been_taken(strategy: Strategy) -> None:
    assert next_step(strategy, FIRST, CallAnswer.NOT_CALLED) is Next.OTHER
    assert next_step(strategy, UNSURE, CallAnswer.NOT_CALLED) is Next.SAME
    assert not FIRST.called(CallAnswer.NOT_CALLED).unsure


def test_each_address_is_tried_once() -> None:
    assert candidate(["a", "b", "c"], ["a", "c"]) == "b"
    assert candidate(["a"], ["a", "b"]) is None


def test_pauses_grow_to_a_limit() -> None:
    assert [pause_s(calls) for calls in (0, 1, 2, 3)] == [1.0, 1.0, 2.0, 4.0]
    assert pause_s(10**9) == MOST_PAUSE_S


def test_silence_counts_from_the_last_sign_and_only_while_this_node_listened() -> None:
    long, short = NOW - timedelta(seconds=91), NOW - timedelta(seconds=80)
    assert is_silent([long, None], NOW, 1000, 90)
    assert not is_silent([long, short], NOW, 1000, 90)
    assert not is_silent([long], NOW, 89, 90)
    assert not is_silent([None, None], NOW, 1000, 90)


def test_only_what_no_other_executor_would_do_is_final() -> None:
    assert [one.retryable for one in (refused("a", "x"), no_group("g"))] == [False, False]
    assert [one.retryable for one in (not_reached(["a"], "x"), no_executors("x"))] == [True, True]


@pytest.mark.parametrize(
    ("called", "registered", "restarted"),
    [(0, 1, True), (0, 0, False), (1, 0, False), (None, 1, False), (0, None, False)],
)
def test_only_who_registered_after_the_call_is_another_process(
    called: int | None, registered: int | None, restarted: bool
) -> None:
    called_at, registered_at = (None if one is None else NOW + timedelta(seconds=one) for one in (called, registered))
    assert is_restarted(called_at, registered_at) is restarted
