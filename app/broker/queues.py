"""What is declared at the broker, and what is in its queues?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from pamqp import commands
from pamqp.base import Frame

from app.errors import ConfigError

from .channel import Channel, ChannelLost
from .link import Link
from .port import Binding, Exchange, Queue, Topology

log = logging.getLogger("orchestrix.broker")

DECLARE_WITHIN: Final = 20.0
"""Seconds for one declare: a quorum queue's replicas have to agree."""
AT_A_TIME: Final = 6
"""Queues declared side by side, each on a channel of its own."""
_REFUSED, _MISSING, _LOCKED, _OTHER = 403, 404, 405, 406
T = TypeVar("T")


def check_name(queue: str) -> None:
    """Raises ConfigError where the client library refuses the name before any broker has seen it."""
    try:
        commands.Queue.Declare(queue=queue).marshal()
    except (ValueError, TypeError) as e:
        raise ConfigError(f"{queue!r} cannot be a queue's name ({e})") from e


async def count(link: Link, queue: str) -> tuple[int, int] | None:
    """(messages ready, consumers), or None if there is no such queue. Raises Unavailable."""
    check_name(queue)
    try:
        async with await link.channel() as channel:
            answer = await channel.call(commands.Queue.Declare(queue=queue, passive=True))
    except ChannelLost as e:
        if e.code == _MISSING:
            return None
        raise
    assert isinstance(answer, commands.Queue.DeclareOk)
    return answer.message_count, answer.consumer_count


async def delete(link: Link, queue: str) -> None:
    """Deletes plainly, full or not: `if_empty` on a quorum queue costs the whole connection (540)."""
    check_name(queue)
    try:
        async with await link.channel() as channel:
            await channel.call(commands.Queue.Delete(queue=queue), DECLARE_WITHIN)
    except ChannelLost as e:
        if e.code != _MISSING:
            raise


async def declare(link: Link, topology: Topology) -> None:
    """Exchanges, then queues, then bindings. Goes on where one is wrong, and raises one ConfigError that names all."""
    complaints: list[str] = []
    complaints += await _each(topology.exchanges, lambda one: _declare_exchange(link, one))
    complaints += await _each(topology.queues, lambda one: _declare_queue(link, one))
    complaints += await _bind(link, topology.bindings)
    if complaints:
        raise ConfigError("; ".join(complaints))


async def _each(things: Iterable[T], declare_one: Callable[[T], Awaitable[str | None]]) -> list[str]:
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(thing: T) -> str | None:
        async with turns:
            return await declare_one(thing)

    answers = await asyncio.gather(*(one(thing) for thing in things), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if isinstance(answer, str)]


async def _declare_exchange(link: Link, one: Exchange) -> str | None:
    def request(passive: bool) -> Frame:
        return commands.Exchange.Declare(
            exchange=one.name, exchange_type=one.kind, durable=True, passive=passive, arguments=dict(one.arguments)
        )

    return await _declare(link, f"exchange {one.name}", request)


async def _declare_queue(link: Link, one: Queue) -> str | None:
    def request(passive: bool) -> Frame:
        return commands.Queue.Declare(
            queue=one.name,
            durable=not one.exclusive,
            exclusive=one.exclusive,
            passive=passive,
            arguments=dict(one.arguments),
        )

    return await _declare(link, f"queue {one.name}", request)


async def _declare(link: Link, what: str, request: Callable[[bool], Frame]) -> str | None:
    """Passively first; then actively, which creates, or compares what is there with what is asked for."""
    try:
        there = await _try(link, lambda: request(True))
        if there is not None and there.code != _MISSING:
            return f"{what}: {there}"
        wrong = await _try(link, lambda: request(False))
    except ValueError as e:
        return f"{what}: the name or an argument cannot be sent ({e})"
    if wrong is None:
        return None
    if wrong.code == _REFUSED and there is None:
        return None  # the operators declared it and let nobody else do so
    return f"{what}: {wrong}"


async def _try(link: Link, request: Callable[[], Frame]) -> ChannelLost | None:
    """None if the broker did it, its refusal if it closed the channel for it. Raises Unavailable for all else."""
    try:
        async with await link.channel() as channel:
            await channel.call(request(), DECLARE_WITHIN)
    except ChannelLost as e:
        if e.code in (_REFUSED, _MISSING, _LOCKED, _OTHER):
            return e
        raise
    return None


async def _bind(link: Link, bindings: Iterable[Binding]) -> list[str]:
    complaints: list[str] = []
    channel: Channel | None = None
    for one in bindings:
        if channel is None or channel.lost is not None:
            channel = await link.channel()
        try:
            request = commands.Queue.Bind(queue=one.queue, exchange=one.exchange, routing_key=one.routing_key)
            await channel.call(request, DECLARE_WITHIN)
        except (ChannelLost, ValueError) as e:
            if isinstance(e, ChannelLost) and not e.code:
                raise
            complaints.append(f"binding of {one.queue} to {one.exchange}: {e}")
    if channel is not None:
        await channel.close()
    return complaints
