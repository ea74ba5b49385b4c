"""Embedded channel: handles the frames that arrive on one channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pamqp.frame
from pamqp import commands

from orchestrix.broker.embedded import basic, declarations, errors, frames
from orchestrix.broker.embedded.model.deliveries import Deliveries
from orchestrix.broker.embedded.publishing import Publishing

if TYPE_CHECKING:
    from pamqp.base import Frame

    from orchestrix.broker.embedded.model.ports import ConnectionPort
    from orchestrix.broker.embedded.model.queues import QueuedMessage, Subscription

Handler = Callable[["EmbeddedChannel", Any], None]
RECOVER_ASYNC = 0x003C0064


class EmbeddedChannel:
    """One channel. Raises AmqpError; the connection turns that into a close of the right scope."""

    def __init__(self, number: int, link: ConnectionPort) -> None:
        self.number = number
        self.link = link
        self.closing = False
        self.prefetch = 0
        self.last_queue = ""
        self.deliveries = Deliveries()
        self.publishing = Publishing(number, link)

    def on_method(self, index: int, payload: bytes) -> None:
        if self.publishing.expects_content:
            raise errors.unexpected_frame("expected content header for class 60, got a method frame instead")
        if index == frames.PUBLISH:
            self.publishing.begin(*frames.read_publish(payload))
        elif index == frames.ACK:
            self.deliveries.ack(*frames.read_ack(payload))
        else:
            self._dispatch(index, payload)

    def _dispatch(self, index: int, payload: bytes) -> None:
        if index >> 16 == commands.Tx.frame_id or index == RECOVER_ASYNC:
            raise errors.not_implemented("the embedded broker has no transactions and no recover-async")
        if index not in HANDLERS:
            raise errors.command_invalid(f"unknown client method {index >> 16}.{index & 0xFFFF}")
        method = commands.INDEX_MAPPING[index]()
        method.unmarshal(payload[4:])
        HANDLERS[index](self, method)

    def send(self, method: Frame) -> None:
        self.link.send(pamqp.frame.marshal(method, self.number))

    def deliver(self, consumer: Subscription, entry: QueuedMessage) -> None:
        tag = self.deliveries.next_tag()
        if not consumer.no_ack:
            self.deliveries.remember(tag, entry, consumer.queue, consumer)
        method = frames.deliver(consumer.encoded_tag, tag, entry.redelivered, entry.message.address)
        self.send_content(method, entry)

    def send_content(self, method: bytes, entry: QueuedMessage) -> None:
        message = entry.message
        counted = entry.counted and entry.returns
        header = message.header_with_count(entry.returns) if counted else message.header
        self.link.send(frames.content(self.number, method, header, message.body, self.link.frame_max))

    def consumer_cancelled(self, consumer: Subscription) -> None:
        self.deliveries.consumers.pop(consumer.tag, None)
        if self.link.notifies_cancel and not self.closing:
            self.send(commands.Basic.Cancel(consumer.tag, nowait=True))

    def release(self) -> None:
        """Requeue what is unacked and leave the queues; auto-delete queues without consumers are deleted."""
        self.closing = True
        self.publishing.forget()
        for queue in self.deliveries.release():
            basic.delete_if_left(self, queue)


def _flow(channel: EmbeddedChannel, method: commands.Channel.Flow) -> None:
    if not method.active:
        raise errors.not_implemented("active=false")
    channel.send(commands.Channel.FlowOk(active=True))


def _select_confirms(channel: EmbeddedChannel, method: commands.Confirm.Select) -> None:
    channel.publishing.confirm()
    if not method.nowait:
        channel.send(commands.Confirm.SelectOk())


def _ignore(_channel: EmbeddedChannel, _method: object) -> None:
    """cancel-ok of a client: the consumer was gone already."""


HANDLERS: dict[int, Handler] = {
    commands.Channel.Flow.index: _flow,
    commands.Confirm.Select.index: _select_confirms,
    commands.Exchange.Declare.index: declarations.declare_exchange,
    commands.Exchange.Delete.index: declarations.delete_exchange,
    commands.Exchange.Bind.index: declarations.refuse_exchange_binding,
    commands.Exchange.Unbind.index: declarations.refuse_exchange_binding,
    commands.Queue.Declare.index: declarations.declare_queue,
    commands.Queue.Bind.index: declarations.bind_queue,
    commands.Queue.Unbind.index: declarations.unbind_queue,
    commands.Queue.Purge.index: declarations.purge_queue,
    commands.Queue.Delete.index: declarations.delete_queue,
    commands.Basic.Qos.index: basic.qos,
    commands.Basic.Consume.index: basic.consume,
    commands.Basic.Cancel.index: basic.cancel,
    commands.Basic.CancelOk.index: _ignore,
    commands.Basic.Get.index: basic.get,
    commands.Basic.Nack.index: basic.nack,
    commands.Basic.Reject.index: basic.reject,
    commands.Basic.Recover.index: basic.recover,
}
