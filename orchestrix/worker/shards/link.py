"""Member link: a member's messages to the coordinators, and theirs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from orchestrix import clock
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.member_session import MemberSession
from orchestrix.errors import ConfigError
from orchestrix.lifecycle import Loop, WakeSignal
from orchestrix.saga.messages import UnreadableMessage
from orchestrix.telemetry import log_events
from orchestrix.worker.context import LOGGER
from orchestrix.worker.shards.log import log_shorter_timeout
from orchestrix.worker.shards.rabbitmq import MemberTransport

MOST_QUICK_RETRIES: Final = 3
"""Heartbeats in a row that follow sooner because the one before was not answered: an outage of the coordinators must
not fill their queue."""
SEND_TIMEOUT_S: Final = 5.0


class MemberLink:
    """Registers until it is answered, then sends heartbeats: each third of the time-out, and sooner where one was not
    answered, or on `notify`. `changed` is called when an answer counts, and when `problem` changes.
    """

    def __init__(
        self, name: str, service: str, session: MemberSession, transport: MemberTransport, changed: Callable[[], None]
    ) -> None:
        self._name, self._service, self._session = name, service, session
        self._transport, self._changed = transport, changed
        self._wake = WakeSignal()
        self._answered_seq, self._quick_retries = 0, 0
        self._loops = (Loop(f"{name} heartbeats", self._round), Loop(f"{name} answers", self._read))
        self.problem: str | None = None
        """What the coordinators or the broker refuse, and what to do; None while there is nothing."""
        self.config_error: ConfigError | None = None
        """Why the broker will never take what this member sends."""
        self.began_at = self.sent_at = clock.boottime()
        """When the link began, and the newest message was sent, on the clock of leases."""

    @property
    def _heartbeat_s(self) -> float:
        return self._session.rules.heartbeat_timeout_s / 3

    @property
    def _retry_s(self) -> float:
        return self._session.rules.heartbeat_timeout_s / 10

    @property
    def _send_timeout_s(self) -> float:
        return min(SEND_TIMEOUT_S, self._heartbeat_s)

    async def start(self) -> None:
        """Begins, in the background."""
        self.began_at = clock.boottime()
        await self._transport.start()
        for loop in self._loops:
            await loop.start()

    async def stop(self) -> None:
        """Sends and receives no more."""
        for loop in self._loops:
            await loop.stop()
        await self._transport.stop()

    def notify(self) -> None:
        """There is something to say now."""
        self._wake.set()

    async def leave(self) -> bool:
        """Says that the process leaves, after its heartbeats have ended; whether that will arrive."""
        await self._loops[0].stop()
        body = messages.leave(self._service, self._session.leave())
        try:
            return await self._transport.send(messages.LEAVE, body, timeout=self._send_timeout_s)
        except ConfigError as error:
            self._refused(error)
            return False

    # Out.

    async def _round(self) -> None:
        try:
            await self._send()
        except ConfigError as error:
            self._refused(error)
        await self._pause()

    async def _send(self) -> None:
        session, self.sent_at = self._session, clock.boottime()
        if session.must_register:
            kind, body = messages.REGISTER, messages.register(self._service, session.register(self.sent_at))
        else:
            sent, grants = session.heartbeat(self.sent_at), session.grants
            kind, body = messages.HEARTBEAT, messages.heartbeat(self._service, sent, grants)
        await self._transport.send(kind, body, timeout=self._send_timeout_s)

    async def _pause(self) -> None:
        seq = self._session.seq
        if self._session.answered and self._quick_retries < MOST_QUICK_RETRIES:
            if await self._wake.wait(self._retry_s):
                return
            if self._answered_seq < seq:
                self._quick_retries += 1
                return
        interval_s = self._heartbeat_s * clock.uniform(0.8, 1.0)  # members that began together do not stay so
        await self._wake.wait(max(0.0, self.sent_at + interval_s - clock.boottime()))

    # In.

    async def _read(self) -> None:
        received = await self._transport.receive()
        for one in received:
            self._receive(one.body)
        if not received:
            await asyncio.Event().wait()  # until this loop is stopped, too

    def _receive(self, body: bytes) -> None:
        try:
            got = messages.read_assignment(body, self._session.worker_id)
        except UnreadableMessage as error:
            self._report(f"an answer of a coordinator cannot be read: {error}")
            return
        if got.instance == self._session.instance or (got.instance is None and got.problem is not None):
            self._report(got.problem)
        before, was_count_due = self._session.rules.heartbeat_timeout_s, self._session.count_due
        counts = self._session.receive(got, clock.boottime())
        if (timeout_s := self._session.rules.heartbeat_timeout_s) < before:
            log_shorter_timeout(self._name, timeout_s, before)
        if counts:
            self._answered_seq = max(self._answered_seq, got.seq)
            if self._answered_seq == self._session.seq:
                self._quick_retries = 0
            self.config_error = None
            if was_count_due and not self._session.count_due:
                self._wake.set()  # a registration does not say which shards it has let go of
            self._changed()

    # What is wrong.

    def _refused(self, error: ConfigError) -> None:
        self.config_error = error
        self._report(str(error))

    def _report(self, problem: str | None) -> None:
        """Logs a problem once, until there is another or none."""
        if problem == self.problem:
            return
        former, self.problem = self.problem, problem
        extra = {"event": log_events.SHARD_MEMBER_REFUSED}
        if problem is not None:
            LOGGER.error("%s is refused: %s", self._name, problem, extra=extra)
        elif former is not None:
            LOGGER.warning("%s is no longer refused", self._name, extra=extra)
        self._changed()
