"""Steering: the rare moments that chance alone would bring about once in a hundred seeds, one of them in each.

Each is a story beside the bad days, which may spoil it: then the trace does not say that it came about.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from orchestrix import clock
from orchestrix.broker.topology import JOB_HANDOFF, status_queue
from orchestrix.jobs.job_coordinator import JobCoordinator
from orchestrix.testing.simulation.virtual_time import ProcessKilled, current_process, elapse
from tests.simulation.clerk import Clerk
from tests.simulation.house import NodeMember, Owners
from tests.simulation.realm import Member
from tests.simulation.slowness import Hold

CATCH: Final = 20.0
"""Seconds in which the task that is waited for comes by."""
SUCCESSION: Final = 12.0
GIVING: Final = 6.0
BAD_DAYS: Final = 10.0
"""Seconds from the first one's chance until most are over, where a story needs some peace."""
GONE: Final = 16.0
"""Seconds for which a worker stands still."""
UNREAD: Final = 0.6
"""Seconds for which a job may be unread whose owner drains."""
LOOK: Final = 0.1

Story = Callable[[Owners], Awaitable[None]]


async def late(realm: Owners, task: str, prepare: Story, due: Callable[[Owners], bool]) -> None:
    """A leader's task is about to write, with something to do, and goes on when the next term has begun.

    It has lost its links, or is ended; on a slow link to the database it does not hear that its duties have ended.
    """
    dice = realm.dice("late")
    await elapse(dice.uniform(1.0, 3.0))
    await prepare(realm)
    hold = realm.slowness.hold(task, lambda: due(realm))
    if not await _soon(lambda: hold.caught, CATCH) or hold.fence is None:
        hold.free.set()
        return
    fence = hold.fence
    member = next(one for one in realm.members if one.process is hold.process)
    if dice.random() < 0.5:
        member.cut(0.0, 0.0)
    else:
        member.process.on_death.append(lambda: member.restart(1.0))
        member.stopping.set()
    if await _soon(lambda: _term(realm) > fence.term, SUCCESSION):
        realm.witness.note(f"steered: {task} goes on after term {fence.term}")
    hold.free.set()


async def back_and_forth(realm: Owners) -> None:
    """A node gives its jobs away and has them again, while what it read before is not written yet."""
    await _more_work(realm)
    first = await _busy(realm)
    if first is None:
        return
    holds = {one.name: _hold_events(realm, one) for one in realm.nodes}
    try:
        if await _soon(lambda: holds[first.name].caught, CATCH / 2):
            await _move(realm, first)
    finally:
        holds[first.name].free.set()
        await elapse(0.1)
        for hold in holds.values():
            hold.free.set()


async def _move(realm: Owners, first: NodeMember) -> None:
    node, before = _node(first), _epochs(realm, first)
    await _give(first)
    offers = [one for one in realm.witness.offers if json.loads(one.body)["fromNode"] == node]
    others = [one for one in realm.nodes if one is not first]
    for one in others:
        await _done(one, lambda part: part.handoff_subscriber.decline())
    for one in others:
        await _give(one)
    back = {job for job, epoch in _epochs(realm, first).items() if epoch > before.get(job, epoch)}
    if back:
        realm.witness.note(f"steered: {node} has {len(back)} jobs again")
    for one in others:
        await _done(one, lambda part: part.handoff_subscriber.accept())
    for old in offers:
        if json.loads(old.body)["jobId"] in back:
            for _ in realm.members:  # it comes once more, to each of them
                realm.server.put(JOB_HANDOFF, replace(old, message_id=clock.uuid7()))


async def drained_alone(realm: Owners) -> None:
    """A node is to end while no other takes anything for a while: until then it reads what it has."""
    first = await _busy(realm)
    if first is None:
        return
    others = [one for one in realm.nodes if one is not first]
    for one in others:
        await _done(one, lambda part: part.handoff_subscriber.release())
    first.process.on_death.append(lambda: first.restart(1.0))
    first.stopping.set()
    await _watched(realm, first, GIVING)
    for one in others:
        await _done(one, lambda part: part.handoff_subscriber.start())


async def _watched(realm: Owners, member: NodeMember, seconds: float) -> None:
    """Complains of each job that it does not read while it gives it away."""
    unread: dict[str, float] = {}
    ends = realm.loop.time() + seconds
    while realm.loop.time() < ends and member.process.alive:
        await elapse(LOOK)
        part = _part(member)
        drains = part is not None and part.draining and part._handoff_lock.locked() and _is_well(realm, member)
        jobs = _owned(realm, member) if drains else []
        unread = {job: unread.get(job, realm.loop.time()) for job in jobs if _readers(realm, job) == 0}
        if jobs:
            realm.witness.note(f"steered: {member.name} drains and has {len(jobs)} jobs")
        for job, since in unread.items():
            if realm.loop.time() - since > UNREAD:
                realm.witness.complain(f"S0-41: {member.name} drains, and reads its job {job} no more")
                return


def _readers(realm: Owners, job: str) -> int | None:
    count = realm.server.count(status_queue(job))
    return None if count is None else count[1]


def _is_well(realm: Owners, member: NodeMember) -> bool:
    fine = realm.server.up and realm.server.alarm is None and realm.file.up and not member.process.frozen
    return fine and realm.loop.time() > member.blameless_since


# Who is who.


async def _busy(realm: Owners) -> NodeMember | None:
    """A node that owns jobs at which workers are."""
    found: list[NodeMember] = []

    def looks() -> bool:
        found[:] = [one for one in realm.nodes if _owned(realm, one, "AND state = 'RUNNING'") and _is_well(realm, one)]
        return bool(found) and len(realm.nodes) == 3

    await elapse(2.0)
    return realm.dice("busy").choice(found) if await _soon(looks, CATCH) else None


def _part(member: NodeMember) -> JobCoordinator | None:
    return member.jobs


def _node(member: NodeMember) -> str:
    part = _part(member)
    return part.node if part is not None else ""


def _owned(realm: Owners, member: NodeMember, more: str = "") -> list[str]:
    found = realm.file.query(f"SELECT id FROM jobs WHERE channels = 1 AND owner = ? {more}", (_node(member),))
    return [job for (job,) in found]


def _epochs(realm: Owners, member: NodeMember) -> dict[str, int]:
    owned = "SELECT id, owner_epoch FROM jobs WHERE channels = 1 AND owner = ?"
    return dict(realm.file.query(owned, (_node(member),)))


def _term(realm: Owners) -> int:
    row = realm.row()
    return row[0].term if row is not None else 0


def _hold_events(realm: Owners, member: NodeMember) -> Hold:
    process = member.process
    return realm.slowness.hold("job events", lambda: current_process() is process)


async def _give(member: NodeMember) -> None:
    await _done(member, lambda part: part.rebalance._hand_off(50))


async def _done(member: NodeMember, work: Callable[[JobCoordinator], Awaitable[Any]]) -> None:
    """Has a node do something; whatever becomes of that."""
    part = _part(member)
    if part is None:
        return

    async def whole() -> None:
        await work(part)

    try:
        asking = member.process.spawn(whole())
    except ProcessKilled:
        return
    await asyncio.wait({asking}, timeout=GIVING)
    asking.add_done_callback(lambda late: late.cancelled() or late.exception())


async def _soon(condition: Callable[[], bool], seconds: float) -> bool:
    """`until`, with shorter looks."""
    ends = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() > ends:
            return False
        await elapse(LOOK)
    return True


# What is prepared, and when a task has something to do.


async def _nothing(realm: Owners) -> None:
    """It comes by itself."""


async def _more_work(realm: Owners) -> None:
    """The other bad days are over, and there is something to do."""
    await elapse(BAD_DAYS)
    await Clerk(realm).more(3)


async def _lose_worker(realm: Owners) -> None:
    """Whoever works on most stands still, for longer than a worker may be silent."""
    await _more_work(realm)
    await _soon(lambda: realm.busiest("worker_id") is not None, CATCH)
    worker = realm.busiest("worker_id")
    if worker is not None:
        process = worker.process
        process.freeze()
        realm.loop.call_later(GONE, lambda: process.unfreeze() if process.frozen else None)


async def _lose_owner(realm: Owners) -> None:
    """A node that has jobs and does not lead is gone."""

    def owner() -> Member | None:
        leader = realm.leader()
        return realm.busiest("owner", but=leader) if leader is not None else None

    await _soon(lambda: owner() is not None, CATCH)
    lost = owner()
    if lost is not None:
        lost.process.on_death.append(lambda: lost.restart(GONE / 2))
        lost.process.kill()


def _exists(terms: str, realm: Owners) -> bool:
    now, silent = (_moment(seconds) for seconds in (0.0, 6.0))
    return bool(realm.file.query(f"SELECT 1 FROM jobs WHERE {terms}".format(now=now, silent=silent)))


def _moment(ago: float) -> str:
    return f"'{clock.now().replace(tzinfo=None) - timedelta(seconds=ago):%Y-%m-%d %H:%M:%S.%f}'"


def _always(realm: Owners) -> bool:
    return True


_DUE: Final = partial(_exists, "state = 'PENDING' AND wake_at <= {now}")
_TIMED_OUT: Final = partial(_exists, "state IN ('DISPATCHED', 'RUNNING') AND channels = 1 AND wake_at <= {now}")
_SILENT: Final = partial(_exists, "state = 'RUNNING' AND channels = 1 AND worker_beat_at <= {silent}")

STORIES: Final[dict[str, Story]] = {
    "dispatch": partial(late, task="job dispatch", prepare=_nothing, due=_DUE),
    "schedules": partial(late, task="schedules", prepare=_nothing, due=_always),
    "time-outs": partial(late, task="job rescuer", prepare=_lose_worker, due=_TIMED_OUT),
    "lost workers": partial(late, task="job rescuer", prepare=_lose_worker, due=_SILENT),
    "orphans": partial(late, task="orphan detector", prepare=_lose_owner, due=_always),
    "deaths": partial(late, task="failure detector", prepare=_lose_owner, due=_always),
    "back and forth": back_and_forth,
    "drained alone": drained_alone,
}
