"""Connection supervisor: connects to the broker, and connects again after each loss."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from yarl import URL

from orchestrix import clock
from orchestrix.broker.amqp.addresses import addresses, connect_problem, host_and_port
from orchestrix.broker.amqp.backoff import Backoff
from orchestrix.broker.amqp.connection import AmqpConnection
from orchestrix.broker.port import LinkState
from orchestrix.errors import BrokerUnavailable, OrchestrixError, Unavailable
from orchestrix.telemetry import log_events

log = logging.getLogger("orchestrix.broker")

STABLE_CONNECTION_S: Final = 5.0
"""Seconds that a connection must have been up for the next reconnect to be quick again."""
RECONNECT_MIN_S: Final = 0.2
RECONNECT_MAX_S: Final = 15.0
"""The first and the last ceiling of the wait before a connect: see `Backoff`."""
MISSED_HEARTBEATS_LIMIT: Final = 1.75
"""Silent heartbeat intervals after which the broker counts as lost. It sends two in each: three are missing then."""


@dataclass(frozen=True, slots=True)
class AmqpSession:
    """The two connections of one generation. An alarm of the broker blocks the one that publishes, never the other."""

    publish: AmqpConnection
    consume: AmqpConnection

    @property
    def links(self) -> tuple[AmqpConnection, AmqpConnection]:
        return self.publish, self.consume


class ConnectionSupervisor:
    """Keeps one session up: DOWN → CONNECTING → SETUP → UP, and from any of them back to DOWN or to CLOSING.

    When either connection is lost, `on_down` hooks run at once, then both are made again. `setup` prepares a session
    before it counts as up.
    """

    def __init__(
        self,
        url: Callable[[], str],
        name: str,
        heartbeat: int,
        setup: Callable[[AmqpSession], Awaitable[None]],
        log_name: str | None = None,
        reconnect_max_s: float = RECONNECT_MAX_S,
    ) -> None:
        self.state = LinkState.DOWN
        self.generation = 0
        self.problem: str | None = "not connected to the broker yet"
        self.up_hooks: list[Callable[[int], None]] = []
        self.down_hooks: list[Callable[[int, str], None]] = []
        self._url, self._name, self._heartbeat, self._setup = url, name, heartbeat, setup
        self._log_name = log_name or name
        self._backoff = Backoff(RECONNECT_MIN_S, reconnect_max_s)
        self._session: AmqpSession | None = None
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to connect."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"broker connection {self._name}")

    async def session(self) -> AmqpSession:
        """The session, as soon as it is up."""
        while self._session is None or self.state is not LinkState.UP:
            await self._up.wait()
        return self._session

    def current(self) -> AmqpSession:
        """The session. Raises BrokerUnavailable while there is none."""
        if self._session is None or self.state is not LinkState.UP:
            raise BrokerUnavailable(self.problem or "the broker is not connected")
        return self._session

    async def wait_connected(self, timeout: float | None) -> bool:
        """Waits until UP; False when `timeout` seconds have passed."""
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Closes both connections; takes about 2 s where the broker hangs."""
        was_up, self.state, self.problem = self.state is LinkState.UP, LinkState.CLOSING, "stopped"
        self._up.clear()
        if was_up:
            self._notify_down("stopped")
        self._session = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self.state = LinkState.DOWN

    async def _run(self) -> None:
        while True:
            try:
                await self._live(await self._connect())
            except OrchestrixError as e:
                self._fail(str(e))
            except Exception as e:
                log.exception("unexpected error on the broker connection")
                self._fail(f"unexpected {type(e).__name__}")
            await asyncio.sleep(self._backoff.next())

    def _fail(self, sentence: str) -> None:
        if sentence != self.problem:
            log.warning('connection "%s": %s; retrying', self._log_name, sentence)
        self.state, self.problem = LinkState.DOWN, sentence

    async def _connect(self) -> AmqpSession:
        """Raises ConfigError or Unavailable, which says in one sentence what is wrong."""
        self.state = LinkState.CONNECTING
        found = addresses(self._ask_url())
        for last, url in enumerate(found, start=1 - len(found)):
            try:
                return await self._open(url)
            except Unavailable:
                if last == 0:
                    raise
        raise AssertionError("an address list is never empty")

    def _ask_url(self) -> str:
        try:
            return self._url()
        except (OSError, ValueError, KeyError) as e:
            raise Unavailable(f"cannot determine the broker's address ({type(e).__name__})") from e

    async def _open(self, url: URL) -> AmqpSession:
        token = clock.token()
        session = AmqpSession(AmqpConnection("publish", token), AmqpConnection("consume", token))
        try:
            for link in session.links:
                await self._try_connect(link, url)
            self.state = LinkState.SETUP
            await self._setup(session)
            for link in session.links:
                link.check()
        except BaseException:
            for link in session.links:
                link.abort("the second connection could not be opened")
            raise
        log.info(
            'connection "%s": connected to %s',
            self._log_name,
            host_and_port(url),
            extra={"event": log_events.BROKER_CONNECTED},
        )
        return session

    async def _try_connect(self, link: AmqpConnection, url: URL) -> None:
        try:
            await link.open(url, self._name, self._heartbeat)
        except Exception as e:
            raise Unavailable(connect_problem(url, e, link.refusal, link.last_error)) from e

    async def _live(self, session: AmqpSession) -> None:
        """Stays UP until one of the connections is lost."""
        self._begin(session)
        up_at = clock.monotonic()
        try:
            while not any(link.lost.done() for link in session.links):
                lost = [link.lost for link in session.links]
                await asyncio.wait(lost, timeout=self._silence_limit(session), return_when="FIRST_COMPLETED")
                self._listen(session)
            if clock.monotonic() - up_at > STABLE_CONNECTION_S:
                self._backoff.reset()
        finally:
            await self._close(session)

    def _begin(self, session: AmqpSession) -> None:
        self._session = session
        self.generation += 1
        self.state, self.problem = LinkState.UP, None
        for link in session.links:
            link.on_lost = self._down
        self._up.set()
        for hook in list(self.up_hooks):
            _guarded(hook, self.generation)

    def _silence_limit(self, session: AmqpSession) -> float | None:
        """Seconds until the quieter link may be dead: a periodic check would find that out half a heartbeat late."""
        heard_at = min(link.heard_at for link in session.links)
        return (
            max(0.1, heard_at + MISSED_HEARTBEATS_LIMIT * self._heartbeat - clock.monotonic())
            if self._heartbeat
            else None
        )

    def _listen(self, session: AmqpSession) -> None:
        """The peer is dead before two heartbeats have passed; aio-pika alone would wait for more than three."""
        for link in session.links:
            silent = clock.monotonic() - link.heard_at
            if self._heartbeat and silent >= MISSED_HEARTBEATS_LIMIT * self._heartbeat:
                link.abort(f"no data from the broker for {silent:.0f} s")

    def _down(self, reason: str) -> None:
        session, self._session = self._session, None
        if self.state is not LinkState.UP or session is None:
            return
        self._up.clear()
        self.state, self.problem = LinkState.DOWN, reason
        extra = {"event": log_events.BROKER_LOST, "reason": reason}
        log.warning('connection "%s" lost: %s', self._log_name, reason, extra=extra)
        self._notify_down(reason)
        for link in session.links:
            link.lose(reason)

    def _notify_down(self, reason: str) -> None:
        for hook in list(self.down_hooks):
            _guarded(hook, self.generation, reason)

    async def _close(self, session: AmqpSession) -> None:
        await asyncio.gather(*(link.close() for link in session.links))


def _guarded(hook: Callable[..., None], *arguments: object) -> None:
    try:
        hook(*arguments)
    except Exception:
        log.exception("a callback of the broker connection failed")
