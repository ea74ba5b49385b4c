"""RabbitMQ transport of shards: takes what members send, lets a handler answer, and sends the answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from orchestrix import clock, crash
from orchestrix.broker.dead_letter import publish_dead_letter
from orchestrix.broker.port import Broker, Consumer, Delivery, Outcome, Outgoing
from orchestrix.broker.topology import SHARD_COORDINATOR, is_member_queue
from orchestrix.dead_letters.retry_buffer import LogRateLimiter
from orchestrix.errors import RetryableError, SchemaMismatch
from orchestrix.lifecycle import Loop, backoff, shielded

log = logging.getLogger("orchestrix.shards")

MAX_MESSAGE_BYTES: Final = 64 * 1024
"""A longer message of a member is not read."""
BATCH_LIMIT: Final = 100
"""Unacknowledged messages of this node at most: no other node can answer these, should this process be stopped. They
share a transaction, which reads the whole service: with fewer, a thousand members that change at once wait for longer
than their time-out on a busy machine, are taken for silent, and change it again.
"""
ANSWER_TIMEOUT_S: Final = 10.0
"""Seconds that the broker has to confirm answers: a later one would be overtaken by that to the next heartbeat."""
ANSWER_TYPE: Final = "assignment"


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """What a member has sent. `reply_to` is the queue of a member, or None if it expects no answer or may have none.

    `via` is the node that alone can reach the member, or None where any can.
    """

    body: bytes
    reply_to: str | None
    correlation_id: str | None
    via: str | None = None


@dataclass(frozen=True, slots=True)
class MemberAnswer:
    """A body for the queue of a member, which need not be the one that asked; `via` as in `MemberRequest`."""

    reply_to: str
    body: bytes
    correlation_id: str | None = None
    via: str | None = None


@dataclass(frozen=True, slots=True)
class Handled:
    """The answers to one request. One that is `unreadable`, for the reason given there, becomes a dead letter."""

    answers: Sequence[MemberAnswer] = ()
    unreadable: str | None = None


class RequestHandler(Protocol):
    """What is behind the transport."""

    async def handle(self, requests: Sequence[MemberRequest]) -> Sequence[Handled]:
        """One result for each, in order.

        Raises `RetryableError` where it can be tried again with the same requests: they are kept until then. Any other
        error makes it be tried with each alone, and the one that it fails with then becomes a dead letter.
        """

    def refusal(self, problem: str) -> bytes:
        """The answer to what cannot be read."""


@dataclass(slots=True)
class AnswerCounts:
    """What has become of answers since the start: one that is `returned` was for a member that is gone, and what is
    `lost` the broker has refused, or not confirmed. `withheld` are those for other queues than members have.
    """

    sent: int = 0
    returned: int = 0
    lost: int = 0
    withheld: int = 0


@dataclass(slots=True)
class RabbitMQTransport:
    """Any node reads the same queue; `broker` is a connection with `shard_topology`.

    A message is acknowledged after its answers have left. An answer that does not arrive is not sent again: that to the
    member's next heartbeat says the same.
    """

    broker: Broker
    handler: RequestHandler
    counts: AnswerCounts = field(default_factory=AnswerCounts)
    _consumer: Consumer | None = field(default=None, init=False)
    _log_limiter: LogRateLimiter = field(default_factory=LogRateLimiter, init=False)
    _loop: Loop = field(init=False)

    def __post_init__(self) -> None:
        self._loop = Loop("shard requests", self._round)

    async def start(self) -> None:
        """Begins to take messages."""
        self._consumer = await self.broker.consume([SHARD_COORDINATOR], BATCH_LIMIT)
        await self._loop.start()

    async def stop(self) -> None:
        """Takes no more; what is unacknowledged another node gets."""
        await self._loop.stop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()

    async def send(self, answers: Sequence[MemberAnswer]) -> None:
        """Sends answers, also those that no member has asked for; returns when each is confirmed, returned or lost."""
        allowed = [one for one in answers if is_member_queue(one.reply_to)]
        self.counts.withheld += len(answers) - len(allowed)
        if not allowed:
            return
        crash.point("shards.answers.before_send")
        for result in await self.broker.publish([_outgoing(one) for one in allowed], ANSWER_TIMEOUT_S):
            if result.outcome is Outcome.CONFIRMED:
                self.counts.sent += 1
            elif result.outcome is Outcome.RETURNED:
                self.counts.returned += 1
            else:
                self.counts.lost += 1
                log.debug("an answer to a member is lost: %s", result.detail)

    async def _round(self) -> None:
        consumer = self._consumer
        assert consumer is not None, "it has begun"
        batch = await consumer.receive(BATCH_LIMIT)
        await self._finish(consumer, batch)

    async def _finish(self, consumer: Consumer, batch: Sequence[Delivery]) -> None:
        long = [one for one in batch if len(one.body) > MAX_MESSAGE_BYTES]
        dead = [(one, f"too-large: {len(one.body)} bytes, at most {MAX_MESSAGE_BYTES}") for one in long]
        answers: list[MemberAnswer] = []
        short = [one for one in batch if len(one.body) <= MAX_MESSAGE_BYTES]
        for delivery, handled in await self._handled(consumer, short):
            answers += handled.answers
            dead += [(delivery, handled.unreadable)] if handled.unreadable is not None else []
        await self.send([*answers, *self._refusals(dead)])
        await publish_dead_letter(self.broker, consumer, dead)
        await consumer.acknowledge(batch)

    def _refusals(self, dead: Sequence[tuple[Delivery, str]]) -> list[MemberAnswer]:
        """The answers to the senders of dead letters."""
        return [
            MemberAnswer(one.reply_to, self.handler.refusal(reason), one.correlation_id)
            for one, reason in dead
            if one.reply_to is not None
        ]

    async def _handled(self, consumer: Consumer, batch: Sequence[Delivery]) -> list[tuple[Delivery, Handled]]:
        """The results; nothing of what a lost channel has brought, which comes again."""
        failures = 0
        while batch := [one for one in batch if consumer.alive(one)]:
            try:
                results = await shielded(self.handler.handle([self._request(one) for one in batch]))
                return list(zip(batch, results, strict=True))
            except (RetryableError, SchemaMismatch) as error:
                failures += 1
                if failures == 1:
                    log.warning("cannot handle what members of services send yet; retrying: %s", error)
                await asyncio.sleep(backoff(failures))
            except Exception as error:
                return await self._one_by_one(consumer, batch, error)
        return []

    def _request(self, delivery: Delivery) -> MemberRequest:
        reply_to = delivery.reply_to if is_member_queue(delivery.reply_to) else None
        if reply_to is None and delivery.reply_to is not None and self._log_limiter.allows():
            log.warning(
                "a member asks for answers in %.100r, where none is sent: reply_to must be "
                "orchestrix.shard.member.<id>, the id of ASCII letters, digits, '.', '_', ':' and '-'",
                delivery.reply_to,
            )
        return MemberRequest(delivery.body, reply_to, delivery.correlation_id)

    async def _one_by_one(
        self, consumer: Consumer, batch: Sequence[Delivery], error: Exception
    ) -> list[tuple[Delivery, Handled]]:
        if len(batch) == 1:
            log.exception("a message of a member cannot be handled")
            return [(batch[0], Handled(unreadable=f"failed: {type(error).__name__}"))]
        found: list[tuple[Delivery, Handled]] = []
        for one in batch:
            found += await self._handled(consumer, [one])
        return found


def _outgoing(answer: MemberAnswer) -> Outgoing:
    return Outgoing(
        exchange="",
        routing_key=answer.reply_to,
        body=answer.body,
        message_id=clock.uuid7(),
        correlation_id=answer.correlation_id,
        type=ANSWER_TYPE,
        timestamp=clock.now(),
    )
