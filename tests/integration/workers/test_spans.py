"""Does a trace go on through workers over a real database and a real broker?"""

from __future__ import annotations

import asyncio

from orchestrix import Command, Context
from orchestrix.broker.port import Delivery, Outcome, Outgoing
from orchestrix.broker.topology import COMMANDS
from orchestrix.telemetry.trace_context import TraceContext, context_in, published_context
from orchestrix.worker.handlers import HandlerTable
from orchestrix.worker.worker import Worker
from tests.service import CREATE
from tests.support import eventually
from tests.tracing import RecordedSpans, attribute, context_of, links_of, parent_id

from .world import CATALOG, World

MADE_BY = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
UNSAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", "vendor=1,other=a b")
PROCESS = f"process {COMMANDS}:{CREATE}"
PUBLISH = "publish orchestrator.events:evt.gitRepoCreated"


async def send(world: World, command: Command, sent: TraceContext) -> None:
    letter = Outgoing(
        COMMANDS, command.type, command.body(), command.id, command.correlation_id, command.type, headers=sent.headers
    )
    (result,) = await world.broker.publish([letter])
    assert result.outcome is Outcome.CONFIRMED


async def event(world: World) -> Delivery:
    """The next event."""
    consumer = await world.broker.consume(CATALOG.events, 100)
    (found,) = await consumer.receive(1)
    await consumer.acknowledge([found])
    return found


async def test_an_event_follows_from_the_span_of_its_command_over_the_wire(world: World, spans: RecordedSpans) -> None:
    def handler(context: Context, command: Command) -> dict[str, str]:
        context.span.set_attribute("in.thread", True)
        return {"repoUrl": "file:///1"}

    await world.worker(HandlerTable([(CREATE, handler)]))
    _, command = await world.app()
    sent = published_context(MADE_BY, command.id)
    await send(world, command, sent)
    found = await event(world)
    await eventually(lambda: spans.named(PROCESS), deadline=5.0)
    process, publish = spans.one(PROCESS), spans.one(PUBLISH)
    assert (parent_id(process), attribute(process, "in.thread")) == (sent.span_id, True)
    assert parent_id(publish) == context_of(process).span_id
    assert context_in(found.headers) == TraceContext(context_of(publish).traceparent, "vendor=1")


async def test_a_command_that_comes_again_links_to_its_publishing_too(world: World, spans: RecordedSpans) -> None:
    begun: list[int] = []
    gate = asyncio.Event()

    async def never(context: Context, command: Command) -> None:
        begun.append(context.attempt)
        await asyncio.Event().wait()

    async def at_last(context: Context, command: Command) -> None:
        await gate.wait()

    first = await world.worker(HandlerTable([(CREATE, never)]), stop_timeout=0.1)
    _, command = await world.app()
    sent = published_context(MADE_BY, command.id)
    await send(world, command, sent)
    await eventually(lambda: begun, deadline=5.0)
    await world.worker(HandlerTable([(CREATE, at_last)]))
    await lose(world, first)
    gate.set()
    await event(world)
    await eventually(lambda: len(spans.named(PROCESS)) == 2, deadline=5.0)
    given_back, done = spans.named(PROCESS)
    assert (links_of(given_back)[0][0], attribute(given_back, "orchestrix.ignored")) == ("message", "given-back")
    assert (attribute(done, "orchestrix.ignored"), attribute(done, "orchestrix.redelivered")) == (None, True)
    assert links_of(done) == [("retry", sent.trace_id, sent.span_id)]
    assert parent_id(given_back) == parent_id(done) == sent.span_id


async def lose(world: World, worker: Worker) -> None:
    """The worker ends, and another one gets what it had."""
    await worker.stop()
    await world.brokers[world.workers.index(worker)].stop()


async def test_a_trace_that_is_not_kept_arrives_as_it_was_sent(world: World, spans: RecordedSpans) -> None:
    async def handler(context: Context, command: Command) -> dict[str, str]:
        return {"repoUrl": "file:///1"}

    await world.worker(HandlerTable([(CREATE, handler)]))
    _, command = await world.app()
    await send(world, command, UNSAMPLED)
    found = await event(world)
    assert {name: found.headers.get(name) for name in UNSAMPLED.headers} == UNSAMPLED.headers
    assert spans.all == []
