"""Which sagas wait for a person, for the broker, or for workers or nodes that are not there?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from app.broker.port import Broker
from app.domain.job_waits import USUAL
from app.domain.jobs import DISPATCHED, PENDING, RUNNING
from app.orchestration.surroundings import FRESH, Counts, Surroundings, expected, needed
from app.orchestration.why import OVERDUE, answers
from app.persistence import dead_letters, instances, job_steps, leases
from app.persistence.engine import Connection, Database
from app.persistence.instances import After, Filter
from app.persistence.pages import Hindered
from app.persistence.pairs import pair_of
from sagas.engine.catalog import Catalog
from sagas.engine.definition import COMPENSATING, STEP_FAILED, Compensation, Saga, Step
from sagas.engine.state import BROKER_DOWN, DEADLINE, NO_CONSUMER, UNSENT, Instance

MOST: Final = 1000
"""So many of the last answers that could not be used are looked at, of the jobs that wait, and of what is overdue."""


@dataclass(frozen=True, slots=True)
class _Around:
    """What holds sagas up and stands in no row of theirs: a broker that is away, silent queues, answers in vain, jobs
    that nobody is at, by their ids, and wake-ups that nobody has seen to.
    """

    broken: bool
    counts: Counts
    unanswered: Collection[int]
    jobs: Mapping[str, int]
    late: Collection[int]

    def holds(self, saga: Saga, one: Instance) -> bool:
        """Whether the instance is stuck."""
        if not one.live:
            return False
        if one.blocker is not None or one.wake_reason in (UNSENT, BROKER_DOWN, NO_CONSUMER):
            return True
        if one.id in self.late or (one.command_id or "") in self.jobs:
            return True
        if one.wake_reason != DEADLINE:
            return False
        return self.broken or one.id in self.unanswered or any(map(self.is_silent, needed(saga, one)))

    def is_silent(self, command: str) -> bool:
        """Whether nobody reads the command's queue; of an unknown one that is not said."""
        return command in self.counts and not self.counts[command][1]

    def hindered(self, saga: Saga) -> Hindered:
        """What has to be looked at: all that is stuck is among it."""
        ids = sorted({*self.unanswered, *self.jobs.values(), *self.late})
        if self.broken:
            return Hindered([*saga.path[:-1], COMPENSATING], ids=ids)
        states = [step.state for step in saga.steps if self.is_silent(step.command)]
        return Hindered(states, [step.name for step in saga.steps if any(map(self.is_silent, _commands(step)))], ids)


class Stuck:
    """Lists them by what their rows say, and by what holds them up now: their own wait need not have ended for that.

    The broker is asked once for each command of a saga, at most once a second.
    """

    def __init__(self, database: Database, broker: Broker, silent: float = 30.0) -> None:
        self._database = database
        self._silent = silent
        self._around = Surroundings(broker)

    async def page(self, saga: Saga, wanted: Filter, sort: str, limit: int, after: After | None) -> list[Instance]:
        """Up to `limit` instances that are stuck, or are not, as `wanted` says; otherwise as `instances.page`."""
        counts = await self._around.counts([name for step in saga.steps for name in _commands(step)], fresh=FRESH)
        async with self._database.read() as connection:
            around = _Around(
                self._around.trouble is not None,
                counts,
                await _unanswered(connection, saga),
                await _unworked(connection, saga, self._silent),
                await instances.overdue(connection, pair_of(saga.name), saga.name, OVERDUE, MOST),
            )
            wanted = replace(wanted, hindered=around.hindered(saga))
            found: list[Instance] = []
            while True:
                rows = await instances.page(connection, pair_of(saga.name), saga.name, wanted, sort, limit, after)
                found += [row for row in rows if around.holds(saga, row) is wanted.stuck]
                if len(rows) < limit or len(found) >= limit:
                    return found[:limit]
                after = instances.sort_value(sort, rows[-1]), rows[-1].id


async def _unanswered(connection: Connection, saga: Saga) -> set[int]:
    """The ids of those to whose present command an answer came that could not be used."""
    found = await dead_letters.about(connection, saga.name, [*_events(saga), STEP_FAILED], MOST)
    rows = await instances.guard(connection, pair_of(saga.name), [id for id, _, _ in found])
    waiting = {id: row for id, row in rows.items() if row.saga == saga.name and row.wake_reason == DEADLINE}
    events = {id: (order.event, STEP_FAILED) for id, row in waiting.items() if (order := expected(saga, row))}
    letters = await dead_letters.several(
        connection, [letter for id, queue, letter in found if queue in events.get(id, ())]
    )
    return {id for one in letters if (id := one.instance_id) in waiting and answers(waiting[id], one)}


async def _unworked(connection: Connection, saga: Saga, silent: float) -> dict[str, int]:
    """The jobs that instances wait for and that nobody will begin or end as things stand, and the ids of those."""
    if not Catalog([saga]).jobs:
        return {}
    beat = timedelta(seconds=silent / 2)  # a worker beats more than twice within the time after which it is lost
    usual = {PENDING: USUAL, DISPATCHED: USUAL, RUNNING: beat}
    found = await job_steps.waiting(connection, saga.name, usual, MOST)
    if not found:
        return {}
    lease, served = await leases.read(connection), await job_steps.served(connection, beat)
    led = lease is not None and not lease.lapsed
    held = [one for one in found if not led or (one.state != PENDING and one.queue not in served)]
    ids = {one.id: one.instance_id for one in held if one.instance_id is not None}
    rows = await instances.guard(connection, pair_of(saga.name), list(ids.values()))
    return {job: id for job, id in ids.items() if id in rows and rows[id].command_id == job}


def _commands(step: Step) -> list[str]:
    undo = [step.undo.command] if isinstance(step.undo, Compensation) else []
    return [command for command in (step.command, *undo) if command]


def _events(saga: Saga) -> list[str]:
    undos = [step.undo for step in saga.steps]
    return [step.event for step in saga.steps] + [undo.event for undo in undos if isinstance(undo, Compensation)]
