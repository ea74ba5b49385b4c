"""Command reporter: publishes events until the broker confirms them, before their commands are acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from orchestrix import crash
from orchestrix.broker.dead_letter import FORMS
from orchestrix.broker.port import Broker, Delivery, LinkState, Outcome, Outgoing, Published, Topology
from orchestrix.broker.published_spans import carrying, with_spans
from orchestrix.errors import ConfigError, Unavailable
from orchestrix.lifecycle import WakeSignal, backoff
from orchestrix.telemetry import log_events
from orchestrix.telemetry.tracing import NO_SPAN, Span
from orchestrix.worker.backpressure import Backpressure
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.in_flight import InFlightCommands
from orchestrix.worker.context import LOGGER
from orchestrix.worker.delivery_spans import (
    UNREPORTED,
    begin_delivery,
    dead_letter_span,
    is_kept,
    publish_span,
    saga_attributes_of,
    set_ignored,
)

BATCH_LIMIT: Final = 500
KEY: Final = "events"
POLL_INTERVAL_S: Final = 0.25
START_REPORT_TRIES: Final = 3
"""How often the start of work is reported at most: it is of use for a while only."""


@dataclass(slots=True, eq=False)
class CommandReport:
    """A message that must be confirmed, and what it settles: a command, or a delivery that could not be parsed.

    `count` is the counter that is then incremented. `instead` makes the substitutes, one after the other, where the
    broker refuses the message for ever. `began` is a command whose start alone is reported. `dead` is the delivery
    whose dead letter it is, and `span` that of handling one that could not be parsed.
    """

    outgoing: Outgoing
    count: Literal["done", "failed", "dead", "started"]
    command: CommandDelivery | None = None
    delivery: Delivery | None = None
    instead: tuple[Callable[[], Outgoing], ...] = ()
    suspect: bool = False
    began: CommandDelivery | None = None
    tries: int = 0
    dead: Delivery | None = None
    span: Span = NO_SPAN
    published: bool = False

    def begin_publish(self) -> Span:
        """The span of publishing it once."""
        again, self.published = self.published, True
        owner = self.command or self.began
        made_by = self.span if owner is None else owner.span
        if not is_kept(made_by):
            return NO_SPAN
        attributes = {} if owner is None else saga_attributes_of(owner.message)
        if self.dead is not None:
            return dead_letter_span(self.outgoing, self.dead, made_by, attributes)
        return publish_span(self.outgoing, made_by, attributes, again=again)

    def end_span(self, ignored: str | None = None) -> None:
        """The span of handling a delivery that could not be parsed ends."""
        if ignored is not None:
            set_ignored(self.span, ignored)
        self.span.end()
        self.span = NO_SPAN


def dead_letter_report(delivery: Delivery, reason: str, command: CommandDelivery | None = None) -> CommandReport:
    """The report that dead-letters the message, in a plainer form where the broker refuses the first."""
    first, *others = [partial(form, delivery, reason) for form in FORMS]
    span = NO_SPAN if command is not None else begin_delivery(delivery)
    set_ignored(span if command is None else command.span, reason)
    stray = None if command else delivery
    return CommandReport(first(), "dead", command, stray, tuple(others), dead=delivery, span=span)


class CommandReporter:
    """Publishes reports in batches, again and again with the same message ids until they are confirmed."""

    def __init__(
        self, broker: Broker, in_flight: InFlightCommands, outage: Backpressure, topology: Callable[[], Topology]
    ) -> None:
        self._broker = broker
        self._in_flight = in_flight
        self._outage = outage
        self._topology = topology
        self._waiting: dict[CommandReport, None] = {}
        self._start_reports: dict[CommandDelivery | None, CommandReport] = {}
        self._wake = WakeSignal()
        self._failures = 0
        self._empty = asyncio.Event()
        self._empty.set()

    def add(self, report: CommandReport) -> None:
        """Adds a report; returns at once. After the result of a command its start is not reported any more."""
        if (begin := self._start_reports.pop(report.command, None)) is not None:
            self._waiting.pop(begin, None)
        if report.began is not None:
            self._start_reports[report.began] = report
        self._waiting[report] = None
        self._empty.clear()
        self._wake.set()

    async def all_confirmed(self) -> None:
        """Waits until everything is confirmed."""
        await self._empty.wait()

    def abandon(self) -> None:
        """The worker ends: nothing more is published, and the spans of what is queued end."""
        for report in self._waiting:
            report.end_span(UNREPORTED)

    async def round(self) -> None:
        """Publishes what is queued, once."""
        if not self._waiting:
            # No report needs the broker, so none may keep the worker paused: no other would ever come.
            await self._outage.over(KEY)
            await self._wake.wait(None)
            if not self._waiting:
                return  # woken by one that the last round has sent
        await self._reachable()
        reports = list(self._waiting)[:BATCH_LIMIT]
        if not reports:
            return
        others = [report for report in reports if not report.suspect]
        complete = await self._send(others) if others else True
        for suspect in [report for report in reports if report.suspect]:
            complete = await self._send([suspect]) and complete
        await self._settle_problem(complete)

    async def _reachable(self) -> None:
        while (reason := self._blocked_reason()) is not None:
            await self._outage.note(KEY, f"the broker is blocked and takes no messages: {reason}")
            if self._broker.blocked is None:
                await self._broker.wait_connected(5.0)
            else:
                await asyncio.sleep(POLL_INTERVAL_S)

    def _blocked_reason(self) -> str | None:
        if self._broker.blocked is not None:
            return self._broker.blocked
        return None if self._broker.state is LinkState.UP else self._broker.problem or "not connected"

    async def _settle_problem(self, complete: bool) -> None:
        if complete:
            self._failures = 0
            await self._outage.over(KEY)
        else:
            self._failures += 1
            await asyncio.sleep(backoff(self._failures))

    async def _send(self, reports: Sequence[CommandReport]) -> bool:
        """Whether nothing is left to republish."""
        spans = [report.begin_publish() for report in reports]
        publishing = self._broker.publish(
            [
                report.outgoing if report.dead else carrying(report.outgoing, span)
                for report, span in zip(reports, spans, strict=True)
            ]
        )
        results = await with_spans(crash.within("worker.after_publish", publishing), spans)
        pairs = list(zip(reports, results, strict=True))
        confirmed = [report for report, result in pairs if result.outcome is Outcome.CONFIRMED]
        await self._settle(confirmed)
        left = [pair for pair in pairs if pair[1].outcome is not Outcome.CONFIRMED]
        for report, result in left:
            await self._judge(report, result)
        if any(result.outcome is Outcome.RETURNED or result.channel_closed for _, result in left):
            await self._declare()
        if not self._waiting:
            self._empty.set()
        return not left

    async def _judge(self, report: CommandReport, result: Published) -> None:
        """Decides what to do about a message that was not confirmed."""
        if report.began is not None:
            report.tries += 1
            if report.tries >= START_REPORT_TRIES or result.outcome is Outcome.REFUSED:
                self._forget(report)
            return
        if result.outcome is Outcome.REFUSED or (result.channel_closed and report.suspect):
            await self._replace(report, result.detail)
        elif result.channel_closed:
            report.suspect = True  # it, or another of its batch: from now on it is published alone
        elif result.outcome is Outcome.UNKNOWN:
            await self._outage.note(KEY, f"an event was not confirmed: {result.detail or 'no answer'}")

    async def _replace(self, report: CommandReport, detail: str) -> None:
        LOGGER.error(
            "the broker rejected %s: %s",
            report.outgoing.routing_key,
            detail,
            extra={"event": log_events.REPORT_REJECTED},
        )
        if not report.instead:
            return await self._settle([report])
        make, *others = report.instead
        report.outgoing, report.instead, report.suspect, report.published = make(), tuple(others), False, False
        return None

    async def _declare(self) -> None:
        try:
            await self._broker.declare(self._topology())
        except (ConfigError, Unavailable) as error:
            LOGGER.error(
                "the queue of an event is missing and cannot be declared: %s",
                error,
                extra={"event": log_events.QUEUE_MISSING},
            )

    async def _settle(self, reports: Sequence[CommandReport]) -> None:
        commands = [report.command for report in reports if report.command]
        strays = [report.delivery for report in reports if report.delivery]
        for report in reports:
            self._forget(report)
            report.end_span()
            setattr(self._in_flight.counts, report.count, getattr(self._in_flight.counts, report.count) + 1)
        if commands:
            crash.point("worker.after_confirm")
            await self._in_flight.reported(commands)
            _log_reports(reports)
        if strays:
            crash.point("worker.after_dead_letter")
            await self._in_flight.consumer.acknowledge(strays)

    def _forget(self, report: CommandReport) -> None:
        self._waiting.pop(report, None)
        if report.began is not None and self._start_reports.get(report.began) is report:
            del self._start_reports[report.began]


def _log_reports(reports: Sequence[CommandReport]) -> None:
    commands = [(report.command, report.count) for report in reports if report.command is not None]
    for command, count in commands if LOGGER.isEnabledFor(logging.DEBUG) else ():
        message = command.message
        LOGGER.debug("%s %d: %s is %s", message.saga, message.app_id, message.type, count, extra=command.log_fields())
