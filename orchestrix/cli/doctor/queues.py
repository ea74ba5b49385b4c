"""Queue checks: whether the queues of the known sagas exist and are read, and which dead letters wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from orchestrix.broker.port import Broker
from orchestrix.broker.topology import UNROUTED, dead_letters_of
from orchestrix.cli.doctor.result import OK, WARN, CheckResult
from orchestrix.cli.instance_names import command_of
from orchestrix.domain.stored_times import age_s
from orchestrix.quantities import duration
from orchestrix.saga.catalog import Catalog

if TYPE_CHECKING:
    from orchestrix.persistence.engine import Database

_START_NODE = "orchestrix serve"
_WORKERS_SHOWN = 10_000
_WORKERS_SHOWN_S = 600.0
"""Workers that are looked at, and for how many seconds after its last heartbeat one is."""
_UNKNOWN: Mapping[str, str] = {}
_DEAD_LETTERS_SHOWN = 200
"""So many dead letters are checked, the last ones."""
_KINDS = 10
_TIMEOUT_BURST_AGE = timedelta(minutes=10)
"""For so long a burst of timeouts is reported."""
_REASONS = 3
_ADVICE = {
    "unknown-saga": "no node knows its saga: see ORCHESTRIX_SAGAS and orchestrix.toml",
    "unrouted": "look for a mistyped event name",
}


async def command_workers(database: Database) -> dict[str, str]:
    """What is known of the last worker of each command queue that has not left: a part of a sentence about a queue
    without consumers. Raises `Unavailable`.
    """
    from orchestrix.persistence.cluster import nodes

    async with database.read() as connection:
        now, workers = connection.now(), await nodes.listed_workers(connection, _WORKERS_SHOWN, _WORKERS_SHOWN_S)
    found: dict[str, str] = {}
    for worker in workers:
        host = f" on {worker.facts.host}" if worker.facts.host else ""
        ago, held = duration(int(age_s(worker.beat_at, now))), worker.facts.commands or 0
        for queue in worker.command_queues:
            found.setdefault(queue, f" (its worker {worker.id}{host}: last heartbeat {ago} ago, {held} in progress)")
    return found


async def queues(
    broker: Broker, catalog: Catalog, handled: Collection[str] | None = None, workers: Mapping[str, str] = _UNKNOWN
) -> list[CheckResult]:
    """A warning for each thing that needs attention, or one good result. `workers` is what `command_workers` says;
    `handled` are the commands that a worker started here has handlers for, if that is known.

    Raises `Unavailable`.
    """
    found: list[CheckResult] = []
    missing: list[str] = []
    for name in catalog.commands:
        start = f"orchestrix worker -q {name}" if handled is None or name in handled else _start_elsewhere(name)
        found += await _work(broker, name, start, missing, workers.get(name, ""))
    for name in catalog.event_queues:
        found += await _work(broker, name, "orchestrix serve --roles api,orchestrator", missing)
    meaning = "that no queue wanted and no orchestrator has moved yet"
    found += await _left_over(broker, UNROUTED, meaning, "message", missing)
    return found + _absent(missing) or [
        CheckResult(OK, "queues", f"{len(catalog.commands) + len(catalog.event_queues)} queues, all are read")
    ]


def _start_elsewhere(command: str) -> str:
    """For a command without a handler here: a worker started here would refuse it."""
    add = "add its module to ORCHESTRIX_WORKERS or orchestrix.toml"
    return (
        f"start the worker that handles {command} (no module here does: {add}, then `orchestrix worker -q {command}`)"
    )


async def dead_letters(database: Database) -> list[CheckResult]:
    """A warning for each queue of the dead letters that wait for a person, with their reasons. Raises `Unavailable`."""
    from orchestrix.persistence import dead_letters

    async with database.read() as connection:
        found = await dead_letters.page(connection, dead_letters.DeadLetterFilter(), _DEAD_LETTERS_SHOWN)
    kinds: dict[str, Counter[str]] = {}
    for dead_letter in found:
        kinds.setdefault(dead_letter.queue, Counter())[dead_letter.reason.partition(":")[0]] += 1
    more = " or more" if len(found) == _DEAD_LETTERS_SHOWN else ""
    most = sorted(kinds.items(), key=lambda kind: -kind[1].total())[:_KINDS]
    return [
        CheckResult(WARN, "dead letters", f"{queue}: {_counted(reasons, more)}", f"orchestrix dlq list --queue {queue}")
        for queue, reasons in most
    ]


async def timeout_bursts(database: Database) -> list[CheckResult]:
    """A warning for each queue of which many steps failed by their deadline at once, and not long ago. Raises
    `Unavailable`.
    """
    from orchestrix.persistence.sagas import command_queues

    async with database.read() as connection:
        found = await command_queues.recent_bursts(connection, _TIMEOUT_BURST_AGE)
    return [
        CheckResult(
            WARN,
            "time-outs",
            f"{one.count} steps of {one.queue} ran out of time within a minute, the last at {one.at:%H:%M:%SZ}",
            "see that its workers are there and answer in time: `why` of an instance tells more",
        )
        for one in found
    ]


async def deaths(database: Database) -> list[CheckResult]:
    """A warning for each queue with commands that crashed workers, if a saga still waits for them. Raises
    `Unavailable`."""
    from orchestrix.engine.explain import worker_crash
    from orchestrix.persistence.sagas import instances, redelivered_commands
    from orchestrix.persistence.sagas.saga_tables import saga_tables_of

    worst: dict[str, redelivered_commands.RedeliveryRecord] = {}
    counts: Counter[str] = Counter()
    async with database.read() as connection:
        for one in await redelivered_commands.page(connection, _DEAD_LETTERS_SHOWN):
            row = await instances.get(connection, saga_tables_of(one.saga), one.saga, one.instance_id)
            if row is None or not row.live or row.blocker is not None or row.command_id != one.command_id:
                continue
            counts[one.queue] += 1
            if one.queue not in worst or one.deaths > worst[one.queue].deaths:
                worst[one.queue] = one
    return [
        CheckResult(
            WARN,
            "deaths",
            f"{worker_crash.describe(one)} ({one.saga} {one.instance_id}); such here: {counts[queue]}",
            command_of(one.saga, "why", one.instance_id),
        )
        for queue, one in worst.items()
    ]


def _counted(reasons: Counter[str], more: str) -> str:
    parts = [
        f"{count}{more} {reason}" + (f" ({_ADVICE[reason]})" if reason in _ADVICE else "")
        for reason, count in reasons.most_common(_REASONS)
    ]
    others = reasons.total() - sum(count for _, count in reasons.most_common(_REASONS))
    texts = ", ".join([*parts, *([f"{others}{more} other{'s' * (others != 1)}"] if others else [])])
    return texts if len(reasons) == 1 else f"{reasons.total()}{more}, of which {texts}"


async def _work(broker: Broker, name: str, reader: str, missing: list[str], known: str = "") -> list[CheckResult]:
    count = await broker.message_count(name)
    unread: list[CheckResult] = []
    if count is None:
        missing.append(name)
    elif not count[1]:
        unread.append(CheckResult(WARN, "queues", f"{name}: {count[0]} ready, nobody reads it{known}", reader))
    meaning = "that no orchestrator has moved yet"
    return unread + await _left_over(broker, dead_letters_of(name), meaning, "dead letter", missing)


async def _left_over(broker: Broker, name: str, meaning: str, what: str, missing: list[str]) -> list[CheckResult]:
    count = await broker.message_count(name)
    if count is None:
        missing.append(name)
        return []
    many = what if count[0] == 1 else f"{what}s"
    return [CheckResult(WARN, "queues", f"{name}: {count[0]} {many} {meaning}")] if count[0] else []


def _absent(missing: list[str]) -> list[CheckResult]:
    """One warning for all: before the first node has started, all are."""
    if not missing:
        return []
    many = "does not exist yet" if len(missing) == 1 else f"and {len(missing) - 1} more queues do not exist yet"
    return [CheckResult(WARN, "queues", f"{missing[0]} {many}", _START_NODE)]
