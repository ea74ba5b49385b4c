"""Does the API show who has which shards, what keeps them from others, and how it came to that?"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from orchestrix.api.shards.models import ServiceBody, ServicePage
from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.state import Event, MemberLeave, ServiceCheck, ShardRules
from orchestrix.persistence.shards import generations
from tests.conformance.store.test_shards import activated, heartbeat, registration, transact

from .answers import problem
from .world import World

SECOND = timedelta(seconds=1)


async def shown(world: World, name: str = "orders", query: str = "") -> dict[str, Any]:
    answer = await world.client.get(f"/shards/{quote(name, safe='')}{query}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    ServiceBody.model_validate(body)
    return body


async def listed(world: World, query: str = "") -> list[dict[str, Any]]:
    answer = await world.client.get(f"/shards{query}")
    assert answer.status_code == 200, answer.text
    ServicePage.model_validate(answer.json())
    found: list[dict[str, Any]] = answer.json()["items"]
    return found


async def changed(world: World, *events: Event, name: str = "orders") -> None:
    """These events, and the generation that follows, which is active at once."""
    await transact(world.database, events, name=name)
    async with world.database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", world.database.now())
    check = ServiceCheck("node-1", world.database.now())
    await transact(world.database, [check], after_s=3.0, name=name)


async def test_before_anything_there_is_nothing(world: World) -> None:
    assert await listed(world) == []
    for name in ("orders", "a/b", " x", "x" * 300):
        said = problem(await world.client.get(f"/shards/{quote(name, safe='')}"), 404, "not_found")
        assert name[:50] in said["detail"]
    said = problem(await world.client.get("/shards/orders"), 404, "not_found")
    assert said["detail"] == "No service of shards is called 'orders': `orchestrix shards show` lists those that are."


@pytest.mark.req("S4-44")
async def test_a_service_with_its_members_and_what_each_has(world: World) -> None:
    await activated(world.database, "w-1", "w-2", "w-3")
    (item,) = await listed(world)
    assert (item["service"], item["shardCount"], item["members"]) == ("orders", 10, 3)
    assert (item["away"], item["waiting"], item["unowned"], item["revoking"]) == (0, 0, 0, 0)
    assert item["unownedSince"] is item["revokingSince"] is item["pending"] is None
    active = item["active"]
    assert (active["number"], active["state"], active["cause"]) == (1, "active", {"kind": "joined", "workerId": "w-1"})
    assert (active["leader"], active["members"], active["shardCount"], active["moved"]) == ("node-1", 3, 10, 0)
    found = await shown(world)
    assert found["active"] == active
    assert found["shares"] == {"w-1": [[0, 3]], "w-2": [[4, 6]], "w-3": [[7, 9]]}
    assert [(one["workerId"], one["share"], one["count"], one["shards"]) for one in found["members"]] == [
        ("w-1", 4, 4, [[0, 3]]), ("w-2", 3, 3, [[4, 6]]), ("w-3", 3, 3, [[7, 9]])
    ]  # fmt: skip
    one = found["members"][0]
    assert (one["instance"], one["state"], one["via"], one["weight"], one["graceMs"]) == (
        "i-1",
        "ACTIVE",
        "rabbitmq",
        1,
        0,
    )
    assert (one["generation"], one["shardCount"], one["revoking"], one["away"]) == (0, 10, [], None)
    assert len(one["epochs"]) == 1
    assert (found["unowned"], found["why"], found["pending"], found["nextCursor"]) == (None, [], None, None)
    assert found["history"] == [{**active, "shardCountBefore": None}]


async def test_the_rule_of_the_nodes_is_shown(world: World) -> None:
    await activated(world.database, "w-1")
    assert (await shown(world))["allocation"] == "even"
    world.shard_rules = ShardRules(allocation=Allocation.MINIMAL_MOVE)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(world.built()), base_url="http://test") as client:
        assert (await client.get("/shards/orders")).json()["allocation"] == "minimal"


async def test_what_a_member_has_still_to_let_go_of(world: World) -> None:
    state = await activated(world.database, "w-1")
    follows = heartbeat("w-1", state.members["w-1"].shards, seq=2, generation=1)
    await changed(world, follows, registration("w-2"), registration("w-3", instance=None, seq=0, reply_to="zmq:6f6e65"))
    (item,) = await listed(world)
    assert (item["revoking"], item["unrevocable"], item["unowned"]) == (6, 0, 0)
    found = await shown(world)
    first, second, plain = found["members"]
    assert (first["share"], first["count"], [one["count"] for one in first["revoking"]]) == (4, 10, [6])
    assert first["revoking"][0]["since"] == item["revokingSince"]
    assert (second["share"], second["count"], plain["instance"], plain["via"]) == (3, 0, None, "zeromq")
    assert len(found["why"]) == 1
    assert found["why"][0].startswith("w-1 is to let go of 6 shards since ")


async def test_a_plain_client_that_does_not_follow_is_unrevocable_after_a_while(world: World) -> None:
    await changed(world, registration("w-1", instance=None, seq=0))
    now = world.database.now()
    await transact(world.database, [registration("w-2")], after_s=-60.0)
    async with world.database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", now - 60 * SECOND)
    await transact(world.database, [ServiceCheck("node-1", now)], after_s=-55.0)
    (item,) = await listed(world)
    assert (item["revoking"], item["unrevocable"]) == (5, 5)
    found = await shown(world)
    assert found["members"][0]["revoking"][0]["unrevocable"] is True
    silent, unrevoked = found["why"]
    assert silent.startswith("no member's heartbeat has arrived for 55 s: ")
    assert "ORCHESTRIX_SHARDS__PLAIN=push" in unrevoked


async def test_members_that_are_away_leaving_or_wait(world: World) -> None:
    await activated(world.database, "w-1", "w-2", "w-3")
    await transact(world.database, [registration("w-1", seq=2, grace_s=60.0), MemberLeave("w-1", "i-1")])
    await transact(world.database, [registration("w-2", seq=2, weight=0), registration("w-3", instance="i-2")])
    (item,) = await listed(world)
    assert (item["members"], item["away"], item["waiting"], item["unowned"]) == (3, 1, 1, 4)
    found = await shown(world)
    assert [(one["workerId"], one["instance"], one["state"]) for one in found["members"]] == [
        ("w-1", "i-1", "AWAY"), ("w-2", "i-1", "LEAVING"), ("w-3", "i-1", "ACTIVE"), ("w-3", "i-2", "WAITING")
    ]  # fmt: skip
    away = found["members"][0]["away"]
    assert away["reason"] == "left"
    assert found["unowned"] == {"count": 4, "shards": [[0, 3]], "since": away["since"]}
    assert item["unownedSince"] == away["since"]
    assert found["pending"]["number"] == 2
    assert found["pending"]["moved"] is found["pending"]["members"] is None
    assert len(found["why"]) == 3
    second = found["members"][3]
    assert (second["share"], second["count"], found["members"][2]["share"]) == (0, 0, 3)


async def test_a_service_before_its_first_generation(world: World) -> None:
    await transact(world.database, [registration("w-1")])
    (item,) = await listed(world)
    assert (item["active"], item["pending"]["number"], item["unowned"]) == (None, 1, 10)
    found = await shown(world)
    assert (found["active"], found["shares"], found["unowned"]["count"]) == (None, {}, 10)
    assert found["members"][0]["share"] == 0


async def test_a_service_without_members_stays(world: World) -> None:
    await activated(world.database, "w-1")
    await changed(world, MemberLeave("w-1", "i-1"))
    (item,) = await listed(world)
    assert (item["members"], item["unowned"], item["active"]["cause"]["kind"]) == (0, 10, "left")
    found = await shown(world)
    assert (found["members"], found["shares"]) == ([], {})
    assert found["why"][0].endswith("the service has no members: start one")


async def test_the_history_is_paged(world: World) -> None:
    for number in range(5):
        await changed(world, registration(f"w-{number}"))
    first = await shown(world, query="?limit=2")
    assert [(one["number"], one["state"]) for one in first["history"]] == [(5, "active"), (4, "superseded")]
    assert [one["cause"]["workerId"] for one in first["history"]] == ["w-4", "w-3"]
    assert first["history"][1]["endedAt"] is not None
    answer = await world.client.get(f"/shards/orders?limit=2&cursor={first['nextCursor']}")
    assert [one["number"] for one in answer.json()["history"]] == [3, 2]
    link = answer.headers["link"]
    assert link.endswith('>; rel="next"')
    last = (await world.client.get(link[1 : link.index(">")])).json()
    assert ([one["number"] for one in last["history"]], last["nextCursor"]) == ([1], None)
    assert len(last["members"]) == 5


async def test_services_are_paged_by_name(world: World) -> None:
    names = ["a b", "a/b", "orders", "x.y"]
    for name in names:
        await transact(world.database, [registration("w-1")], name=name)
        assert (await shown(world, name))["service"] == name
    answer = await world.client.get("/shards?limit=3")
    assert [one["service"] for one in answer.json()["items"]] == names[:3]
    rest = await world.client.get(answer.headers["link"].partition(">")[0][1:])
    assert ([one["service"] for one in rest.json()["items"]], rest.json()["nextCursor"]) == (names[3:], None)


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/shards?limit=0", "limit"),
        ("/shards?limit=201", "limit"),
        ("/shards?cursor=x", "cursor"),
        ("/shards?colour=blue", "colour"),
        ("/shards/orders?limit=x", "limit"),
        ("/shards/orders?cursor=x", "cursor"),
    ],
)
async def test_wrong_parameters_are_refused(world: World, path: str, parameter: str) -> None:
    await activated(world.database, "w-1")
    assert parameter in problem(await world.client.get(path), 400, "bad_parameter")["detail"]


async def test_a_cursor_is_of_one_list(world: World) -> None:
    for name in ("a", "b"):
        await transact(world.database, [registration("w-1")], name=name)
    cursor = (await world.client.get("/shards?limit=1")).json()["nextCursor"]
    problem(await world.client.get(f"/shards/a?cursor={cursor}"), 400, "bad_parameter")
