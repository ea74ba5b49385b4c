"""What does the system do when somebody deletes or changes what it has declared at the broker?"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel

from tests.fault.load import HealthWatch, Stream
from tests.fault.world import NO_GIT, World
from tests.support import eventually

QUORUM = {"x-queue-type": "quorum"}
TENDED_WITHIN = 30.0
"""Seconds in which a process sees that something is missing or different, with slack."""


@pytest.fixture
async def vandal(world: World) -> AsyncIterator[AbstractChannel]:
    """A channel of somebody who may do everything."""
    connection = await aio_pika.connect(world.system.broker_url)
    yield await connection.channel()
    await connection.close()


async def _delete_command_queue(vandal: AbstractChannel) -> None:
    await vandal.queue_delete("cmd.createGitRepo")


async def _delete_event_queue(vandal: AbstractChannel) -> None:
    await vandal.queue_delete("evt.gitRepoCreated")


async def _delete_command_binding(vandal: AbstractChannel) -> None:
    queue = await vandal.get_queue("cmd.registerApp", ensure=False)
    await queue.unbind("orchestrator.commands", "cmd.registerApp")


async def _delete_event_binding(vandal: AbstractChannel) -> None:
    queue = await vandal.get_queue("evt.appRegistered", ensure=False)
    await queue.unbind("orchestrator.events", "evt.appRegistered")


async def _delete_command_exchange(vandal: AbstractChannel) -> None:
    await vandal.exchange_delete("orchestrator.commands")


async def _delete_event_exchange(vandal: AbstractChannel) -> None:
    await vandal.exchange_delete("orchestrator.events")


VANDALISM: list[Callable[[AbstractChannel], Awaitable[None]]] = [
    _delete_command_queue,
    _delete_event_queue,
    _delete_command_binding,
    _delete_event_binding,
    _delete_command_exchange,
    _delete_event_exchange,
]


async def test_what_is_deleted_comes_back_and_no_saga_is_lost(world: World, vandal: AbstractChannel) -> None:
    await world.up(env=NO_GIT)
    async with world.stream("vandal", rate=10) as stream:
        for act in VANDALISM:
            await stream.more(10)
            await act(vandal)
            await _works_again(world, stream, act.__name__)
    assert not stream.refused
    assert not stream.unknown
    await world.a_deadline_passes()  # what was in a deleted queue is gone: the saga's own clock sends it again
    await world.all_well(stream, deadline=60)


async def _works_again(world: World, stream: Stream, after: str) -> None:
    """Waits until a start of later completes, while nobody helps."""
    await stream.more(3)
    seen = len(stream.answered)

    async def one_completes() -> bool:
        later = stream.answered[seen:]
        return bool(later) and await world.completed(later) > 0

    await eventually(one_completes, deadline=TENDED_WITHIN, every=0.2, message=f"{after}: a new start completes")


async def test_a_queue_with_other_arguments_is_named_and_the_rest_goes_on(
    world: World, vandal: AbstractChannel
) -> None:
    await world.up(env=NO_GIT)
    async with world.stream("before", rate=10) as before:
        await before.more(10)
    await world.all_well(before, deadline=30)
    async with HealthWatch(world.urls[0]) as health:
        await vandal.queue_delete("evt.stepFailed")
        await vandal.declare_queue("evt.stepFailed", durable=True, arguments={**QUORUM, "x-max-length": 5})
        await health.says("evt.stepFailed", "inequivalent arg", within=TENDED_WITHIN)
        async with world.stream("during", rate=10) as during:
            await during.more(10)
        await world.all_well(before, during, deadline=30)
        await vandal.queue_delete("evt.stepFailed")
        await health.is_well(within=TENDED_WITHIN)
