"""Orders of jobs that nobody owes, and owed ones that got lost: the first are not worked on, the second come again."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pika
import pytest

from orchestrix.broker.topology import dispatch_queue, logs_queue, status_queue
from orchestrix.domain.jobs import CANCELLED, RUNNING, SUCCEEDED
from orchestrix.saga.definition import COMPLETED
from tests.acceptance.job_world import SCALED
from tests.acceptance.system import Client
from tests.fault.outside import all_in, begun, job_in, parcels_env, rows, start_all, submit
from tests.fault.parcels import CARRIERS, ERRAND
from tests.fault.world import World
from tests.support import eventually, holds
from tests.taps import channel, ready

QUEUE = dispatch_queue(CARRIERS)
FOREIGN = "foreign.status"
QUICK = {**SCALED.env, "ORCHESTRIX_JOBS__SILENT": "3"}
AGAIN = 45.0
"""Seconds in which a lost order is found and sent again, where silence counts after 3 s."""


def forged(**fields: Any) -> dict[str, Any]:
    """An order of a job that is nowhere, but for these fields."""
    job_id = str(fields.get("jobId", uuid4()))
    return {
        "jobId": job_id,
        "historyId": str(uuid4()),
        "handler": "carry",
        "payload": {"forged": True},
        "attempt": 1,
        "timeoutMs": None,
        "correlationId": "forged",
        "channels": {"status": status_queue(job_id), "logs": logs_queue(job_id)},
        **fields,
    }


def post(url: str, order: dict[str, Any]) -> str:
    """Puts the order into the queue, as anybody can who may write to the default exchange; the message's id."""
    id = str(uuid4())
    with channel(url) as ours:
        ours.confirm_delivery()
        properties = pika.BasicProperties(  # type: ignore[no-untyped-call]
            message_id=id, delivery_mode=2, content_type="application/json"
        )
        ours.basic_publish("", QUEUE, json.dumps(order).encode(), properties)
    return id


async def test_a_forged_order_is_not_worked_on(world: World) -> None:
    await world.up(env=parcels_env(world.system.folder, **QUICK))
    broker_url = world.system.broker_url
    with channel(broker_url) as ours:
        ours.queue_declare(FOREIGN, durable=True)
    foreign = {"status": FOREIGN, "logs": FOREIGN}
    async with Client(world.urls[0]) as client:
        done = await submit(client, "carry")
        ended = await job_in(client, done, SUCCEEDED, deadline=30)
        running = await submit(client, "wait")
        runs = await job_in(client, running, RUNNING, deadline=30)
        unknown, strange = forged(), forged(channels=foreign)
        letters = [
            post(broker_url, unknown),
            post(broker_url, strange),
            post(broker_url, forged(jobId=done)),
            post(broker_url, forged(jobId=running, historyId=runs["historyId"], channels=foreign)),
        ]
        past = [
            post(broker_url, forged(jobId=done, historyId=ended["historyId"])),
            post(broker_url, forged(jobId=running, historyId=runs["historyId"])),
        ]
        await _all_told(client, letters, past)
        assert await submit(client, "carry")
        await _work_goes_on(client)
        await client.http.post(f"/jobs/{running}/cancel", json={"reason": "enough"})
        await job_in(client, running, CANCELLED, deadline=30)
    counts = {id: len(pids) for id, pids in begun(world.system.folder).items()}
    assert counts[done] == counts[running] == 1, "nothing is done again"
    assert not counts.keys() & {unknown["jobId"], strange["jobId"]}, "nobody owes it"
    names = [queue(one["jobId"]) for one in (unknown, strange) for queue in (status_queue, logs_queue)]
    assert ready(broker_url, [FOREIGN, *names]) == {FOREIGN: 0}, "nothing is said of it, and no queue is made for it"


async def _all_told(client: Client, letters: list[str], past: list[str]) -> None:
    """An order of what is begun or over, `past`, may pass for a copy of the genuine one, which is dropped."""

    async def told() -> bool:
        answer = await client.http.get("/dead-letters", params={"queue": QUEUE, "limit": 100})
        kept = [letter["messageId"] for letter in answer.json()["items"]]
        assert len(kept) == len(set(kept)), kept
        assert set(letters) <= set(kept) <= {*letters, *past}, answer.json()["items"]
        return True

    await eventually(told, deadline=30, every=0.2, message="each forged order is a dead letter")


async def _work_goes_on(client: Client) -> None:
    await job_in(client, await submit(client, "carry"), SUCCEEDED, deadline=30)


# How an order gets lost.


def purge(url: str) -> None:
    """An operator empties the queue."""
    with channel(url) as ours:
        ours.queue_purge(QUEUE)


def delete(url: str) -> None:
    """An operator deletes the queue."""
    with channel(url) as ours:
        ours.queue_delete(QUEUE)


def take(url: str) -> None:
    """A client of somebody else takes what is there, acknowledges it, and does nothing."""
    with channel(url) as ours:
        while ours.basic_get(QUEUE, auto_ack=True)[0] is not None:
            pass


@pytest.mark.parametrize("lose", [purge, delete, take])
@pytest.mark.parametrize("served", [False, True], ids=["no worker yet", "a busy worker"])
async def test_a_lost_order_comes_again(world: World, lose: Callable[[str], None], served: bool) -> None:
    env = parcels_env(world.system.folder, ORCHESTRIX_WORKER__CONCURRENCY="1", **QUICK)
    await world.up(nodes=1, workers=1 if served else 0, env=env)
    url = world.system.broker_url
    async with Client(world.urls[0]) as client:
        busy = await submit(client, "wait") if served else None
        if busy:
            await job_in(client, busy, RUNNING, deadline=30)
        plain = await submit(client, "carry")
        await start_all(world.urls[0], ERRAND, ["errand"])
        await eventually(lambda: ready(url, [QUEUE]) == {QUEUE: 2}, deadline=30, every=0.2, message="both are sent")
        lose(url)
        if busy:
            await client.http.post(f"/jobs/{busy}/cancel", json={"reason": "enough"})
        else:
            await world.up(nodes=0, workers=1, env=env)
        job = await job_in(client, plain, SUCCEEDED, deadline=AGAIN)
        assert job["attempt"] == 1, "nobody has begun the first one, so it is the same attempt"
        await all_in(world.system.database_url, ERRAND, ["errand"], (COMPLETED,), deadline=AGAIN)
        ids = [row[0] for row in await rows(world.system.database_url, "SELECT id FROM jobs")]
    counts = {id: len(pids) for id, pids in begun(world.system.folder).items()}
    assert counts == dict.fromkeys(map(str, ids), 1), "each is done once"


async def test_a_foreign_reader_beside_the_worker_costs_time_and_no_job(world: World) -> None:
    await world.up(env=parcels_env(world.system.folder, **QUICK))
    url = world.system.broker_url
    async with Client(world.urls[0]) as client:
        with channel(url) as thief:
            thief.basic_consume(QUEUE, lambda *_: None, auto_ack=True)
            ids = [await submit(client, "carry") for _ in range(6)]

            def stolen() -> bool:
                thief.connection.process_data_events(0)
                return not any(ready(url, [QUEUE]).values())

            await eventually(stolen, deadline=20, every=0.2, message="every order has been given out")
            await holds(stolen, during=1.0, every=0.2)
        for id in ids:
            await job_in(client, id, SUCCEEDED, deadline=AGAIN)
    counts = {id: len(pids) for id, pids in begun(world.system.folder).items()}
    assert counts == dict.fromkeys(ids, 1), "each is done once"
