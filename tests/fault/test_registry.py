"""Does the registry hold the executors that are there, and no others, whatever happens to them, nodes and servers?"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from tests.fault.executors import SLACK_S, Address, RegistryWorld
from tests.fault.proxy import proxied
from tests.support import eventually

KEYS = 10_000
SIGMAS = 5
"""By so many standard deviations random picks may be off: once in a million runs they are."""
REPORTS = [f'"weight": {weight}, "load": {load}' for weight, load in ((1, 3), (1, 1), (2, 2), (3, 3), (3, 4))]
WEIGHTS = [1, 1, 2, 3, 3]


@pytest.mark.req("S2-4", "S2-17", "S2-28", "S2-29", "S2-32", "S2-33", "S2-48", "S2-49")
async def test_executors_join_leave_die_and_return(registry: RegistryWorld) -> None:
    await registry.up()
    for app in ("shop", "crm"):
        await registry.make_group(app)
    others = await registry.joined("crm", 2)
    five = await _five(registry)
    await _picks(registry, five)
    manual = await _manual_group(registry)
    before = await registry.rows()
    await _leaves_and_returns(registry, five)
    await _dies_and_is_cut_off(registry, five)
    await registry.check_stayed([*others, *manual, *five[:2]], before)
    await registry.has("crm", others)
    await _all_leave(registry, five)
    await registry.has("crm", others)
    assert (await registry.route("crm", "FIRST")).status_code == 200


async def _five(registry: RegistryWorld) -> list[Address]:
    """They join one after the other, at both nodes."""
    made: list[Address] = []
    urls = registry.world.urls
    for number, reports in enumerate(REPORTS):
        made.append(registry.start("shop", admins=urls[:: 1 - 2 * (number % 2)], reports=reports))
        await registry.has("shop", made)
    return made


async def _picks(registry: RegistryWorld, five: list[Address]) -> None:
    """10,000 picks of each strategy."""

    async def spread(strategy: str, **more: Any) -> Counter[Address]:
        answer = await registry.route("shop", strategy, count=KEYS, **more)
        assert answer.status_code == 200, answer.text
        return Counter(answer.json()["addresses"])

    assert await spread("FIRST") == await spread("FAILOVER") == {five[0]: KEYS}
    assert await spread("LAST") == {five[-1]: KEYS}
    assert await spread("ADDRESS", address=five[2]) == {five[2]: KEYS}
    assert await spread("LEAST_LOADED") == {five[1]: KEYS}
    assert await spread("ROUND_ROBIN") == dict.fromkeys(five, KEYS / 5)
    for strategy, weights in (("RANDOM", [1] * 5), ("CONSISTENT_HASH", [1] * 5), ("WEIGHTED", WEIGHTS)):
        _check_fair(strategy, await spread(strategy), dict(zip(five, weights, strict=True)))
    everybody = (await registry.route("shop", "SHARDING_BROADCAST", count=KEYS)).json()
    assert everybody["addresses"] == sorted(five)
    assert (await registry.route("shop", "FAILOVER")).json()["addresses"] == five


def _check_fair(strategy: str, spread: Counter[Address], weights: dict[Address, int]) -> None:
    whole = sum(weights.values())
    for address, weight in weights.items():
        share = weight / whole
        off = (spread[address] - KEYS * share) / (KEYS * share * (1 - share)) ** 0.5
        assert abs(off) < SIGMAS, f"{strategy}: {address} has {spread[address]} of {KEYS}, {off:+.1f} σ"
    fullest = max(spread[address] * whole / weight / KEYS for address, weight in weights.items())
    print(f"{strategy}: the fullest of {len(weights)} has {fullest:.3f} of its share of {KEYS} keys")


async def _hashed(registry: RegistryWorld) -> list[Address]:
    """The address of each key, which both nodes name."""
    found = [
        (await registry.route("shop", "CONSISTENT_HASH", node=node, key="job", count=KEYS)).json()["addresses"]
        for node in (0, 1)
    ]
    assert found[0] == found[1]
    return list(found[0])


async def _manual_group(registry: RegistryWorld) -> list[Address]:
    """Heartbeats do not touch its list: neither of an executor that is not in it, nor of one that is."""
    fixed = ["http://127.0.0.1:9", "http://127.0.0.2:9"]
    await registry.make_group("fixed", fixed)
    beating = [registry.start("fixed")]
    await eventually(lambda: _registered(registry, beating), deadline=SLACK_S)
    await registry.all_beat(beating, within=registry.times.heartbeat + SLACK_S)
    await registry.has("fixed", fixed)
    assert (await registry.route("fixed", "FIRST")).json()["address"] == fixed[0]
    return beating


async def _registered(registry: RegistryWorld, addresses: list[Address]) -> bool:
    return set(addresses) <= set(await registry.rows())


async def _leaves_and_returns(registry: RegistryWorld, five: list[Address]) -> None:
    """Goodbye: at once it is gone from the list, its keys alone move, and a heartbeat of it that comes late is void."""
    before, leaving = await _hashed(registry), five[2]
    instance = (await registry.rows())[leaving]["instance"]
    with proxied(registry.world.urls[0]) as link:
        link.black_hole()
        late = asyncio.create_task(registry.beat(f"http://127.0.0.1:{link.port}", "shop", leaving, instance))
        registry.running[leaving].terminate()
        assert await registry.running[leaving].exited() == 0
        await registry.has("shop", [one for one in five if one != leaving], within=SLACK_S)
        assert await registry.removed() == [(leaving, "goodbye")]
        link.heal()
        assert (await late).status_code == 200
    assert leaving not in await registry.rows(), "a heartbeat that its goodbye has overtaken brings nobody back"
    await registry.has("shop", [one for one in five if one != leaving])
    without = await _hashed(registry)
    moved = [was for was, now in zip(before, without, strict=True) if was != now]
    assert set(moved) == {leaving}, "the keys of the others stay"
    assert len(moved) == before.count(leaving)
    print(f"one of 5 executors leaves: {len(moved)} of {KEYS} keys move")
    registry.start("shop", address=leaving, reports=REPORTS[2])
    await registry.has("shop", five)
    assert await _hashed(registry) == before


async def _dies_and_is_cut_off(registry: RegistryWorld, five: list[Address]) -> None:
    """kill -9 and SIGSTOP: both are removed when they have been silent for long enough, and can come back."""
    *living, dead, silent = five
    registry.running[dead].kill9()
    registry.running[silent].pause()
    for address in (dead, silent):
        await registry.is_removed(address)
    await registry.has("shop", living)
    shown = {one["address"]: one for one in (await registry.group("shop"))["executors"]}
    assert {shown[one]["state"] for one in (dead, silent)} == {"REMOVED"}
    registry.running[silent].resume()
    await registry.has("shop", [*living, silent])
    registry.start("shop", address=dead)
    await registry.has("shop", five)


async def _all_leave(registry: RegistryWorld, five: list[Address]) -> None:
    for address in five:
        registry.running[address].terminate()
    for address in five:
        assert await registry.running[address].exited() == 0
    await registry.has("shop", [])
    refused = await registry.route("shop", "ROUND_ROBIN")
    assert refused.status_code == 409, refused.text
    assert "no executors available" in refused.json()["detail"].lower()


@pytest.mark.req("S2-62")
async def test_an_executor_that_the_network_cuts_off_is_removed_and_returns_at_once(registry: RegistryWorld) -> None:
    await registry.up()
    await registry.make_group("shop")
    others = await registry.joined("shop", 2)
    links = [registry.link(url) for url in registry.world.urls]
    cut = registry.start("shop", admins=[f"http://127.0.0.1:{link.port}" for link in links])
    await registry.has("shop", [*others, cut])
    before = await registry.rows()
    for link in links:
        link.black_hole()
    await registry.is_removed(cut)
    await registry.has("shop", others)
    assert sorted((await registry.route("shop", "FAILOVER")).json()["addresses"]) == sorted(others)
    failed = _failed(registry, cut)
    assert failed >= 2, "it has tried both nodes"
    for link in links:
        link.lose()
    await registry.has("shop", [*others, cut])
    assert _failed(registry, cut) - failed <= 2, (
        "the heartbeat of that moment fails at both nodes, the next one succeeds"
    )
    assert (await registry.rows())[cut]["instance"] == before[cut]["instance"]
    assert await registry.removed() == [(cut, "silent")]
    await registry.check_stayed(others, before)


def _failed(registry: RegistryWorld, address: Address) -> int:
    """How many times a node has not answered its heartbeat."""
    return registry.running[address].log().count("/api/registry: ")
