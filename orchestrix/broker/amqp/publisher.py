"""AMQP publisher: sends a batch with all its confirms in flight, and returns the outcome of each message."""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, NamedTuple

from pamqp import commands

from orchestrix import clock
from orchestrix.broker.amqp import codec
from orchestrix.broker.amqp.channel import AmqpChannel, ChannelListener, ChannelLost
from orchestrix.broker.amqp.connection import AmqpConnection
from orchestrix.broker.port import Outcome, Outgoing, Published
from orchestrix.errors import Invalid, Unavailable
from orchestrix.quantities import counted

log = logging.getLogger("orchestrix.broker")

MAX_IN_FLIGHT_MESSAGES: Final = 1000
"""Messages that one call has in flight at a time; the next ones follow when these are confirmed."""
MAX_IN_FLIGHT_BYTES: Final = 4 * 2**20
"""The same limit in bytes; a larger message goes alone."""
MAX_LATE_CONFIRMS: Final = 1000
LATE_CONFIRM_RETENTION_S: Final = 60.0
"""Seconds that a late confirm is remembered; with `MAX_LATE_CONFIRMS` or more of them the channel is reopened."""
COPY: Final = "x-copy"
"""The header of a message that is sent again while the confirm of an earlier copy of it is outstanding."""
_TOO_LARGE: Final = re.compile(r"message size (\d+)")
_NO_EXCHANGE: Final = re.compile(r"no exchange '(.*?)' in vhost")

CONFIRMED: Final = Published(Outcome.CONFIRMED)


@dataclass(slots=True, eq=False)
class _Slot:
    """One message in flight."""

    index: int
    message: Outgoing
    flight: _InFlightBatch
    sequence: int
    copy: bool = False
    returned: str | None = None
    result: Published | None = None

    def settle(self, result: Published) -> None:
        if self.result is None:
            self.result = result
            self.flight.confirmed_one()


class _LateConfirm(NamedTuple):
    """What is left of a message whose confirm is late: its publisher waits no longer, but the broker may still
    answer.
    """

    message_id: str
    since: float


class _InFlightBatch:
    """The messages that one call has in flight; `done` when the broker has answered for all."""

    def __init__(self) -> None:
        self.slots: list[_Slot] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open = 0

    def add(self, slot: _Slot) -> None:
        self.slots.append(slot)
        self._open += 1

    def confirmed_one(self) -> None:
        self._open -= 1
        if not self._open and not self.done.done():
            self.done.set_result(None)


class AmqpPublisher(ChannelListener):
    """The publish side of a broker: one channel in confirm mode, opened again as soon as the broker has closed it.

    A return names its message by the message id alone, so no two messages of one id are ever in flight together: the
    second waits for the first. It does not wait for a late confirm; it then carries its number on the channel in
    a header, so that a late return of the first is not taken for its own.
    """

    def __init__(self) -> None:
        self._link: AmqpConnection | None = None
        self._channel: AmqpChannel | None = None
        self._open = asyncio.Event()
        self._problem = "not connected to the broker yet"
        self._sequence = 0
        self._pending: dict[int, _Slot | _LateConfirm] = {}
        self._by_id: dict[str, _Slot] = {}
        self._abandoned: Counter[str] = Counter()
        self._reopening: asyncio.Task[None] | None = None

    async def attach(self, link: AmqpConnection) -> None:
        """Opens the channel on a new connection. Raises Unavailable."""
        self._link = link
        channel = await link.channel(self)
        await channel.call(commands.Confirm.Select())
        self._channel, self._sequence = channel, 0
        self._open.set()

    async def publish(self, messages: Sequence[Outgoing], timeout: float) -> list[Published]:
        """As the port says."""
        results: list[Published | None] = [None] * len(messages)
        waiting = list(range(len(messages)))
        late = f"no confirm within {timeout:g} s"
        try:
            async with asyncio.timeout(timeout):
                while waiting:
                    waiting = await self._round(messages, waiting, results)
        except TimeoutError:
            late = self._delay_reason() or late
        except Unavailable as e:
            late = str(e)
        return [one or Published(Outcome.UNKNOWN, late) for one in results]

    def _delay_reason(self) -> str | None:
        blocked = self._link.blocked if self._link is not None else None
        return f"the broker is blocked and takes no messages: {blocked}" if blocked else None

    async def _round(
        self, messages: Sequence[Outgoing], waiting: list[int], results: list[Published | None]
    ) -> list[int]:
        """Sends what may be sent now, waits for it, and returns the indexes of what is left."""
        link, channel = await self._ready()
        flight = _InFlightBatch()
        left, data, ahead = self._load(flight, messages, waiting, results, link, channel)
        try:
            channel.send(b"".join(data))
            await link.drain()
            if flight.slots:
                await asyncio.wait([flight.done])
            elif ahead is not None:
                await asyncio.wait([ahead.done])
        finally:
            self._collect_results(flight, results)
        return left

    async def _ready(self) -> tuple[AmqpConnection, AmqpChannel]:
        """A channel on a connection that takes messages. Raises Unavailable where the connection is lost."""
        while True:
            link = self._link
            if link is None or not link.is_open:
                raise Unavailable(self._problem)
            if self._channel is None:
                await self._open.wait()
            elif link.blocked is not None:
                await link.unblocked.wait()
            else:
                return link, self._channel

    def _load(
        self,
        flight: _InFlightBatch,
        messages: Sequence[Outgoing],
        waiting: list[int],
        results: list[Published | None],
        link: AmqpConnection,
        channel: AmqpChannel,
    ) -> tuple[list[int], list[bytes], _InFlightBatch | None]:
        """Fills the batch up to its limits; (indexes left over, frames, the batch in flight with one of our ids)."""
        left: list[int] = []
        data: list[bytes] = []
        room, ahead = MAX_IN_FLIGHT_BYTES, None
        for place, index in enumerate(waiting):
            message = messages[index]
            if len(flight.slots) >= MAX_IN_FLIGHT_MESSAGES or room <= 0:
                return left + waiting[place:], data, ahead
            if message.message_id in self._by_id:
                ahead = self._by_id[message.message_id].flight
                left.append(index)
                continue
            if message.reply_to is not None:
                message = replace(message, reply_to=link.named(message.reply_to))
            slot = self._slot(index, message, flight)
            try:
                frames = codec.publish(slot.message, channel.number, link.frame_max)
            except Invalid as e:
                results[index] = Published(Outcome.REFUSED, str(e))
                continue
            if len(frames) > room and flight.slots:
                return left + waiting[place:], data, ahead
            room -= len(frames)
            data.append(frames)
            self._register(slot)
        return left, data, ahead

    def _slot(self, index: int, message: Outgoing, flight: _InFlightBatch) -> _Slot:
        sequence = self._sequence + 1
        if message.message_id not in self._abandoned:
            return _Slot(index, message, flight, sequence)
        copy = replace(message, headers={**message.headers, COPY: sequence})
        return _Slot(index, copy, flight, sequence, copy=True)

    def _register(self, slot: _Slot) -> None:
        self._sequence = slot.sequence
        self._pending[slot.sequence] = slot
        self._by_id[slot.message.message_id] = slot
        slot.flight.add(slot)

    def _collect_results(self, flight: _InFlightBatch, results: list[Published | None]) -> None:
        """Takes over the results. What has none becomes a late confirm, for which no publisher waits."""
        late = [slot for slot in flight.slots if slot.result is None]
        for slot in flight.slots:
            results[slot.index] = slot.result
        for slot in late:
            self._give_up(slot)
        if not flight.done.done():
            flight.done.set_result(None)
        if late:
            self._reopen_if_confirms_late()

    def _give_up(self, slot: _Slot) -> None:
        self._forget_id(slot)
        self._pending[slot.sequence] = _LateConfirm(slot.message.message_id, clock.monotonic())
        self._abandoned[slot.message.message_id] += 1

    def _reopen_if_confirms_late(self) -> None:
        """Reopens the channel where too many confirms are late: they would pile up as long as a queue is stuck."""
        if len(self._pending) <= MAX_LATE_CONFIRMS:
            return
        old = clock.monotonic() - LATE_CONFIRM_RETENTION_S
        late = sum(isinstance(one, _LateConfirm) and one.since <= old for one in self._pending.values())
        if late > MAX_LATE_CONFIRMS and self._channel is not None and self._link is not None:
            why = f"{counted(late, 'message')} unconfirmed for more than {LATE_CONFIRM_RETENTION_S:g} s"
            log.warning("%s: reopening the publish channel", why)
            self._channel.abandon(why)
            self._on_channel_lost(ChannelLost(0, why))
            self._begin_to_reopen(self._link)

    def _forget_id(self, slot: _Slot) -> None:
        if self._by_id.get(slot.message.message_id) is slot:
            del self._by_id[slot.message.message_id]

    def on_return(self, method: bytes, header: bytes) -> None:
        properties = codec.read_properties(header)
        slot = self._by_id.get(properties.message_id or "")
        if slot is not None and properties.headers.get(COPY) == (slot.sequence if slot.copy else None):
            returned = codec.read_return(method)
            slot.returned = f"{returned.code} {returned.text}"

    def on_confirm(self, tag: int, multiple: bool, accepted: bool) -> None:
        for slot in self._take(tag, multiple):
            if isinstance(slot, _LateConfirm):
                self._answered_late(slot)
                continue
            self._forget_id(slot)
            if not accepted:
                slot.settle(Published(Outcome.UNKNOWN, "the broker rejected the message (nack)"))
            elif slot.returned is not None:
                slot.settle(Published(Outcome.RETURNED, slot.returned))
            else:
                slot.settle(CONFIRMED)

    def _answered_late(self, given_up: _LateConfirm) -> None:
        self._abandoned[given_up.message_id] -= 1
        if not self._abandoned[given_up.message_id]:
            del self._abandoned[given_up.message_id]

    def _take(self, tag: int, multiple: bool) -> Iterable[_Slot | _LateConfirm]:
        if multiple:
            return [self._pending.pop(one) for one in list(takewhile(lambda one: one <= tag, self._pending))]
        slot = self._pending.pop(tag, None)
        return () if slot is None else (slot,)

    def on_lost(self, lost: ChannelLost) -> None:
        self._on_channel_lost(lost)
        if lost.code and self._link is not None:
            log.warning("the broker closed the publish channel: %s %s", lost.code, lost)
            self._begin_to_reopen(self._link)
        else:
            self._open.set()  # whoever waits for the channel is to see that the connection is lost

    def _on_channel_lost(self, lost: ChannelLost) -> None:
        self._channel = None
        self._open.clear()
        self._problem = str(lost)
        unanswered = list(self._pending.values())
        self._pending.clear()
        self._by_id.clear()
        self._abandoned.clear()
        for slot in unanswered:
            if isinstance(slot, _Slot):
                slot.settle(_result_of_loss(slot, unanswered, lost))

    def _begin_to_reopen(self, link: AmqpConnection) -> None:
        self._reopening = asyncio.create_task(self._reopen(link), name="reopen the publish channel")

    async def _reopen(self, link: AmqpConnection) -> None:
        try:
            await self.attach(link)
        except Unavailable as e:
            link.abort(f"reopening the publish channel failed ({e})")


def _result_of_loss(slot: _Slot, unanswered: Sequence[_Slot | _LateConfirm], lost: ChannelLost) -> Published:
    """What the end of the channel says about one message that was in flight."""
    detail, closed = f"{lost.code} {lost}" if lost.code else str(lost), bool(lost.code)
    if lost.code == 404 and (found := _NO_EXCHANGE.search(str(lost))) and found[1] == slot.message.exchange:
        return Published(Outcome.RETURNED, detail, closed)
    if lost.code == 406 and _closed_channel(slot, unanswered, lost):
        return Published(Outcome.REFUSED, detail, closed)
    return Published(Outcome.UNKNOWN, detail, closed)


def _closed_channel(slot: _Slot, unanswered: Sequence[_Slot | _LateConfirm], lost: ChannelLost) -> bool:
    found = _TOO_LARGE.search(str(lost))
    if found is None:
        return len(unanswered) == 1
    size = int(found[1])
    alike = sum(isinstance(one, _Slot) and len(one.message.body) == size for one in unanswered)
    return len(slot.message.body) == size and alike == 1
