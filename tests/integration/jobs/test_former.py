"""Does what a killed `dev` was at end at the start of the next one, and nothing else with it?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from orchestrix.bootstrap import dev_recovery
from orchestrix.bootstrap.dev_recovery import PreviousDev, RecoveryResult, declare_dead
from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import AttemptStatus, JobRow, JobTransition
from orchestrix.domain.nodes import NodeState
from orchestrix.errors import ConflictError, Unavailable
from orchestrix.persistence.cluster import nodes
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from tests.conformance.store.test_jobs import dispatched, now, stored
from tests.servers import templates


@pytest.fixture
async def database(sqlite_url: str) -> AsyncIterator[Database]:
    """A database with all tables, in a file."""
    templates.upgraded(sqlite_url)
    made = Database(sqlite_url)
    for node in ("killed-1", "other-1"):
        await made.run(lambda tx, node=node: nodes.join(tx, node, node[:-2], ["coordinator"]))  # type: ignore[misc]
    yield made
    await made.close()


async def at(database: Database, worker: str, **more: object) -> JobRow:
    """A job at which that worker is."""
    job = await dispatched(database, **more)
    moved = rules.reported(job, AttemptStatus(job.id, str(job.history_id), worker, 1, "RUNNING"), database.now(), 0.5)
    assert isinstance(moved, JobTransition)
    return await stored(database, job, moved)


async def states(database: Database, *found: JobRow) -> list[tuple[str, int]]:
    """The state of each, and how many of its tries count."""
    return [(job.state, job.tries) for job in [await now(database, one) for one in found]]


async def test_a_killed_worker_is_one_that_is_lost(database: Database) -> None:
    last, more = await at(database, "killed-1"), await at(database, "killed-1", retries=1)
    other, sent = await at(database, "w"), await dispatched(database)
    assert await declare_dead(database, PreviousDev("killed-1")) == RecoveryResult(again=1, failed=1)
    assert await states(database, last, more, other, sent) == [
        ("FAILED", 1),
        ("PENDING", 1),
        ("RUNNING", 1),
        ("DISPATCHED", 1),
    ]
    async with database.read() as connection:
        found = {one.id: one.state for one in await nodes.listed(connection, 10)}
        (attempt,) = await jobs.attempts(connection, last.id)
    assert found == {"killed-1": NodeState.DEAD, "other-1": NodeState.ALIVE}
    assert (attempt.state, attempt.error["type"]) == ("LOST", "WorkerLost")
    assert await declare_dead(database, PreviousDev("killed-1")) == RecoveryResult(), "once"


async def test_a_person_that_cuts_jobs_off_uses_up_no_retries(database: Database) -> None:
    cut, wanted_away = await at(database, "killed-1"), await at(database, "killed-1")
    await stored(database, wanted_away, rules.cancelled(wanted_away, "enough", database.now()))
    assert await declare_dead(database, PreviousDev("killed-1", cut_off=True)) == RecoveryResult(again=1)
    assert await states(database, cut, wanted_away) == [("PENDING", 0), ("CANCELLED", 0)]


async def test_many_are_found_and_ended_page_by_page(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev_recovery, "JOBS_PER_TRANSACTION", 2)
    found = [await at(database, worker) for worker in ("killed-1", "w", "killed-1", "killed-1", "w")]
    assert await declare_dead(database, PreviousDev("killed-1")) == RecoveryResult(failed=3)
    assert [state[0] for state, _ in await states(database, *found)] == list("FRFFR")


@pytest.mark.parametrize("error", [Unavailable, ConflictError, ValueError])
async def test_where_it_cannot_be_written_silence_will_tell(
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[Exception],
) -> None:
    async def away(*_: object) -> None:
        raise error("nobody listens")

    monkeypatch.setattr(database, "run", away)
    assert await declare_dead(database, PreviousDev("killed-1")) == RecoveryResult()
    assert "nobody listens" in caplog.text


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (RecoveryResult(), []),
        (RecoveryResult(again=1), ["the previous `orchestrix dev` was killed with jobs running: 1 job restarted"]),
        (
            RecoveryResult(again=2, failed=3),
            ["the previous `orchestrix dev` was killed with jobs running: 2 jobs restarted, 3 jobs failed"],
        ),
    ],
)
def test_what_is_told_of_it(left: RecoveryResult, told: list[str]) -> None:
    assert left.sentences() == told
