"""Crash points of the registry: a node that dies while it registers or removes executors, and one that goes on."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx

from tests.acceptance.system import Client
from tests.fault.crashing import At, Rig, died
from tests.processes import Process
from tests.support import eventually

EXECUTORS: Final = 4
DEAD: Final = 2.5
QUICK: Final = {
    "ORCHESTRIX_REGISTRY__ALLOW": "127.0.0.0/8",
    "ORCHESTRIX_REGISTRY__BEAT": "1",
    "ORCHESTRIX_REGISTRY__SWEEP": "0.5",
    "ORCHESTRIX_REGISTRY__PROBE": "1",
    "ORCHESTRIX_REGISTRY__CALL_TIMEOUT": "1",
}
PATIENT: Final = {"ORCHESTRIX_REGISTRY__DEAD": "600"}
"""For those who are not to be removed."""
SHORT: Final = {"ORCHESTRIX_REGISTRY__DEAD": str(DEAD)}


class Shop:
    """The executors of one app, and its group."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.app = f"shop-{rig.rounds}"
        self.addresses = [f"http://127.0.0.1:{1000 + place}" for place in range(EXECUTORS)]

    async def node(self, dead: dict[str, str], at: At | None = None) -> tuple[Process, Client]:
        """A node that is ready, armed or not, and a client of it."""
        node, url = self.rig.node(port=None, **QUICK, **dead, **(at.env if at else {}))
        await self.rig.ready(url)
        return node, Client(url)

    async def group(self, client: Client) -> None:
        """Makes it."""
        made = await client.http.put(f"/registry/groups/{self.app}", json={"addressType": "AUTO"})
        assert made.status_code == 200, made.text

    async def beat(self, client: Client, address: str) -> bool:
        """A heartbeat; whether it was answered."""
        return await self._tell(client, "/api/registry", address) is not None

    async def goodbye(self, client: Client, address: str) -> bool | None:
        """A goodbye: whether the executor was registered; None without an answer."""
        told = await self._tell(client, "/api/registryRemove", address)
        return None if told is None else bool(told["removed"])

    async def _tell(self, client: Client, path: str, address: str) -> dict[str, Any] | None:
        who = {"registryGroup": "EXECUTOR", "registryKey": self.app, "registryValue": address}
        try:
            answer = await client.http.post(path, json={**who, "instance": f"process of {address}".replace(" ", "-")})
        except httpx.HTTPError:
            return None
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def registered(self) -> dict[str, Any]:
        """The time of the first heartbeat of each that is registered."""
        found = f"SELECT registry_value, first_seen FROM job_registry WHERE registry_key = '{self.app}'"
        return {row[0]: row[1] for row in await self.rig.sql(found)}

    async def listed(self) -> tuple[list[str], Any]:
        """The addresses of the group, and when they last changed."""
        ((text, at),) = await self.rig.sql(
            f"SELECT address_list, updated_at FROM job_group WHERE app_name = '{self.app}'"
        )
        return text.split(",") if text else [], at

    async def removals(self) -> list[tuple[str, str, datetime]]:
        """Who was removed, why and when."""
        rows = await self.rig.sql(
            "SELECT registry_value, reason, removed_at FROM registry_removed "
            f"WHERE registry_key = '{self.app}' ORDER BY registry_value"
        )
        return [(row[0], row[1], _time(row[2])) for row in rows]

    async def settled(self, addresses: list[str]) -> None:
        """Exactly these are registered and listed."""
        assert sorted(await self.registered()) == addresses
        assert sorted((await self.listed())[0]) == addresses


async def registering_dies(rig: Rig, at: At) -> None:
    """While executors register; those without an answer try another node."""
    shop = Shop(rig)
    doomed, client = await shop.node(PATIENT, at)
    async with client:
        await shop.group(client)
        answered = [address for address in shop.addresses if await shop.beat(client, address)]
    await died(doomed, at)
    assert answered == shop.addresses[: at.passage - 1], "one after the other, until it died"
    stored = at.passage - (at.point == "registry.register.before_commit")
    await shop.settled(shop.addresses[:stored])
    before, listed = await shop.registered(), await shop.listed()
    _, client = await shop.node(PATIENT)
    async with client:
        assert all([await shop.beat(client, address) for address in shop.addresses[:stored]])
        assert (await shop.registered(), await shop.listed()) == (before, listed), "a heartbeat like any other"
        assert all([await shop.beat(client, address) for address in shop.addresses])
        await shop.settled(shop.addresses)


async def removing_dies(rig: Rig, at: At) -> None:
    """While executors say goodbye; those without an answer repeat it."""
    shop = Shop(rig)
    doomed, client = await shop.node(PATIENT, at)
    async with client:
        await shop.group(client)
        assert all(await asyncio.gather(*(shop.beat(client, address) for address in shop.addresses)))
        told = [await shop.goodbye(client, address) for address in shop.addresses]
    await died(doomed, at)
    last = at.passage - 1
    assert told == [True] * last + [None] * (EXECUTORS - last)
    written = at.point == "registry.remove.after_commit"
    await shop.settled(shop.addresses[last + written :])
    listed = await shop.listed()
    _, client = await shop.node(PATIENT)
    async with client:
        assert await shop.goodbye(client, shop.addresses[last]) is not written
        assert (await shop.listed() == listed) is written, "what is done is not done again"
        await shop.settled(shop.addresses[at.passage :])
    assert [(address, why) for address, why, _ in await shop.removals()] == [
        (address, "goodbye") for address in shop.addresses[: at.passage]
    ]


async def sweeping_dies(rig: Rig, at: At) -> None:
    """While it removes executors that are silent, all but one; the next leader does what is left."""
    shop = Shop(rig)
    alive, *silent = shop.addresses
    doomed, client = await shop.node(SHORT, at)
    async with client:
        await shop.group(client)
        assert all(await asyncio.gather(*(shop.beat(client, address) for address in shop.addresses)))
        await eventually(lambda: _unanswered(shop, client, alive), deadline=20, every=0.1, message="it dies")
    await died(doomed, at)
    written = at.point == "registry.cleanup.after_commit"
    await shop.settled([alive] if written else shop.addresses)
    assert " removed: " not in doomed.log(), "no line says that they are removed"
    next_one, client = await shop.node(SHORT)
    async with client:

        async def all_removed() -> bool:
            await shop.beat(client, alive)
            return len(await shop.removals()) == len(silent)

        await eventually(all_removed, deadline=20, every=0.1, message="the silent are removed")
        shown = (await client.http.get(f"/registry/groups/{shop.app}")).json()["executors"]
    assert {one["address"] for one in shown if one["state"] == "REMOVED"} == set(silent)
    await shop.settled([alive])
    removals = await shop.removals()
    assert [(address, why) for address, why, _ in removals] == [(address, "silent") for address in silent]
    if not written:
        ((gained_at,),) = await rig.sql("SELECT gained_at FROM leases")
        assert min(when for *_, when in removals) >= _time(gained_at) + timedelta(seconds=DEAD), "it listened first"
        await next_one.wait_for_line(f"executor {silent[0]} of {shop.app} removed")


async def _unanswered(shop: Shop, client: Client, address: str) -> bool:
    return not await shop.beat(client, address)


def _time(stored: Any) -> datetime:
    """A time as a database returns it."""
    found = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return found if found.tzinfo else found.replace(tzinfo=UTC)
