"""What does the saga's row say about a command?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrix.saga.messages import Command
from orchestrix.worker.commands.state_guard import StateVerdict, judge
from sagas.app_provisioning import APP_PROVISIONING
from tests.fakes.rows import APP

from .rig import COMMAND, REGISTER, undo

SECOND = replace(COMMAND, type=REGISTER, step="registerApp", expected_state="REGISTERING")


def verdict(ordered: Command = COMMAND, **row: Any) -> StateVerdict:
    return judge(APP_PROVISIONING, replace(APP, **row), ordered)


@pytest.mark.req("S3-19", "S3-42")
def test_the_first_command_is_current_while_the_app_is_initiated() -> None:
    assert verdict() is StateVerdict.CURRENT
    assert verdict(state="REGISTERING") is StateVerdict.NEWER
    assert verdict(state="GIT_REPO_CREATED") is StateVerdict.NEWER


@pytest.mark.req("S3-25", "S3-42")
def test_the_second_command_is_current_while_the_app_is_registering() -> None:
    assert verdict(SECOND, state="REGISTERING") is StateVerdict.CURRENT
    assert verdict(SECOND, state="APP_INITIATED") is StateVerdict.OLDER
    assert verdict(SECOND, state="COMPLETED", command_id=None) is StateVerdict.NEWER


def test_a_command_without_row_or_of_another_sagas_row_has_none() -> None:
    assert judge(APP_PROVISIONING, None, COMMAND) is StateVerdict.MISSING
    assert verdict(saga="invoice") is StateVerdict.MISSING


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "COMPENSATING", "COMPENSATION_FAILED", "UNHEARD_OF"])
def test_a_command_is_past_once_the_saga_ended_or_left_its_path(state: str) -> None:
    assert verdict(state=state) is StateVerdict.NEWER


def test_an_attempt_that_the_row_does_not_know_yet_is_early() -> None:
    assert verdict(replace(COMMAND, id="m-2", attempt=2)) is StateVerdict.OLDER


def test_nothing_is_early_for_a_saga_that_has_ended() -> None:
    unheard_of = replace(COMMAND, expected_state="UNHEARD_OF", attempt=2)
    assert verdict(unheard_of, state="FAILED", command_id=None) is StateVerdict.NEWER


def test_an_attempt_before_the_rows_is_past() -> None:
    assert verdict(replace(COMMAND, id="m-0"), attempt=2) is StateVerdict.NEWER


def test_another_command_of_the_same_attempt_is_past() -> None:
    assert verdict(command_id="m-9") is StateVerdict.NEWER


def test_a_command_is_not_worked_on_while_the_saga_is_paused() -> None:
    assert verdict(blocker="paused", wake_at=None, wake_reason=None) is StateVerdict.NEWER


def test_a_command_that_waits_for_its_retry_is_not_worked_on() -> None:
    assert verdict(wake_reason="retry") is StateVerdict.NEWER


@pytest.mark.parametrize("reason", ["deadline", "unsent", "broker_down", "no_consumer"])
def test_any_other_reason_to_wake_up_leaves_the_command_current(reason: str) -> None:
    assert verdict(wake_reason=reason) is StateVerdict.CURRENT


UNDO = undo()
BACK = {"state": "COMPENSATING", "command_id": "u-1"}


@pytest.mark.req("S3-42")
def test_an_undo_is_current_while_its_step_is_undone() -> None:
    assert verdict(UNDO, **BACK) is StateVerdict.CURRENT
    assert verdict(UNDO, **BACK | {"attempt": 7}) is StateVerdict.CURRENT
    assert verdict(UNDO, state="COMPENSATING", command_id="u-2") is StateVerdict.NEWER
    assert verdict(UNDO, **BACK | {"state": "COMPENSATION_FAILED", "blocker": "undo_failed"}) is StateVerdict.NEWER
    assert verdict(UNDO, **BACK | {"state": "FAILED"}) is StateVerdict.NEWER


@pytest.mark.parametrize("state", ["APP_INITIATED", "GIT_REPO_CREATED", "REGISTERING"])
def test_an_undo_of_a_saga_that_still_goes_ahead_is_early(state: str) -> None:
    assert verdict(UNDO, state=state) is StateVerdict.OLDER
    assert verdict(replace(UNDO, expected_state="FAILED"), state=state) is StateVerdict.OLDER


def test_an_undo_of_a_completed_saga_is_past() -> None:
    assert verdict(UNDO, state="COMPLETED", command_id=None) is StateVerdict.NEWER


def test_an_undo_is_not_begun_while_it_is_paused_or_waits_for_its_retry() -> None:
    assert verdict(UNDO, **BACK | {"blocker": "paused", "wake_at": None, "wake_reason": None}) is StateVerdict.NEWER
    assert verdict(UNDO, **BACK | {"wake_reason": "retry"}) is StateVerdict.NEWER


def test_an_undo_that_is_given_out_again_after_the_end_is_current() -> None:
    late = replace(UNDO, expected_state="FAILED")
    assert verdict(late, state="FAILED", command_id="u-1", wake_at=None, wake_reason=None) is StateVerdict.CURRENT
    assert verdict(late, state="FAILED", command_id=None) is StateVerdict.NEWER
    assert verdict(late, state="COMPENSATING", command_id="u-1") is StateVerdict.NEWER


@pytest.mark.parametrize("attempt", [1, 2, 9])
def test_a_step_is_not_done_any_more_while_its_saga_is_undone(attempt: int) -> None:
    assert verdict(replace(COMMAND, attempt=attempt), state="COMPENSATING") is StateVerdict.NEWER
    assert verdict(replace(SECOND, attempt=attempt), state="COMPENSATING") is StateVerdict.NEWER


def test_a_step_of_an_earlier_run_is_past_when_the_saga_runs_again() -> None:
    assert verdict(state="APP_INITIATED", command_id="m-3", attempt=3) is StateVerdict.NEWER
