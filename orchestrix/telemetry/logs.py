"""Logs: how a log line looks, and where it is written.

One JSON object a line on stdout; on a terminal a readable line. In long-running processes `telemetry.sinks` writes
without blocking the caller. A record's `extra` becomes fields of the object, and
each line carries the correlation id that its `extra` or its task (`orchestrix.telemetry.correlation`) has.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from orchestrix.config.settings import LogSettings
from orchestrix.telemetry import sinks
from orchestrix.telemetry.correlation import correlation_id
from orchestrix.telemetry.tracing import current_context

# Libraries log each of their messages and statements at info.
_TALKATIVE: Final = (
    "aio_pika",
    "aiormq",
    "aiosqlite",
    "alembic",
    "asyncio",
    "pamqp",
    "sqlalchemy",
    "uvicorn",
)
_OWN_HANDLERS: Final = ("uvicorn", "uvicorn.error", "uvicorn.access", "alembic", "sqlalchemy")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_FOR_PROGRAMS: Final = ("span_id", "trace_flags", "stack")
"""Fields that no person reads on a terminal: the readable line leaves them out."""
_COLOURS: Final = {logging.DEBUG: "2", logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}


def setup(
    settings: LogSettings, *, node: str, role: str, worker: str | None = None, stream: TextIO | None = None
) -> None:
    """Sends all log lines of this process to `stream` (stdout if None). Calling it again replaces the former setup.

    `node` and `role` are on every line, and the id of the `worker` that it is.
    """
    out = sys.stdout if stream is None else stream
    pretty = settings.format == "pretty" or (settings.format == "auto" and out.isatty())
    handler = Handler(out)
    debugging = settings.level == "debug"
    formatter = PrettyFormatter(_colourful(out), debugging) if pretty else JsonFormatter(node, role, worker)
    handler.setFormatter(formatter)
    if isinstance(out, sinks.Stream):
        out.sink.notice = lambda lost: formatter.format(_loss(lost))
    root = logging.getLogger()
    for old in [found for found in root.handlers if isinstance(found, Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(settings.level.upper())
    _limit_library_logs(max(logging.WARNING, root.level))


class Handler(logging.StreamHandler[TextIO]):
    """Writes to a stream; a bad record or a closed stream never raises into the caller."""

    def handleError(self, record: logging.LogRecord) -> None:
        """A record that cannot be formatted is replaced by one line that says so; an error of the stream is dropped."""
        error = sys.exc_info()[1]
        if isinstance(error, (OSError, ValueError)):  # closed pipe, full disk, closed file
            return
        try:
            lost = {"level": "error", "logger": record.name, "message": f"a log line was lost: {type(error).__name__}"}
            self.stream.write(json.dumps(lost) + self.terminator)
            self.flush()
        except (OSError, ValueError):
            return


class JsonFormatter(logging.Formatter):
    """One record as one line of ASCII JSON."""

    def __init__(self, node: str, role: str, worker: str | None = None) -> None:
        super().__init__()
        self._identity = {"node_id": node, "role": role, **({"worker_id": worker} if worker is not None else {})}

    def format(self, record: logging.LogRecord) -> str:
        """Fields: level, time (RFC 3339, UTC), logger, message, correlation_id, node_id, role, worker_id, trace_id,
        span_id and trace_flags of what the line is about or is written in, `extra`, exception.
        """
        extras = extras_of(record)
        line: dict[str, Any] = {
            "level": record.levelname.lower(),
            "time": moment(record),
            "logger": record.name,
            "message": message_of(record),
            "correlation_id": extras.pop("correlation_id", None) or correlation_id(),
            **self._identity,
        }
        if "trace_id" not in extras and (context := current_context()) is not None:
            line |= context.log_fields
        line.update((name, value) for name, value in extras.items() if name not in line)
        if record.exc_info and record.exc_info[1]:
            line["exception"] = "".join(traceback.format_exception(record.exc_info[1]))
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=_as_text, skipkeys=True)


class PrettyFormatter(logging.Formatter):
    """One record as one readable line; a stack trace only at the debug level."""

    def __init__(self, colourful: bool, debugging: bool) -> None:
        super().__init__()
        self._colourful = colourful
        self._debugging = debugging

    def format(self, record: logging.LogRecord) -> str:
        """`12:00:01.123 WARNING logger  message  key=value`; the time is UTC."""
        extras = extras_of(record)
        correlation = extras.pop("correlation_id", None) or correlation_id()
        extras = {name: value for name, value in extras.items() if name not in _FOR_PROGRAMS}
        fields = {**({"correlation_id": correlation} if correlation else {}), **extras}
        error = record.exc_info[1] if record.exc_info else None
        parts = [
            f"{moment(record)[11:23]} {self._level(record)} {record.name}",
            _one_line(message_of(record)),
            *(_one_line(f"{name}={_as_text(value)}") for name, value in fields.items()),
            *([_one_line(_short_trace(error))] if error and not self._debugging else []),
        ]
        line = "  ".join(parts)
        trace = "".join(traceback.format_exception(error)) if error and self._debugging else ""
        return f"{line}\n{trace}".rstrip("\n")

    def _level(self, record: logging.LogRecord) -> str:
        name = record.levelname.ljust(7)
        colour = _COLOURS.get(record.levelno)
        return f"\x1b[{colour}m{name}\x1b[0m" if colour and self._colourful else name


def moment(record: logging.LogRecord) -> str:
    """When the record was made: RFC 3339 in UTC with six digits and `Z`."""
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def message_of(record: logging.LogRecord) -> str:
    """The record's message; where its arguments do not fit, the bare text with them behind it."""
    try:
        return record.getMessage()
    except BaseException:
        return f"{record.msg} {_as_text(record.args)}"


def extras_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the record was given as `extra`."""
    fields: Mapping[str, Any] = vars(record)
    return {name: value for name, value in fields.items() if name not in _STANDARD and not name.startswith("_")}


def _loss(lost: int) -> logging.LogRecord:
    return logging.LogRecord("orchestrix.log", logging.WARNING, __file__, 0, sinks.sentence(lost), None, None)


def _limit_library_logs(level: int) -> None:
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(level)
    for name in _OWN_HANDLERS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def _short_trace(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {_as_text(error)}{place}"


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def _as_text(value: object) -> str:
    try:
        return str(value)
    except BaseException:  # an author's `__str__` may raise anything: it is no reason to end the work that logs it
        return f"<{type(value).__name__}>"


def _colourful(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
