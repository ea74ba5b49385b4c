"""What do clients see, and does every saga end as it should, when the database stops, hangs up, stalls or is full?"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import httpx
import pytest

from orchestrix.api.idempotency import REPLAYED
from tests.fault.load import HealthWatch
from tests.fault.proxy import AtCommit
from tests.fault.world import LOSSLESS, NO_GIT, World
from tests.servers.postgres import PostgresServer
from tests.support import NO_TLS, eventually, holds

HALF_OF_THE_BACKENDS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND random() < 0.5"
)


def stop_immediately(postgres: PostgresServer) -> None:
    """What `pg_ctl stop -m immediate` does; returns when it has ended."""
    os.kill(postgres.pid, signal.SIGQUIT)


@pytest.mark.req("S3-16")
async def test_the_database_stops_at_once_and_comes_back(
    world: World, postgres: PostgresServer, scale: Callable[[int, int], int]
) -> None:
    await world.up()
    async with world.stream("stop") as stream, HealthWatch(world.urls[0]) as health:
        for _ in range(scale(2, 20)):
            await stream.more(15)
            refused = len(stream.refused)
            stop_immediately(postgres)
            await eventually(lambda: not postgres.running, deadline=10)
            await health.says("Database")
            await eventually(lambda: len(stream.refused) > refused + 5, deadline=20, message="starts are refused")  # noqa: B023
            await asyncio.to_thread(postgres.start)
            await health.is_well(within=30)
        await stream.more(5)
    await world.all_well(stream, deadline=LOSSLESS)


async def test_connections_end_at_random(world: World, scale: Callable[[int, int], int]) -> None:
    await world.up(nodes=2, workers=2)
    async with world.stream("terminated") as stream:
        for _ in range(scale(10, 200)):
            await world.sql(HALF_OF_THE_BACKENDS)
            await stream.more(3)
    await world.all_well(stream, deadline=LOSSLESS)


@pytest.mark.parametrize("what", [AtCommit.LOST, AtCommit.SENT, AtCommit.ANSWERED])
async def test_a_client_learns_that_the_outcome_of_its_commit_is_unknown(world: World, what: AtCommit) -> None:
    await world.up(workers=1, env=NO_GIT)
    node = world.nodes[0]
    body, key = {"appName": "once", "createdBy": "ada"}, {"Idempotency-Key": "k-1"}
    async with httpx.AsyncClient(base_url=node.url, timeout=30, trust_env=False, verify=NO_TLS) as http:

        async def cut() -> httpx.Response | None:
            """Another commit of the node may come first and be the one that is cut."""
            await world.sql("DELETE FROM idempotency_keys", "DELETE FROM outbox")
            lock = "LOCK TABLE apps IN ACCESS EXCLUSIVE MODE"  # or the app of the last try gets another row in between
            await world.sql(lock, "DELETE FROM app_state_history", "DELETE FROM apps", "DELETE FROM job_group")
            node.database.at_commit(what)
            answer = await http.post("/apps", json=body, headers=key)
            return answer if answer.status_code == 503 else None

        answer = await eventually(cut, deadline=60)
        assert answer is not None
        assert answer.json()["code"] == "outcome_unknown"
        assert int(answer.headers["Retry-After"]) > 0
        there = await world.sql("SELECT count(*) FROM apps")
        if what is not AtCommit.SENT:
            assert there[0][0] == (1 if what is AtCommit.ANSWERED else 0)
        again = await http.post("/apps", json=body, headers=key)
        assert again.status_code == 200
        if what is not AtCommit.SENT:
            assert (REPLAYED in again.headers) is (what is AtCommit.ANSWERED)
    ledger = await world.system.all_ended(["once"], deadline=30)
    ledger.check_completed(["once"])
    assert len(ledger.apps) == 1


async def test_a_node_that_stops_while_its_database_hangs_says_what_is_unknown(world: World) -> None:
    await world.up(workers=0, env=NO_GIT)
    node = world.nodes[0]
    lock = world.transaction("LOCK TABLE apps IN ACCESS EXCLUSIVE MODE")
    async with httpx.AsyncClient(base_url=node.url, timeout=30, trust_env=False, verify=NO_TLS) as http, lock:
        starting = asyncio.create_task(http.post("/apps", json={"appName": "during", "createdBy": "ada"}))
        await eventually(lambda: _waits_for_the_lock(world), deadline=10)
        node.process.terminate()
        started = await starting
    assert (started.status_code, started.json()["code"]) == (503, "outcome_unknown"), started.text
    assert int(started.headers["Retry-After"]) > 0
    assert await node.process.exited(deadline=40) == 0
    assert "Traceback" not in node.process.log()


async def _waits_for_the_lock(world: World) -> bool:
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ILIKE '%INSERT INTO apps%'"
    )
    return bool((await world.sql(waiting))[0][0])


async def test_connections_are_cut_at_their_commits_all_over(world: World, scale: Callable[[int, int], int]) -> None:
    await world.up(nodes=2, workers=1, env=NO_GIT)
    async with world.stream("commits", rate=30) as stream:
        for _ in range(scale(4, 100)):
            for what in (AtCommit.LOST, AtCommit.SENT, AtCommit.ANSWERED):
                before = [node.database.commits_met for node in world.nodes]
                for node in world.nodes:
                    node.database.at_commit(what, times=2)
                await eventually(
                    lambda: all(
                        node.database.commits_met == met + 2
                        for node, met in zip(world.nodes, before, strict=True)  # noqa: B023
                    ),
                    deadline=20,
                    message="two commits of each node are cut",
                )
    assert stream.outcomes["outcome_unknown"], stream.outcomes
    await world.all_well(stream, deadline=LOSSLESS)


async def test_a_locked_table_makes_things_slow_and_nothing_wrong(
    world: World, scale: Callable[[int, int], int]
) -> None:
    await world.up(nodes=2, workers=1, env=NO_GIT)
    async with world.stream("slow") as stream, HealthWatch(world.urls[0]):
        for table in ("apps", "outbox", "app_state_history")[: scale(1, 3)]:
            await stream.more(5)
            async with world.transaction(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"):
                await holds(lambda: True, during=scale(3, 30))
            await stream.more(5)
    await world.all_well(stream, deadline=LOSSLESS)


async def test_an_empty_pool_refuses_in_time_and_recovers(world: World) -> None:
    await world.up(env={**NO_GIT, "ORCHESTRIX_DATABASE__POOL_SIZE": "2"})
    node = world.nodes[0]
    async with (
        HealthWatch(node.url),
        httpx.AsyncClient(base_url=node.url, timeout=30, trust_env=False, verify=NO_TLS) as http,
    ):

        async def start(n: int) -> httpx.Response:
            body = {"appName": f"pool-{n}", "createdBy": "ada"}
            return await http.post("/apps", json=body, headers={"Idempotency-Key": f"k-{n}"})

        node.database.slow(0.2)
        answers = await asyncio.gather(*(start(n) for n in range(40)))
        codes = [answer.status_code for answer in answers]
        assert set(codes) == {200, 503}, codes
        for answer in answers:
            assert answer.status_code == 200 or answer.json()["code"] == "unavailable", answer.text
        node.heal()
        again = await asyncio.gather(*(start(n) for n in range(40)))
        assert {answer.status_code for answer in again} == {200}
    names = [f"pool-{n}" for n in range(40)]
    (await world.system.all_ended(names, deadline=60)).check_completed(names)
