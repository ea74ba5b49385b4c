"""Is nothing lost and nothing done twice when processes and the broker die in the middle of the work?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.acceptance.system import AGAIN, EVERY_DATABASE, Client, System, create_all
from tests.servers.rabbit import RabbitServer
from tests.taps import Tap

IN_HAND = 10
"""Repositories that a worker makes at the same time; those are left half made when it is killed."""


@pytest.fixture
def names(scale: Callable[[int, int], int]) -> list[str]:
    """The apps of a test."""
    return [f"app-{n}" for n in range(scale(100, 200))]


@EVERY_DATABASE
@pytest.mark.req("S3-52", "S3-53", "S3-54")
async def test_a_worker_is_killed_in_the_middle(system: System, names: list[str]) -> None:
    tap = Tap(system.broker_url)
    _, url = system.node()
    await system.ready(url)
    worker = system.worker()
    async with Client(url) as client:
        answered = await create_all([client], names)
    await system.some_done(20)
    worker.kill9()
    system.worker()
    ledger = await system.all_ended(answered, deadline=90)
    ledger.check_completed(names)
    ledger.check_effects(system.repos, drafts=IN_HAND)
    ledger.check_wire(tap.read())


@EVERY_DATABASE
@pytest.mark.req("S3-48", "S3-52")
async def test_a_node_is_killed_in_the_middle(system: System, names: list[str]) -> None:
    tap = Tap(system.broker_url)
    (first, first_url), (_, second_url) = system.node(), system.node()
    await system.ready(first_url)
    await system.ready(second_url)
    system.worker()
    async with Client(first_url) as one, Client(second_url) as two:
        creating = asyncio.create_task(create_all([one, two], names, at_once=20))
        await system.some_done(5)
        first.kill9()
        answered = await creating
    assert len(answered) >= len(names) // 2
    ledger = await system.all_ended(answered, deadline=120)
    ledger.check_completed(answered)
    ledger.check_effects(system.repos)
    ledger.check_wire(tap.read())


@pytest.mark.req("S3-53")
async def test_the_broker_is_stopped_and_started(
    system_on: Callable[[str, str], System],
    postgres_url: str,
    private_rabbitmq: Callable[[], RabbitServer],
    names: list[str],
) -> None:
    broker = await asyncio.to_thread(private_rabbitmq)
    tap = Tap(broker.url())
    system = system_on(postgres_url, broker.url())
    _, url = system.node()
    await system.ready(url)
    system.worker()
    async with Client(url) as client:
        answered = await create_all([client], names[:50])
        await system.some_done(10)
        await asyncio.to_thread(broker.stop)
        during = await create_all([client], names[50:])
        assert during == names[50:], "starts are taken while the broker is away"
        assert (await client.http.get("/health/ready")).status_code == 200
        assert (await client.http.get("/health/live")).status_code == 200
        await asyncio.to_thread(broker.start)
    ledger = await system.all_ended(answered + during, deadline=AGAIN)
    await system.ready(url)
    ledger.check_completed(names)
    ledger.check_effects(system.repos)
    ledger.check_wire(tap.read())


async def test_the_broker_comes_back_empty(
    system_on: Callable[[str, str], System],
    postgres_url: str,
    private_rabbitmq: Callable[[], RabbitServer],
    names: list[str],
) -> None:
    broker = await asyncio.to_thread(private_rabbitmq)
    system = system_on(postgres_url, broker.url())
    _, url = system.node()
    await system.ready(url)
    async with Client(url) as client:
        answered = await create_all([client], names[:50])
    system.worker()
    await asyncio.to_thread(broker.ctl, "stop_app")
    await asyncio.to_thread(broker.ctl, "reset")
    await asyncio.to_thread(broker.ctl, "start_app")
    ledger = await system.all_ended(answered, deadline=AGAIN)
    ledger.check_completed(names[:50])
    ledger.check_effects(system.repos)
