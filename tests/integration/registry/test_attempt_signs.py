"""Are the attempts that a heartbeat names noted as alive, all of them, without a cost where there are none?"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrix.domain import jobs as rules
from orchestrix.domain.jobs import JobRow
from orchestrix.errors import Unavailable
from orchestrix.persistence.engine import Database
from orchestrix.persistence.jobs import jobs
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.registry.registrar import Registrar
from tests.conformance.store.test_jobs import dispatched, now, running, stored
from tests.fakes.time import Shifted
from tests.integration.registry.build import ONE, SHOP, TWO, registered, registrar_of, watched
from tests.support import eventually

MINUTE = timedelta(minutes=1)
MANY = 60


async def given(database: Database, address: str = ONE, app: str = SHOP) -> JobRow:
    """An attempt that runs on the executor at that address; its last sign of life is old."""
    job = await running(database, queue=None, executor_group=app, routing="FIRST")
    old = database.now() - MINUTE
    changed = replace(job, address=address, worker_beat_at=old, called_at=old, version=job.version + 1)
    return await stored(database, job, changed)


def naming(*found: JobRow, address: str = ONE, app: str = SHOP, instance: str = "a") -> Heartbeat:
    return Heartbeat(app, address, instance, runs=tuple(str(job.history_id) for job in found))


async def is_heard(database: Database, job: JobRow) -> bool:
    """Whether a sign of life was noted since it was made."""
    after = await now(database, job)
    assert (after.version, after.state) == (job.version, job.state), "readers see no change"
    return after.worker_beat_at != job.worker_beat_at


async def test_the_attempts_that_a_heartbeat_names_are_heard_when_it_is_answered(database: Database) -> None:
    mine, other = await given(database), await given(database)
    async with registrar_of(database) as registrar:
        await registrar.register(naming(mine))
    assert await is_heard(database, mine)
    assert not await is_heard(database, other)


async def test_a_heartbeat_is_no_sign_of_what_was_given_elsewhere(database: Database) -> None:
    elsewhere, foreign = await given(database, TWO), await given(database, ONE, "billing")
    async with registrar_of(database) as registrar:
        await registrar.register(naming(elsewhere, foreign))
    assert not await is_heard(database, elsewhere)
    assert not await is_heard(database, foreign)


async def test_what_the_cluster_does_not_want_any_more_stays_as_it_is(database: Database) -> None:
    ended = await given(database)
    ended = await stored(database, ended, rules.ended(ended, rules.WORKER_SILENT, database.now(), 0.5))
    async with registrar_of(database) as registrar:
        await registrar.register(replace(naming(ended), runs=(str(ended.history_id), "unknown", "x" * 100)))
    assert await now(database, ended) == ended
    assert ONE in await registered(database)


async def test_heartbeats_at_once_share_the_statements_and_none_is_lost(database: Database) -> None:
    addresses = [f"http://10.0.1.{place}:9999" for place in range(MANY)]
    found = [await given(database, address) for address in addresses]
    async with registrar_of(database, gather_s=0.2) as registrar:
        with watched(database) as sent:
            await asyncio.gather(*(registrar.register(naming(job, address=str(job.address))) for job in found))
    assert [await is_heard(database, job) for job in found] == [True] * MANY
    assert len(sent.to("jobs SET")) <= 3  # one begins at once, and the others share the next one


async def test_a_heartbeat_without_work_costs_no_look_at_jobs(database: Database) -> None:
    async with registrar_of(database) as registrar:
        with watched(database) as sent:
            await registrar.register(Heartbeat(SHOP, ONE, "a"))
    assert not [sql for sql in sent.statements if "history_id" in sql]


async def test_a_job_in_hand_delays_no_other_executor_and_its_sign_is_noted_after(
    served_url: str, time: Shifted
) -> None:
    database, peer = Database(served_url), Database(served_url)
    busy = await given(database)
    async with registrar_of(database) as registrar:
        async with peer.begin() as tx:
            await jobs.lock(tx, [busy.id])
            named = asyncio.create_task(registrar.register(naming(busy)))
            await registrar.register(Heartbeat(SHOP, TWO, "b"))
            await eventually(named.done, deadline=20)  # its row is waited for no longer than locks are
            await named
            assert not await is_heard(database, busy)
        await eventually(lambda: is_heard(database, busy), deadline=20)
    assert {ONE, TWO} <= set(await registered(database))
    await database.close()
    await peer.close()


async def test_an_attempt_that_is_not_begun_is_heard_too(database: Database) -> None:
    job = await dispatched(database, queue=None, executor_group=SHOP, routing="FIRST")
    job = await stored(database, job, replace(job, address=ONE, version=job.version + 1))
    async with registrar_of(database) as registrar:
        await registrar.register(naming(job))
    assert await is_heard(database, job)


async def test_while_the_database_is_away_a_heartbeat_with_work_is_refused(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = await given(database)
    async with registrar_of(database) as registrar:
        with monkeypatch.context() as away:

            async def refused(*_: object) -> None:
                raise Unavailable("the database is away")

            away.setattr("orchestrix.persistence.jobs.executor_jobs.given_to", refused)
            with pytest.raises(Unavailable, match="away"):
                await registrar.register(naming(mine))
        assert not await is_heard(database, mine)
        await registrar.register(naming(mine))
    assert await is_heard(database, mine)


async def test_a_registrar_that_stops_refuses_a_heartbeat_with_work(database: Database) -> None:
    registrar = Registrar(database)
    mine = await given(database)
    with pytest.raises(Unavailable):
        await registrar.register(naming(mine))
    await registrar.start()
    await registrar.stop()
    with pytest.raises(Unavailable):
        await registrar.register(naming(mine))
    assert not await is_heard(database, mine)
