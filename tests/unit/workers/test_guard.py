"""What does the saga's row say about a command?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sagas.app_provisioning import APP_PROVISIONING
from sagas.engine.messages import Command
from tests.fakes.rows import APP
from workers.sdk.guard import Verdict, judge

from .rig import COMMAND, REGISTER

SECOND = replace(COMMAND, type=REGISTER, step="registerApp", expected_state="REGISTERING")


def verdict(ordered: Command = COMMAND, **row: Any) -> Verdict:
    return judge(APP_PROVISIONING, replace(APP, **row), ordered)


@pytest.mark.req("S3-19", "S3-42")
def test_the_first_command_is_current_while_the_app_is_initiated() -> None:
    assert verdict() is Verdict.CURRENT
    assert verdict(state="REGISTERING") is Verdict.NEWER
    assert verdict(state="GIT_REPO_CREATED") is Verdict.NEWER


@pytest.mark.req("S3-25", "S3-42")
def test_the_second_command_is_current_while_the_app_is_registering() -> None:
    assert verdict(SECOND, state="REGISTERING") is Verdict.CURRENT
    assert verdict(SECOND, state="APP_INITIATED") is Verdict.OLDER
    assert verdict(SECOND, state="COMPLETED", command_id=None) is Verdict.NEWER


def test_a_command_without_row_or_of_another_sagas_row_has_none() -> None:
    assert judge(APP_PROVISIONING, None, COMMAND) is Verdict.MISSING
    assert verdict(saga="invoice") is Verdict.MISSING


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "COMPENSATING", "COMPENSATION_FAILED", "UNHEARD_OF"])
def test_a_command_is_past_once_the_saga_ended_or_left_its_path(state: str) -> None:
    assert verdict(state=state) is Verdict.NEWER


def test_an_attempt_that_the_row_does_not_know_yet_is_early() -> None:
    assert verdict(replace(COMMAND, id="m-2", attempt=2)) is Verdict.OLDER


def test_nothing_is_early_for_a_saga_that_has_ended() -> None:
    unheard_of = replace(COMMAND, expected_state="UNHEARD_OF", attempt=2)
    assert verdict(unheard_of, state="FAILED", command_id=None) is Verdict.NEWER


def test_an_attempt_before_the_rows_is_past() -> None:
    assert verdict(replace(COMMAND, id="m-0"), attempt=2) is Verdict.NEWER


def test_another_command_of_the_same_attempt_is_past() -> None:
    assert verdict(command_id="m-9") is Verdict.NEWER


def test_a_command_is_not_worked_on_while_the_saga_is_paused() -> None:
    assert verdict(blocker="paused", wake_at=None, wake_reason=None) is Verdict.NEWER


def test_a_command_that_waits_for_its_retry_is_not_worked_on() -> None:
    assert verdict(wake_reason="retry") is Verdict.NEWER


@pytest.mark.parametrize("reason", ["deadline", "unsent", "broker_down", "no_consumer"])
def test_any_other_reason_to_wake_up_leaves_the_command_current(reason: str) -> None:
    assert verdict(wake_reason=reason) is Verdict.CURRENT
