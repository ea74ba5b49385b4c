"""Scenario trace: records what happened in a scenario, as a table."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.broker.topology import COMMANDS, DEAD, EVENTS
from orchestrix.saga.validation.arguments import brief

TABLE_WIDTH: Final = 110
TABLE_LINES: Final = 150
"""Lines of a table; of a longer trace the beginning and the end are shown."""


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """At so many seconds, `who` did something."""

    at: float
    who: str
    what: str


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command when the broker first accepted it, or a job when it was first started."""

    at: float
    command: str
    id: str
    attempt: int


class ScenarioTrace(logging.Handler):
    """Records messages, handler executions, crashes, and the product's warnings."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._now = now
        self.entries: list[TraceEntry] = []
        self.commands: list[SentCommand] = []
        self.on_message: Callable[[str, str], None] = lambda exchange, routing_key: None

    def note(self, who: str, what: str) -> None:
        """Adds an entry."""
        self.entries.append(TraceEntry(self._now(), who, what))

    def emit(self, record: logging.LogRecord) -> None:
        """Records a warning of the product, with its cause."""
        error = record.exc_info[1] if record.exc_info else None
        self.note("log", record.getMessage() + (f": {error!r}{_origin(error)}" if error is not None else ""))

    def published(self, message: Outgoing, queues: Sequence[str]) -> None:
        """Records a message that the broker has accepted."""
        body = json.loads(message.body)
        if message.exchange == COMMANDS:
            self._command(message, body)
        elif message.exchange == EVENTS:
            error = body.get("error")
            self.note("worker", f"{message.routing_key} {shortened(error or body.get('data', {}))}")
        elif message.exchange == DEAD:
            self.note("worker", f"dead letter {message.routing_key}: {message.headers.get('x-reason')}")
        self.on_message(message.exchange, message.routing_key)

    def acknowledging(self, delivery: Delivery) -> None:
        """Records nothing."""

    def job(self, id: str, name: str, attempt: int) -> None:
        """Records the start of a job, perhaps not the first."""
        if all(sent.id != id for sent in self.commands):
            self.note("node", f"{name} attempt {attempt}, a job")
            self.commands.append(SentCommand(self._now(), name, id, attempt))

    def _command(self, message: Outgoing, body: Mapping[str, Any]) -> None:
        copy = any(sent.id == body["id"] for sent in self.commands)
        self.note("node", f"{message.routing_key} attempt {body['attempt']}{', a copy' if copy else ''}")
        if not copy:
            self.commands.append(SentCommand(self._now(), message.routing_key, body["id"], body["attempt"]))

    def table(self, more: Iterable[TraceEntry]) -> str:
        """All of it and `more`, by time."""
        lines = [
            f"{entry.at:10.3f}  {entry.who:<7} {entry.what}"[:TABLE_WIDTH]
            for entry in sorted([*self.entries, *more], key=lambda entry: entry.at)
        ]
        if len(lines) > TABLE_LINES:
            between = f"{'':10}  … {len(lines) - TABLE_LINES} lines …"
            lines = [*lines[: TABLE_LINES // 2], between, *lines[-TABLE_LINES // 2 :]]
        return "\n".join([f"{'seconds':>10}  {'who':<7} what", *lines])


def shortened(fields: Any) -> str:
    """Shortened JSON; what is not JSON is shown all the same, because the worker rejects it."""
    try:
        text = json.dumps(fields, ensure_ascii=False) if fields else ""
    except BaseException:
        text = brief(fields)
    return text if len(text) <= TABLE_WIDTH else f"{text[:TABLE_WIDTH]}…"


def _origin(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno})" if trace is not None else ""
