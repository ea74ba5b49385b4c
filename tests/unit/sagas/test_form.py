"""Stored definitions: does a saga come back as it was written, and does the digest tell exactly what a run does?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from orchestrix import COMPLETED, HOLD, Compensation, FreeData, Job, NothingToUndo, RetryPolicy, Saga
from orchestrix.saga.versions.serialization import (
    FORMAT_VERSION,
    UnknownFormatError,
    body_of,
    differences,
    digest_of,
    saga_from,
)
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import ORDER, step

FULL = Saga(
    name="full",
    version=7,
    timeout=timedelta(hours=3),
    immediate={"MID": "LATE"},
    steps=(
        step(
            "one",
            "A",
            "MID",
            timeout=timedelta(seconds=1, microseconds=1),
            retry=RetryPolicy(3, timedelta(microseconds=7), timedelta(seconds=9), ("Bad", "Worse")),
            undo=Compensation("cmd.oneUndo", "evt.oneUndone", timedelta(minutes=2), RetryPolicy(2), None, timedelta(1)),
            queue_timeout=timedelta(minutes=3),
            on_failure=HOLD,
        ),
        step(
            "two",
            "LATE",
            COMPLETED,
            command="",
            job=Job("build", "gpu", timedelta(minutes=5), 4),
            undo=Compensation(event="evt.twoUndone", job=Job("unbuild")),
        ),
    ),
)


def through_json(saga: Saga) -> Any:
    """The body as a database gives it back."""
    return json.loads(json.dumps(body_of(saga)))


@pytest.mark.parametrize("saga", [APP_PROVISIONING, ORDER, FULL], ids=lambda saga: saga.name)
def test_a_saga_comes_back_as_it_was(saga: Saga) -> None:
    assert saga_from(through_json(saga), FORMAT_VERSION) == replace(saga, data=FreeData)


@pytest.mark.parametrize("saga", [APP_PROVISIONING, ORDER, FULL], ids=lambda saga: saga.name)
def test_a_digest_outlives_the_database_and_the_order_of_keys(saga: Saga) -> None:
    stored = through_json(saga)
    assert digest_of(dict(reversed(stored.items()))) == digest_of(body_of(saga))
    assert digest_of(body_of(saga_from(stored, FORMAT_VERSION))) == digest_of(body_of(saga))


def first(**changes: Any) -> Callable[[Saga], Saga]:
    """A change of the first step."""
    return lambda saga: replace(saga, steps=(replace(saga.steps[0], **changes), *saga.steps[1:]))


MEANINGFUL: dict[str, Callable[[Saga], Saga]] = {
    "version": lambda saga: replace(saga, version=8),
    "run time": lambda saga: replace(saga, timeout=timedelta(hours=4)),
    "no run time": lambda saga: replace(saga, timeout=None),
    "state": first(state="B"),
    "command": first(command="cmd.other"),
    "event": first(event="evt.other"),
    "step name": first(name="uno"),
    "step time": first(timeout=timedelta(seconds=2)),
    "tries": first(retry=RetryPolicy(4)),
    "never": first(retry=RetryPolicy(3, timedelta(microseconds=7), timedelta(seconds=9), ("Bad",))),
    "no undo": first(undo=NothingToUndo("it lapses")),
    "undo's command": first(undo=Compensation("cmd.other", "evt.oneUndone", timedelta(minutes=2), RetryPolicy(2))),
    "undo's time": first(undo=Compensation("cmd.oneUndo", "evt.oneUndone", timedelta(minutes=3), RetryPolicy(2))),
    "job": lambda saga: replace(
        saga, steps=(saga.steps[0], replace(saga.steps[1], job=Job("build", "gpu", timedelta(minutes=5), 5)))
    ),
    "immediate move": lambda saga: replace(saga, immediate={"MID": "MORE", "MORE": "LATE"}),
}


@pytest.mark.parametrize("change", MEANINGFUL.values(), ids=MEANINGFUL)
def test_whatever_a_run_does_otherwise_has_another_digest(change: Callable[[Saga], Saga]) -> None:
    other = body_of(change(FULL))
    assert digest_of(other) != digest_of(body_of(FULL))
    assert differences(body_of(FULL), other)


def test_texts_for_readers_and_the_model_do_not_count() -> None:
    plain = replace(ORDER, data=FreeData)
    said = replace(ORDER, steps=(replace(ORDER.steps[0], undo=NothingToUndo("other words")), *ORDER.steps[1:]))
    assert digest_of(body_of(plain)) == digest_of(body_of(said)) == digest_of(body_of(ORDER))
    assert differences(body_of(plain), body_of(said)) == []


def test_a_newer_form_or_option_is_refused_and_not_guessed() -> None:
    body = through_json(FULL)
    with pytest.raises(UnknownFormatError, match=r"form 3 of a stored definition is newer than this release: upgrade"):
        saga_from(body, FORMAT_VERSION + 1)
    with pytest.raises(UnknownFormatError, match="sharding, which this release does not know"):
        saga_from({**body, "sharding": True}, FORMAT_VERSION)
    body["steps"][0]["undo"]["priority"] = 3
    with pytest.raises(UnknownFormatError, match="priority"):
        saga_from(body, FORMAT_VERSION)


@pytest.mark.parametrize("body", [{}, {"name": "x"}, {"name": "x", "version": 1, "steps": []}, {"name": 3, "steps": 1}])
def test_a_damaged_row_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(UnknownFormatError, match="cannot be read by this release"):
        saga_from(body, FORMAT_VERSION)


def test_differences_name_the_step_and_both_values() -> None:
    other = first(state="B", timeout=timedelta(seconds=2))(FULL)
    assert differences(body_of(FULL), body_of(other)) == [
        'steps.one.state was "A", is "B"',
        "steps.one.timeout was 1000001, is 2000000",
    ]
    shorter = replace(FULL, steps=(replace(FULL.steps[0], then=COMPLETED),), immediate={})
    assert "steps.two was removed" in differences(body_of(FULL), body_of(shorter))
    assert "steps.two was added" in differences(body_of(shorter), body_of(FULL))
