"""What does a line say of each kind of change of a saga?"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrix.outbox import saga_log
from orchestrix.saga import changes
from orchestrix.saga.definition import COMPLETED, CREATED
from orchestrix.saga.messages import Event
from orchestrix.saga.state import Instance, StateChange
from orchestrix.telemetry.log_rate import LogRateLimit
from orchestrix.telemetry.log_throttle import LogThrottle
from orchestrix.telemetry.trace_context import TraceContext

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ROOT = TraceContext(f"00-{'a' * 32}-{'1' * 16}-01")
SPAN = TraceContext(f"00-{'a' * 32}-{'2' * 16}-03")
BEFORE = Instance(
    id=7, saga="app", key="shop", created_by="ada", state="APP_INITIATED", version=1, correlation_id="c-1",
    command_id="m-1", attempt=2, wake_at=NOW, wake_reason="deadline", wait_ms=1, blocker=None, data={},
    definition_version=1, created_at=NOW - timedelta(seconds=4), updated_at=NOW, traceparent=ROOT.traceparent,
)  # fmt: skip
AFTER = replace(BEFORE, state="REGISTERING", version=2)
ROW = StateChange(
    version=2, from_state="APP_INITIATED", to_state="REGISTERING", reason="because", actor="orchestrator",
    correlation_id="c-1", caused_by=None, command_id=None, at=NOW, kind=changes.STEP_SUCCEEDED, step="createGitRepo",
    begun_at=NOW - timedelta(milliseconds=1500),
)  # fmt: skip
COMMON = {"correlation_id": "c-1", "saga": "app", "app_id": 7, "state": "REGISTERING"}
SPAN_FIELDS = {"trace_id": "a" * 32, "span_id": "2" * 16, "trace_flags": "03"}
ROOT_FIELDS = {"trace_id": "a" * 32, "span_id": "1" * 16, "trace_flags": "01"}


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(saga_log, "_rate", LogRateLimit(saga_log.log))
    monkeypatch.setattr(saga_log, "_unknown", LogThrottle())
    caplog.set_level(logging.INFO, saga_log.log.name)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """The text and the fields of each line."""
    plain = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    return [
        (one.getMessage(), {name: value for name, value in vars(one).items() if name not in plain})
        for one in caplog.records
    ]


def moved(after: Instance, *history: StateChange) -> Any:
    """What has become of an instance."""
    return SimpleNamespace(instance=after, history=history)


def test_a_start(caplog: pytest.LogCaptureFixture) -> None:
    row = replace(ROW, kind=CREATED, step=None, begun_at=None, reason="created by ada")
    saga_log.committed([(None, moved(AFTER, row))])
    assert said(caplog) == [("app 7: started: created by ada", {"event": "saga.started", **COMMON, **ROOT_FIELDS})]


@pytest.mark.parametrize(
    ("kind", "event", "text"),
    [
        (changes.STEP_SUCCEEDED, "saga.step.succeeded", "step succeeded: createGitRepo"),
        (changes.STEP_UNDONE, "saga.step.undone", "step undone: createGitRepo"),
        (changes.ATTEMPT_FAILED, "saga.attempt.failed", "attempt failed: because"),
        (changes.STEP_FAILED, "saga.step.failed", "step failed: because"),
        (changes.STEP_HELD, "saga.step.failed", "step held: because"),
        (changes.FAILURE_DEFERRED, "saga.step.failed", "failure deferred: because"),
    ],
)
def test_the_end_of_a_try(kind: str, event: str, text: str, caplog: pytest.LogCaptureFixture) -> None:
    failure = {} if kind in (changes.STEP_SUCCEEDED, changes.STEP_UNDONE) else {"error_type": "LookupError"}
    row = replace(ROW, kind=kind, error_type=failure.get("error_type"))
    saga_log.changed(BEFORE, moved(AFTER, row), context=SPAN, worker="w-1")
    ended = {"from": "APP_INITIATED", "try": 2, "step": "createGitRepo", "worker": "w-1", "ms": 1500}
    assert said(caplog) == [(f"app 7: {text}", {"event": event, **COMMON, **SPAN_FIELDS, **ended, **failure})]


def test_what_a_person_does(caplog: pytest.LogCaptureFixture) -> None:
    row = replace(ROW, kind="paused", actor="ada", reason="lunch", step=None, begun_at=None)
    saga_log.changed(None, moved(AFTER, row))
    fields = {"event": "saga.changed", **COMMON, **ROOT_FIELDS, "actor": "ada"}
    assert said(caplog) == [("app 7: paused: lunch", fields)]


def test_the_end_of_a_saga_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    done = replace(AFTER, state=COMPLETED, wake_at=None, wake_reason=None)
    saga_log.changed(BEFORE, moved(done, ROW), context=SPAN)
    last = said(caplog)[-1]
    fields = {"event": "saga.ended", **COMMON, **SPAN_FIELDS, "state": COMPLETED, "ms": 4000}
    assert last == ("app 7 ended: COMPLETED", fields)
    saga_log.changed(done, moved(done, ROW), context=SPAN)
    assert [fields["event"] for _, fields in said(caplog)].count("saga.ended") == 1


def test_what_has_changed_nothing_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    saga_log.changed(BEFORE, moved(AFTER))
    assert said(caplog) == []


def test_a_flood_is_limited_and_what_is_left_out_costs_no_fields(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[object] = []
    fields = saga_log._fields

    def counted(*given: Any) -> dict[str, Any]:
        made.append(given)
        return fields(*given)

    monkeypatch.setattr(saga_log, "_fields", counted)
    for _ in range(250):
        saga_log.changed(BEFORE, moved(AFTER, ROW), context=SPAN)
    assert (len(said(caplog)), len(made), saga_log._rate.left_out) == (200, 200, 50)


def test_an_event_of_an_unknown_app_has_a_warning_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    event = Event("evt.gitRepoCreated", 9, "c-9", saga="app", id="e", causation_id="m", data={})
    for _ in range(3):
        saga_log.ignored(event, "unknown-app")
    fields = {"correlation_id": "c-9", "event": "event.unknown_app", "app_id": 9}
    assert said(caplog) == [("evt.gitRepoCreated for 9 is a dead letter: there is no such app", fields)]
    assert caplog.records[0].levelname == "WARNING"
    saga_log.ignored(event, "duplicate")
    assert len(said(caplog)) == 1, "what else is ignored is said at debug alone"
