"""AMQP declarations: declares queues, exchanges and bindings; counts and deletes queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from pamqp import commands
from pamqp.base import Frame

from orchestrix.broker.amqp.channel import AmqpChannel, ChannelLost
from orchestrix.broker.amqp.connection import AmqpConnection
from orchestrix.broker.port import Binding, Exchange, Queue, Topology
from orchestrix.errors import ConfigError

log = logging.getLogger("orchestrix.broker")

DECLARE_TIMEOUT_S: Final = 20.0
"""Seconds for one declare: a quorum queue's replicas have to agree."""
PARALLEL_DECLARES: Final = 6
"""Queues declared side by side, each on a channel of its own."""
RECREATE_DELAY_S: Final = 0.1
"""Seconds between missing a queue and creating it. Created within some 20 ms of its deletion, RabbitMQ (3.10) neither
notifies the old consumers nor drops them: what the new queue sends them is lost."""
_DENIED, _MISSING, _LOCKED = 403, 404, 405
T = TypeVar("T")
R = TypeVar("R")


class _Refusal(NamedTuple):
    code: int
    text: str


def check_name(queue: str) -> None:
    """Raises ConfigError where the client library refuses the name before any broker has seen it."""
    try:
        commands.Queue.Declare(queue=queue).marshal()
    except (ValueError, TypeError) as e:
        raise ConfigError(f"{queue!r} is not a valid queue name ({e})") from e


async def count(link: AmqpConnection, queue: str) -> tuple[int, int] | None:
    """(messages ready, consumers), or None if there is no such queue. Raises Unavailable."""
    check_name(queue)
    try:
        async with await link.channel() as channel:
            answer = await channel.call(commands.Queue.Declare(queue=link.named(queue), passive=True))
    except ChannelLost as e:
        if e.code == _MISSING:
            return None
        raise
    assert isinstance(answer, commands.Queue.DeclareOk)
    return answer.message_count or 0, answer.consumer_count or 0


async def delete(link: AmqpConnection, queue: str) -> None:
    """Deletes plainly, full or not: `if_empty` on a quorum queue costs the whole connection (540)."""
    check_name(queue)
    try:
        async with await link.channel() as channel:
            await channel.call(commands.Queue.Delete(queue=link.named(queue)), DECLARE_TIMEOUT_S)
    except ChannelLost as e:
        if e.code != _MISSING:
            raise


async def declare(link: AmqpConnection, topology: Topology) -> None:
    """Exchanges, then queues, then bindings. Continues where one is wrong, and raises one ConfigError that names
    all; of those for which the user has no right, one.
    """
    queues = [replace(one, name=link.named(one.name)) for one in topology.queues]
    bindings = [replace(one, queue=link.named(one.queue)) for one in topology.bindings]
    complaints = await _declare_all(link, [_exchange(one) for one in topology.exchanges], pause=0)
    complaints += await _declare_all(link, [_queue(one) for one in queues], pause=RECREATE_DELAY_S)
    complaints += await _bind(link, bindings, {one.name for one in queues if one.exclusive})
    if complaints:
        raise ConfigError("; ".join(_shortened(complaints)))


def _shortened(complaints: Sequence[str]) -> Iterator[str]:
    """All, but of the missing rights the first: where one is missing, each queue and binding has the same complaint."""
    refused = [one for one in complaints if "ACCESS_REFUSED" in one]
    yield from (one for one in complaints if one not in refused[1:])
    if more := len(refused) - 1:
        yield f"{more} more that the user has no right to"


class _Wanted(NamedTuple):
    what: str
    request: Callable[[bool], Frame]
    exclusive: bool = False
    unique: bool = False


def _exchange(one: Exchange) -> _Wanted:
    def request(passive: bool) -> Frame:
        return commands.Exchange.Declare(
            exchange=one.name, exchange_type=one.kind, durable=True, passive=passive, arguments=dict(one.arguments)
        )

    return _Wanted(f"exchange {one.name}", request)


def _queue(one: Queue) -> _Wanted:
    def request(passive: bool) -> Frame:
        return commands.Queue.Declare(
            queue=one.name,
            durable=not one.exclusive,
            exclusive=one.exclusive,
            passive=passive,
            arguments=dict(one.arguments),
        )

    return _Wanted(f"queue {one.name}", request, one.exclusive, one.unique)


async def _declare_all(link: AmqpConnection, wanted: Sequence[_Wanted], pause: float) -> list[str]:
    """Passively first; then actively, which creates, or compares what is there with what is asked for."""
    seen = await _side_by_side(wanted, lambda one: _check_passively(link, one))
    if any(refusal is not None and refusal.code == _MISSING for refusal in seen):
        await asyncio.sleep(pause)
    pairs = list(zip(wanted, seen, strict=True))
    complaints = await _side_by_side(pairs, lambda pair: _declare(link, *pair))
    return [complaint for complaint in complaints if complaint is not None]


async def _check_passively(link: AmqpConnection, one: _Wanted) -> _Refusal | None:
    return None if one.unique else await _try(link, one, passive=True)


async def _declare(link: AmqpConnection, one: _Wanted, seen: _Refusal | None) -> str | None:
    if one.exclusive and seen is not None and seen.code == _LOCKED:
        return None  # the broker has not missed our last connection yet; whoever reads the queue asks again
    if seen is not None and seen.code != _MISSING:
        return f"{one.what}: {seen.text}"
    refusal = await _try(link, one, passive=False)
    if refusal is None or (refusal.code == _DENIED and seen is None):
        return None  # denied but there: the operators declared it and let no other user do so
    return f"{one.what}: {refusal.text}"


async def _side_by_side(items: Iterable[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    turns = asyncio.Semaphore(PARALLEL_DECLARES)

    async def one(item: T) -> R:
        async with turns:
            return await work(item)

    answers = await asyncio.gather(*(one(item) for item in items), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def _try(link: AmqpConnection, one: _Wanted, *, passive: bool) -> _Refusal | None:
    """None if the broker did it, its refusal if it closed the channel for it. Raises Unavailable for all else."""
    try:
        async with await link.channel() as channel:
            await channel.call(one.request(passive), DECLARE_TIMEOUT_S)
    except ChannelLost as e:
        if e.code:
            return _Refusal(e.code, str(e))
        raise
    except (ValueError, TypeError) as e:
        return _Refusal(0, f"the name or an argument cannot be sent ({e})")
    return None


async def _bind(link: AmqpConnection, bindings: Iterable[Binding], exclusive: Set[str]) -> list[str]:
    complaints: list[str] = []
    channel: AmqpChannel | None = None
    for one in bindings:
        if channel is None or channel.lost is not None:
            channel = await link.channel()
        try:
            request = commands.Queue.Bind(queue=one.queue, exchange=one.exchange, routing_key=one.routing_key)
            await channel.call(request, DECLARE_TIMEOUT_S)
        except (ChannelLost, ValueError, TypeError) as e:
            if isinstance(e, ChannelLost) and not e.code:
                raise
            if isinstance(e, ChannelLost) and one.queue in exclusive and e.code in (_MISSING, _LOCKED):
                continue
            complaints.append(f"binding of {one.queue} to {one.exchange}: {e}")
    if channel is not None:
        await channel.close()
    return complaints
