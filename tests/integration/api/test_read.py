"""What do lists, single instances, history and messages show?"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import insert, update

from orchestrix import clock
from orchestrix.api.answers import moment
from orchestrix.api.instances.models import ChangePage, MessagePage, fields_of
from orchestrix.api.instances.models import SagaBody as Model
from orchestrix.errors import Unavailable
from orchestrix.persistence.sagas import hindered_instances
from orchestrix.persistence.sagas.saga_tables import APPS as TABLES
from orchestrix.persistence.tables import apps, outbox, saga_notes
from orchestrix.saga.messages import StepError
from orchestrix.saga.transition import block
from tests.support import eventually

from .answers import problem
from .world import AppPage, Exchange, SagaBody, SagaPage, World

GOOD_RUN = [
    (None, "APP_INITIATED"),
    ("APP_INITIATED", "GIT_REPO_CREATED"),
    ("GIT_REPO_CREATED", "REGISTERING"),
    ("REGISTERING", "COMPLETED"),
]


async def names(world: World, query: str = "") -> list[str]:
    answer = await world.client.get(f"/apps{query}")
    assert answer.status_code == 200, answer.text
    AppPage.model_validate(answer.json())
    return [item["appName"] for item in answer.json()["items"]]


async def pages(world: World, query: str) -> list[list[str]]:
    found = []
    following: str | None = f"/apps?{query}"
    while following:
        answer = await world.client.get(following)
        body = answer.json()
        found.append([item["appName"] for item in body["items"]])
        link = answer.headers.get("link")
        assert (body["nextCursor"] is None) == (link is None)
        following = link.removeprefix("<").removesuffix('>; rel="next"') if link else None
    return found


async def backdate(world: World, instance_id: int, minutes: int) -> None:
    when = clock.now() - timedelta(minutes=minutes)
    async with world.database.begin() as tx:
        await tx.execute(update(apps).where(apps.c.id == instance_id).values(created_at=when, updated_at=when))


# Lists


async def test_no_apps(world: World) -> None:
    answer = await world.client.get("/apps")
    assert answer.json() == {"items": [], "nextCursor": None}
    assert "link" not in answer.headers


async def test_the_newest_comes_first(world: World) -> None:
    for name in "abc":
        await world.started(name)
    assert await names(world) == ["c", "b", "a"]


@pytest.mark.parametrize("sort", ["createdAt", "-createdAt", "updatedAt", "-updatedAt", "appName", "-appName"])
async def test_pages_have_everything_once_and_in_order(world: World, sort: str) -> None:
    for name in ["b", "a", "B", "é", "🚀", "Z", "aa"]:
        await world.started(name)
    found = await pages(world, f"sort={sort}&limit=3")
    assert [len(page) for page in found] == [3, 3, 1]
    in_one = await names(world, f"?sort={sort}&limit=200")
    assert [name for page in found for name in page] == in_one
    if "appName" in sort:
        assert in_one == sorted(in_one, reverse=sort.startswith("-"))


async def test_apps_of_the_same_moment_are_not_lost_between_pages(world: World) -> None:
    when = clock.now()
    for name in "abcdefg":
        await world.started(name)
    async with world.database.begin() as tx:
        await tx.execute(update(apps).values(created_at=when))
    found = await pages(world, "limit=2")
    assert sorted(name for page in found for name in page) == list("abcdefg")


async def test_a_full_last_page_has_no_next(world: World) -> None:
    for name in "ab":
        await world.started(name)
    assert await pages(world, "limit=2&sort=appName") == [["a", "b"]]


async def test_filters_stay_with_the_next_page(world: World) -> None:
    for name in ["x1", "x2", "x3", "y1"]:
        await world.started(name)
    assert await pages(world, "q=x&limit=2&sort=appName&state=APP_INITIATED") == [["x1", "x2"], ["x3"]]


async def test_filters(world: World) -> None:
    first = await world.started("alpha", created_by="bob")
    await world.completed("Alpine")
    await world.started("beta%_\\")
    await backdate(world, first.id, 60)
    half = quote(moment(clock.now() - timedelta(minutes=30)))
    everything = {
        "state=COMPLETED": ["Alpine"],
        "state=COMPLETED&state=APP_INITIATED&sort=appName": ["Alpine", "alpha", "beta%_\\"],
        "state=FAILED": [],
        "createdBy=bob": ["alpha"],
        "createdBy=Bob": [],
        "q=al": ["alpha"],
        "q=Al": ["Alpine"],
        "q=&sort=appName": ["Alpine", "alpha", "beta%_\\"],
        "q=%25": [],
        "q=beta%25_": ["beta%_\\"],
        "q=beta__": [],
        f"createdAfter={half}&sort=appName": ["Alpine", "beta%_\\"],
        f"createdBefore={half}": ["alpha"],
    }
    for query, expected in everything.items():
        assert await names(world, f"?{query}") == expected, query


async def test_a_prefix_is_matched_in_its_composed_form(world: World) -> None:
    await world.started("café noir")
    assert await names(world, "?q=" + quote("cafe\u0301")) == ["café noir"]


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("state=NOWHERE", "state"),
        ("state=completed", "state"),
        ("state=", "state"),
        ("createdBy=", "createdBy"),
        ("createdAfter=", "createdAfter"),
        ("createdBefore=", "createdBefore"),
        ("limit=", "limit"),
        ("sort=", "sort"),
        ("cursor=", "cursor"),
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("sort=name", "sort"),
        ("sort=--createdAt", "sort"),
        ("sort=id", "sort"),
        ("createdAfter=2026-01-31", "createdAfter"),
        ("createdBefore=2026-01-31T12:00:00", "createdBefore"),
        ("cursor=rubbish", "cursor"),
        ("stuck=yes", "stuck"),
        ("stuck=", "stuck"),
        ("q=a&q=b", "q"),
        ("q=%00", "q"),
        ("createdBy=%ff", "query"),
    ],
)
async def test_a_wrong_parameter_is_400(world: World, query: str, name: str) -> None:
    answer = await world.client.get(f"/apps?{query}")
    assert problem(answer, 400, "bad_parameter")["parameter"] == name


async def test_a_cursor_of_another_order_or_another_letter_is_400(world: World) -> None:
    for name in "abc":
        await world.started(name)
    cursor = (await world.client.get("/apps?limit=1")).json()["nextCursor"]
    problem(await world.client.get(f"/apps?limit=1&sort=appName&cursor={cursor}"), 400, "bad_parameter")
    other = ("A" if cursor[8] != "A" else "B").join((cursor[:8], cursor[9:]))
    problem(await world.client.get(f"/apps?limit=1&cursor={other}"), 400, "bad_parameter")


# One


def waits_again(world: World, calls: int) -> bool:
    return world.watch.calls >= calls and bool(world.watch.waiting)


async def test_a_client_that_has_it_gets_304(world: World) -> None:
    instance = await world.started()
    path = f"/apps/{instance.id}"
    tag = (await world.client.get(path)).headers["etag"]
    same = await world.client.get(path, headers={"If-None-Match": tag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    await world.advance(instance, "evt.gitRepoCreated")
    changed = await world.client.get(path, headers={"If-None-Match": tag})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"3"')


@pytest.mark.parametrize("query", ["wait=30s&sinceVersion=1", "wait=30s", "wait=30000ms&sinceVersion=2"])
async def test_a_wait_ends_with_the_change(world: World, query: str) -> None:
    instance = await world.started()
    asked = asyncio.create_task(world.client.get(f"/apps/{instance.id}?{query}"))
    await eventually(lambda: world.watch.waiting, deadline=5)
    await world.advance(instance, "evt.gitRepoCreated")
    answer = await asyncio.wait_for(asked, 5)
    assert (answer.status_code, answer.json()["version"]) == (200, 3)


async def test_a_wait_for_a_change_that_was_is_no_wait(world: World) -> None:
    instance = await world.started()
    answer = await asyncio.wait_for(world.client.get(f"/apps/{instance.id}?wait=60s&sinceVersion=0"), 5)
    assert answer.json()["version"] == 1
    assert not world.watch.calls


async def test_a_wake_for_nothing_does_not_end_a_wait(world: World) -> None:
    instance = await world.started()
    asked = asyncio.create_task(world.client.get(f"/apps/{instance.id}?wait=30s&sinceVersion=1"))
    for calls in (1, 2, 3):
        await eventually(partial(waits_again, world, calls), deadline=5)
        world.watch.wake()
    await eventually(partial(waits_again, world, 4), deadline=5)
    assert not asked.done()
    await world.advance(instance, "evt.gitRepoCreated")
    assert (await asyncio.wait_for(asked, 5)).json()["version"] == 3


@pytest.mark.parametrize("query", ["wait=100ms", "wait=100ms&sinceVersion=7", "wait=0"])
async def test_a_wait_for_nothing_ends_with_the_state_as_it_is(world: World, query: str) -> None:
    instance = await world.started()
    before = clock.monotonic()
    answer = await world.client.get(f"/apps/{instance.id}?{query}")
    assert (answer.status_code, answer.json()["version"]) == (200, 1)
    assert clock.monotonic() - before >= (0 if query == "wait=0" else 0.1)


async def test_nothing_is_waited_for_when_it_has_ended(world: World) -> None:
    instance = await world.completed()
    answer = await asyncio.wait_for(world.client.get(f"/apps/{instance.id}?wait=60s"), 5)
    assert answer.json()["state"] == "COMPLETED"


async def test_a_wait_ends_when_the_process_stops(world: World) -> None:
    instance = await world.started()
    asked = asyncio.create_task(world.client.get(f"/apps/{instance.id}?wait=60s"))
    await eventually(lambda: world.watch.waiting, deadline=5)
    world.health.stopping = True
    assert (await asyncio.wait_for(asked, 5)).json()["version"] == 1


async def test_a_wait_ends_when_the_client_goes_away(world: World) -> None:
    instance = await world.started()
    async with Exchange(world.app, f"/apps/{instance.id}?wait=60s") as exchange:
        exchange.give()
        await eventually(lambda: world.watch.waiting, deadline=5)
        exchange.hang_up()
        await exchange.done()
    assert not world.watch.waiting


@pytest.mark.parametrize("query", ["wait=61s", "wait=x", "wait=-1", "wait=1m", "sinceVersion=-1", "sinceVersion=x"])
async def test_a_wrong_wait_is_400(world: World, query: str) -> None:
    instance = await world.started()
    answer = await world.client.get(f"/apps/{instance.id}?{query}")
    assert problem(answer, 400, "bad_parameter")["parameter"] == query.partition("=")[0]


# History and messages


@pytest.mark.req("S3-37", "S3-46")
async def test_history_tells_the_whole_run(world: World) -> None:
    instance = await world.completed()
    answer = await world.client.get(f"/apps/{instance.id}/history")
    ChangePage.model_validate(answer.json())
    items = answer.json()["items"]
    assert [(item["fromState"], item["toState"]) for item in items] == GOOD_RUN
    assert [item["version"] for item in items] == [1, 2, 3, 4]
    assert [item["reason"] for item in items] == ["created", "evt.gitRepoCreated", "immediate", "evt.appRegistered"]
    assert [item["actor"] for item in items] == ["ada", "orchestrator", "orchestrator", "orchestrator"]
    assert {item["correlationId"] for item in items} == {"c-1"}
    assert [item["causedBy"] for item in items][:2] == [None, "e-1"]
    assert answer.json()["nextCursor"] is None


async def test_history_in_pages(world: World) -> None:
    instance = await world.completed()
    first = await world.client.get(f"/apps/{instance.id}/history?limit=3")
    second = await world.client.get(f"/apps/{instance.id}/history?limit=3&cursor={first.json()['nextCursor']}")
    versions = [[item["version"] for item in answer.json()["items"]] for answer in (first, second)]
    assert versions == [[1, 2, 3], [4]]
    assert second.json()["nextCursor"] is None


@pytest.mark.parametrize("path", ["/apps/1", "/sagas/app/1"])
@pytest.mark.parametrize(("part", "grown"), [("history", 3), ("messages", 3)])
@pytest.mark.parametrize("query", ["wait=30s&sinceVersion=1", "wait=30s"])
async def test_history_and_messages_wait_for_the_change(
    world: World, path: str, part: str, grown: int, query: str
) -> None:
    instance = await world.started()
    asked = asyncio.create_task(world.client.get(f"{path}/{part}?{query}"))
    await eventually(lambda: world.watch.waiting, deadline=5)
    await world.advance(instance, "evt.gitRepoCreated")
    answer = await asyncio.wait_for(asked, 5)
    assert (answer.status_code, len(answer.json()["items"])) == (200, grown)


@pytest.mark.parametrize("part", ["history", "messages"])
async def test_history_and_messages_end_their_wait_as_the_instance_does(world: World, part: str) -> None:
    live, ended = await world.started("live"), await world.completed("ended")
    for id, query in [(live.id, "wait=50ms"), (live.id, "wait=60s&sinceVersion=0"), (ended.id, "wait=60s")]:
        answer = await asyncio.wait_for(world.client.get(f"/apps/{id}/{part}?{query}"), 5)
        assert (answer.status_code, answer.json()["nextCursor"]) == (200, None)
        assert answer.json()["items"]
    for query in ("wait=61s", "sinceVersion=x"):
        answer = await world.client.get(f"/apps/{live.id}/{part}?{query}")
        assert problem(answer, 400, "bad_parameter")["parameter"] == query.partition("=")[0]


async def test_the_next_page_of_a_history_does_not_wait_again(world: World) -> None:
    instance = await world.completed()
    answer = await world.client.get(f"/apps/{instance.id}/history?limit=3&wait=60s&sinceVersion=2")
    assert "wait" not in answer.headers["link"]
    assert "sinceVersion" not in answer.headers["link"]


async def messages(world: World, instance_id: int) -> list[dict[str, Any]]:
    answer = await world.client.get(f"/apps/{instance_id}/messages")
    MessagePage.model_validate(answer.json())
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_messages_of_a_good_run(world: World) -> None:
    instance = await world.completed()
    found = [(item["kind"], item["type"], item["status"]) for item in await messages(world, instance.id)]
    assert found == [
        ("command", "cmd.createGitRepo", "sent"),
        ("event", "evt.gitRepoCreated", "accepted"),
        ("command", "cmd.registerApp", "sent"),
        ("event", "evt.appRegistered", "accepted"),
    ]


async def test_messages_of_a_failure_say_why(world: World) -> None:
    started = await world.started()
    await world.advance(started, "evt.stepFailed", error=StepError("Full", "disk: full", False))
    last = (await messages(world, started.id))[-1]
    assert (last["type"], last["status"], last["reason"]) == ("evt.stepFailed", "accepted", "Full: disk: full")


async def test_the_command_of_the_next_try_has_not_left(world: World) -> None:
    started = await world.started()
    waiting = await world.advance(started, "evt.stepFailed", error=StepError("Full", "disk: full", True))
    first, failure, again = await messages(world, started.id)
    assert (first["id"], first["status"]) == (started.command_id, "sent")
    assert (failure["type"], failure["reason"]) == ("evt.stepFailed", "Full: disk: full")
    assert (again["id"], again["type"]) == (waiting.command_id, "cmd.createGitRepo")
    assert (again["status"], again["reason"]) == ("pending", "it waits for its next try")


async def test_what_waits_for_a_person_is_stuck(world: World) -> None:
    held, _ = await world.started("held"), await world.started("free")
    await world.store(held, block(held, "unsendable", "too large", clock.now()))
    await world.broker.consume(["cmd.createGitRepo"], 1)
    assert await names(world, "?stuck=true") == ["held"]
    assert await names(world, "?stuck=false") == ["free"]
    assert await names(world) == ["free", "held"]


async def test_what_nobody_works_for_is_stuck_at_once(world: World) -> None:
    """Its own wait has not ended, but its row says that its queue has no consumer."""
    rows = [await world.started(name) for name in ("a", "b", "c")]
    async with world.database.begin() as tx:
        await hindered_instances.record(tx, TABLES, rows, "no_consumer")
    assert await names(world, "?stuck=true&sort=appName&limit=2") == ["a", "b"]
    cursor = (await world.client.get("/apps?stuck=true&sort=appName&limit=2")).json()["nextCursor"]
    assert await names(world, f"?stuck=true&sort=appName&limit=2&cursor={cursor}") == ["c"]
    assert await names(world, "?stuck=false") == []
    world.broker.go_down()
    assert await names(world, "?stuck=true") == ["c", "b", "a"]


@pytest.mark.parametrize(("parked", "status"), [(None, "pending"), ("no such exchange", "parked")])
async def test_a_command_that_has_not_left(world: World, parked: str | None, status: str) -> None:
    instance = await world.started()
    row = {
        "id": instance.command_id,
        "saga": "app",
        "instance_id": instance.id,
        "version": 1,
        "n": 0,
        "exchange": "orchestrator.commands",
        "routing_key": "cmd.createGitRepo",
        "type": "cmd.createGitRepo",
        "correlation_id": "c-1",
        "body": b"{}",
        "timeout_ms": 1,
        "created_at": clock.now(),
        "claimed_until": clock.now(),
        "parked_reason": parked,
    }
    async with world.database.begin() as tx:
        await tx.execute(insert(outbox).values(row))
    (only,) = await messages(world, instance.id)
    assert (only["id"], only["type"], only["status"], only["reason"]) == (
        instance.command_id,
        "cmd.createGitRepo",
        status,
        parked,
    )


async def test_ignored_events_are_counted(world: World) -> None:
    instance = await world.completed()
    now = clock.now()
    note = {"kind": "ignored", "type": "evt.gitRepoCreated", "reason": "repeated", "count": 3}
    async with world.database.begin() as tx:
        await tx.execute(
            insert(saga_notes).values(
                {**note, "saga": "app", "instance_id": instance.id, "first_at": now, "last_at": now}
            )
        )
    last = (await messages(world, instance.id))[-1]
    assert (last["type"], last["status"], last["reason"], last["count"]) == (
        "evt.gitRepoCreated",
        "ignored",
        "repeated",
        3,
    )


# Sagas of the user's own


async def test_a_saga_of_the_users_own(world: World) -> None:
    wish = {"key": "o-1", "createdBy": "ada", "data": {"amount": 12}}
    created = await world.client.post("/sagas/order", json=wish)
    assert created.status_code == 200
    body = created.json()
    SagaBody.model_validate(body)
    assert (body["saga"], body["key"], body["state"], body["data"]) == ("order", "o-1", "UNPAID", {"amount": 12})
    assert "appName" not in body
    assert created.headers["location"] == f"/sagas/order/{body['id']}"
    assert (await world.client.get(created.headers["location"])).json() == body
    page = await world.client.get("/sagas/order?state=UNPAID&q=o&sort=-key")
    SagaPage.model_validate(page.json())
    assert page.json()["items"] == [body]
    history = await world.client.get(f"{created.headers['location']}/history")
    assert [item["toState"] for item in history.json()["items"]] == ["UNPAID"]
    again = await world.client.post("/sagas/order", json=wish)
    assert problem(again, 409, "already_exists")["existing"] == created.headers["location"]


@pytest.mark.parametrize("data", [{"amount": "many"}, {"colour": "blue"}])
async def test_the_model_of_the_users_own_is_asked(world: World, data: dict[str, Any]) -> None:
    answer = await world.client.post("/sagas/order", json={"key": "o-1", "createdBy": "ada", "data": data})
    (error,) = problem(answer, 422, "invalid_body")["errors"]
    assert error["pointer"] == f"/data/{next(iter(data))}"


async def test_sagas_of_apps_are_the_apps(world: World) -> None:
    instance = await world.completed()
    one = (await world.client.get(f"/sagas/app/{instance.id}")).json()
    assert (one["saga"], one["key"], one["appName"], one["state"]) == ("app", "billing", "billing", "COMPLETED")
    listed = await world.client.get("/sagas/app")
    assert listed.json()["items"] == [one]
    for part in ("history", "messages"):
        same = await world.client.get(f"/apps/{instance.id}/{part}")
        assert (await world.client.get(f"/sagas/app/{instance.id}/{part}")).json() == same.json()


async def test_apps_are_not_started_as_sagas(world: World) -> None:
    answer = await world.client.post("/sagas/app", json={"key": "a", "createdBy": "b"})
    assert "/apps" in problem(answer, 409, "use_apps")["detail"]


async def test_an_instance_of_another_saga_is_404(world: World) -> None:
    order = await world.started("o-1", "order")
    for path in ("/apps", "/sagas/app"):
        problem(await world.client.get(f"{path}/{order.id}"), 404, "not_found")
    problem(await world.client.get(f"/sagas/order/{order.id + 1}"), 404, "not_found")


async def test_no_database_is_503(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> None:
        raise Unavailable("away")

    monkeypatch.setattr(world.database, "read", away)
    for path in ("/apps", "/apps/1", "/apps/1/history", "/apps/1/messages", "/apps/1/events", "/sagas/order"):
        answer = await world.client.get(path)
        problem(answer, 503, "unavailable")
        assert answer.headers["retry-after"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/cluster/nodes/{}/drain"),
        ("GET", "/schedules/{}"),
        ("GET", "/jobs/{}"),
        ("GET", "/jobs/{}/logs"),
        ("GET", "/dead-letters/{}"),
        ("GET", "/apps/{}"),
        ("GET", "/sagas/{}"),
        ("GET", "/sagas/{}/1"),
    ],
)
@pytest.mark.parametrize("part", ["%00", "a%00b", "x" * 2000])
async def test_what_no_database_can_hold_is_in_none(world: World, method: str, path: str, part: str) -> None:
    answer = await world.client.request(method, path.format(part))
    found = problem(answer, 404, "not_found")
    assert "nothing has such a name" in found["detail"]


async def test_what_is_written_without_validation_is_what_the_model_writes(world: World) -> None:
    for instance in (await world.started("a", data={"x": [1]}), await world.completed("b")):
        assert fields_of(instance) == Model.of(instance).model_dump(mode="json")
        assert list(fields_of(instance)) == list(Model.of(instance).model_dump(mode="json"))
