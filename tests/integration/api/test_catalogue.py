"""Does `GET /sagas` show every version of every saga, and what is live of each?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from orchestrix.api.sagas.models import CatalogueBody
from orchestrix.persistence.sagas import definitions
from orchestrix.persistence.sagas.definitions import StoredDefinition
from orchestrix.saga.catalog import Catalog
from sagas.app_provisioning import APP_PROVISIONING

from . import world as worlds
from .answers import problem
from .world import ORDER, World

SECOND = replace(ORDER, version=2)


async def shown(world: World) -> dict[str, dict[str, Any]]:
    """The sagas by name, as an API tells that knows Ada's token."""
    transport = httpx.ASGITransport(world.built(ada="s3cret"))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.get("/sagas", headers={"Authorization": "Bearer s3cret"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    CatalogueBody.model_validate(answer.json())
    return {item["saga"]: item for item in answer.json()["items"]}


async def test_two_versions_each_with_what_is_live(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("a", "b"):
        await world.started(key, "order")
    await world.completed()
    monkeypatch.setattr(worlds, "CATALOG", Catalog([APP_PROVISIONING, ORDER, SECOND]))
    await world.started("c", "order")  # of the newest
    found = await shown(world)
    assert list(found) == ["app", "order"]
    assert (found["app"]["starts"], [one["live"] for one in found["app"]["versions"]]) == (1, [{}])
    assert (found["order"]["starts"], [one["version"] for one in found["order"]["versions"]]) == (2, [1, 2])
    assert [one["live"] for one in found["order"]["versions"]] == [{"UNPAID": 2}, {"UNPAID": 1}]
    assert all(one["runsHere"] for one in found["order"]["versions"])


async def test_what_is_stored_is_shown_by_a_node_without_its_code(world: World) -> None:
    async with world.database.begin() as tx:
        await definitions.insert(tx, StoredDefinition("order", 3, 1, "d" * 64, {"steps": []}))
        await definitions.insert(tx, StoredDefinition("parcel", 1, 1, "e" * 64, {"steps": []}))
    found = await shown(world)
    first, third = found["order"]["versions"]
    assert first == {"version": 1, "form": None, "digest": None, "definition": None, "runsHere": True, "live": {}}
    stored = {"form": 1, "digest": "d" * 64, "definition": {"steps": []}, "runsHere": False, "live": {}}
    assert third == {"version": 3, **stored}
    assert (found["order"]["starts"], found["parcel"]["starts"]) == (1, None)


async def test_it_takes_no_parameters(world: World) -> None:
    problem(await world.client.get("/sagas?state=UNPAID"), 400, "bad_parameter")
