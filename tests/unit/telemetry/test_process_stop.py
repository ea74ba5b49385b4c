"""Does a process say at last why it has stopped and after how long, and what of an error may be read there?"""

from __future__ import annotations

import logging
from typing import Any

import pytest

from orchestrix.errors import ConfigError
from orchestrix.telemetry import process_stop
from orchestrix.telemetry.process_stop import ProcessStop, stop_logged

log = logging.getLogger("orchestrix.test.stop")


class Clock:
    """Stands in for the clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Clock:
    found = Clock()
    monkeypatch.setattr(process_stop, "clock", found)
    caplog.set_level(logging.DEBUG, log.name)
    return found


def last(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    """The only line."""
    (record,) = caplog.records
    names = ("event", "why", "seconds", "error_type", "unfinished")
    fields = {name: vars(record)[name] for name in names if name in vars(record)}
    return {"level": record.levelname, "message": record.getMessage(), **fields}


def test_a_signal_counts_from_its_arrival(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with stop_logged(ProcessStop(log)) as stop:
        clock.now += 1000
        stop.begin("SIGTERM")
        clock.now += 2.5
        stop.begin()
        stop.unfinished = 3
    assert last(caplog) == {
        "level": "INFO",
        "message": "stopped after 2.5 s, 3 unfinished: SIGTERM",
        "event": "process.stopped",
        "why": "SIGTERM",
        "seconds": 2.5,
        "unfinished": 3,
    }


def test_an_error_is_named_and_one_of_ours_is_said(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    stop = ProcessStop(log)
    stop.begin()
    clock.now += 0.5
    with pytest.raises(ConfigError), stop_logged(stop):
        raise ConfigError("the database is too old: run `orchestrix db upgrade`")
    assert last(caplog) == {
        "level": "ERROR",
        "message": "stopped after 0.5 s: error: the database is too old: run `orchestrix db upgrade`",
        "event": "process.stopped",
        "why": "error",
        "seconds": 0.5,
        "error_type": "ConfigError",
    }


def test_the_text_of_any_other_error_may_hold_a_password(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    stop = ProcessStop(log, error_level=logging.INFO)
    stop.begin()
    with pytest.raises(RuntimeError), stop_logged(stop):
        raise RuntimeError("amqp://ada:secret@broker/")
    found = last(caplog)
    assert (found["level"], found["message"], found["error_type"]) == (
        "INFO",
        "stopped after 0 s: error",
        "RuntimeError",
    )


def test_ctrl_c_before_signals_are_handled_is_sigint(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt), stop_logged(ProcessStop(log)):
        raise KeyboardInterrupt
    assert last(caplog)["why"] == "SIGINT"


def test_a_second_signal_is_said_at_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    stop = ProcessStop(log)
    stop.begin("SIGTERM")
    clock.now += 3
    stop.cut_off("SIGINT")
    found = last(caplog)
    assert (found["level"], found["why"], found["seconds"]) == ("WARNING", "second SIGINT", 3.0)


def test_what_was_refused_before_it_ran_has_not_stopped(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError), stop_logged(ProcessStop(log)):
        raise ConfigError("no such queue")
    assert caplog.records == []
