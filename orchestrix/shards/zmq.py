"""ZeroMQ transport of shards: S1's ROUTER socket, to which clients without a broker connect their DEALER sockets.

A client is known by the identity of its connection, which belongs to one node: the address of its answers names both.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

import zmq
import zmq.asyncio
from zmq.auth import load_certificate
from zmq.auth.asyncio import AsyncioAuthenticator

from orchestrix.broker.port import Broker
from orchestrix.domain.shards.messages import MOST_BYTES, refusal
from orchestrix.errors import ConfigError, RetryableError, SchemaMismatch
from orchestrix.lifecycle import Loop, backoff, shielded
from orchestrix.shards.forwarding import ForwardedPushes, forward
from orchestrix.shards.rabbitmq import Handled, MemberAnswer, MemberRequest
from orchestrix.shards.transport import ZMQ_PREFIX as PREFIX
from orchestrix.shards.transport import MemberService
from orchestrix.shards.waiting import ClientMessage, WaitingMessages
from orchestrix.telemetry import log_events
from orchestrix.telemetry.log_throttle import LogThrottle
from orchestrix.telemetry.metrics import catalogue as metrics
from orchestrix.telemetry.metrics.instruments import counter

T = TypeVar("T")

log = logging.getLogger("orchestrix.shards")

MAX_FRAME_BYTES: Final = 1024 * 1024
"""Bytes of a frame beyond which libzmq closes the connection, before it has room for them. A frame between `MOST_BYTES`
and this is not read either, but answered with a sentence: it may be a heartbeat with very many shards."""
READ_AHEAD: Final = 8
"""Messages of one connection that libzmq reads before they are taken."""
QUEUED_ANSWERS: Final = 100
"""Answers that it keeps for one connection: those for a client that does not read are dropped."""
BATCH_LIMIT: Final = 200
READS_AT_ONCE: Final = 200
"""Messages that are read before other tasks have a turn."""
LONGEST_IDENTITY: Final = 100
HANDSHAKE_TIMEOUT_MS: Final = 10_000
LINGER_MS: Final = 500
"""Milliseconds that answers have to leave at the end."""
KEEP_ALIVE: Final = {"TCP_KEEPALIVE": 1, "TCP_KEEPALIVE_IDLE": 30, "TCP_KEEPALIVE_INTVL": 10, "TCP_KEEPALIVE_CNT": 3}
"""Seconds until the connection of a client ends that is gone without closing it."""
_ALL_DOMAINS: Final = "*"


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """`server` is the file with the server's two keys, `clients` the folder with the public keys of who may connect."""

    server: Path
    clients: Path


@dataclass(slots=True)
class SocketCounts:
    """What has become of messages since the start: those that were `wrong` are answered with what is wrong with them,
    those that were `dropped` had no room. Of answers, those that are `gone` were for clients that are not connected any
    more, and those that are `full` for clients that do not read.
    """

    received: int = 0
    wrong: int = 0
    dropped: int = 0
    sent: int = 0
    gone: int = 0
    full: int = 0

    def show(self) -> None:
        """Shows them as metrics from now on, also after the end of the socket: what was counted stays counted."""
        counter(metrics.SHARD_CLIENT_MESSAGES).watch(lambda: {(): self.received})
        counter(metrics.SHARD_CLIENT_REFUSED).watch(
            lambda: {(metrics.UNREADABLE,): self.wrong, (metrics.NO_ROOM,): self.dropped}
        )
        counter(metrics.SHARD_CLIENT_ANSWERS).watch(
            lambda: {
                (metrics.SENT,): self.sent,
                (metrics.NOT_CONNECTED,): self.gone,
                (metrics.NOT_READ,): self.full,
            }
        )


class ClientSocket:
    """The ROUTER socket. It is read all the time, also while nothing can be handled: heartbeats that waited in it would
    be old when they are read.
    """

    def __init__(self, endpoint: str, keys: CurveKeys | None = None) -> None:
        self.endpoint = endpoint
        self.counts = SocketCounts()
        self.counts.show()
        self.waiting = WaitingMessages()
        self._keys = keys
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._authenticator: AsyncioAuthenticator | None = None
        self._throttle = LogThrottle()
        self._loop = Loop("shard clients", self._round)

    async def start(self) -> None:
        """Begins to listen. Raises `ConfigError` where it cannot."""
        self._context = zmq.asyncio.Context()
        try:
            self._socket = self._bound(self._context)
        except BaseException:
            await self.stop()
            raise
        extra = {"event": log_events.SHARD_CLIENTS, "endpoint": self.endpoint}
        log.info("listening for shard clients on %s", self.endpoint, extra=extra)
        await self._loop.start()

    async def stop(self) -> None:
        """Closes all connections."""
        await self._loop.stop()
        authenticator, self._authenticator = self._authenticator, None
        if authenticator is not None:
            authenticator.stop()
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close(linger=LINGER_MS)
        context, self._context = self._context, None
        if context is not None:
            await asyncio.to_thread(context.term)

    def send(self, identity: bytes, body: bytes) -> None:
        """Sends to a client, or drops what cannot be sent at once."""
        if self._socket is None:
            return
        try:
            _now(self._socket.send_multipart([identity, body], zmq.NOBLOCK))
        except zmq.Again:
            self.counts.full += 1
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            self.counts.gone += 1
        else:
            self.counts.sent += 1

    def refuse(self, identity: bytes, problem: str) -> None:
        """Answers a client with what is wrong with what it has sent."""
        self.counts.wrong += 1
        self._warn("a shard client has sent what cannot be read: %.300s", problem)
        self.send(identity, refusal(problem))

    def _bound(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        socket = context.socket(zmq.ROUTER)
        try:
            _limit(socket)
            socket.setsockopt(zmq.IPV6, int("[" in self.endpoint))
            if self._keys is not None:
                self._authenticator = _secured(context, socket, self._keys)
            socket.bind(self.endpoint)
            self.endpoint = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        except BaseException as error:
            socket.close(linger=0)
            if isinstance(error, zmq.ZMQError):
                raise ConfigError(_why_not(self.endpoint, error)) from error
            raise
        return socket

    async def _round(self) -> None:
        socket = self._socket
        assert socket is not None, "it is bound"
        self._take(await socket.recv_multipart())
        for _ in range(READS_AT_ONCE):
            try:
                self._take(_now(socket.recv_multipart(zmq.NOBLOCK)))
            except zmq.Again:
                break
        await asyncio.sleep(0)

    def _take(self, frames: Sequence[bytes]) -> None:
        self.counts.received += 1
        if (problem := _problem(frames)) is not None:
            self.refuse(frames[0], problem)
        elif not self.waiting.add((frames[0], frames[1])):
            self.counts.dropped += 1
            self._warn("more messages of shard clients wait than there is room for: dropped what %.20s sent", "one")

    def _warn(self, text: str, *args: object) -> None:
        if (left_out := self._throttle.due(text)) is not None:
            log.warning(text, *args, extra={"event": log_events.SHARD_CLIENTS, "left_out": left_out})


class ZmqTransport:
    """Handles what the clients of `socket` have sent; the socket still listens after this has stopped.

    `here` is the id of this node now. Answers to clients of other nodes go by these, and `forwarded` are the clients
    for which they ask the same of this one.
    """

    def __init__(
        self,
        socket: ClientSocket,
        handler: MemberService,
        broker: Broker,
        here: Callable[[], str],
        forwarded: ForwardedPushes,
    ) -> None:
        self._socket, self._handler, self._broker = socket, handler, broker
        self._here, self._forwarded = here, forwarded
        self._own = {here()}
        self._failures = 0
        self._loops = [Loop("shard clients' requests", self._round), Loop("forwarded pushes", self._send_forwarded)]

    async def start(self) -> None:
        """Begins to handle messages."""
        for loop in self._loops:
            await loop.start()

    async def stop(self) -> None:
        """Handles no more; what is left waits."""
        for loop in self._loops:
            await loop.stop()

    async def send(self, answers: Sequence[MemberAnswer]) -> None:
        """Sends answers, also those that no client has asked for. What does not arrive is not sent again: the answer to
        the client's next heartbeat says the same.
        """
        self._own.add(self._here())
        self._send_here([one for one in answers if one.via in self._own])
        await forward(self._broker, [one for one in answers if one.via not in self._own])

    def _send_here(self, answers: Sequence[MemberAnswer]) -> None:
        for one in answers:
            if (identity := _identity(one.reply_to)) is not None:
                self._socket.send(identity, one.body)

    async def _send_forwarded(self) -> None:
        self._send_here(await self._handler.current(await self._forwarded.take()))

    async def _round(self) -> None:
        batch = await self._socket.waiting.first(BATCH_LIMIT)
        try:
            handled = await self._handled(batch)
        except (RetryableError, SchemaMismatch) as error:
            self._failures += 1
            if self._failures == 1:
                log.warning("cannot handle what shard clients send yet; retrying: %s", error)
            await asyncio.sleep(backoff(self._failures))
            return
        self._failures = 0
        self._socket.waiting.remove(batch)
        for (identity, _), one in zip(batch, handled, strict=True):
            if one.unreadable is not None:
                self._socket.refuse(identity, one.unreadable)
        await self.send([answer for one in handled for answer in one.answers])

    async def _handled(self, batch: Sequence[ClientMessage]) -> Sequence[Handled]:
        """The results. What fails for an unforeseen reason is found by handling each alone."""
        self._own.add(here := self._here())
        requests = [MemberRequest(body, PREFIX + identity.hex(), None, here) for identity, body in batch]
        try:
            return await shielded(self._handler.handle(requests))
        except (RetryableError, SchemaMismatch):
            raise
        except Exception as error:
            if len(batch) > 1:
                return [(await self._handled([one]))[0] for one in batch]
            log.exception("a message of a shard client cannot be handled")
            return [Handled(unreadable=f"failed: {type(error).__name__}")]


def _now(outcome: Awaitable[T]) -> T:
    """What a call that does not block has done already."""
    return cast("asyncio.Future[T]", outcome).result()


def _problem(frames: Sequence[bytes]) -> str | None:
    """Why a message is not read: it is to be a DEALER's of one frame, before which ROUTER puts the identity."""
    if len(frames) != 2:
        return f"{len(frames) - 1} frames: send one, from a DEALER socket"
    if len(frames[0]) > LONGEST_IDENTITY:
        return f"the socket's identity has {len(frames[0])} bytes: at most {LONGEST_IDENTITY}"
    if len(frames[1]) > MOST_BYTES:
        return (
            f"too-large: {len(frames[1])} bytes, at most {MOST_BYTES}: send assignedShards as ranges [first, last], or "
            "run more members"
        )
    return None


def _identity(reply_to: str) -> bytes | None:
    try:
        return bytes.fromhex(reply_to.removeprefix(PREFIX)) if reply_to.startswith(PREFIX) else None
    except ValueError:
        return None


def _limit(socket: zmq.asyncio.Socket) -> None:
    """What one client can cost."""
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client with its own identity comes back before its end was noticed
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.setsockopt(zmq.RCVHWM, READ_AHEAD)
    socket.setsockopt(zmq.SNDHWM, QUEUED_ANSWERS)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_TIMEOUT_MS)
    for name, value in KEEP_ALIVE.items():
        socket.setsockopt(getattr(zmq, name), value)


def _secured(context: zmq.asyncio.Context, socket: zmq.asyncio.Socket, keys: CurveKeys) -> AsyncioAuthenticator:
    """Only clients whose public keys are known can connect."""
    public, secret = _server_keys(keys.server)
    if not keys.clients.is_dir():
        raise ConfigError(f"there is no folder with public keys of clients at {keys.clients}")
    authenticator = AsyncioAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve(domain=_ALL_DOMAINS, location=keys.clients)
    socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
    socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    return authenticator


def _server_keys(path: Path) -> tuple[bytes, bytes]:
    if not path.is_file():
        raise ConfigError(f"there is no file with the server's keys at {path}")
    try:
        public, secret = load_certificate(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the server's keys in {path}: {error}") from error
    if secret is None:
        raise ConfigError(f"{path} has no secret key: name the file that ends with .key_secret")
    return public, secret


def _why_not(endpoint: str, error: zmq.ZMQError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen for shard clients on {endpoint}: another process has that port: stop it, or choose another "
            "one by SHARD_COORDINATOR_BIND_PORT"
        )
    reason = zmq.strerror(error.errno) if error.errno else error.strerror
    return (
        f"cannot listen for shard clients on {endpoint} ({reason}): choose another SHARD_COORDINATOR_BIND_HOST or "
        "SHARD_COORDINATOR_BIND_PORT"
    )
