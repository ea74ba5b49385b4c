"""Played orchestrator: an embedded broker, commands to the worker, and all that comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from orchestrix import clock
from orchestrix.bootstrap.factories import open_broker
from orchestrix.bootstrap.listening_socket import listening
from orchestrix.broker.embedded import EmbeddedBroker
from orchestrix.broker.port import Consumer, Delivery, Outcome, Outgoing
from orchestrix.broker.topology import COMMANDS, DEAD, UNROUTED, dead_letters_of, saga_topology
from orchestrix.errors import Unavailable
from orchestrix.saga.actions.merge_patch import merged
from orchestrix.saga.catalog import Catalog, MessageOwner
from orchestrix.saga.definition import STEP_FAILED, STEP_STARTED, Compensation
from orchestrix.saga.messages import Command, UnreadableMessage, dump, load

POLL_S: Final = 0.002
"""Seconds between two looks at the broker: short, for an acknowledgement may come just before its event."""
TIMEOUT_MS: Final = 60_000
PREFETCH: Final = 1000


@dataclass(frozen=True, slots=True)
class CommandUnderCheck:
    """A command as it was sent: its fields, and when, by the monotonic clock."""

    fields: Mapping[str, Any]
    at: float

    @property
    def id(self) -> str:
        """Its id."""
        return str(self.fields["id"])

    @property
    def queue(self) -> str:
        """Its name, which is that of its queue."""
        return str(self.fields["type"])


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """What the worker has published. `fields` are empty where the body cannot be read: `unreadable` says why."""

    queue: str
    fields: Mapping[str, Any]
    delivery: Delivery
    at: float
    unreadable: str | None = None

    @property
    def cause(self) -> object:
        """The id of the command that it names."""
        return self.fields.get("causationId")

    @property
    def instance(self) -> str:
        """The id of its instance as text: a number or digits."""
        return str(self.fields.get("appId"))


@dataclass
class PlayedOrchestrator:
    """Sends commands of the step `owner`, and receives. `data` are the data of its instances, `timeout_s` are the
    seconds for an answer.
    """

    catalog: Catalog
    owner: MessageOwner
    data: Mapping[str, Any]
    timeout_s: float
    port: int = 0
    events: list[ReceivedEvent] = field(default_factory=list)
    dead: list[Delivery] = field(default_factory=list)
    early: set[str] = field(default_factory=set)
    """Queues from which a command was acknowledged before there was an event of it."""

    async def __aenter__(self) -> PlayedOrchestrator:
        self._instances = 0
        self._embedded = EmbeddedBroker()
        await self._embedded.start(listening("127.0.0.1", [self.port]))
        self._broker = open_broker(self._embedded.url, "orchestrix worker-check", saga_topology(self.catalog))
        await self._broker.start()
        await self._broker.wait_connected()
        await self._broker.declare(saga_topology(self.catalog))
        answers = [*self.events_of_interest, *map(dead_letters_of, self.queues), UNROUTED]
        self._consumer: Consumer = await self._broker.consume(answers, PREFETCH)
        self._receiving = asyncio.create_task(self._receive(), name="events")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._receiving.cancel()
        await asyncio.wait({self._receiving})
        await self._broker.stop()
        await self._embedded.stop()

    @property
    def url(self) -> str:
        """Where the worker is to connect."""
        return self._embedded.url

    @property
    def undo(self) -> Compensation | None:
        """The compensation of the step, if it has one with a command."""
        undo = self.owner.step.undo
        return undo if isinstance(undo, Compensation) and undo.job is None else None

    @property
    def queues(self) -> list[str]:
        """The queues that the worker reads, or should."""
        return [self.owner.order.command, *([self.undo.command] if self.undo is not None else [])]

    @property
    def events_of_interest(self) -> list[str]:
        """The events that the worker may publish."""
        successes = [self.owner.order.event, *([self.undo.event] if self.undo is not None else [])]
        return [*successes, STEP_FAILED, STEP_STARTED]

    # Commands.

    def new_instance(self) -> int:
        """The id of one more instance."""
        self._instances += 1
        return self._instances

    def command(
        self, instance: int | None = None, *, attempt: int = 1, made: int = 1, patch: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The step's command to an instance, a new one by default. `made` stands for the time of its start: an instance
        of the same id that was made at another time has other effects. `patch` is merged into it.
        """
        id = self.new_instance() if instance is None else instance
        return self._fields(self.owner.order.command, id, attempt, made, {}, patch)

    def undoing(self, command: Mapping[str, Any], *, attempt: int = 1) -> dict[str, Any]:
        """The undo of what that command has done."""
        assert self.undo is not None, "the step has an undo"
        fields = {"undoesAttempt": command["attempt"], "effectKey": command["effectKey"]}
        return self._fields(self.undo.command, command["appId"], attempt, 1, fields, None)

    def _fields(
        self, name: str, id: int, attempt: int, made: int, more: Mapping[str, Any], patch: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        saga, step = self.owner.saga, self.owner.step
        undoes = "undoesAttempt" in more
        command = Command(
            id=clock.uuid7(),
            type=name,
            saga=saga.name,
            app_id=id,
            app_name=f"check-{id}",
            correlation_id=clock.uuid7(),
            expected_state="COMPENSATING" if undoes else step.state,
            step=step.name,
            attempt=attempt,
            timeout_ms=TIMEOUT_MS,
            idempotency_key=f"{saga.name}:{id}:{step.name}:{'undo' if undoes else 'do'}",
            data=self.data,
            effect_key=f"check:{saga.name}:{id}:{made}:{step.name}",
            definition_version=saga.version,
        )
        return merged({**load(command.body()), **more}, patch or {})

    async def send(
        self, *commands: Mapping[str, Any], headers: Mapping[str, str | int] | None = None
    ) -> CommandUnderCheck:
        """Sends them, and returns the last."""
        at = clock.monotonic()
        messages = [
            Outgoing(
                COMMANDS,
                one["type"],
                dump(one),
                one["id"],
                one["correlationId"],
                one["type"],
                clock.now(),
                headers or {},
            )
            for one in commands
        ]
        await self._publish(messages)
        return CommandUnderCheck(commands[-1], at)

    async def send_raw(self, queue: str, *bodies: bytes) -> None:
        """Sends what is no command."""
        await self._publish([Outgoing(COMMANDS, queue, one, clock.uuid7(), type=queue) for one in bodies])

    async def _publish(self, messages: Sequence[Outgoing]) -> None:
        for one in await self._broker.publish(messages):
            if one.outcome is not Outcome.CONFIRMED:
                raise Unavailable(f"the embedded broker has not taken a command: {one.detail or one.outcome.value}")

    async def leave_redelivered(self, *commands: Mapping[str, Any]) -> None:
        """Sends commands that come to the worker as delivered before: a worker has had them, and has lost them. No
        worker may read yet.
        """
        queue = self.owner.order.command
        await self.send(*commands)
        consumer = await self._broker.consume([queue], PREFETCH)
        left = len(commands)
        taken: list[Delivery] = []
        while len(taken) < left:
            found = await consumer.receive(left)
            taken += found
            consumer.grow()
        await consumer.requeue(taken)
        await consumer.close()

    # What comes back.

    async def _receive(self) -> None:
        while True:
            for one in await self._consumer.receive(PREFETCH):
                if one.exchange == DEAD or one.queue in map(dead_letters_of, self.queues):
                    self.dead.append(one)
                else:
                    self.events.append(_read(one))
                await self._consumer.acknowledge([one])

    def answers(self, sent: CommandUnderCheck) -> list[ReceivedEvent]:
        """The events that name the command, but for those of its begin."""
        return [one for one in self.events if one.cause == sent.id and one.queue != STEP_STARTED]

    def of_instance(self, sent: CommandUnderCheck, since: float = 0.0) -> list[ReceivedEvent]:
        """The events of the command's instance since then."""
        return [one for one in self.events if one.instance == str(sent.fields["appId"]) and one.at >= since]

    def waiting(self, queue: str) -> int:
        """How many messages of the queue are ready, or unacknowledged."""
        return self._embedded.unsettled().get(queue, 0)

    async def readers(self) -> int:
        """How many consumers the command's queue has."""
        found = await self._broker.message_count(self.owner.order.command)
        return found[1] if found is not None else 0

    async def until(self, holds: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Whether it holds within the time for an answer. Meanwhile acknowledgements without an event are noted."""
        end = clock.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while not holds():
            if clock.monotonic() >= end:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def settled(self, queue: str, timeout_s: float | None = None) -> bool:
        """Whether the worker has acknowledged, or refused, all of the queue."""
        return await self.until(lambda: not self.waiting(queue), timeout_s)

    async def answered(self, sent: CommandUnderCheck, timeout_s: float | None = None) -> list[ReceivedEvent]:
        """The answers to the command once there is one and it is acknowledged; what there is when the time is over."""

        def done() -> bool:
            if self.answers(sent):
                return not self.waiting(sent.queue)
            if not (self.waiting(sent.queue) or self._on_its_way() or self.of_instance(sent, sent.at)):
                self.early.add(sent.id)
            return False

        await self.until(done, timeout_s)
        return self.answers(sent)

    def _on_its_way(self) -> bool:
        """Whether an event is in the broker that has not been read here."""
        left = self._embedded.unsettled()
        return any(left.get(one, 0) for one in (*self.events_of_interest, UNROUTED))


def _read(delivery: Delivery) -> ReceivedEvent:
    at = clock.monotonic()
    queue = delivery.queue if delivery.queue != UNROUTED else delivery.routing_key
    try:
        return ReceivedEvent(queue, load(delivery.body), delivery, at)
    except UnreadableMessage as refused:
        return ReceivedEvent(queue, {}, delivery, at, str(refused))


async def any_of(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Waits for one of them, and raises its error; the others are cancelled."""
    asked = set(tasks)
    done, left = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    for one in left:
        one.cancel()
        with suppress(asyncio.CancelledError):
            await one
    for one in done:
        one.result()
