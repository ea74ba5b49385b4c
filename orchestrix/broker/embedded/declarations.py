"""Declarations: a client declares, binds, purges and deletes exchanges and queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from orchestrix import clock
from orchestrix.broker.embedded import errors, frames
from orchestrix.broker.embedded.model.arguments import exchange_settings, queue_settings, refuse_transient
from orchestrix.broker.embedded.model.queues import EmbeddedQueue

if TYPE_CHECKING:
    from orchestrix.broker.embedded.channel import EmbeddedChannel

RESERVED = "amq."


def named_queue(channel: EmbeddedChannel, name: str) -> EmbeddedQueue:
    """The queue of that name; the empty name means the last one declared on this channel."""
    if not name and not channel.last_queue:
        raise errors.not_found("previously declared queue", name, channel.link.vhost.name)
    return channel.link.vhost.queue(name or channel.last_queue, channel.link)


def declare_queue(channel: EmbeddedChannel, method: commands.Queue.Declare) -> None:
    queue = named_queue(channel, method.queue) if method.passive else _declare(channel, method)
    channel.last_queue = queue.name
    if not method.nowait:
        counts = len(queue.ready), queue.consumer_count
        channel.link.send(frames.queue_declare_ok(channel.number, queue.name, *counts))


def _declare(channel: EmbeddedChannel, method: commands.Queue.Declare) -> EmbeddedQueue:
    vhost = channel.link.vhost
    name = method.queue or f"amq.gen-{clock.token()}"
    if method.queue.startswith(RESERVED) and method.queue not in vhost.queues:
        raise errors.access_refused(f"queue name '{name}' contains reserved prefix 'amq.*'")
    flags = method.durable, method.exclusive, method.auto_delete
    settings = queue_settings(name, *flags, method.arguments, channel.link.profile)
    if name not in vhost.queues:
        refuse_transient(name, settings, channel.link.profile)
    return vhost.declare_queue(name, settings, channel.link)


def bind_queue(channel: EmbeddedChannel, method: commands.Queue.Bind) -> None:
    queue = named_queue(channel, method.queue)
    _refuse_default(method.exchange)
    channel.link.vhost.exchange(method.exchange).bind(queue.name, method.routing_key)
    if not method.nowait:
        channel.send(commands.Queue.BindOk())


def unbind_queue(channel: EmbeddedChannel, method: commands.Queue.Unbind) -> None:
    """A binding, queue or exchange that is missing is no error."""
    _refuse_default(method.exchange)
    vhost = channel.link.vhost
    name = method.queue or channel.last_queue
    if name in vhost.queues and vhost.has_exchange(method.exchange):
        vhost.unbind(vhost.exchange(method.exchange), vhost.queue(name, channel.link).name, method.routing_key)
    channel.send(commands.Queue.UnbindOk())


def purge_queue(channel: EmbeddedChannel, method: commands.Queue.Purge) -> None:
    count = named_queue(channel, method.queue).purge()
    if not method.nowait:
        channel.send(commands.Queue.PurgeOk(count))


def delete_queue(channel: EmbeddedChannel, method: commands.Queue.Delete) -> None:
    """Deleting a missing queue is no error."""
    vhost = channel.link.vhost
    count = 0
    if (method.queue or channel.last_queue) in vhost.queues:
        queue = named_queue(channel, method.queue)
        _check_delete(queue, method, vhost.name)
        count = vhost.delete_queue(queue)
    if not method.nowait:
        channel.send(commands.Queue.DeleteOk(count))


def _check_delete(queue: EmbeddedQueue, method: commands.Queue.Delete, vhost: str) -> None:
    if queue.settings.quorum and (method.if_unused or method.if_empty):
        raise errors.not_implemented(
            f"cannot delete queue '{queue.name}' in vhost '{vhost}': "
            "if-unused and if-empty are not supported by quorum queues"
        )
    if method.if_unused and queue.consumers:
        raise errors.precondition_failed(f"queue '{queue.name}' in vhost '{vhost}' in use")
    if method.if_empty and queue.ready:
        raise errors.precondition_failed(f"queue '{queue.name}' in vhost '{vhost}' not empty")


def declare_exchange(channel: EmbeddedChannel, method: commands.Exchange.Declare) -> None:
    _refuse_default(method.exchange)
    vhost = channel.link.vhost
    if method.passive:
        vhost.exchange(method.exchange)
    else:
        flags = method.durable, method.auto_delete, method.internal
        settings = exchange_settings(method.exchange, method.exchange_type, *flags, method.arguments)
        if method.exchange.startswith(RESERVED) and not vhost.has_exchange(method.exchange):
            raise errors.access_refused(f"exchange name '{method.exchange}' contains reserved prefix 'amq.*'")
        vhost.declare_exchange(method.exchange, settings)
    if not method.nowait:
        channel.send(commands.Exchange.DeclareOk())


def delete_exchange(channel: EmbeddedChannel, method: commands.Exchange.Delete) -> None:
    _refuse_default(method.exchange)
    if method.exchange.startswith(RESERVED):
        raise errors.access_refused(f"exchange name '{method.exchange}' contains reserved prefix 'amq.*'")
    channel.link.vhost.delete_exchange(method.exchange, if_unused=method.if_unused)
    if not method.nowait:
        channel.send(commands.Exchange.DeleteOk())


def refuse_exchange_binding(_channel: EmbeddedChannel, _method: object) -> None:
    raise errors.not_implemented("the embedded broker does not bind exchanges to exchanges")


def _refuse_default(exchange: str) -> None:
    if not exchange:
        raise errors.access_refused("operation not permitted on the default exchange")
