"""How does a process come to a crash point that has to do with jobs, and how do the others go on from there?"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pika
import pytest

from orchestrix.broker.topology import DEAD, JOB_ASSIGNED, dispatch_queue, status_queue
from tests.acceptance.system import Client
from tests.fault.crashing import At, died
from tests.fault.crashing_jobs import JOBS, JobRig
from tests.support import eventually
from tests.taps import channel

DUES = 2
"""How often a schedule is due in its life."""


async def node_dies(rig: JobRig, at: At, handler: str = "count", count: int = JOBS) -> None:
    """The only node, or the leader of two, while it takes jobs and hears of them."""
    node, client = await rig.up(at)
    other = (await rig.ready_node())[1] if rig.ground.many else None
    async with client:
        await rig.wish_until_death(client, node, handler, count)
    await died(node, at)
    async with other or (await rig.ready_node())[1] as client:
        await rig.ask_again(client)


async def retry_dies(rig: JobRig, at: At) -> None:
    """The same with one job, whose first try fails."""
    await node_dies(rig, at, "failing", 1)


async def worker_dies(rig: JobRig, at: At, handler: str = "count", count: int = JOBS) -> None:
    """A worker, while it does jobs."""
    rig.silent = 1.0
    (_, client), worker = await asyncio.gather(rig.leader(), rig.ready_worker(at))
    async with client:
        await rig.wish_until_death(client, worker, handler, count)
    await died(worker, at)
    await rig.ready_worker()


async def last_word_dies(rig: JobRig, at: At) -> None:
    """The same with one job, which says nothing before its end."""
    await worker_dies(rig, at, "quiet", 1)


async def canceller_dies(rig: JobRig, at: At) -> None:
    """While somebody asks it to cancel a job that runs."""
    node, client = await rig.up(at)
    async with client:
        await rig.patient(client, 1)
        with pytest.raises(httpx.HTTPError):
            await _cancel(rig, client)
    await died(node, at)
    ((reason,),) = await rig.sql("SELECT cancel_reason FROM jobs")
    assert reason == (None if at.point.endswith("before_commit") else "enough")
    _, client = await rig.ready_node()
    async with client:
        answer = await _cancel(rig, client)
        assert answer.status_code == 200, answer.text


async def _cancel(rig: JobRig, client: Client) -> httpx.Response:
    return await client.http.post(f"/jobs/{rig.wishes[0].id}/cancel", json={"reason": "enough"})


async def retrier_dies(rig: JobRig, at: At) -> None:
    """While somebody asks it to retry a job that has failed."""
    node, client = await rig.up(at)
    async with client:
        assert (await rig.wish(client, "failing", retries=0)).id

        async def failed() -> bool:
            return await rig.sql("SELECT state FROM jobs") == [("FAILED",)]

        await eventually(failed, deadline=20, message="the job has failed")
        with pytest.raises(httpx.HTTPError):
            await _retry(rig, client)
    await died(node, at)
    if at.point.endswith("before_commit"):
        assert await failed()
    _, client = await rig.ready_node()
    async with client:
        answer = await _retry(rig, client)
        went_on = answer.status_code == 409 and at.point.endswith("after_commit")
        assert answer.status_code == 200 or went_on, answer.text


async def _retry(rig: JobRig, client: Client) -> httpx.Response:
    return await client.http.post(f"/jobs/{rig.wishes[0].id}/retry", json={"reason": "mended"})


async def timed_out_rescue_dies(rig: JobRig, at: At) -> None:
    """The leader, which ends a try whose time is over, for its worker does not do it in time."""
    (node, client), worker = await asyncio.gather(rig.leader(at), rig.ready_worker())
    async with client:
        assert (await rig.wish(client, "freezing", timeout=1)).id
    await died(node, at)
    await rig.ready_node()
    worker.resume()


async def silent_sweep_dies(rig: JobRig, at: At) -> None:
    """The leader, which ends a try whose worker is gone."""
    rig.silent = 1.0
    (node, client), worker = await asyncio.gather(rig.leader(at), rig.ready_worker())
    async with client:
        await rig.patient(client, 1)
    worker.kill9()
    rig.go()
    await died(node, at)
    await asyncio.gather(rig.ready_node(), rig.ready_worker())


async def heir_dies(rig: JobRig, at: At) -> None:
    """The node that is to lead and own after the first one has died, at whatever it does for that."""
    first, client = await rig.up()
    async with client:
        await rig.patient(client, 2)
    if rig.ground.many:
        heir, _ = await rig.ready_node(at)
        first.kill9()
    else:
        first.kill9()
        heir, _ = rig.armed_node(at)
    await died(heir, at)
    await rig.leader()
    rig.go()


async def leaver_dies(rig: JobRig, at: At) -> None:
    """The leader, which is told to end, and has jobs."""
    leaver, client = await rig.up(at)
    async with client:
        await rig.patient(client, 3)
    if rig.ground.many:
        await rig.ready_node()
    leaver.terminate()
    await died(leaver, at)
    if not rig.ground.many:
        await rig.ready_node()
    rig.go()


async def taker_dies(rig: JobRig, at: At) -> None:
    """The node that another one, which ends, gives its jobs to."""
    giver, client = await rig.up()
    async with client:
        await rig.patient(client, 3)
    taker, _ = await rig.ready_node(at)
    giver.terminate()
    await died(taker, at)
    await rig.ready_node()
    rig.go()
    assert await giver.exited(deadline=20) == 0, giver.log_tail()


async def burial_dies(rig: JobRig, at: At) -> None:
    """The only node, while it puts aside what it cannot read: of those that need an owner, or of a job's own words."""
    node, client = await rig.up(at)
    async with client:
        await rig.patient(client, 1)
    queue = status_queue(str(rig.wishes[0].id)) if at.point.startswith("jobs.events") else JOB_ASSIGNED
    with channel(rig.broker_url) as ours:
        properties = pika.BasicProperties(message_id="poison", delivery_mode=2)  # type: ignore[no-untyped-call]
        ours.basic_publish("", queue, b"\xff{", properties)
    await died(node, at)
    await rig.ready_node()
    rig.go()
    await eventually(lambda: _kept(rig, "poison"), deadline=30, every=0.1, message="the letter is kept once")


async def keeper_dies(rig: JobRig, at: At) -> None:
    """Who keeps the dead order of a job, whose try ends by that."""
    first, client = await rig.leader()
    async with client:
        assert (await rig.wish(client)).id
        await eventually(lambda: _ordered(rig), deadline=20, every=0.05, message="the order is sent")
    first.kill9()
    id = await eventually(lambda: _kill_order(rig), deadline=20, every=0.1, message="the order dies")
    keeper, _ = rig.armed_node(at)
    await died(keeper, at)
    ((kept,),) = await rig.sql("SELECT count(*) FROM dead_letters")
    if at.point.endswith("before_commit"):
        assert await _letters(rig, str(id)) == 0
    else:  # of this order, or of an earlier turn's that was kept and not acknowledged
        assert kept > 0
    await rig.up()
    await eventually(lambda: _kept(rig, str(id)), deadline=30, every=0.1, message="the letter is kept once")


async def _ordered(rig: JobRig) -> bool:
    ((sent,),) = await rig.sql("SELECT count(*) FROM jobs WHERE state = 'DISPATCHED'")
    ((owed,),) = await rig.sql("SELECT count(*) FROM outbox")  # asked second: what is owed came with the state
    return bool(sent and not owed)


def _kill_order(rig: JobRig) -> str | None:
    """What is in the queue of the orders dies instead; its id."""
    queue = dispatch_queue("default")
    with channel(rig.broker_url) as ours:
        ours.confirm_delivery()
        _, properties, body = ours.basic_get(queue, auto_ack=True)
        if properties is None:
            return None
        properties.headers = {**(properties.headers or {}), "x-reason": "by-hand", "x-routing-key": queue}
        ours.basic_publish(DEAD, queue, body, properties)
        return str(properties.message_id)


async def _kept(rig: JobRig, id: str) -> bool:
    found = await _letters(rig, id)
    assert found <= 1, found
    return found == 1


async def _letters(rig: JobRig, id: str) -> int:
    found = await rig.sql("SELECT message_id FROM dead_letters")
    return [row[0] for row in found].count(id)


async def firing_dies(rig: JobRig, at: At, handler: str = "count") -> None:
    """The leader, when a schedule is due."""
    node, client = await rig.up(at)
    async with client:
        dues = await _schedule(client, handler)
    if handler == "patient":
        await _a_run_waits(rig)
        rig.go()
    await died(node, at)
    if at.point.endswith("before_commit"):
        await rig.leader()
    else:
        await rig.ready_node()
    await eventually(lambda: _all_made(rig), deadline=15, every=0.1, message="every due time has its job")
    found = await rig.sql("SELECT due_at FROM jobs ORDER BY due_at")
    assert [_moment(row[0]) for row in found] == dues, "each due time has one job, and nothing else has"


async def releasing_dies(rig: JobRig, at: At) -> None:
    """The leader, when a run may begin that has waited for the end of another."""
    await firing_dies(rig, at, "patient")


async def _schedule(client: Client, handler: str) -> list[datetime]:
    """Makes one that is due every second, a few times; when."""
    first = (datetime.now(UTC) + timedelta(seconds=1.5)).replace(microsecond=0)
    body = {
        "name": "often",
        "interval": 1,
        "startsAt": first.isoformat(),
        "endsAt": (first + timedelta(seconds=DUES - 0.5)).isoformat(),
        "overlap": "queue",
        "job": {"queue": "default", "handler": handler, "retries": 2},
        "createdBy": "ada",
    }
    answer = await client.http.post("/schedules", json=body)
    assert answer.status_code == 201, answer.text
    return [first + timedelta(seconds=n) for n in range(DUES)]


async def _all_made(rig: JobRig) -> bool:
    ((made,),) = await rig.sql("SELECT count(*) FROM jobs")
    ((left,),) = await rig.sql("SELECT count(*) FROM schedules WHERE due_at IS NOT NULL")
    return bool(made >= DUES and not left)


async def _a_run_waits(rig: JobRig) -> None:
    async def waits() -> bool:
        ((held,),) = await rig.sql("SELECT count(*) FROM jobs WHERE state = 'PENDING'")
        return bool(held)

    await rig.running(1)
    await eventually(waits, deadline=10, message="the second run waits for its turn")


def _moment(value: Any) -> datetime:
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
