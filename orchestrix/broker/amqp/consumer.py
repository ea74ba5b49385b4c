"""AMQP consumer: a subscription that outlives its channels, with deliveries and acks in batches."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from pamqp import commands

from orchestrix import clock
from orchestrix.broker.amqp import codec
from orchestrix.broker.amqp import declarations as lookup
from orchestrix.broker.amqp.backoff import Backoff
from orchestrix.broker.amqp.channel import AmqpChannel, ChannelListener, ChannelLost
from orchestrix.broker.amqp.connection import AmqpConnection
from orchestrix.broker.message_metrics import received
from orchestrix.broker.permission_commands import permissions_command_for
from orchestrix.broker.port import Delivery, Topology, Wanted
from orchestrix.errors import ConfigError, Unavailable

log = logging.getLogger("orchestrix.broker")

SUBSCRIPTION_CHECK_INTERVAL_S: Final = 10.0
"""Seconds between two checks that the broker still knows the subscriptions."""
OWN_QUEUES_CHECK_INTERVAL_S: Final = 60.0
"""The same for a consumer that declares its queues itself: there can be a thousand of them."""
_MISSING: Final = 404
PREFETCH_GROWTH_FACTOR: Final = 4
"""The prefetch grows by this factor; each step costs two round trips a queue."""
_sessions = itertools.count(1)
_ACK_ALL, _NACK_ALL, _REQUEUE = 1, 1, 2


class AmqpConsumer(ChannelListener):
    """One channel on the consuming connection, opened again whenever it is lost. See `port.Consumer`.

    One task of its own does every call on the channel; `receive`, `acknowledge` and `requeue` never wait for it.
    The prefetch grows by further subscriptions beside the first, each with its own share: a `basic.cancel` would make
    the broker take back what is on its way, which then counts as delivered once more. An exclusive subscription cannot
    have another beside it and begins with all; a queue with a single active consumer serves the first share alone.
    """

    def __init__(
        self,
        link: Callable[[], Awaitable[AmqpConnection]],
        queues: Sequence[str],
        prefetch: int,
        exclusive: bool,
        queue_missing: Callable[[], None] = lambda: None,
        own_topology: Topology | None = None,
        dynamic_topology: Wanted | None = None,
    ) -> None:
        self._link, self._queues, self._limit, self._exclusive = link, tuple(queues), prefetch, exclusive
        self._queue_missing, self._own_topology, self._dynamic_topology = queue_missing, own_topology, dynamic_topology
        self._check_every = SUBSCRIPTION_CHECK_INTERVAL_S if own_topology is None else OWN_QUEUES_CHECK_INTERVAL_S
        self._inbox: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._applied = asyncio.Event()
        self._channel: AmqpChannel | None = None
        self._session = self._qos = 0
        self._unfinished: dict[int, None] = {}
        self._tags: dict[str, str] = {}
        self._prefetch_shares: dict[str, dict[str, int]] = {}
        self._absent: dict[str, tuple[float, Backoff]] = {}
        self._allowed: dict[str, int] = {}
        self._prefetch, self._finished = 1, 0
        self._step_due = self._paused = self._reopen = self._closed = False
        self._idle_checks = 0
        self._last_error = ""
        self._lost_hooks: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing more will come."""
        return self._closed

    def start(self) -> None:
        """Begins to subscribe."""
        self._task = asyncio.create_task(self._run(), name=f"consumer of {', '.join(self._queues)}")

    # What the port asks for.

    @property
    def unread(self) -> Sequence[str]:
        if self._channel is None:
            return self._queues
        wanted = [] if self._paused else [one for one in self._queues if self._allowed.get(one, self._limit)]
        return [one for one in wanted if one not in self._prefetch_shares]

    async def receive(self, limit: int, linger: float = 0.0) -> list[Delivery]:
        while not self._inbox:
            if self._closed:
                return []
            self._arrived.clear()
            await self._arrived.wait()
        if linger > 0 and self._can_receive_more(limit):
            await self._collect_more(limit, linger)
        deliveries = [self._inbox.popleft() for _ in range(min(limit, len(self._inbox)))]
        received(deliveries)
        return deliveries

    def _can_receive_more(self, limit: int) -> bool:
        """Whether waiting can help: with a full prefetch nothing comes before something is finished."""
        return len(self._inbox) < limit and len(self._unfinished) < self._prefetch * max(1, len(self._prefetch_shares))

    async def _collect_more(self, limit: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                while self._can_receive_more(limit) and not self._closed:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            pass

    async def acknowledge(self, deliveries: Sequence[Delivery], *, grow: bool = True) -> None:
        tags = self._finish(deliveries)
        self._settle(tags, codec.ACK, _ACK_ALL, 0)
        self._finished += len(tags) if grow else 0
        if self._finished >= self._prefetch and tags and grow:
            self.grow()

    def grow(self) -> None:
        if self._prefetch < self._limit:
            self._step_due = True
            self._changed.set()

    def allow(self, queue: str, limit: int) -> None:
        if self._allowed.get(queue) != limit:
            self._allowed[queue] = limit
            self._changed.set()

    async def requeue(self, deliveries: Sequence[Delivery]) -> None:
        self._settle(self._finish(deliveries), codec.NACK, _NACK_ALL, _REQUEUE)

    def alive(self, delivery: Delivery) -> bool:
        return self._channel is not None and self._channel.lost is None and delivery.session == self._session

    def on_channel_lost(self, hook: Callable[[], None]) -> None:
        self._lost_hooks.append(hook)

    def also_read(self, queues: Sequence[str]) -> None:
        self._queues = tuple(dict.fromkeys((*self._queues, *queues)))
        self._changed.set()

    async def pause(self) -> None:
        self._paused = True
        await self._apply_now()

    async def resume(self) -> None:
        self._paused = False
        await self._apply_now()

    async def reopen(self) -> None:
        self._reopen = self._channel is not None
        await self._apply_now()

    async def close(self) -> None:
        self._closed = True
        self._arrived.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _apply_now(self) -> None:
        if self._channel is None:
            return  # the next channel begins with the present subscriptions
        self._applied.clear()
        self._changed.set()
        await self._applied.wait()

    # Acknowledging: everything up to the first unfinished tag goes as one frame, the rest one by one.

    def _finish(self, deliveries: Sequence[Delivery]) -> set[int]:
        return {one.tag for one in deliveries if self.alive(one) and one.tag in self._unfinished}

    def _settle(self, tags: set[int], method: int, all_before: int, flags: int) -> None:
        if not tags or self._channel is None:
            return
        prefix = list(itertools.takewhile(tags.__contains__, self._unfinished))
        number = self._channel.number
        frames = [codec.settle(method, number, prefix[-1], all_before | flags)] if prefix else []
        frames += [codec.settle(method, number, tag, flags) for tag in sorted(tags.difference(prefix))]
        self._channel.send(b"".join(frames))
        for tag in tags:
            del self._unfinished[tag]

    # Callbacks of the channel.

    def on_deliver(self, method: bytes, header: bytes, body: bytes) -> None:
        tag, at = codec.read_consumer_tag(method)
        delivery = codec.read_delivery(method, at, header, body, self._tags.get(tag, ""), self._session)
        self._unfinished[delivery.tag] = None
        self._inbox.append(delivery)
        self._arrived.set()

    def on_cancel(self, consumer_tag: str) -> None:
        queue = self._tags.pop(consumer_tag, "")
        if consumer_tag in self._prefetch_shares.get(queue, ()):
            log.warning("the broker cancelled the subscription to %s", queue)
            del self._prefetch_shares[queue]  # its other shares go the same way
            if self._lost_hooks:
                self._forget()
                self._reopen = True
            self._changed.set()

    def on_lost(self, lost: ChannelLost) -> None:
        self._forget()
        expected = self._own_topology is not None and lost.code == _MISSING
        if lost.code and not expected and str(lost) != self._last_error:
            self._last_error = str(lost)
            fix = f"; type: {line}" if (line := permissions_command_for(str(lost))) is not None else ""
            log.warning("the broker closed the channel of %s: %s %s%s", ", ".join(self._queues), lost.code, lost, fix)
        self._changed.set()

    def _forget(self) -> None:
        """The deliveries of this channel are void: the broker redelivers them."""
        was_open, self._channel = self._channel is not None, None
        self._inbox.clear()
        self._unfinished.clear()
        self._prefetch_shares.clear()
        self._tags.clear()
        self._applied.set()
        for hook in self._lost_hooks if was_open else ():
            hook()

    # The task that keeps a channel open and its subscriptions as they are wanted.

    async def _run(self) -> None:
        backoff = Backoff(0.2, 5.0)
        while True:
            link = await self._link()
            began = clock.monotonic()
            try:
                await self._live(link)
            except Unavailable as e:
                log.debug("consumer of %s: %s", self._queues, e)
                await self._declare_own(link, e)
            except Exception:
                log.exception("unexpected error in the consumer of %s", self._queues)
            if clock.monotonic() - began > SUBSCRIPTION_CHECK_INTERVAL_S or self._reopen:
                backoff.reset()
                self._last_error = ""
            if not self._reopen:
                await asyncio.sleep(backoff.next())
            self._reopen = False

    async def _declare_own(self, link: AmqpConnection, lost: Unavailable) -> None:
        """Declares the queues if it was one of them that the broker missed."""
        if self._own_topology is None or not isinstance(lost, ChannelLost) or lost.code != _MISSING:
            return
        if self._dynamic_topology is not None and not await self._dynamic_topology():
            return
        try:
            await lookup.declare(link, self._own_topology)
            self._reopen, self._last_error = True, ""  # at once
        except (Unavailable, ConfigError) as e:
            log.warning("consumer of %s: %s", self._queues, e)

    async def _live(self, link: AmqpConnection) -> None:
        """Opens a channel and serves it until it is lost or to be opened again."""
        channel = await link.channel(self)
        self._begin(channel)
        try:
            check_at = clock.monotonic() + self._check_every
            while not self._reopen:
                self._changed.clear()
                channel.check()
                await self._apply(link, channel)
                if not self._changed.is_set():
                    self._applied.set()
                await self._wait(check_at)
                if clock.monotonic() >= check_at:
                    await self._check(link)
                    check_at = clock.monotonic() + self._check_every
        finally:
            self._forget()
            await channel.close()

    def _begin(self, channel: AmqpChannel) -> None:
        self._channel, self._session, self._qos = channel, next(_sessions), 0
        self._absent.clear()
        self._restart()

    def _restart(self) -> None:
        whole = self._exclusive or self._own_topology is not None
        self._prefetch, self._finished, self._step_due = (self._limit if whole else 1), 0, False
        self._idle_checks = 0

    async def _wait(self, check_at: float) -> None:
        until = min([check_at, *(at for at, _ in self._absent.values())])
        try:
            async with asyncio.timeout(max(0.0, until - clock.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _apply(self, link: AmqpConnection, channel: AmqpChannel) -> None:
        if self._paused:
            await self._unsubscribe(channel)
            self._absent.clear()
            self._restart()
            return
        if self._step_due:
            self._prefetch, self._finished = min(self._prefetch * PREFETCH_GROWTH_FACTOR, self._limit), 0
            self._step_due = False
        for queue in self._queues:
            share = await self._prefetch_share(channel, queue)
            if share and (
                queue in self._prefetch_shares
                or self._own_topology is not None
                or await self._queue_exists(link, queue)
            ):
                await self._subscribe(channel, queue, share, link.named(queue))

    async def _prefetch_share(self, channel: AmqpChannel, queue: str) -> int:
        """What may still be added to the shares of the queue; what is too much is taken away, the latest first."""
        most, shares = min(self._prefetch, self._allowed.get(queue, self._limit)), self._prefetch_shares.get(queue, {})
        while sum(shares.values()) > most:
            tag, _ = shares.popitem()
            await self._cancel(channel, tag)
        if not shares:
            self._prefetch_shares.pop(queue, None)  # else it would seem that the broker has lost it
        return most - sum(shares.values())

    async def _queue_exists(self, link: AmqpConnection, queue: str) -> bool:
        """Looks on another channel first: consuming from a missing queue would cost this one its deliveries."""
        due, backoff = self._absent.get(queue) or (0.0, Backoff(0.2, 5.0))
        if clock.monotonic() < due:
            return False
        if await lookup.count(link, queue) is not None:
            self._absent.pop(queue, None)
            return True
        if queue not in self._absent:
            log.warning("queue %s does not exist yet; retrying", queue)
        self._queue_missing()
        self._absent[queue] = clock.monotonic() + backoff.next(), backoff
        return False

    async def _subscribe(self, channel: AmqpChannel, queue: str, share: int, name: str) -> None:
        tag = f"{len(self._tags)}.{clock.token()}"
        self._tags[tag] = queue
        self._prefetch_shares.setdefault(queue, {})[tag] = share
        if share != self._qos:
            await channel.call(commands.Basic.Qos(prefetch_count=share))  # for the consumers that come after it
            self._qos = share
        await channel.call(commands.Basic.Consume(queue=name, consumer_tag=tag, exclusive=self._exclusive))

    async def _unsubscribe(self, channel: AmqpChannel) -> None:
        """What arrives until the broker's answer stays valid, and so does what was delivered before."""
        for tag in [tag for shares in self._prefetch_shares.values() for tag in shares]:
            await self._cancel(channel, tag)
        self._prefetch_shares.clear()

    async def _cancel(self, channel: AmqpChannel, tag: str) -> None:
        await channel.call(commands.Basic.Cancel(consumer_tag=tag))
        self._tags.pop(tag, None)  # nothing arrives for it behind the answer

    # The check that the broker still has our subscriptions.

    async def _check(self, link: AmqpConnection) -> None:
        """A connection that does not answer is cut; a subscription that the broker has lost is made again."""
        try:
            counts = [(queue, await lookup.count(link, queue)) for queue in list(self._prefetch_shares)]
        except ChannelLost as e:
            if e.code == 0:
                link.abort(f"the broker does not answer on an open connection ({e})")
            return  # a refusal says nothing about our subscription
        ready = sum(count[0] for _, count in counts if count is not None)
        idle = ready and not self._unfinished and self._own_topology is None  # its queues may serve another one
        self._idle_checks = self._idle_checks + 1 if idle else 0
        forgotten = [queue for queue, count in counts if count is None or count[1] == 0]
        if forgotten or self._idle_checks > 1:
            log.warning("the broker delivers nothing from %s: reopening the channel", forgotten or self._queues)
            self._reopen = True
