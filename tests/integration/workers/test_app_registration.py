"""Is an app's executor group made once and taken away once, and another's left alone?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrix import Command, Context, Permanent, clock
from orchestrix.persistence.engine import Database, Transaction
from orchestrix.persistence.registry import groups, registrations
from orchestrix.persistence.registry.groups import ExecutorGroup
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.persistence.sagas import instances
from orchestrix.persistence.sagas.saga_tables import APPS
from orchestrix.saga.effect_keys import effect_key
from orchestrix.saga.state import Instance, InstanceProgress
from orchestrix.worker.executor_groups import ExecutorGroups
from tests.servers import shared, templates
from tests.servers.names import Pool
from tests.servers.shared import Database as Server
from tests.servers.sql import emptied
from tests.service import REGISTER, UNREGISTER, registration_handlers
from tests.support import eventually

from .world import World, order, stored

SERVERS = [pytest.param(name, marks=pytest.mark.servers) for name in ("postgresql", "mariadb")]
BACK: dict[str, Any] = {"state": "COMPENSATING", "progress": InstanceProgress(todo=("registerApp",), error="no luck")}


@pytest.fixture(scope="module")
def postgresql(postgres_server: Server, _postgres_databases: Pool) -> Iterator[str]:
    """A database with the schema, for all tests here."""
    with shared.lent(_postgres_databases) as name:
        yield templates.upgraded(postgres_server.url(name))


@pytest.fixture(scope="module")
def mariadb(mariadb_server: Server, _mariadb_databases: Pool) -> Iterator[str]:
    """The same on MariaDB."""
    with shared.lent(_mariadb_databases) as name:
        yield templates.upgraded(mariadb_server.url(name))


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same in a file."""
    return templates.upgraded(f"sqlite+aiosqlite:///{tmp_path_factory.mktemp('sqlite') / 'test.db'}")


@pytest.fixture(params=["sqlite", *SERVERS])
def url(request: pytest.FixtureRequest) -> str:
    """A database with empty tables."""
    url: str = request.getfixturevalue(request.param)
    emptied(url)
    return url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """It as the worker sees it."""
    database = Database(url)
    yield database
    await database.close()


@pytest.fixture
async def node(url: str) -> AsyncIterator[Database]:
    """It as the orchestrator sees it."""
    database = Database(url)
    yield database
    await database.close()


async def registering(database: Database, name: str = "shop") -> tuple[Instance, Command]:
    return await stored(database, name, state="REGISTERING")


async def run(database: Database, command: Command) -> Any:
    handler = registration_handlers()[command.type]
    return await handler(Context.of(command, float("inf"), groups=ExecutorGroups(database)), command)  # type: ignore[misc]


async def refused(database: Database, command: Command) -> str:
    with pytest.raises(Permanent) as error:
        await run(database, command)
    return error.value.type


async def moved(database: Database, row: Instance, **changes: Any) -> tuple[Instance, Command]:
    """The row after a move of the orchestrator, which gives out another command."""

    async def work(tx: Transaction) -> tuple[Instance, Command]:
        now = await instances.lock_one(tx, APPS, row.id)
        assert now is not None
        after = replace(now, version=now.version + 1, command_id=clock.uuid7(), **changes)
        assert await instances.update(tx, APPS, [(now.version, after)]) == {row.id}
        return after, order(after)

    return await database.run(work)


async def group(database: Database, name: str = "shop") -> ExecutorGroup | None:
    async with database.read() as connection:
        return await groups.get(connection, name)


@pytest.mark.parametrize("name", ["shop", "🚀", "'; DROP TABLE apps; --", "Shop", "x" * 200])
async def test_the_group_has_the_apps_name_and_the_mark_of_the_step(database: Database, name: str) -> None:
    row, command = await registering(database, name)
    assert await run(database, command) == {"executorGroup": name}
    made = await group(database, name)
    assert made is not None
    key = effect_key(row, "registerApp", undoes=False)
    assert (made.app_name, made.marker, made.address_type, made.address_list) == (name, key, groups.AUTO, "")


@pytest.mark.req("S3-54")
async def test_the_same_step_again_and_ten_at_once_succeed(database: Database) -> None:
    _, command = await registering(database)
    answers = await asyncio.gather(*(run(database, command) for _ in range(10)))
    assert answers == [{"executorGroup": "shop"}] * 10
    assert await run(database, command) == {"executorGroup": "shop"}


async def test_a_group_that_another_step_made_is_left_alone(database: Database) -> None:
    async with database.begin() as tx:
        await groups.insert_if_absent(tx, "shop", "app:9:registerApp:do", clock.now())
    row, command = await registering(database)
    with pytest.raises(Permanent, match=r"an executor group named 'shop' already exists"):
        await run(database, command)
    _, undo = await moved(database, row, **BACK)
    assert await run(database, undo) is None
    made = await group(database)
    assert made is not None
    assert made.marker == "app:9:registerApp:do"


@pytest.mark.parametrize("addresses", [None, ["http://10.0.0.1:9999"]])
async def test_a_group_that_a_person_made_is_adopted_and_outlives_the_undo(
    database: Database, addresses: list[str] | None
) -> None:
    async with database.begin() as tx:
        before, _ = await groups.set_addresses(tx, "shop", addresses, database.now())
    row, command = await registering(database)
    assert await run(database, command) == {"executorGroup": "shop"}
    assert await group(database) == before
    _, undo = await moved(database, row, **BACK)
    assert await run(database, undo) is None
    assert await group(database) == before


async def test_executors_that_came_before_the_app_are_in_its_new_group(database: Database) -> None:
    async with database.begin() as tx:
        await registrations.record(tx, [Heartbeat("shop", "http://10.0.0.1:9999")], database.now())
    _, command = await registering(database)
    await run(database, command)
    made = await group(database)
    assert made is not None
    assert made.addresses == ("http://10.0.0.1:9999",)


async def test_a_group_from_before_there_were_effect_keys_is_found_by_do_and_undo(database: Database) -> None:
    row, _ = await registering(database)
    old = replace(row, installation="")
    async with database.begin() as tx:
        await groups.insert_if_absent(tx, "shop", f"app:{row.id}:registerApp:do", clock.now())
    assert await run(database, order(old)) == {"executorGroup": "shop"}
    _, undo = await moved(database, row, **BACK)
    assert await run(database, replace(undo, effect_key=f"app:{row.id}:registerApp:do")) is None
    assert await group(database) is None


async def test_another_run_takes_over_the_group_that_an_earlier_one_has_left(database: Database) -> None:
    row, command = await registering(database)
    await run(database, command)
    second, again = await moved(database, row, progress=InstanceProgress(run=2))
    assert again.effect_key == f"{command.effect_key}:run2"
    assert await run(database, again) == {"executorGroup": "shop"}
    _, undo = await moved(database, second, **BACK)
    await run(database, undo)
    assert await group(database) is None


@pytest.mark.req("S3-43")
async def test_an_undone_registration_leaves_no_group(database: Database) -> None:
    row, command = await registering(database)
    await run(database, command)
    _, other = await registering(database, "bank")
    await run(database, other)
    _, undo = await moved(database, row, **BACK)
    assert await run(database, undo) is None
    assert await group(database) is None
    assert await group(database, "bank") is not None


@pytest.mark.req("S3-54")
async def test_the_same_undo_again_ten_at_once_and_of_nothing_succeed(database: Database) -> None:
    row, command = await registering(database)
    await run(database, command)
    _, undo = await moved(database, row, **BACK)
    assert await asyncio.gather(*(run(database, undo) for _ in range(10))) == [None] * 10
    assert await run(database, undo) is None


async def test_a_registration_after_its_undo_leaves_no_group(database: Database) -> None:
    row, command = await registering(database)
    _, undo = await moved(database, row, **BACK)
    assert await refused(database, command) == "Undone"
    await run(database, undo)
    assert await refused(database, command) == "Undone"
    assert await group(database) is None


async def test_the_saga_cannot_turn_back_while_its_group_is_made(
    database: Database, node: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, free = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> ExecutorGroup:
        inside.set()
        await free.wait()
        return await groups.insert_if_absent(*arguments)

    row, command = await registering(database)
    monkeypatch.setattr("orchestrix.worker.executor_groups.insert_if_absent", slow)
    doing = asyncio.create_task(run(database, command))
    await inside.wait()
    turning = asyncio.create_task(moved(node, row, **BACK))
    assert not (await asyncio.wait([turning], timeout=0.3))[0], "it waits for the group"
    free.set()
    assert await doing == {"executorGroup": "shop"}
    _, undo = await turning
    await run(database, undo)
    assert await group(database) is None


async def test_a_registration_waits_for_a_saga_that_is_turning_back(database: Database, node: Database) -> None:
    row, command = await registering(database)
    async with node.begin() as tx:
        assert await instances.lock_one(tx, APPS, row.id)
        after = replace(row, version=row.version + 1, command_id=clock.uuid7(), **BACK)
        await instances.update(tx, APPS, [(row.version, after)])
        doing = asyncio.create_task(refused(database, command))
        assert not (await asyncio.wait([doing], timeout=0.3))[0]
    assert await doing == "Undone"
    assert await group(database) is None


async def test_twenty_registrations_and_their_undos_at_once_leave_no_group(database: Database, node: Database) -> None:
    rows = [await registering(database, f"app {n}") for n in range(20)]

    async def do(command: Command) -> str:
        try:
            await run(database, command)
        except Permanent as error:
            return error.type
        return "done"

    async def undo(row: Instance) -> None:
        _, command = await moved(node, row, **BACK)
        await run(node, command)

    works = [work for row, command in rows for work in (do(command), undo(row))]
    answers = await asyncio.gather(*works)
    assert set(answers[0::2]) <= {"done", "Undone"}
    assert [await group(database, row.key) for row, _ in rows] == [None] * 20


@pytest.mark.req("S3-54")
async def test_a_person_can_let_it_be_registered_again_and_a_late_undo_changes_nothing(database: Database) -> None:
    row, command = await registering(database)
    await run(database, command)
    row, undo = await moved(database, row, **BACK)
    await run(database, undo)
    row, second = await moved(database, row, state="REGISTERING", attempt=2, progress=InstanceProgress())
    assert await run(database, second) == {"executorGroup": "shop"}
    assert await refused(database, undo) == "Undone"
    assert await refused(database, command) == "Undone"
    assert await group(database) is not None
    _, undo = await moved(database, row, **BACK)
    await run(database, undo)
    assert await group(database) is None


async def test_a_registration_of_a_saga_that_is_not_there_is_refused(database: Database) -> None:
    _, command = await registering(database)
    assert await refused(database, replace(command, app_id=command.app_id + 1)) == "Undone"
    assert await group(database) is None


@pytest.mark.parametrize("provider", ["none", "simulated"])
async def test_without_registration_nothing_is_made_or_undone(monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    monkeypatch.setattr("workers.simulated.SECONDS", 0.0)
    handlers = registration_handlers(provider)
    for name in (REGISTER, UNREGISTER):
        context = Context(7, "shop", "app", "registerApp", "c-7", 1, "key", effect_key="key")
        command = Command("m", name, "app", 7, "shop", "c", "REGISTERING", "registerApp", 1, 60_000, "key", {})
        assert await handlers[name](context, command) is None  # type: ignore[misc]


async def test_an_undo_command_is_answered_while_the_app_is_undone(world: World) -> None:
    worker = await world.worker(registration_handlers())
    row, command = await world.undone("shop", "registerApp")
    async with world.database.begin() as tx:
        await groups.insert_if_absent(tx, "shop", command.effect_key, clock.now())
    await world.send(command)
    (event,) = await world.events(1)
    assert (event["type"], event["appId"], event["causationId"]) == ("evt.appUnregistered", row.id, command.id)
    assert "data" not in event
    assert await group(world.database) is None
    await eventually(lambda: worker.counts.done == 1, deadline=5.0)
