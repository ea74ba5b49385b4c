"""Has the broker room for the jobs that may be open, does anybody take them, and do their queues go away?"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrix.broker.port import Broker
from orchestrix.broker.topology import dispatch_queue, logs_queue, status_queue
from orchestrix.cli import devfile, management
from orchestrix.cli.finding import OK, WARN, Finding
from orchestrix.domain.job_places import share

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database

QUEUES = 2
"""Of each job that is open: one for its status, one for its log."""
KINDS = 2
"""So many times jobs.max_live may be open: once of queues that workers serve, and once of those that nobody serves."""
DESCRIPTORS = 3
"""File descriptors that a quorum queue takes on each node that has a copy of it."""
KILOBYTES = 115
_SETTLED = 300.0
"""Seconds after its end at which nothing should be left of a job at the broker, swept twice."""
_LATELY = timedelta(hours=1)
_LOOKED_AT = 50
_WORKERS = 1000
_LIVE = "ORCHESTRIX_JOBS__MAX_LIVE"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database says: how many jobs are open, how many of them hold a place, how many of each queue nobody has
    begun, which ended lately.

    `causes` has for each of those queues why nobody begins them, if it is not only their turn, and what helps.
    """

    open: int = 0
    held: int = 0
    unbegun: dict[str, int] = field(default_factory=dict)
    causes: dict[str, tuple[str, str]] = field(default_factory=dict)
    ended: Sequence[str] = ()
    lost: dict[str, int] = field(default_factory=dict)
    """Workers with places that are taken for ever, and how many."""


async def facts(database: Database, silent: float, most: int) -> Facts:
    """As they are now; a worker is lost after `silent` seconds without a beat, and `most` jobs may be open.

    Raises `Unavailable`.
    """
    from orchestrix.domain.job_waits import unserved
    from orchestrix.persistence import job_places, job_queues, jobs, nodes

    after = (database.now() - _LATELY, "")
    async with database.read() as connection:
        ended = await jobs.cleared(connection, after, _SETTLED, _LOOKED_AT)
        unbegun, now = await job_queues.unbegun(connection), connection.now()
        around = await job_queues.served(connection, unbegun, silent)
        causes = {queue: unserved(queue, now, known) for queue, known in around.items()}
        open, held = await jobs.occupied(connection), await job_places.held(connection, most, silent)
        workers = await nodes.listed_workers(connection, _WORKERS, silent)
        lost = {one.id: one.lost_places for one in workers if one.lost_places}
        return Facts(open, held, unbegun, causes, tuple(job_id for _, job_id in ended), lost)


async def examined(known: Facts, broker: Broker, url: str, folder: Path, most: int) -> list[Finding]:
    """What is to be said of jobs; `most` may be open at a time. Raises `Unavailable`."""
    found = [*await _unread(known, broker, most), *_crowded(known, most), *await _left_behind(known.ended, broker)]
    found += [
        Finding(WARN, "workers", f"{worker}: {count} places are taken by functions that do not end", "restart it")
        for worker, count in known.lost.items()
    ]
    return [await _room(known, url, folder, most), *found]


async def _room(known: Facts, url: str, folder: Path, most: int) -> Finding:
    queues = QUEUES * KINDS * most
    need = f"jobs.max_live is {most:,}: up to {queues:,} queues, {DESCRIPTORS * queues:,} file descriptors"
    need += f" and {KILOBYTES * queues / 1000:,.0f} MB at each node of the broker"
    dev = devfile.read(folder)
    if dev is not None and dev.broker_url == url:
        return Finding(OK, "jobs", f"jobs.max_live is {most:,}, which the embedded broker has room for")
    told = await asyncio.to_thread(management.descriptors, url)
    if told is None:
        look = "what it has is not told here: look for File Descriptors in `rabbitmq-diagnostics status`"
        return Finding(OK, "jobs", f"{need}; {look}")
    return _compared(told, known, most, need)


def _compared(told: management.Descriptors, known: Facts, most: int, need: str) -> Finding:
    """Those that jobs have now are among the used ones."""
    free = told.total - told.used + DESCRIPTORS * QUEUES * known.open
    detail = f"{need}; {told.node} uses {told.used:,} of {told.total:,} descriptors"
    each = DESCRIPTORS * QUEUES * KINDS
    if free >= each * most:
        return Finding(OK, "jobs", detail)
    fits = max(1, free // each)
    more = "it will refuse connections, without a word in its log, before as many jobs are open"
    fix = f"raise the broker's limit (ulimit -n 65536, or LimitNOFILE), or set {_LIVE} to {fits:,} or less"
    return Finding(WARN, "jobs", f"{detail}: {more}", fix)


async def _unread(known: Facts, broker: Broker, most: int) -> list[Finding]:
    """A worker whose hands are full, or that stops, reads none: only the crew of the queue tells who is there."""
    found: list[Finding] = []
    for queue, count in sorted(known.unbegun.items()):
        there = await broker.message_count(dispatch_queue(queue))
        if there is None or there[1] == 0:
            cause, fix = known.causes[queue]
            full = ", as many as may be of one queue: others wait" if count >= share(most) else ""
            found.append(Finding(WARN, "jobs", f"queue {queue}: {count} sent and not begun{full}: {cause}", fix))
    return found


def _crowded(known: Facts, most: int) -> Iterable[Finding]:
    if known.held >= most:
        detail = f"{known.held:,} are open, and no more than {most:,} may be: others wait"
        yield Finding(WARN, "jobs", detail, f"orchestrix jobs list --state RUNNING, or raise {_LIVE}")


async def _left_behind(ended: Sequence[str], broker: Broker) -> list[Finding]:
    names = [name for job_id in ended for name in (status_queue(job_id), logs_queue(job_id))]
    left = [name for name in names if await broker.message_count(name) is not None]
    if not left:
        return []
    many = "1 queue of a job that has ended is" if len(left) == 1 else f"{len(left)} queues of jobs that have ended are"
    detail = f"{many} still there (of {len(names)} looked at), as {left[0]}"
    fix = "the leader deletes them within minutes; one that stays: rabbitmqctl delete_queue NAME"
    return [Finding(WARN, "jobs", detail, fix)]
