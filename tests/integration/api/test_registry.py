"""Do executors register over HTTP, and are groups, routing and draining as the API says?"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NoReturn
from urllib.parse import quote
from uuid import UUID

import httpx
import pytest
from jsonschema import Draft202012Validator
from sqlalchemy import update

from orchestrix import clock
from orchestrix.api.guards.auth import EXECUTORS_OF
from orchestrix.api.registry.models import GroupPage
from orchestrix.bootstrap.context import API, NodeContext, NodeSignals
from orchestrix.bootstrap.registry import assemble_registry
from orchestrix.config.registry import RegistrySettings
from orchestrix.config.settings import Settings
from orchestrix.domain.registry.addresses import AllowList, parse_address
from orchestrix.domain.registry.executors import GOODBYE_KEPT_S
from orchestrix.domain.registry.routing import Strategy
from orchestrix.errors import Unavailable
from orchestrix.persistence.registry import registrations
from orchestrix.persistence.registry.registrations import Heartbeat
from orchestrix.persistence.tables import job_registry, registry_removed
from orchestrix.registry import address_check
from orchestrix.registry.address_check import AddressCheck, AddressNotAllowed
from orchestrix.registry.registrar import GROUP_LIMIT
from tests.fakes.time import Shifted

from .answers import problem
from .world import CATALOG, World

ONE, TWO, THREE, FOUR = (f"http://127.0.0.{place}:9999" for place in (1, 2, 3, 4))
GROUPS = "/registry/groups"
SECRET = {"Authorization": "Bearer s3cret"}


def body(address: str = ONE, app: str = "shop", **more: Any) -> dict[str, Any]:
    return {"registryGroup": "EXECUTOR", "registryKey": app, "registryValue": address, **more}


async def beat(world: World, address: str = ONE, app: str = "shop", **more: Any) -> None:
    answer = await world.client.post("/api/registry", json=body(address, app, **more))
    assert (answer.status_code, answer.json()) == (200, {"beatMs": 30000})


async def goodbye(world: World, address: str = ONE, app: str = "shop", **more: Any) -> bool:
    answer = await world.client.post("/api/registryRemove", json=body(address, app, **more))
    assert answer.status_code == 200, answer.text
    removed: bool = answer.json()["removed"]
    return removed


async def group(world: World, app: str = "shop") -> dict[str, Any]:
    answer = await world.client.get(f"{GROUPS}/{quote(app)}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def put(world: World, app: str = "shop", **new: Any) -> dict[str, Any]:
    answer = await world.client.put(f"{GROUPS}/{quote(app)}", json=new)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def states(world: World, app: str = "shop") -> dict[str, str]:
    return {one["address"]: one["state"] for one in (await group(world, app))["executors"]}


async def route(world: World, strategy: str, app: str = "shop", **more: Any) -> dict[str, Any]:
    answer = await world.client.post("/registry/route", params={"app": app}, json={"strategy": strategy, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def drain(world: World, address: str, **more: Any) -> httpx.Response:
    return await world.client.post("/registry/drain", params={"app": "shop"}, json={"address": address, **more})


async def audited(world: World) -> list[tuple[str, str, str, Any]]:
    """Who did what, why and to what, the oldest first."""
    items = (await world.client.get("/audit")).json()["items"]
    return [(one["actor"], one["action"], one["reason"], one["detail"]) for one in reversed(items)]


async def registered_ago(world: World, seconds: float, silent_s: float = 0.0) -> None:
    """As if all executors had registered that long ago, and were silent for so long."""
    now = world.database.now()
    times = {"first_seen": now - timedelta(seconds=seconds), "update_time": now - timedelta(seconds=silent_s)}
    async with world.database.begin() as tx:
        await tx.execute(update(job_registry).values(times))


async def removed_ago(world: World, seconds: float) -> None:
    """As if all removals had been that long ago."""
    at = world.database.now() - timedelta(seconds=seconds)
    async with world.database.begin() as tx:
        await tx.execute(update(registry_removed).values(removed_at=at))


def served(
    world: World, *, client: str = "127.0.0.1", api: str = "", **tokens: str
) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """The API for a client at that address; executors of these apps, or of `all`, have tokens, and people that one."""
    names = {f"{EXECUTORS_OF}{app if app != 'all' else ''}": secret for app, secret in tokens.items()}
    world.registry = replace(world.registry, tokens=names)
    app = world.built(ada=api) if api else world.built()
    return httpx.AsyncClient(transport=httpx.ASGITransport(app, client=(client, 5000)), base_url="http://test")


@asynccontextmanager
async def database_away(world: World) -> AsyncIterator[None]:
    """Nothing is read from the database nor written to it."""

    def refuse(*_: object) -> NoReturn:
        raise Unavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        for name in ("read", "begin", "run"):
            patch.setattr(world.database, name, refuse)
        yield


# Heartbeats and goodbyes


@pytest.mark.req("S2-12", "S2-13", "S2-44", "S2-45", "S2-54")
async def test_the_first_heartbeat_registers_and_the_second_makes_it_healthy(world: World) -> None:
    await beat(world)
    (first,) = (await group(world))["executors"]
    await beat(world, weight=3, load=0.5)
    (second,) = (await group(world))["executors"]
    assert first.pop("lastSeen") == first["since"] == second["since"] < second.pop("lastSeen")
    shown = {"address": ONE, "since": first["since"], "inFlight": 0, "drained": False}
    shown |= {"suspectedBy": [], "suspectedSince": None}
    assert first == {**shown, "state": "REGISTERING", "weight": 1, "load": None}
    assert second == {**shown, "state": "HEALTHY", "weight": 3, "load": 0.5}


async def test_an_app_without_a_group_shows_its_executors_and_no_addresses(world: World) -> None:
    await beat(world)
    shown = await group(world)
    assert (shown["addressType"], shown["addressList"], shown["createdAt"], shown["updatedAt"]) == (
        None,
        [],
        None,
        None,
    )
    assert (await world.client.get(GROUPS)).json()["items"] == [shown]
    problem(await world.client.post("/registry/route?app=shop", json={"strategy": "FIRST"}), 404, "not_found")


async def test_the_same_executor_is_one_however_its_address_is_written(world: World) -> None:
    for written in ("HTTP://LOCALHOST:9999", "http://localhost:9999"):
        await beat(world, written)
    assert await states(world) == {"http://localhost:9999": "HEALTHY"}
    assert await goodbye(world, "Http://LocalHost:9999") is True


@pytest.mark.req("S2-46", "S2-47", "S2-57")
async def test_missed_heartbeats_are_steps_of_grace_until_the_next_one(world: World) -> None:
    await put(world, addressType="AUTO")
    await beat(world)
    for silent_s, state, limit_s in (
        (32, "HEALTHY", None),
        (34, "GRACE_30", 33),
        (61, "GRACE_60", 60),
        (89, "GRACE_60", 60),
        (91, "GRACE_90", 90),
    ):
        await registered_ago(world, 3600, silent_s)
        (shown,) = (await group(world))["executors"]
        since, seen = (datetime.fromisoformat(shown[name]) for name in ("since", "lastSeen"))
        assert (state, shown["state"]) == (state, state)
        assert since - seen == (timedelta(seconds=limit_s) if limit_s else timedelta(seconds=silent_s - 3600))
        assert (await group(world))["addressList"] == [ONE]  # until the leader removes it
    await beat(world)
    assert await states(world) == {ONE: "HEALTHY"}


@pytest.mark.req("S2-50", "S2-57", "S2-59")
async def test_one_that_drains_gets_no_new_jobs_and_stays_registered(world: World) -> None:
    await put(world, addressType="AUTO")
    await beat(world)
    await beat(world, TWO)
    await beat(world, state="DRAINING")
    shown = await group(world)
    assert {one["address"]: one["state"] for one in shown["executors"]} == {ONE: "DEREGISTERING", TWO: "REGISTERING"}
    assert shown["addressList"] == [TWO]
    assert (await route(world, "FAILOVER"))["addresses"] == [TWO]
    await beat(world)
    assert (await group(world))["addressList"] == [ONE, TWO]


@pytest.mark.req("S2-17", "S2-50", "S2-57")
async def test_a_goodbye_removes_the_executor_at_once_and_is_idempotent(world: World) -> None:
    await put(world, addressType="AUTO")
    await beat(world)
    await beat(world, TWO)
    await beat(world, ONE, "billing")
    assert [await goodbye(world), await goodbye(world)] == [True, False]
    assert await goodbye(world, THREE) is False
    shown = await group(world)
    assert shown["addressList"] == [TWO]
    assert await states(world) == {TWO: "REGISTERING", ONE: "REMOVED"}
    assert await states(world, "billing") == {ONE: "REGISTERING"}


async def test_who_was_removed_is_shown_for_ten_minutes(world: World) -> None:
    await beat(world)
    await goodbye(world)
    await removed_ago(world, 590)
    (shown,) = (await group(world))["executors"]
    assert (shown["state"], shown["weight"], shown["load"], shown["inFlight"]) == ("REMOVED", None, None, 0)
    assert shown["lastSeen"] > shown["since"]
    await removed_ago(world, 610)
    problem(await world.client.get(f"{GROUPS}/shop"), 404, "not_found")


@pytest.mark.req("S2-29", "S2-49")
async def test_a_heartbeat_that_its_goodbye_has_overtaken_registers_nobody_and_a_new_process_does(
    world: World,
) -> None:
    await put(world, addressType="AUTO")
    await beat(world, instance="a")
    assert await goodbye(world, instance="a")
    await beat(world, instance="a")
    assert await states(world) == {ONE: "REMOVED"}
    assert (await group(world))["addressList"] == []
    await beat(world, instance="b")
    assert await states(world) == {ONE: "REGISTERING"}
    assert (await group(world))["addressList"] == [ONE]


async def test_a_goodbye_is_not_kept_for_ever(world: World) -> None:
    await beat(world, instance="a")
    await goodbye(world, instance="a")
    await removed_ago(world, GOODBYE_KEPT_S - 5)
    await beat(world, instance="a")
    assert await states(world) == {ONE: "REMOVED"}
    await removed_ago(world, GOODBYE_KEPT_S + 1)
    await beat(world, instance="a")
    assert await states(world) == {ONE: "REGISTERING"}


async def test_without_an_instance_a_goodbye_counts_for_two_seconds(world: World) -> None:
    await beat(world)
    await goodbye(world)
    await beat(world)
    assert await states(world) == {ONE: "REMOVED"}
    await removed_ago(world, 2)
    await beat(world)
    assert await states(world) == {ONE: "REGISTERING"}


async def test_the_goodbye_of_an_old_process_does_not_remove_the_new_one(world: World) -> None:
    await beat(world, instance="a")
    await beat(world, instance="b")
    assert await goodbye(world, instance="a") is False
    await beat(world, instance="b")
    assert await states(world) == {ONE: "HEALTHY"}
    assert await goodbye(world, instance="b") is True


async def test_more_fields_than_are_known_are_ignored(world: World) -> None:
    await beat(world, hostname="a", runs=["0199c2a4"], timestamp=1, instance=None, load=None)
    assert await states(world) == {ONE: "REGISTERING"}
    assert await goodbye(world, load=0.5, colour={"a": []}) is True


@pytest.mark.parametrize(
    ("wrong", "place", "says"),
    [
        ({"registryGroup": "WORKER"}, "/registryGroup", 'must be "EXECUTOR"'),
        ({"registryKey": ""}, "/registryKey", ""),
        ({"registryKey": " shop"}, "/registryKey", ""),
        ({"registryKey": "x" * 201}, "/registryKey", ""),
        ({"registryValue": "10.0.0.1:9999"}, "/registryValue", "write http://host:port or https://host:port"),
        ({"registryValue": "http://10.0.0.1"}, "/registryValue", "write http://host:port or https://host:port"),
        ({"registryValue": f"{ONE}/"}, "/registryValue", "without the slash at the end"),
        ({"registryValue": "http://me:pw@10.0.0.1:9"}, "/registryValue", "without a user"),
        ({"registryValue": "http://10.0.0.1:0"}, "/registryValue", "a number from 1 to 65535"),
        ({"registryValue": "http://010.0.0.1:9"}, "/registryValue", "four numbers from 0 to 255"),
        ({"instance": ""}, "/instance", "must be 1 to 100 visible ASCII characters"),
        ({"instance": "a b"}, "/instance", "must be 1 to 100 visible ASCII characters"),
        ({"state": "DOWN"}, "/state", "must be one of UP, DRAINING"),
        ({"weight": -1}, "/weight", "must be a whole number from 0 to 1000000"),
        ({"weight": 1_000_001}, "/weight", "must be a whole number from 0 to 1000000"),
        ({"weight": 1.5}, "/weight", "must be a whole number from 0 to 1000000"),
        ({"weight": "1"}, "/weight", "must be a whole number from 0 to 1000000"),
        ({"weight": None}, "/weight", "must be a whole number from 0 to 1000000"),
        ({"load": -0.1}, "/load", "must be a number from 0 to 1000000000"),
        ({"load": 1e10}, "/load", "must be a number from 0 to 1000000000"),
        ({"load": "0.5"}, "/load", "must be a number from 0 to 1000000000"),
        ({"load": True}, "/load", "must be a number from 0 to 1000000000"),
        ({"runs": "a"}, "/runs", "must be an array"),
        ({"runs": [""]}, "/runs/0", ""),
    ],
)
async def test_a_wrong_heartbeat_is_refused_and_says_what_is_wrong(
    world: World, wrong: dict[str, Any], place: str, says: str
) -> None:
    answer = await world.client.post("/api/registry", json={**body(), **wrong})
    (error,) = problem(answer, 422, "invalid_body")["errors"]
    assert error["pointer"] == place
    assert says in error["detail"]
    assert "pw" not in answer.text
    assert (await world.client.get(GROUPS)).json()["items"] == []


async def test_what_is_missing_or_too_much_is_told_in_words(world: World) -> None:
    wrong = {name: value for name, value in body().items() if name != "registryValue"} | {"load": 1e10}
    errors = problem(await world.client.post("/api/registry", json=wrong), 422, "invalid_body")["errors"]
    assert {one["pointer"]: one["detail"] for one in errors} == {
        "/registryValue": "is missing: send http://host:port or https://host:port",
        "/load": "must be a number from 0 to 1000000000",
    }


@pytest.mark.parametrize("more", [{"weight": 0, "load": 0}, {"weight": 1_000_000, "load": 1e9}, {"weight": 2.0}])
async def test_weights_and_loads_up_to_their_limits_are_taken(world: World, more: dict[str, Any]) -> None:
    await beat(world, **more)
    (shown,) = (await group(world))["executors"]
    assert {name: shown[name] for name in more} == more


async def test_a_group_has_a_thousand_executors_at_most(world: World) -> None:
    addresses = [f"http://127.1.{place // 200}.{place % 200 + 1}:9999" for place in range(GROUP_LIMIT)]
    async with world.database.begin() as tx:
        for start in range(0, GROUP_LIMIT, 100):
            beats = [Heartbeat("shop", one) for one in addresses[start : start + 100]]
            await registrations.record(tx, beats, tx.now())
    answer = await world.client.post("/api/registry", json=body("http://127.2.0.1:9999"))
    assert problem(answer, 409, "group_full")["detail"] == "Shop has 1000 executors, which is the limit."
    await beat(world, addresses[0])
    await beat(world, app="billing")
    assert len((await group(world))["executors"]) == GROUP_LIMIT


# Which addresses may register, and who may register them


async def test_an_address_that_is_not_allowed_is_refused_with_the_settings_name(world: World) -> None:
    says = "http://192.168.0.1:9999 is not in ORCHESTRIX_REGISTRY__ALLOW: add 192.168.0.1:9999 if it is to be called"
    async with served(world, all="s3cret") as client:
        answer = await client.post("/api/registry", json=body("http://192.168.0.1:9999"), headers=SECRET)
    assert problem(answer, 422, "invalid_body")["errors"] == [{"pointer": "/registryValue", "detail": says}]
    answer = await world.client.put(f"{GROUPS}/shop", json={"addressList": [ONE, "http://192.168.0.1:9999"]})
    assert problem(answer, 422, "invalid_body")["errors"] == [{"pointer": "/addressList/1", "detail": says}]
    assert (await world.client.get(GROUPS)).json()["items"] == []
    assert await audited(world) == []


async def test_nodes_and_metadata_services_register_nowhere(world: World) -> None:
    async with served(world, all="s3cret") as client:
        for address, what in (("127.0.0.1:8080", "a node of the cluster"), ("169.254.169.254:80", "metadata service")):
            answer = await client.post("/api/registry", json=body(f"http://{address}"), headers=SECRET)
            assert what in problem(answer, 422, "invalid_body")["errors"][0]["detail"]


async def test_where_nothing_is_allowed_nothing_registers(world: World) -> None:
    world.registry = replace(world.registry, check=AddressCheck(world.database, AllowList(), lambda: (), 90.0))
    async with served(world) as client:
        answer = await client.post("/api/registry", json=body("http://127.0.0.1:9999"))
    (error,) = problem(answer, 422, "invalid_body")["errors"]
    assert "is not called: ORCHESTRIX_REGISTRY__ALLOW is not set, so no executor is. Set it to" in error["detail"]


@pytest.mark.parametrize(
    ("allow", "alone", "allowed"),
    [
        (None, False, []),
        (None, True, ["http://127.0.0.1:9", "http://[::1]:9"]),
        (("10.0.0.0/8",), True, ["http://10.0.0.1:9"]),
        (("10.0.0.0/8",), False, ["http://10.0.0.1:9"]),
    ],
)
async def test_without_the_setting_a_development_server_calls_its_own_machine_and_others_nobody(
    world: World, allow: tuple[str, ...] | None, alone: bool, allowed: list[str]
) -> None:
    settings = Settings(registry=RegistrySettings(allow=allow))
    node = NodeContext("n", settings, frozenset({API}), world.database, world.broker, CATALOG, NodeSignals(), alone)
    check, found = assemble_registry(node).check, []
    for address in ("http://10.0.0.1:9", "http://127.0.0.1:9", "http://[::1]:9"):
        try:
            await check.admit(parse_address(address))
        except AddressNotAllowed:
            continue
        found.append(address)
    assert found == allowed


async def test_a_name_that_cannot_be_resolved_now_is_no_fault_of_the_database(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def busy(host: Any, *given: Any, **named: Any) -> Any:
        if host != "shop-1.internal":
            return real(host, *given, **named)
        raise socket.gaierror(socket.EAI_AGAIN, "try again")

    monkeypatch.setattr(socket, "getaddrinfo", busy)
    async with served(world, all="s3cret") as client:
        answer = await client.post("/api/registry", json=body("http://shop-1.internal:9999"), headers=SECRET)
    assert problem(answer, 503, "unavailable")["detail"] == "Shop-1.internal cannot be resolved now."
    assert answer.headers["retry-after"]


async def test_a_list_of_names_is_given_up_after_a_while(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, over = set(), threading.Event()

    def silent(host: str, *_: object, **__: object) -> NoReturn:
        asked.add(host)
        over.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(address_check, "ALL_TIMEOUT_S", 0.2)
    names = [f"http://shop-{place}.internal:9999" for place in range(40)]
    try:
        answer = await world.client.put(f"{GROUPS}/shop", json={"addressList": names})
    finally:
        over.set()
    assert problem(answer, 503, "unavailable")["detail"] == "The addresses could not be resolved within 0.2 s."
    assert answer.headers["retry-after"]
    assert 1 < len(asked) < len(names)
    assert (await world.client.get(GROUPS)).json()["items"] == []


async def test_a_heartbeat_counts_for_two_dead_times_of_the_settings_without_the_name_service(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(registry=RegistrySettings(allow=("10.0.0.0/8",), dead=300.0))
    node = NodeContext("n", settings, frozenset({API}), world.database, world.broker, CATALOG, NodeSignals(), False)
    check, address, time = assemble_registry(node).check, parse_address("http://shop-1.internal:9999"), Shifted()
    real, answers = socket.getaddrinfo, [[(socket.AF_INET, 1, 6, "", ("10.0.0.1", 0))]]

    def resolve(host: Any, *given: Any, **named: Any) -> Any:
        if host != address.host:
            return real(host, *given, **named)
        if not answers:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return answers.pop()

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with clock.use(time):
        await check.admit(address)
        time.advance(599)
        await check.admit(address)
        time.advance(2)
        with pytest.raises(AddressNotAllowed):
            await check.admit(address)


# While the database is away


@pytest.mark.req("S2-13", "S2-64")
async def test_without_a_database_a_heartbeat_is_503_and_the_next_one_registers(world: World) -> None:
    async with database_away(world):
        for path in ("/api/registry", "/api/registryRemove"):
            answer = await world.client.post(path, json=body())
            problem(answer, 503, "unavailable")
            assert int(answer.headers["retry-after"]) >= 1
    await beat(world)
    async with database_away(world):  # its address is known to be allowed, so here it is the commit that fails
        answer = await world.client.post("/api/registry", json=body())
        problem(answer, 503, "unavailable")
    await beat(world)
    assert await states(world) == {ONE: "HEALTHY"}


@pytest.mark.req("S2-58")
async def test_without_a_database_groups_are_as_they_were_last_read(world: World) -> None:
    async with database_away(world):
        for path in (GROUPS, f"{GROUPS}/shop"):
            answer = await world.client.get(path)
            problem(answer, 503, "unavailable")
            assert answer.headers["retry-after"]
    await beat(world)
    begun = world.database.now()
    before = await group(world)
    assert before["asOf"] is None
    async with database_away(world):
        shown = await group(world)
        page = (await world.client.get(GROUPS)).json()
        problem(await world.client.get(f"{GROUPS}/billing"), 404, "not_found")
        problem(await world.client.post("/registry/route?app=shop", json={"strategy": "FIRST"}), 503, "unavailable")
    assert shown == {**before, "asOf": shown["asOf"]}
    assert begun <= datetime.fromisoformat(shown["asOf"]) <= world.database.now()
    assert page == {"items": [shown], "nextCursor": None, "asOf": shown["asOf"]}
    assert (await group(world)) == before


async def test_a_change_is_not_answered_from_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> NoReturn:
        raise Unavailable("away")

    await put(world, addressList=[ONE])
    with monkeypatch.context() as patch:
        patch.setattr(world.database, "read", away)  # after the commit
        answer = await world.client.put(f"{GROUPS}/shop", json={"addressList": [TWO]})
        problem(answer, 503, "outcome_unknown")
    assert (await group(world))["addressList"] == [TWO]


# Groups


async def test_groups_are_listed_by_app_page_by_page(world: World) -> None:
    apps = ["Zoo", "a", "a/b", "b", "ä"]
    for app in ("b", "ä", "Zoo"):
        await put(world, app, addressList=[ONE])
    for app in ("a/b", "a", "b"):
        await beat(world, TWO, app)
    path, pages = f"{GROUPS}?limit=2", list[list[str]]()
    while path:
        answer = await world.client.get(path)
        assert GroupPage.model_validate(answer.json())
        page, path = answer.json(), answer.headers.get("link", "").removeprefix("<").removesuffix('>; rel="next"')
        assert bool(path) is (page["nextCursor"] is not None)
        pages.append([one["appName"] for one in page["items"]])
        assert page["items"] == [await group(world, app) for app in pages[-1]]
    assert pages == [apps[:2], apps[2:4], apps[4:]]
    assert [one["appName"] for one in (await world.client.get(GROUPS)).json()["items"]] == apps
    for wrong in ("cursor=x", "limit=0", "limit=201", "app=shop"):
        problem(await world.client.get(f"{GROUPS}?{wrong}"), 400, "bad_parameter")


async def test_no_groups_are_an_empty_page(world: World) -> None:
    assert (await world.client.get(GROUPS)).json() == {"items": [], "nextCursor": None, "asOf": None}


async def test_a_group_of_an_unknown_app_is_manual_and_deleted_again(world: World) -> None:
    made = await put(world, addressList=[TWO, ONE, TWO], reason="two machines")
    assert (made["appName"], made["addressType"], made["addressList"]) == ("shop", "MANUAL", [TWO, ONE])
    assert (made["executors"], made["createdAt"]) == ([], made["updatedAt"])
    assert made == await group(world)
    answer = await world.client.delete(f"{GROUPS}/shop?reason=closed")
    assert (answer.status_code, answer.json()) == (200, made)
    for method in ("GET", "DELETE"):
        problem(await world.client.request(method, f"{GROUPS}/shop"), 404, "not_found")


async def test_deleting_a_group_keeps_the_registrations_and_no_group_is_404(world: World) -> None:
    await put(world, addressType="AUTO")
    await beat(world)
    assert (await world.client.delete(f"{GROUPS}/shop")).json()["addressList"] == [ONE]
    shown = await group(world)
    assert (shown["addressType"], shown["addressList"]) == (None, [])
    assert await states(world) == {ONE: "REGISTERING"}
    problem(await world.client.delete(f"{GROUPS}/shop"), 404, "not_found")
    assert [one[1] for one in await audited(world)] == ["set-group", "delete-group"]


@pytest.mark.req("S2-24", "S2-33")
async def test_heartbeats_do_not_touch_a_manual_group_until_it_is_automatic(world: World) -> None:
    made = await put(world, addressType="MANUAL", addressList=[ONE])
    await beat(world, TWO)
    await beat(world, THREE)
    await goodbye(world, THREE)
    await beat(world, TWO, state="DRAINING")
    await beat(world, TWO)
    shown = await group(world)
    assert (shown["addressType"], shown["addressList"]) == ("MANUAL", [ONE])
    assert shown["updatedAt"] == made["updatedAt"]
    assert (await route(world, "FAILOVER"))["addresses"] == [ONE]
    assert (await put(world, addressType="AUTO"))["addressList"] == [TWO]


@pytest.mark.parametrize(
    "app", ["a/b", "/", "shop/", "50%", "%2F", "ü 日本", "a?b#c", "a.b", "..", "\U0001f600", "x" * 200, "'; drop"]
)
async def test_any_name_of_an_app_is_a_path(world: World, app: str) -> None:
    for path in (f"{GROUPS}/{quote(app, safe='')}", f"{GROUPS}/{quote(app)}"):
        if app == "..":
            path = path.replace("..", "%2E%2E")
        answer = await world.client.put(path, json={"addressList": [ONE]})
        assert (answer.status_code, answer.json()["appName"]) == (200, app)
        assert (await world.client.get(path)).json() == answer.json()
        await beat(world, TWO, app)
        assert (await world.client.post("/registry/route", params={"app": app}, json={"strategy": "FIRST"})).is_success
        assert (await world.client.delete(path)).is_success
    assert [one["appName"] for one in (await world.client.get(GROUPS)).json()["items"]] == [app]


async def test_composed_and_decomposed_letters_name_the_same_app(world: World) -> None:
    await put(world, "caf\u00e9", addressList=[ONE])
    assert (await group(world, "cafe\u0301"))["appName"] == "caf\u00e9"
    assert (await route(world, "FIRST", "cafe\u0301"))["address"] == ONE


NAMED = ("", "%20shop", "x" * 201)
"""What is said to be wrong as the name of a new group; the rest is in no path."""


async def test_a_new_group_is_told_what_is_wrong_with_its_name(world: World) -> None:
    answer = await world.client.put(f"{GROUPS}/%20shop", json={"addressType": "AUTO"})
    (error,) = problem(answer, 422, "invalid_body")["errors"]
    assert error == {"pointer": "/app", "detail": "must not begin or end with white space"}


@pytest.mark.parametrize("part", ["", "%00", "a%0Ab", "%20shop", "x" * 201, "x" * 2000])
async def test_what_no_app_is_called_has_no_group(world: World, part: str) -> None:
    for method in ("GET", "DELETE"):
        problem(await world.client.request(method, f"{GROUPS}/{part}"), 404, "not_found")
    answer = await world.client.put(f"{GROUPS}/{part}", json={"addressList": [ONE]})
    problem(answer, *((422, "invalid_body") if part in NAMED else (404, "not_found")))
    assert (await world.client.get(GROUPS)).json()["items"] == []


@pytest.mark.parametrize(
    ("new", "place", "says"),
    [
        ({}, "/addressList", "is required with MANUAL"),
        ({"addressType": "MANUAL"}, "/addressList", "is required with MANUAL"),
        ({"addressList": None}, "/addressList", "is required with MANUAL"),
        ({"addressType": "AUTO", "addressList": [ONE]}, "/addressList", "must be left out with AUTO"),
        ({"addressType": "AUTO", "addressList": []}, "/addressList", "must be left out with AUTO"),
        ({"addressType": 0}, "/addressType", "must be one of AUTO, MANUAL"),
        ({"addressList": ["10.0.0.1"]}, "/addressList/0", "write http://host:port"),
        ({"addressList": [ONE] * 1001}, "/addressList", "at most 1000"),
        ({"addressList": [ONE], "reason": " "}, "/reason", "must say something"),
        ({"addressList": [ONE], "addresslist": []}, "/addresslist", "is not known here: did you mean addressList?"),
    ],
)
async def test_a_wrong_group_is_refused(world: World, new: dict[str, Any], place: str, says: str) -> None:
    answer = await world.client.put(f"{GROUPS}/shop", json=new)
    (error,) = problem(answer, 422, "invalid_body")["errors"]
    assert error["pointer"] == place
    assert says in error["detail"]
    problem(await world.client.get(f"{GROUPS}/shop"), 404, "not_found")


async def test_what_people_do_is_in_the_audit_once(world: World) -> None:
    async with served(world, api="s3cret") as client:
        client.headers.update(SECRET)
        for _ in range(2):
            await client.put(f"{GROUPS}/shop", json={"addressList": [TWO, ONE], "reason": "fixed"})
        await client.post("/api/registry", json=body())
        for wanted in (True, True, False, False):
            more = {"address": ONE, "drain": wanted, "reason": "disk full" if wanted else "disk new"}
            assert (await client.post("/registry/drain?app=shop", json=more)).is_success
        await client.put(f"{GROUPS}/shop", json={"addressType": "AUTO"})
        await client.request("DELETE", f"{GROUPS}/shop", json={"reason": "closed"})
        items = (await client.get("/audit")).json()["items"]
    assert [(one["actor"], one["action"], one["reason"], one["detail"]) for one in reversed(items)] == [
        ("ada", "set-group", "fixed", {"app": "shop", "addresses": [TWO, ONE]}),
        ("ada", "drain-executor", "disk full", {"app": "shop", "address": ONE}),
        ("ada", "undrain-executor", "disk new", {"app": "shop", "address": ONE}),
        ("ada", "set-group", "no reason was given", {"app": "shop", "addresses": None}),
        ("ada", "delete-group", "closed", {"app": "shop"}),
    ]


# Draining


@pytest.mark.req("S2-59")
async def test_a_drained_executor_gets_no_jobs_until_it_is_included_again(world: World) -> None:
    await put(world, addressType="AUTO")
    await beat(world, ONE, instance="a")
    await beat(world, TWO)
    shown = (await drain(world, ONE)).json()
    assert shown == await group(world)
    assert [one["drained"] for one in shown["executors"]] == [True, False]
    assert shown["addressList"] == [TWO]
    await beat(world, ONE, instance="a")
    assert (await group(world))["addressList"] == [TWO]
    assert (await drain(world, ONE, drain=False)).json()["addressList"] == [ONE, TWO]


async def test_a_drained_executor_of_a_manual_group_is_picked_no_more(world: World) -> None:
    await put(world, addressList=[ONE, TWO])
    await beat(world, ONE, instance="a")
    shown = (await drain(world, ONE)).json()
    assert (shown["addressList"], shown["executors"][0]["drained"]) == ([ONE, TWO], True)
    assert (await route(world, "FAILOVER"))["addresses"] == [TWO]
    await drain(world, ONE, drain=False)
    assert set((await route(world, "FAILOVER"))["addresses"]) == {ONE, TWO}


async def test_a_drained_executor_that_was_removed_comes_back_drained(world: World) -> None:
    await put(world, addressType="AUTO")
    await beat(world, ONE, instance="a")
    await drain(world, ONE)
    await goodbye(world, ONE)
    async with world.database.begin() as tx:
        await tx.execute(update(registry_removed).values(reason="silent"))
    await beat(world, ONE, instance="a")
    shown = await group(world)
    assert (shown["addressList"], shown["executors"][0]["drained"]) == ([], True)
    await goodbye(world, ONE, instance="a")
    await beat(world, ONE, instance="b")
    shown = await group(world)
    assert (shown["addressList"], shown["executors"][0]["drained"]) == ([ONE], False)


async def test_one_that_drains_itself_does_so_since_it_first_said_so(world: World) -> None:
    await beat(world, ONE)
    await beat(world, ONE, state="DRAINING")
    (first,) = (await group(world))["executors"]
    await beat(world, ONE, state="DRAINING")
    (second,) = (await group(world))["executors"]
    assert (second["state"], second["since"]) == ("DEREGISTERING", first["since"])
    assert first["lastSeen"] == first["since"] < second["lastSeen"]


@pytest.mark.parametrize("kind", [{"addressType": "AUTO"}, {"addressList": [ONE, TWO]}])
async def test_a_route_says_who_is_drained_and_how_to_include_it(world: World, kind: dict[str, Any]) -> None:
    await put(world, **kind)
    for one in (ONE, TWO):
        await beat(world, one)
    await drain(world, ONE)
    ask = {"strategy": "ADDRESS", "address": ONE}
    refused = problem(await world.client.post("/registry/route?app=shop", json=ask), 422, "invalid_body")
    assert refused["errors"][0]["detail"] == (
        f"The executor at {ONE} is drained: orchestrix registry drain shop {ONE} --undo"
    )
    assert (await route(world, "FIRST"))["address"] == TWO
    await drain(world, TWO)
    answer = await world.client.post("/registry/route?app=shop", json={"strategy": "ROUND_ROBIN"})
    assert problem(answer, 409, "no_executors")["detail"] == (
        "No executors available; all 2 are drained: orchestrix registry drain shop ADDRESS --undo."
    )
    await put(world, addressList=[])
    answer = await world.client.post("/registry/route?app=shop", json={"strategy": "FIRST"})
    assert problem(answer, 409, "no_executors")["detail"] == "No executors available."


async def test_another_process_at_the_address_of_a_drained_one_gets_jobs(world: World) -> None:
    await put(world, addressType="AUTO")
    await beat(world, ONE, instance="a")
    assert (await drain(world, ONE)).json()["addressList"] == []
    await beat(world, ONE, instance="b")
    shown = await group(world)
    assert (shown["addressList"], shown["executors"][0]["drained"]) == ([ONE], False)


async def test_who_is_not_registered_cannot_be_drained(world: World) -> None:
    assert problem(await drain(world, ONE), 404, "not_found")["detail"] == f"'shop' has no executor at {ONE}."
    await beat(world, TWO)
    problem(await drain(world, ONE), 404, "not_found")
    problem(await world.client.post("/registry/drain", json={"address": ONE}), 400, "bad_parameter")
    assert await audited(world) == []


# Routing


@pytest.mark.req("S2-26", "S2-59")
async def test_each_strategy_picks_as_its_name_says(world: World) -> None:
    await put(world, addressType="AUTO")
    for address, more in ((TWO, {"load": 5}), (ONE, {"load": 0.5}), (THREE, {"load": 2, "weight": 0})):
        await beat(world, address, **more)
    single = {
        "FIRST": (TWO, "first seen of 3"),
        "LAST": (THREE, "newest of 3"),
        "LEAST_LOADED": (ONE, "least loaded of 3: 0 in flight, load 0.5"),
    }
    for strategy, (address, reason) in single.items():
        answer = {"address": address, "addresses": None, "spread": None, "reason": reason}
        assert await route(world, strategy) == answer
    assert (await route(world, "RANDOM"))["address"] in (ONE, TWO, THREE)
    assert (await route(world, "WEIGHTED"))["address"] in (ONE, TWO)
    assert (await route(world, "ADDRESS", address=THREE))["address"] == THREE
    failover = await route(world, "FAILOVER")
    assert (failover["address"], failover["addresses"]) == (TWO, [TWO, ONE, THREE])
    shards = await route(world, "SHARDING_BROADCAST")
    assert (shards["address"], shards["addresses"], shards["spread"]) == (None, [ONE, TWO, THREE], None)
    hashed = [(await route(world, "CONSISTENT_HASH", key="k"))["address"] for _ in range(3)]
    assert len(set(hashed)) == 1


@pytest.mark.req("S2-38")
async def test_round_robin_goes_on_where_the_call_before_has_ended(world: World) -> None:
    await put(world, addressList=[ONE, TWO, THREE])
    turns = [(await route(world, "ROUND_ROBIN"))["address"] for _ in range(4)]
    turns += (await route(world, "ROUND_ROBIN", count=2))["addresses"]
    turns.append((await route(world, "ROUND_ROBIN"))["address"])
    assert turns == [ONE, TWO, THREE, ONE, TWO, THREE, ONE]
    at_once = await asyncio.gather(*(route(world, "ROUND_ROBIN") for _ in range(9)))
    assert Counter(one["address"] for one in at_once) == {ONE: 3, TWO: 3, THREE: 3}


@pytest.mark.req("S2-39", "S2-40")
async def test_many_picks_are_spread_as_their_strategy_says(world: World) -> None:
    await put(world, addressType="AUTO")
    for address, weight in ((ONE, 1), (TWO, 1), (THREE, 2), (FOUR, 0)):
        await beat(world, address, weight=weight)
    even = dict.fromkeys((ONE, TWO, THREE, FOUR), 2500)
    for strategy, expected, most in (
        ("ROUND_ROBIN", even, 0),
        ("RANDOM", even, 250),
        ("CONSISTENT_HASH", even, 250),
        ("WEIGHTED", {ONE: 2500, TWO: 2500, THREE: 5000}, 300),
        ("FIRST", {ONE: 10000}, 0),
    ):
        found = await route(world, strategy, count=10000, key="order")
        assert Counter(found["addresses"]) == found["spread"], strategy
        assert set(found["spread"]) == set(expected), strategy
        assert all(abs(found["spread"][one] - wanted) <= most for one, wanted in expected.items()), found["spread"]
        assert (found["address"], len(found["addresses"])) == (None, 10000)
    before = (await route(world, "CONSISTENT_HASH", count=1000))["addresses"]
    await goodbye(world, TWO)
    after = (await route(world, "CONSISTENT_HASH", count=1000))["addresses"]
    assert all(old == new for old, new in zip(before, after, strict=True) if old != TWO)
    assert TWO not in after


@pytest.mark.req("S2-36")
@pytest.mark.parametrize("strategy", [one.value for one in Strategy])
async def test_a_group_without_addresses_has_no_executors_available(world: World, strategy: str) -> None:
    await put(world, addressType="AUTO")
    asked = {"strategy": strategy, "address": ONE}
    answer = await world.client.post("/registry/route?app=shop", json=asked)
    assert problem(answer, 409, "no_executors")["detail"] == "No executors available."
    answer = await world.client.post("/registry/route?app=billing", json=asked)
    assert problem(answer, 404, "not_found")["detail"] == (
        "'billing' has no executor group: make one with `orchestrix registry set billing --auto`."
    )


@pytest.mark.parametrize(
    ("asked", "place", "says"),
    [
        ({}, "/strategy", "is missing"),
        ({"strategy": "BEST"}, "/strategy", "must be one of FIRST, LAST"),
        ({"strategy": "first"}, "/strategy", "must be one of FIRST, LAST"),
        ({"strategy": "ADDRESS"}, "/address", "is required with ADDRESS"),
        (
            {"strategy": "ADDRESS", "address": THREE},
            "/address",
            f"No executor has the address {THREE}: use one of {ONE}",
        ),
        ({"strategy": "ADDRESS", "address": "x"}, "/address", "write http://host:port"),
        ({"strategy": "FIRST", "count": 0}, "/count", "must be a whole number from 1 to 10000"),
        ({"strategy": "FIRST", "count": 10001}, "/count", "must be a whole number from 1 to 10000"),
        ({"strategy": "FIRST", "key": "x" * 501}, "/key", "at most 500"),
        ({"strategy": "FIRST", "app": "shop"}, "/app", "is not known here"),
    ],
)
async def test_a_wrong_route_is_refused(world: World, asked: dict[str, Any], place: str, says: str) -> None:
    await put(world, addressList=[ONE])
    answer = await world.client.post("/registry/route?app=shop", json=asked)
    (error,) = problem(answer, 422, "invalid_body")["errors"]
    assert error["pointer"] == place
    assert says in error["detail"]


@pytest.mark.parametrize("query", ["", "?app=", "?app=a&app=b", f"?app={'x' * 201}", "?app=a&key=b"])
async def test_whose_executors_are_routed_to_must_be_said_once(world: World, query: str) -> None:
    problem(await world.client.post(f"/registry/route{query}", json={"strategy": "FIRST"}), 400, "bad_parameter")


# The description


async def test_the_document_says_which_parameters_and_fields_are_required(world: World) -> None:
    api = world.app.openapi()
    for path in ("/registry/route", "/registry/drain"):
        (parameter,) = (one for one in api["paths"][path]["post"]["parameters"] if one["in"] == "query")
        assert (parameter["name"], parameter["required"]) == ("app", True)
    optional = [one for one in api["paths"][GROUPS]["get"]["parameters"] if one["in"] == "query"]
    assert [one["name"] for one in optional if "required" not in one] == ["limit", "cursor"]
    schemas = api["components"]["schemas"]
    assert schemas["HeartbeatBody"]["required"] == ["registryGroup", "registryKey", "registryValue"]
    assert "additionalProperties" not in schemas["HeartbeatBody"]
    assert schemas["RouteBody"]["required"] == ["strategy"]


@pytest.mark.parametrize(
    ("model", "sent", "valid"),
    [
        ("HeartbeatBody", body(hostname="a"), True),
        ("HeartbeatBody", body("http://127.0.0.1"), False),
        ("HeartbeatBody", body("http://127.0.0.1:65536"), False),
        ("HeartbeatBody", body("http://127.0.0.1:0"), False),
        ("HeartbeatBody", body("HTTPS://[fd00::7]:65535"), True),
        ("HeartbeatBody", body(load=-1), False),
        ("NewGroup", {}, False),
        ("NewGroup", {"addressType": "MANUAL"}, False),
        ("NewGroup", {"addressList": []}, True),
        ("NewGroup", {"addressType": "AUTO"}, True),
        ("NewGroup", {"addressType": "AUTO", "addressList": None}, True),
        ("NewGroup", {"addressType": "AUTO", "addressList": [ONE]}, False),
        ("RouteBody", {"strategy": "ADDRESS"}, False),
        ("RouteBody", {"strategy": "ADDRESS", "address": ONE}, True),
        ("RouteBody", {"strategy": "FIRST", "count": 10001}, False),
    ],
)
async def test_the_schemas_say_what_is_accepted(world: World, model: str, sent: dict[str, Any], valid: bool) -> None:
    api = world.app.openapi()
    schema = {**api, "$ref": f"#/components/schemas/{model}"}
    assert Draft202012Validator(schema).is_valid(sent) is valid


async def test_the_examples_of_bodies_fit_their_schemas_and_are_accepted(world: World) -> None:
    api = world.app.openapi()
    async with served(world, all="s3cret") as client:
        for path, method in (
            ("/api/registry", "post"),
            ("/api/registryRemove", "post"),
            (f"{GROUPS}/{{app}}", "put"),
            ("/registry/route", "post"),
        ):
            operation = api["paths"][path][method]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            (example,) = api["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["examples"]
            Draft202012Validator({**api, **schema}).validate(example)
            query = {one["name"]: "shop" for one in operation["parameters"] if one["in"] == "query"}
            answer = await client.request(method, path.format(app="shop"), params=query, json=example, headers=SECRET)
            assert answer.status_code == 200, answer.text
            answered = operation["responses"]["200"]["content"]["application/json"]
            Draft202012Validator({**api, **answered["schema"]}).validate(answer.json())
            Draft202012Validator({**api, **answered["schema"]}).validate(answered["example"])


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/registry", 422),
        (f"/jobs/{UUID(int=1)}/attempts/{UUID(int=2)}/status", 401),
        (f"/jobs/{UUID(int=1)}/attempts/{UUID(int=2)}/logs", 401),
    ],
)
async def test_middleware_that_a_user_adds_sees_what_executors_send_too(world: World, path: str, status: int) -> None:
    """They take a shorter way only while nobody else has to see them."""
    seen: list[str] = []

    class Watching:
        def __init__(self, app: Any) -> None:
            self._app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            seen.append(scope["path"])
            await self._app(scope, receive, send)

    app = world.built()
    app.add_middleware(Watching)
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        answer = await client.post(path, json={})
    assert (answer.status_code, seen) == (status, [path])
