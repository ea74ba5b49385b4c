"""How are a thousand members of a service put on a coordinator without a thousand processes?

They share one connection and the queue of their answers, and say what members of the SDK say: a heartbeat every
`BEAT_S` seconds that reports what each was assigned last, spread evenly over that time.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from orchestrix import clock
from orchestrix.broker.amqp.broker import AmqpBroker
from orchestrix.broker.port import Outcome, Outgoing
from orchestrix.broker.topology import SHARD_COORDINATOR, member_queue, member_topology
from orchestrix.domain.shards import messages
from orchestrix.domain.shards.grants import Grants, shards_of
from orchestrix.domain.shards.state import MemberHeartbeat, MemberRegistration
from orchestrix.worker.shards.rabbitmq import MemberTransport
from tests.bench.control import PORT, Answer, Order

SERVICE: Final = "bench"
NAME: Final = "bench"
BEAT_S: Final = 5.0
JOINED_S: Final = 180.0
TICK_S: Final = 0.05
"""All that is due within this time is sent together: the client is not what is measured."""


@dataclass(slots=True)
class Member:
    """What one member knows."""

    number: int
    count: int
    seq: int = 0
    generation: int = 0
    grants: Grants = ()
    answered: int = 0
    """The newest of its messages that was answered."""
    sent_at: dict[int, float] = field(default_factory=dict)

    @property
    def worker(self) -> str:
        """Its worker id; that of its process is the same."""
        return f"worker-{self.number:04}"

    def register(self) -> bytes:
        """Its registration."""
        asked = MemberRegistration(
            worker_id=self.worker, instance=self.worker, shard_count=self.count, seq=self._next_seq()
        )
        return messages.register(SERVICE, asked)

    def beat(self) -> bytes:
        """Its heartbeat."""
        sent = MemberHeartbeat(
            worker_id=self.worker,
            instance=self.worker,
            shard_count=self.count,
            shards=shards_of(self.grants),
            seq=self._next_seq(),
            generation=self.generation,
        )
        return messages.heartbeat(SERVICE, sent, self.grants)

    def _next_seq(self) -> int:
        self.seq += 1
        self.sent_at[self.seq] = time.monotonic()
        return self.seq


class Members:
    """All of them."""

    def __init__(self, url: str) -> None:
        self._broker = AmqpBroker(url, name="bench members")
        self._transport = MemberTransport(self._broker, NAME)
        self._members: dict[str, Member] = {}
        self._times: list[float] = []
        self._wrong: list[str] = []

    async def start(self) -> None:
        """Connects, and reads answers for ever."""
        await self._broker.start()
        assert await self._broker.wait_connected(30), self._broker.problem
        await self._broker.declare(member_topology(NAME))
        await self._transport.start()
        self._reading = asyncio.create_task(self._read())

    async def obey(self, order: Order) -> Answer:
        """What came of an order."""
        orders: dict[str, Callable[..., Awaitable[Answer]]] = {"join": self.join, "beat": self.beat}
        return await orders[order.pop("do")](**order)

    async def join(self, members: int, count: int) -> Answer:
        """So many register, then send heartbeats until each has its share."""
        self._members = {one.worker: one for one in (Member(number, count) for number in range(members))}
        await self._send([(messages.REGISTER, one.register()) for one in self._members.values()])
        share, until = count // members, time.monotonic() + JOINED_S
        while any(shards_of(one.grants).size != share for one in self._members.values()):
            if time.monotonic() > until:
                return {
                    "problem": f"{len(self._members)} members are not assigned {count} shards within {JOINED_S:g} s"
                }
            await self._pass(1.0)
        await self._pass(BEAT_S)  # each of them has acknowledged its generation
        return {}

    async def beat(self, seconds: float) -> Answer:
        """Heartbeats for so long; how many, and after how many milliseconds each was answered."""
        self._times, before = [], sum(one.seq for one in self._members.values())
        await self._pass(seconds)
        sent = sum(one.seq for one in self._members.values()) - before
        await asyncio.sleep(2.0)
        behind = [one for one in self._members.values() if one.answered < one.seq]
        wrong = [f"{len(behind)} members wait for answers"] if behind else self._wrong
        problem = wrong[0] if wrong else None
        return {"sent": sent, "ms": self._times, "problem": problem}

    async def _pass(self, seconds: float) -> None:
        """Heartbeats of all, each in its turn, for so long."""
        turns, began, done = self._turns(), time.monotonic(), 0
        each = BEAT_S / len(self._members)
        while (passed := time.monotonic() - began) < seconds:
            due = min(int(passed / each), int(seconds / each)) - done
            done += due
            await self._send([(messages.HEARTBEAT, next(turns).beat()) for _ in range(due)])
            await asyncio.sleep(TICK_S)

    def _turns(self) -> Iterator[Member]:
        while True:
            yield from self._members.values()

    async def _send(self, bodies: list[tuple[str, bytes]]) -> None:
        sent = await self._broker.publish([_message(kind, body) for kind, body in bodies])
        lost = [one for one in sent if one.outcome is not Outcome.CONFIRMED]
        self._wrong += [f"{len(lost)} messages were not confirmed: {lost[0].detail}"] if lost else []

    async def _read(self) -> None:
        while taken := await self._transport.receive():
            now = time.monotonic()
            for one in taken:
                self._take(one.body, now)

    def _take(self, body: bytes, now: float) -> None:
        got = messages.read_assignment(body, "")
        if got.problem is not None or got.instance is None:
            self._wrong.append(f"an answer says {got.problem}")
            return
        member = self._members[got.instance]
        if got.seq > member.answered:
            member.answered = got.seq
            self._times.append(1000 * (now - member.sent_at.pop(got.seq)))
        if got.generation >= member.generation:
            member.generation, member.grants = got.generation, got.grants


def _message(kind: str, body: bytes) -> Outgoing:
    return Outgoing(
        exchange="",
        routing_key=SHARD_COORDINATOR,
        body=body,
        message_id=clock.uuid7(),
        type=kind,
        timestamp=clock.now(),
        reply_to=member_queue(NAME),
    )


async def main() -> None:
    """Obeys until the bench hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(os.environ[PORT]), limit=2**24)
    members = Members(os.environ["ORCHESTRIX_BROKER_URL"])
    await members.start()
    writer.write(b"{}\n")
    while line := await reader.readline():
        writer.write(json.dumps(await members.obey(json.loads(line))).encode() + b"\n")
        await writer.drain()


if __name__ == "__main__":
    asyncio.run(main())
