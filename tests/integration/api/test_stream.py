"""Does a stream tell every change once, in order, and end when it should?"""

from __future__ import annotations

import asyncio
import json

import pytest

from orchestrix.api import streams
from orchestrix.api.instances import reads
from orchestrix.api.instances.models import StateEvent
from orchestrix.errors import Unavailable
from tests.support import eventually

from .answers import problem
from .world import Exchange, World


def ids(exchange: Exchange) -> list[str]:
    return [event["id"] for event in exchange.events]


async def test_a_finished_run_is_told_and_then_ends(world: World) -> None:
    instance = await world.completed()
    async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
        await exchange.done()
    assert exchange.status == 200
    assert exchange.ended
    assert exchange.headers["content-type"].startswith("text/event-stream")
    assert exchange.headers["x-accel-buffering"] == "no"
    assert ids(exchange) == ["1", "2", "3", "4"]
    assert {event["event"] for event in exchange.events} == {"state"}
    first, last = (json.loads(exchange.events[place]["data"]) for place in (0, -1))
    StateEvent.model_validate(first)
    assert (first["fromState"], first["toState"]) == (None, "APP_INITIATED")
    told = [json.loads(event["data"])["state"] for event in exchange.events]
    assert told == ["APP_INITIATED", "GIT_REPO_CREATED", "REGISTERING", "COMPLETED"], "the state at each version"
    assert (last["toState"], last["version"]) == ("COMPLETED", 4)
    assert exchange.body.startswith(b"retry: ")


async def test_changes_come_as_they_happen(world: World) -> None:
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
        await eventually(lambda: ids(exchange) == ["1"] and world.watch.waiting, deadline=5)
        moved = await world.advance(instance, "evt.gitRepoCreated")
        await eventually(lambda: ids(exchange) == ["1", "2", "3"] and world.watch.waiting, deadline=5)
        assert not exchange.ended
        await world.advance(moved, "evt.appRegistered")
        await exchange.done()
    assert ids(exchange) == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("path", "headers", "rest"),
    [
        ("", {"Last-Event-ID": "2"}, ["3", "4"]),
        ("?after=3", {}, ["4"]),
        ("?after=1", {"Last-Event-ID": "3"}, ["4"]),
        ("", {"Last-Event-ID": "0"}, ["1", "2", "3", "4"]),
    ],
)
async def test_a_stream_goes_on_where_it_was(world: World, path: str, headers: dict[str, str], rest: list[str]) -> None:
    instance = await world.completed()
    async with Exchange(world.app, f"/apps/{instance.id}/events{path}", headers=headers) as exchange:
        await exchange.done()
    assert ids(exchange) == rest


@pytest.mark.parametrize("seen", ["4", "99"])
async def test_a_client_that_has_seen_it_all_is_told_to_stay_away(world: World, seen: str) -> None:
    instance = await world.completed()
    answer = await world.client.get(f"/apps/{instance.id}/events", headers={"Last-Event-ID": seen})
    assert (answer.status_code, answer.content) == (204, b"")


async def test_a_client_ahead_of_a_live_instance_still_gets_its_end(world: World) -> None:
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}/events", headers={"Last-Event-ID": "99"}) as exchange:
        await eventually(lambda: world.watch.waiting, deadline=5)
        await world.advance(await world.advance(instance, "evt.gitRepoCreated"), "evt.appRegistered")
        await exchange.done()
    assert ids(exchange)[-1] == "4"


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9" * 20])
async def test_a_last_event_id_that_is_none_is_400(world: World, value: str) -> None:
    instance = await world.completed()
    answer = await world.client.get(f"/apps/{instance.id}/events", headers={"Last-Event-ID": value})
    problem(answer, 400, "bad_header")


async def test_many_changes_come_in_several_reads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "CHUNK", 2)
    instance = await world.completed()
    async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
        await exchange.done()
    assert ids(exchange) == ["1", "2", "3", "4"]


async def test_silence_is_broken_by_a_comment(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.05)
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
        await eventually(lambda: exchange.body.count(b"\n: ") >= 2, deadline=5)
    assert ids(exchange) == ["1"]


async def test_waiting_asks_the_database_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
        await eventually(lambda: world.watch.waiting, deadline=5)
        monkeypatch.setattr(world.database, "read", None)
        await eventually(lambda: world.watch.calls >= 3 and world.watch.waiting, deadline=10)
        assert not exchange.ended


async def test_a_stream_ends_when_the_process_stops(world: World) -> None:
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
        await eventually(lambda: world.watch.waiting, deadline=5)
        world.health.stopping = True
        await exchange.done()
    assert exchange.ended


async def test_a_stream_ends_when_the_client_goes_away(world: World) -> None:
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
        exchange.give()
        await eventually(lambda: world.watch.waiting, deadline=5)
        exchange.hang_up()
        await exchange.done()
    assert not world.watch.waiting


async def test_a_stream_whose_database_goes_away_ends_so_that_the_client_comes_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise Unavailable("away")

    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}/events") as exchange:
        await eventually(lambda: world.watch.waiting, deadline=5)
        monkeypatch.setattr(world.database, "read", away)
        world.watch.wake()
        await exchange.done()
    assert exchange.ended
    assert ids(exchange) == ["1"]


async def test_many_followers_are_all_told(world: World) -> None:
    instance = await world.started()
    streams = [Exchange(world.app, f"/apps/{instance.id}/events") for _ in range(50)]
    for one in streams:
        await one.__aenter__()
    try:
        await eventually(lambda: len(world.watch.waiting) == 50, deadline=10)
        await world.advance(await world.advance(instance, "evt.gitRepoCreated"), "evt.appRegistered")
        await asyncio.gather(*(one.done() for one in streams))
    finally:
        for one in streams:
            await one.__aexit__()
    assert {tuple(ids(one)) for one in streams} == {("1", "2", "3", "4")}
