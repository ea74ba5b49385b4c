"""A client of S1 over RabbitMQ that knows nothing but the contract: plain pika, S1's messages, a queue of its own."""

from __future__ import annotations

import json
from typing import Any, Final

import pika

from tests.support import eventually

COORDINATOR: Final = "orchestrix.shard.coordinator"
MEMBER: Final = "orchestrix.shard.member."


class PlainMember:
    """One worker of a service. It says only what it is told to say, and keeps every assignment that comes."""

    def __init__(self, url: str, service: str, worker_id: str, count: int) -> None:
        self.worker_id, self.count = worker_id, count
        self.answers: list[dict[str, Any]] = []
        self.asked: list[str | None] = []
        """The correlation id of each answer: None for one that was pushed."""
        self._service, self._sent = service, 0
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._queue = f"{MEMBER}{service}.{worker_id}"
        self._channel.queue_declare(self._queue, exclusive=True)

    def close(self) -> None:
        """Ends without a word, as a process that is killed."""
        self._connection.close()

    def register(self) -> None:
        """S1: {serviceName, workerId, maxShardCount}."""
        self.say("register", maxShardCount=self.count)

    def beat(self) -> None:
        """S1: the same and the shards that it runs, which are those that it was assigned last."""
        self.say("heartbeat", maxShardCount=self.count, assignedShards=self.shards)

    def leave(self) -> None:
        """{serviceName, workerId}."""
        self.say("leave")

    def say(self, kind: str, **data: Any) -> None:
        """A message of that type."""
        data = {"serviceName": self._service, "workerId": self.worker_id, **data}
        self.publish(json.dumps({"type": kind, "data": data}).encode())

    def publish(self, body: bytes) -> None:
        """Whatever it is."""
        self._sent += 1
        properties = pika.BasicProperties(  # type: ignore[no-untyped-call]
            reply_to=self._queue, correlation_id=f"{self.worker_id}-{self._sent}"
        )
        self._channel.basic_publish("", COORDINATOR, body, properties)

    @property
    def shards(self) -> list[int]:
        """Those of the last assignment."""
        self._read()
        return list(self.answers[-1]["data"]["assignedShards"]) if self.answers else []

    async def assigned(self, shards: list[int], *, after: int = 0, within: float = 10.0) -> None:
        """Waits until the last assignment, one that came after so many, has these shards."""

        def is_so() -> bool:
            found = self.shards
            assert len(self.answers) > after, f"{len(self.answers)} answers"
            assert found == shards, f"{self.worker_id} is assigned {found} instead of {shards}"
            return True

        await eventually(is_so, deadline=within, every=0.05)

    async def answered(self, *, within: float = 10.0) -> dict[str, Any]:
        """Waits for the answer to the last message."""

        def is_there() -> dict[str, Any] | None:
            self._read()
            wanted = f"{self.worker_id}-{self._sent}"
            return next((one for one, to in zip(self.answers, self.asked, strict=True) if to == wanted), None)

        found = await eventually(is_there, deadline=within, every=0.02, message=f"an answer for {self.worker_id}")
        assert found is not None
        return found

    def _read(self) -> None:
        while (got := self._channel.basic_get(self._queue, auto_ack=True))[0] is not None:
            _, properties, body = got
            assert properties is not None
            assert body is not None
            self.answers.append(json.loads(body))
            self.asked.append(properties.correlation_id)
