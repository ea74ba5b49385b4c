"""Is an app's executor group made once, and another's left alone?"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app import clock
from app.config import RegistrationSettings
from app.persistence import groups
from app.persistence.engine import Database
from sagas import Command
from workers import Context, Permanent, app_registration

KEY = "app:7:registerApp:do"
ORDER = Command("m", app_registration.REGISTER, "app", 7, "x", "c", "REGISTERING", "registerApp", 1, 60_000, KEY, {})


def context(app_name: str, key: str = KEY) -> Context:
    return Context(7, app_name, "app", "registerApp", "c-7", 1, key)


async def register(database: Database, for_: Context) -> Any:
    handler = app_registration.handlers(RegistrationSettings(), database)[app_registration.REGISTER]
    return await handler(for_, ORDER)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["shop", "🚀", "'; DROP TABLE apps; --", "Shop", "x" * 200])
async def test_the_group_has_the_apps_name_and_the_mark_of_the_step(database: Database, name: str) -> None:
    assert await register(database, context(name)) == {"executorGroup": name}
    async with database.read() as connection:
        group = await groups.get(connection, name)
    assert group is not None
    assert (group.app_name, group.marker, group.address_type, group.address_list) == (name, KEY, groups.AUTO, "")


@pytest.mark.req("S3-54")
async def test_the_same_step_again_and_ten_at_once_succeed(database: Database) -> None:
    answers = await asyncio.gather(*(register(database, context("shop")) for _ in range(10)))
    assert answers == [{"executorGroup": "shop"}] * 10
    assert await register(database, context("shop")) == {"executorGroup": "shop"}


async def test_a_group_that_another_step_made_is_left_alone(database: Database) -> None:
    async with database.begin() as tx:
        await groups.insert_if_absent(tx, "shop", "app:9:registerApp:do", clock.now())
    with pytest.raises(Permanent, match=r"an executor group named 'shop' is there already"):
        await register(database, context("shop"))
    async with database.read() as connection:
        group = await groups.get(connection, "shop")
    assert group is not None
    assert group.marker == "app:9:registerApp:do"


async def test_the_provider_none_makes_nothing(database: Database) -> None:
    handler = app_registration.handlers(RegistrationSettings(provider="none"), database)[app_registration.REGISTER]
    assert await handler(context("shop"), ORDER) is None  # type: ignore[misc]
    async with database.read() as connection:
        assert await groups.get(connection, "shop") is None
