"""Is every line of log one that machines and people can read?"""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from orchestrix.config.settings import LogSettings
from orchestrix.telemetry import logs, tracing
from orchestrix.telemetry.correlation import correlated, correlation_id
from orchestrix.telemetry.trace_context import TraceContext
from orchestrix.telemetry.tracing import ForwardedContext
from tests.unit.cli.shell import logging_kept

log = logging.getLogger("orchestrix.test")


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _kept() -> Iterator[None]:
    with logging_kept():
        yield


def started(stream: io.StringIO, **settings: Any) -> io.StringIO:
    logs.setup(LogSettings(**settings), node="n1", role="worker", stream=stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def line(stream: io.StringIO) -> dict[str, Any]:
    [only] = lines(stream)
    return only


def test_a_line_is_one_json_object() -> None:
    out = started(io.StringIO())
    log.info("moved %d", 3, extra={"saga": "app", "app_id": 7})
    found = line(out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", found.pop("time"))
    assert found == {
        "level": "info",
        "logger": "orchestrix.test",
        "message": "moved 3",
        "correlation_id": None,
        "node_id": "n1",
        "role": "worker",
        "saga": "app",
        "app_id": 7,
    }


def test_the_correlation_id_comes_from_the_extra_or_from_the_task() -> None:
    out = started(io.StringIO())
    with correlated("of-task"):
        log.info("a")
        log.info("b", extra={"correlation_id": "of-record"})
    log.info("c")
    assert [found["correlation_id"] for found in lines(out)] == ["of-task", "of-record", None]


async def test_tasks_at_the_same_time_keep_their_own_correlation_id() -> None:
    async def one(name: str) -> str | None:
        with correlated(name):
            await asyncio.sleep(0)
            return correlation_id()

    first, second = await asyncio.gather(one("a"), one("b"))
    assert (first, second) == ("a", "b")


def test_an_exception_is_one_field() -> None:
    out = started(io.StringIO())
    try:
        raise KeyError("x") from ValueError("cause")
    except KeyError:
        log.exception("broke")
    found = line(out)
    assert found["level"] == "error"
    assert "KeyError: 'x'" in found["exception"]
    assert "ValueError: cause" in found["exception"]


def test_what_others_wrote_cannot_forge_a_line() -> None:
    for form in ("json", "pretty"):
        out = started(io.StringIO(), format=form)
        log.info('one\nERROR two \x1b[31m "quoted" \u2028 \ud800 😀', extra={"name_of_app": "a\r\nb"})
        assert out.getvalue().count("\n") == 1
        assert "\r" not in out.getvalue()
        assert "\x1b" not in out.getvalue()


def test_extras_of_any_kind_are_written() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError

    out = started(io.StringIO())
    log.info("x", extra={"a": {1, 2}, "b": Broken(), "c": {("k",): 1}, "level": "forged", "d": b"raw"})
    found = line(out)
    assert (found["a"], found["b"], found["c"], found["d"]) == ("{1, 2}", "<Broken>", {}, "b'raw'")
    assert found["level"] == "info"


def test_a_record_whose_arguments_do_not_fit_is_not_lost() -> None:
    out = started(io.StringIO())
    log.handlers = [found for found in logging.getLogger().handlers if isinstance(found, logs.Handler)]
    log.propagate = False  # pytest's own handler insists on good arguments
    try:
        log.info("%d things", "many")
    finally:
        log.handlers, log.propagate = [], True
    assert line(out)["message"] == "%d things ('many',)"


def test_a_record_that_cannot_be_written_leaves_a_trace_but_no_stack_trace(capsys: pytest.CaptureFixture[str]) -> None:
    out = started(io.StringIO())
    circle: list[Any] = []
    circle.append(circle)
    log.info("x", extra={"a": circle})
    log.info("y")
    assert [found["message"] for found in lines(out)][-1] == "y"
    assert capsys.readouterr() == ("", "")


def test_a_closed_stream_disturbs_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    out = started(io.StringIO())
    out.close()
    log.error("into the void")
    assert capsys.readouterr() == ("", "")


def test_auto_is_pretty_on_a_terminal_only() -> None:
    assert started(io.StringIO()).getvalue() == ""
    plain, terminal = started(io.StringIO()), Terminal()
    log.info("a")
    started(terminal)
    log.warning("b", extra={"app_id": 7})
    assert line(plain)["message"] == "a"
    assert re.search(r"\d\d:\d\d:\d\d\.\d{3} .*WARNING.* orchestrix\.test  b  app_id=7\n", terminal.getvalue())


def test_no_colour_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    colourful = started(Terminal())
    log.error("a")
    monkeypatch.setenv("NO_COLOR", "1")
    plain = started(Terminal())
    log.error("a")
    assert "\x1b[31m" in colourful.getvalue()
    assert "\x1b" not in plain.getvalue()


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_that_cannot_say_what_it_is_costs_no_line() -> None:
    for form in ("json", "pretty"):
        out = started(io.StringIO(), format=form)
        log.error("it failed", exc_info=Speechless())
        assert "it failed" in out.getvalue()
        assert "Speechless" in out.getvalue()


def test_pretty_shows_a_stack_trace_only_while_debugging() -> None:
    calm = started(io.StringIO(), format="pretty")
    fail()
    curious = started(io.StringIO(), format="pretty", level="debug")
    fail()
    assert "ZeroDivisionError: division by zero (test_logs.py:" in calm.getvalue()
    assert calm.getvalue().count("\n") == 1
    assert "Traceback" in curious.getvalue()


def fail() -> None:
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        log.exception("broke")


def test_the_level_is_kept() -> None:
    out = started(io.StringIO(), level="warning")
    log.info("a")
    log.warning("b")
    assert line(out)["message"] == "b"


@pytest.mark.parametrize("name", ["uvicorn.error", "uvicorn.access", "aio_pika", "aiormq.x", "alembic.runtime"])
def test_libraries_are_quiet_at_info_and_fitted_in(name: str) -> None:
    logging.getLogger(name.split(".")[0]).addHandler(logging.StreamHandler(sys.stdout))
    out = started(io.StringIO())
    logging.getLogger(name).info("chatter")
    logging.getLogger(name).error("real")
    assert [(found["logger"], found["message"]) for found in lines(out)] == [(name, "real")]


@pytest.mark.parametrize("name", ["aiormq.connection", "aio_pika.connection"])
def test_a_lost_connection_is_no_stack_trace_of_a_library(name: str) -> None:
    """Also where logs are set up after the module of connections was imported."""
    importlib.import_module("orchestrix.broker.amqp.connection")
    out = started(io.StringIO())
    logging.getLogger(name).warning("reader exited abnormally", exc_info=ConnectionResetError())
    assert out.getvalue() == ""


def test_a_second_setup_replaces_the_first() -> None:
    first, second = started(io.StringIO()), started(io.StringIO())
    log.info("x")
    assert (first.getvalue(), len(lines(second))) == ("", 1)


class Rude(Exception):
    """An error whose text ends the process that asks for it."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


FORMS = [logs.JsonFormatter("n1", "worker"), logs.PrettyFormatter(False, False), logs.PrettyFormatter(False, True)]


@pytest.mark.parametrize("form", FORMS)
def test_no_text_of_an_error_ends_who_logs_it(form: logging.Formatter) -> None:
    try:
        raise Rude
    except Rude as error:
        told = (type(error), error, error.__traceback__)
        record = logging.LogRecord("x", logging.WARNING, __file__, 1, "failed: %s", (error,), told)
        record.why = error
    assert "Rude" in form.format(record)


def test_each_line_of_a_worker_has_its_id() -> None:
    out = io.StringIO()
    logs.setup(LogSettings(), node="n1", role="worker", worker="n1-4373c6fb", stream=out)
    log.info("a", extra={"worker_id": "of somebody else"})
    assert (line(out)["node_id"], line(out)["worker_id"]) == ("n1", "n1-4373c6fb")


SPAN = TraceContext(f"00-{'a' * 32}-{'1' * 16}-03")
OTHER = TraceContext(f"00-{'b' * 32}-{'2' * 16}-00")
NAMES = ("trace_id", "span_id", "trace_flags")


def test_a_line_names_the_span_that_is_active() -> None:
    out = started(io.StringIO())
    with tracing.active(ForwardedContext(SPAN)):
        log.info("inside")
    log.info("outside")
    inside, outside = lines(out)
    assert [inside[name] for name in NAMES] == ["a" * 32, "1" * 16, "03"]
    assert not set(NAMES) & set(outside)


def test_the_trace_that_a_line_is_given_counts_before_the_active_one() -> None:
    out = started(io.StringIO())
    with tracing.active(ForwardedContext(SPAN)):
        log.info("of another", extra=OTHER.log_fields)
    assert [line(out)[name] for name in NAMES] == ["b" * 32, "2" * 16, "00"]


def test_a_readable_line_leaves_out_what_only_programs_read() -> None:
    out = started(io.StringIO(), format="pretty")
    log.info("x", extra=SPAN.log_fields)
    assert out.getvalue().endswith(f"x  trace_id={'a' * 32}\n")
