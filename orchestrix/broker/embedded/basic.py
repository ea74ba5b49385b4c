"""Basic methods: how a client subscribes, fetches messages, and acks or rejects them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from orchestrix import clock
from orchestrix.broker.embedded import errors, frames
from orchestrix.broker.embedded.declarations import named_queue
from orchestrix.broker.embedded.model.queues import EmbeddedQueue, Subscription

if TYPE_CHECKING:
    from orchestrix.broker.embedded.channel import EmbeddedChannel


def qos(channel: EmbeddedChannel, method: commands.Basic.Qos) -> None:
    """Applies to consumers that start later, as RabbitMQ has it. Raises AmqpError 540 for bytes or a shared limit."""
    if method.prefetch_size:
        raise errors.not_implemented(f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        raise errors.not_implemented(
            "a prefetch shared by the channel (global=true) is deprecated; set it per consumer"
        )
    channel.prefetch = method.prefetch_count
    channel.send(commands.Basic.QosOk())


def consume(channel: EmbeddedChannel, method: commands.Basic.Consume) -> None:
    queue = named_queue(channel, method.queue)
    _check_consume(channel, queue, method)
    tag = method.consumer_tag or f"amq.ctag-{clock.token()}"
    consumer = Subscription(
        channel,
        queue,
        tag,
        frames.short_string(tag),
        no_ack=method.no_ack,
        exclusive=method.exclusive,
        prefetch=channel.prefetch,
    )
    channel.deliveries.consumers[tag] = consumer
    if not method.nowait:
        channel.send(commands.Basic.ConsumeOk(tag))
    queue.add(consumer)


def _check_consume(channel: EmbeddedChannel, queue: EmbeddedQueue, method: commands.Basic.Consume) -> None:
    if method.arguments:
        raise errors.not_implemented(f"the embedded broker has no consumer argument '{min(method.arguments)}'")
    if method.consumer_tag and method.consumer_tag in channel.deliveries.consumers:
        raise errors.not_allowed(f"attempt to reuse consumer tag '{method.consumer_tag}'")
    wants_alone = method.exclusive and (queue.consumers or queue.settings.single_active)
    if wants_alone or any(consumer.exclusive for consumer in queue.consumers):
        raise errors.access_refused(f"queue '{queue.name}' in vhost '{channel.link.vhost.name}' in exclusive use")


def cancel(channel: EmbeddedChannel, method: commands.Basic.Cancel) -> None:
    """What the consumer has unacked stays with it until it is acked. An unknown tag is no error."""
    consumer = channel.deliveries.consumers.pop(str(method.consumer_tag), None)
    if consumer is not None:
        consumer.queue.remove(consumer)
    if not method.nowait:
        channel.send(commands.Basic.CancelOk(method.consumer_tag))
    if consumer is not None:
        consumer.queue.settle()
        delete_if_left(channel, consumer.queue)


def delete_if_left(channel: EmbeddedChannel, queue: EmbeddedQueue) -> None:
    if queue.settings.auto_delete and not queue.consumers:
        channel.link.vhost.delete_queue(queue)


def get(channel: EmbeddedChannel, method: commands.Basic.Get) -> None:
    queue = named_queue(channel, method.queue)
    if queue.settings.single_active and queue.settings.quorum:
        raise errors.AmqpError(405, f"basic.get is not supported by the single active consumer queue '{queue.name}'")
    entry = queue.take()
    if entry is None:
        channel.send(commands.Basic.GetEmpty())
        return
    tag = channel.deliveries.next_tag()
    if not method.no_ack:
        channel.deliveries.remember(tag, entry, queue, None)
    left = len(queue.ready)
    channel.send_content(frames.get_ok(tag, entry.redelivered, entry.message.address, left), entry)


def nack(channel: EmbeddedChannel, method: commands.Basic.Nack) -> None:
    channel.deliveries.nack(method.delivery_tag, method.multiple, method.requeue)


def reject(channel: EmbeddedChannel, method: commands.Basic.Reject) -> None:
    channel.deliveries.nack(int(method.delivery_tag or 0), False, method.requeue)


def recover(channel: EmbeddedChannel, method: commands.Basic.Recover) -> None:
    if not method.requeue:
        raise errors.not_implemented("requeue=false")
    channel.deliveries.recover()
    channel.send(commands.Basic.RecoverOk())
