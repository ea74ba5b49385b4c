"""Job checks: the broker's capacity for open jobs, workers that take them, and queues that are left over."""

from __future__ import annotations

import asyncio
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrix.broker.port import Broker
from orchestrix.broker.topology import dispatch_queue, logs_queue, status_queue
from orchestrix.cli import devfile
from orchestrix.cli.doctor import rabbitmq_management
from orchestrix.cli.doctor.result import OK, WARN, CheckResult
from orchestrix.domain.dispatch_capacity import share
from orchestrix.quantities import counted

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database
    from orchestrix.persistence.jobs.job_queues import FailedJob

QUEUES_PER_JOB = 2
"""Of each job that is open: one for its status, one for its log."""
KINDS = 2
"""jobs.max_live counts so many times: once for queues that workers serve, and once for those without workers."""
DESCRIPTORS_PER_QUEUE = 3
"""File descriptors that a quorum queue takes on each node that has a copy of it."""
KILOBYTES_PER_QUEUE = 115
_QUEUE_CLEANUP_S = 300.0
"""Seconds after its end at which a job's queues should be deleted: two clean-ups have run by then."""
_RECENT = timedelta(hours=1)
_LOOKED_AT = 50
_WORKERS = 1000
_FAILED = 1000
_GROUPS = 10
_ERROR_LENGTH = 300
_LIVE = "ORCHESTRIX_JOBS__MAX_LIVE"


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the database says: how many jobs are open, how many of them hold a slot, how many of each queue no worker
    has started, which ended recently.

    `causes` has for each of those queues why no worker starts them, if they do not only wait their turn, and what
    helps. `groups` has for each executor group how many attempts no executor has begun, and the same about them.
    """

    open: int = 0
    slots_taken: int = 0
    not_started: dict[str, int] = field(default_factory=dict)
    causes: dict[str, tuple[str, str]] = field(default_factory=dict)
    ended: Sequence[str] = ()
    lost: dict[str, int] = field(default_factory=dict)
    """Workers with slots that are taken for ever, and how many."""
    groups: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    failed: Sequence[FailedJob] = ()
    """The jobs that have failed for good not long ago, the newest end first."""


async def facts(database: Database, silent: float, limit: int) -> JobFacts:
    """As they are now; a worker is lost after `silent` seconds without a heartbeat, and `limit` jobs may be open.

    Raises `Unavailable`.
    """
    from orchestrix.domain.job_diagnosis import not_begun_by, unserved
    from orchestrix.persistence.cluster import nodes
    from orchestrix.persistence.jobs import group_executors, job_admission, job_queues, jobs

    after = (database.now() - _RECENT, "")
    async with database.read() as connection:
        ended = await jobs.cleared(connection, after, _QUEUE_CLEANUP_S, _LOOKED_AT)
        not_started, now = await job_queues.not_started_counts(connection), connection.now()
        around = await job_queues.served(connection, not_started, silent)
        causes = {queue: unserved(queue, now, known) for queue, known in around.items()}
        open, slots_taken = await jobs.occupied(connection), await job_admission.slots_taken(connection, limit, silent)
        workers = await nodes.listed_workers(connection, _WORKERS, silent)
        lost = {one.id: one.lost_places for one in workers if one.lost_places}
        waiting = await group_executors.not_started_counts(connection)
        executors = await group_executors.of_groups(connection, waiting)
        groups = {group: (count, *not_begun_by(group, executors[group])) for group, count in waiting.items()}
        failed = await job_queues.failed(connection, _RECENT.total_seconds(), _FAILED)
    ids = tuple(job_id for _, job_id in ended)
    return JobFacts(open, slots_taken, not_started, causes, ids, lost, groups, failed)


async def examined(known: JobFacts, broker: Broker, url: str, folder: Path, limit: int) -> list[CheckResult]:
    """The findings about jobs; `limit` may be open at a time. Raises `Unavailable`."""
    found = [*await _unread(known, broker, limit), *_crowded(known, limit), *await _left_behind(known.ended, broker)]
    found += [*_uncalled(known.groups), *_failed(known.failed)]
    found += [
        CheckResult(WARN, "workers", f"{worker}: {count} places are taken by functions that do not end", "restart it")
        for worker, count in known.lost.items()
    ]
    return [await _room(known, url, folder, limit), *found]


async def _room(known: JobFacts, url: str, folder: Path, limit: int) -> CheckResult:
    queues = QUEUES_PER_JOB * KINDS * limit
    need = f"jobs.max_live is {limit:,}: up to {queues:,} queues, {DESCRIPTORS_PER_QUEUE * queues:,} file descriptors"
    need += f" and {KILOBYTES_PER_QUEUE * queues / 1000:,.0f} MB at each node of the broker"
    dev = devfile.read(folder)
    if dev is not None and dev.broker_url == url:
        return CheckResult(OK, "jobs", f"jobs.max_live is {limit:,}, which the embedded broker has room for")
    texts = await asyncio.to_thread(rabbitmq_management.descriptors, url)
    if texts is None:
        look = 'the limit cannot be read here; see "File Descriptors" in `rabbitmq-diagnostics status`'
        return CheckResult(OK, "jobs", f"{need}; {look}")
    return _compared(texts, known, limit, need)


def _compared(text: rabbitmq_management.DescriptorUsage, known: JobFacts, limit: int, need: str) -> CheckResult:
    """The queues that jobs have now are among the used descriptors."""
    free = text.total - text.used + DESCRIPTORS_PER_QUEUE * QUEUES_PER_JOB * known.open
    detail = f"{need}; {text.node} uses {text.used:,} of {text.total:,} descriptors"
    each = DESCRIPTORS_PER_QUEUE * QUEUES_PER_JOB * KINDS
    if free >= each * limit:
        return CheckResult(OK, "jobs", detail)
    fits = max(1, free // each)
    more = "it will refuse connections, without a word in its log, before as many jobs are open"
    fix = f"raise the broker's limit (ulimit -n 65536, or LimitNOFILE), or set {_LIVE} to {fits:,} or less"
    return CheckResult(WARN, "jobs", f"{detail}: {more}", fix)


async def _unread(known: JobFacts, broker: Broker, limit: int) -> list[CheckResult]:
    """A worker without a free slot, or that stops, reads no queue: only the heartbeats show who serves it."""
    found: list[CheckResult] = []
    for queue, count in sorted(known.not_started.items()):
        there = await broker.message_count(dispatch_queue(queue))
        if there is None or there[1] == 0:
            cause, fix = known.causes[queue]
            full = " (as many as may be of one queue: others wait)" if count >= share(limit) else ""
            many = f"{count} job{'s' * (count != 1)} dispatched but not started{full}"
            found.append(CheckResult(WARN, "jobs", f"queue {queue}: {many}; {cause}", fix))
    return found


def _uncalled(groups: Mapping[str, tuple[int, str, str]]) -> Iterable[CheckResult]:
    """One finding for each group whose attempts no executor has begun: no queue shows these."""
    for group, (count, cause, fix) in sorted(groups.items()):
        detail = f"group {group}: {counted(count, 'job')} dispatched but not started; {cause}"
        yield CheckResult(WARN, "jobs", detail, fix)


def _failed(jobs: Sequence[FailedJob]) -> Iterable[CheckResult]:
    """One finding for each target, handler and state, with the last error and the command that lists the jobs."""
    counts = Counter((one.target, one.handler, one.state) for one in jobs)
    last = {(one.target, one.handler, one.state): one for one in reversed(jobs)}
    more = " or more" if len(jobs) == _FAILED else ""
    for (target, handler, state), count in counts.most_common(_GROUPS):
        newest, (kind, name) = last[target, handler, state], target
        said = f"{kind} {name}, handler {handler}: {counted(count, 'job')}{more} {state} within the last hour"
        error = newest.error or {}
        why = f": {error.get('type', 'Error')}: {error.get('message', '')}"[:_ERROR_LENGTH]
        fix = f"orchestrix jobs list --state {state} --{kind} {shlex.quote(name)} --handler {shlex.quote(handler)}"
        yield CheckResult(WARN, "failed jobs", f"{said}, the last at {newest.at:%H:%M:%SZ}{why}", fix)


def _crowded(known: JobFacts, limit: int) -> Iterable[CheckResult]:
    if known.slots_taken >= limit:
        detail = f"{known.slots_taken:,} are open, and no more than {limit:,} may be: others wait"
        yield CheckResult(WARN, "jobs", detail, f"orchestrix jobs list --state RUNNING, or raise {_LIVE}")


async def _left_behind(ended: Sequence[str], broker: Broker) -> list[CheckResult]:
    names = [name for job_id in ended for name in (status_queue(job_id), logs_queue(job_id))]
    left = [name for name in names if await broker.message_count(name) is not None]
    if not left:
        return []
    many = "1 queue of a job that has ended is" if len(left) == 1 else f"{len(left)} queues of jobs that have ended are"
    detail = f"{many} still there (of {len(names)} checked), as {left[0]}"
    fix = "the leader deletes them within minutes; one that stays: rabbitmqctl delete_queue NAME"
    return [CheckResult(WARN, "jobs", detail, fix)]
