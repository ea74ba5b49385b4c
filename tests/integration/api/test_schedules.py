"""Can schedules be made, looked at, changed, paused, run, made up for and forgotten over HTTP?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from orchestrix import clock
from orchestrix.api.jobs.models import JobBody
from orchestrix.api.schedules.models import BackfilledBody, DeletedBody, PreviewBody, ScheduleBody
from orchestrix.domain.jobs import DISPATCHED, PENDING, RUNNING, JobRow
from orchestrix.domain.schedules import BACKFILL_LIMIT, QUEUED_WAKE_AT, Schedule
from orchestrix.persistence.jobs import jobs, schedules
from orchestrix.persistence.tables import audit
from orchestrix.schedules.service import ScheduleRequester, ScheduleService

from .answers import JSON, problem
from .world import World

JOB = {"queue": "reports", "handler": "monthly", "payload": {"month": 3}, "timeout": "10m", "retries": 2}
NIGHTLY = {"name": "nightly", "cron": "30 2 * * *", "timeZone": "Europe/Berlin", "job": JOB}
HOURLY = {"name": "hourly", "interval": "1h", "job": JOB}


async def made(world: World, **more: Any) -> dict[str, Any]:
    answer = await world.client.post("/schedules", json={**HOURLY, **more})
    assert answer.status_code == 201, answer.text
    return shown(answer)


def shown(answer: httpx.Response) -> dict[str, Any]:
    body: dict[str, Any] = answer.json()
    ScheduleBody.model_validate(body)
    assert answer.headers["etag"] == f'"{body["version"]}"'
    return body


async def runs(world: World, schedule: dict[str, Any]) -> list[JobRow]:
    async with world.database.read() as connection:
        found = await jobs.page(connection, jobs.JobFilter(schedule_id=schedule["id"]), 2000)
    return sorted(found, key=lambda job: job.id)


async def at_work(world: World, job: JobRow) -> None:
    """A worker is at it."""
    async with world.database.begin() as tx:
        (before,) = (await jobs.lock(tx, [job.id])).values()
        await jobs.store(tx, [(before.version, replace(before, state=RUNNING, history_id=clock.uuid7(), version=2))])


async def test_one_is_made(world: World) -> None:
    answer = await world.client.post("/schedules", json=NIGHTLY)
    assert answer.status_code == 201
    body = shown(answer)
    assert answer.headers["location"] == f"/schedules/{body['id']}"
    assert (body["cron"], body["intervalMs"], body["timeZone"], body["state"]) == (
        "30 2 * * *",
        None,
        "Europe/Berlin",
        "ACTIVE",
    )
    assert (body["overlap"], body["misfire"], body["catchUp"], body["missedAfterMs"]) == (
        "skip",
        "fire_once",
        10,
        60000,
    )
    assert body["job"] == {
        "queue": "reports",
        "group": None,
        "routing": None,
        "handler": "monthly",
        "payload": {"month": 3},
        "timeoutMs": 600_000,
        "retries": 2,
    }
    assert body["createdBy"] == "anonymous"
    due = datetime.fromisoformat(body["dueAt"])
    assert timedelta(0) < due - clock.now() <= timedelta(days=1, hours=1)
    assert world.due, "the leader was told"
    for key in (body["id"], "nightly"):
        assert shown(await world.client.get(f"/schedules/{key}")) == body
    again = await world.client.get("/schedules/nightly", headers={"If-None-Match": '"1"'})
    assert again.status_code == 304


async def test_a_name_is_taken_once(world: World) -> None:
    first = await made(world)
    taken = problem(await world.client.post("/schedules", json=HOURLY), 409, "already_exists")
    assert taken["existing"] == f"/schedules/{first['id']}"
    await made(world, name="Hourly")


async def test_pages_go_by_name(world: World) -> None:
    for name in ("c", "a", "b"):
        await made(world, name=name)
    first = await world.client.get("/schedules?limit=2")
    assert [one["name"] for one in first.json()["items"]] == ["a", "b"]
    rest = await world.client.get("/schedules", params={"cursor": first.json()["nextCursor"]})
    assert [one["name"] for one in rest.json()["items"]] == ["c"]
    assert rest.json()["nextCursor"] is None
    problem(await world.client.get("/schedules?cursor=x"), 400, "bad_parameter")


@pytest.mark.parametrize(
    ("more", "pointer", "says"),
    [
        ({"cron": "61 2 * * *"}, "/cron", "the minute '61', which cannot be read: write * or 0 to 59"),
        ({"cron": "0 2 * *"}, "/cron", "not 4"),
        ({"cron": "0 0 31 2 *"}, "/cron", "is never due"),
        ({"cron": "0 0 * * MON-SUN"}, "/cron", "whose range goes from high to low: write * or MON-SAT,SUN"),
        ({"cron": "0 0 L * *"}, "/cron", "the day of month 'L'"),
        ({"timeZone": "Europe/Berln"}, "/timeZone", "did you mean Europe/Berlin?"),
        ({"timeZone": "utc"}, "/timeZone", "did you mean UTC?"),
        ({"timeZone": "localtime"}, "/timeZone", "is not in the IANA time zone database"),
        ({"timeZone": "Factory"}, "/timeZone", "is not in the IANA time zone database"),
        ({"timeZone": "/usr/share/zoneinfo/UTC"}, "/timeZone", "is not in the IANA time zone database"),
        ({"cron": "*/61 * * * *"}, "/cron", "whose step does not fit: write one from 1 to 60"),
        ({"job": {**JOB, "payload": [1]}}, "/job/payload", "must be an object"),
        ({"timeZone": "../etc/passwd"}, "/timeZone", "is not in the IANA time zone database"),
        ({"interval": "1h"}, "", "must have cron or interval, and not both"),
        ({"cron": None}, "", "must have cron or interval, and not both"),
        ({"overlap": "allow"}, "/overlap", "must be one of skip, queue, cancel_previous"),
        ({"misfire": "never"}, "/misfire", "must be one of ignore, fire_once, catch_up"),
        ({"catchUp": 101}, "/catchUp", "must be a whole number from 1 to 100"),
        ({"jitter": "2d"}, "/jitter", "must be from 1ms to 1d"),
        ({"missedAfter": "soon"}, "/missedAfter", "30s"),
        ({"missedAfter": "1ms", "misfire": "ignore"}, "/missedAfter", "write 10s or more"),
        ({"missedAfter": 9.999}, "/missedAfter", "write 10s or more"),
        ({"missedAfter": 1e-9}, "/missedAfter", "from 1ms to 3650d"),
        ({"missedAfter": 1e308}, "/missedAfter", "from 1ms to 3650d"),
        ({"endsAt": "2020-01-01T00:00:00Z"}, "/endsAt", "it would never be due"),
        ({"startsAt": "9999-12-30T00:00:00Z"}, "/startsAt", "before 2200"),
        ({"endsAt": "0001-01-01T00:00:00+23:00"}, "/endsAt", "2026-01-31T12:00:00Z"),
        ({"misfire": "catch_up", "overlap": "cancel_previous"}, "/misfire", "choose fire_once"),
        ({"name": "a b"}, "/name", "letters, digits"),
        ({"name": "00000000-0000-8000-8000-000000000000"}, "/name", "must not look like an id"),
        ({"job": {"queue": "reports"}}, "/job/handler", "is missing: send a text of 1 to 200 code points"),
        ({"job": {**JOB, "createdBy": "x"}}, "/job", "the schedule's own"),
        ({"job": {**JOB, "queue": "a/b"}}, "/job/queue", "letters, digits"),
        ({"job": None}, "/job", "must be an object"),
        ({"colour": "red"}, "/colour", "is not known here; known are cron, interval, startsAt"),
        ({"timezone": "UTC"}, "/timezone", "is not known here: did you mean timeZone?"),
    ],
)
async def test_what_is_wrong_is_said_with_what_to_do(
    world: World, more: dict[str, Any], pointer: str, says: str
) -> None:
    body = problem(await world.client.post("/schedules", json={**NIGHTLY, **more}), 422, "invalid_body")
    assert [error["pointer"] for error in body["errors"]] == [pointer]
    assert says in body["errors"][0]["detail"]
    assert not body["detail"].endswith(("..", "?."))
    async with world.database.read() as connection:
        assert await schedules.page(connection, 10) == []


@pytest.mark.parametrize("interval", ["0s", "500ms", "999ms", 0.5, -1, "1.0005s", "3651d", "soon", True, [], {}])
async def test_a_wrong_interval_is_told_in_one_sentence(world: World, interval: Any) -> None:
    body = problem(await world.client.post("/schedules", json={**HOURLY, "interval": interval}), 422, "invalid_body")
    sentence = "must be whole milliseconds from 1s to 3650d: seconds, or a text such as 1.5s, 90s, 5m or 1d"
    assert body["errors"] == [{"pointer": "/interval", "detail": sentence}]


@pytest.mark.parametrize("jitter", ["0s", 0, "0.1ms", "25h", "2d", "soon", False])
async def test_a_wrong_jitter_is_told_in_one_sentence(world: World, jitter: Any) -> None:
    wish = {**HOURLY, "interval": "7d", "jitter": jitter}
    body = problem(await world.client.post("/schedules", json=wish), 422, "invalid_body")
    sentence = "must be from 1ms to 1d: seconds, or a text such as 500ms, 30s or 5m; leave it out for none"
    assert body["errors"] == [{"pointer": "/jitter", "detail": sentence}]


@pytest.mark.parametrize(("interval", "jitter"), [("1h", "1h"), ("90s", "2m")])
async def test_a_jitter_is_below_the_interval(world: World, interval: str, jitter: str) -> None:
    wish = {**HOURLY, "interval": interval, "jitter": jitter}
    body = problem(await world.client.post("/schedules", json=wish), 422, "invalid_body")
    assert "must be below interval" in body["errors"][0]["detail"]


async def test_a_change_takes_the_place_of_what_was_there(world: World) -> None:
    one = await made(world, jitter="5m")
    path = f"/schedules/{one['id']}"
    changed = shown(await world.client.patch(path, json={"overlap": "queue", "jitter": None, "reason": "r"}))
    assert changed == {
        **one,
        "overlap": "queue",
        "jitterMs": 0,
        "nextAt": one["dueAt"],
        "version": 2,
        "updatedAt": changed["updatedAt"],
    }
    assert shown(await world.client.patch(path, json={"overlap": "queue"}))["version"] == 2, "it is so already"
    other = shown(await world.client.patch(path, json={"cron": "0 3 * * *", "timeZone": "Asia/Tokyo"}))
    assert (other["cron"], other["intervalMs"], other["timeZone"]) == ("0 3 * * *", None, "Asia/Tokyo")
    assert datetime.fromisoformat(other["dueAt"]).astimezone(UTC).hour == 18


async def test_a_change_of_the_job_leaves_the_rest_of_it(world: World) -> None:
    one = await made(world)
    path = "/schedules/hourly"
    changed = shown(await world.client.patch(path, json={"job": {"payload": {"month": 4}, "retries": 5}}))
    assert changed["job"] == {**one["job"], "payload": {"month": 4}, "retries": 5}
    assert (changed["version"], changed["dueAt"]) == (2, one["dueAt"])
    rest = {"queue": "letters", "handler": "weekly", "timeout": None}
    other = shown(await world.client.patch(path, json={"job": rest, "overlap": "queue"}))
    new = {"queue": "letters", "handler": "weekly", "timeoutMs": None}
    assert (other["job"], other["overlap"]) == ({**changed["job"], **new}, "queue")
    run = (await world.client.post(f"{path}/run")).json()
    assert (run["queue"], run["payload"], run["timeoutMs"], run["retries"]) == ("letters", {"month": 4}, None, 5)
    timed = shown(await world.client.patch(path, json={"job": {"timeout": "90s"}}))
    assert timed["job"]["timeoutMs"] == 90_000


async def test_a_change_of_the_job_takes_nothing_of_another_change_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody changes it between the look at it and the change."""
    await made(world)
    real, looks = ScheduleService.get, 0

    async def get(timetable: ScheduleService, key: str) -> Schedule:
        nonlocal looks
        looks += 1
        found = await real(timetable, key)
        if looks == 1:
            await timetable.change(key, {"job": {**found.job, "retries": 9}}, ScheduleRequester("bob", "more"))
        return found

    monkeypatch.setattr(ScheduleService, "get", get)
    changed = shown(await world.client.patch("/schedules/hourly", json={"job": {"payload": {"month": 4}}}))
    assert (changed["job"]["retries"], changed["job"]["payload"], changed["version"]) == (9, {"month": 4}, 3)
    stale = await world.client.patch("/schedules/hourly", json={"job": {"payload": {}}}, headers={"If-Match": '"1"'})
    assert problem(stale, 412, "version_mismatch")["current"] == 3


async def test_a_change_can_ask_for_a_version(world: World) -> None:
    await made(world)
    stale = await world.client.patch("/schedules/hourly", json={"overlap": "queue"}, headers={"If-Match": '"7"'})
    refused = problem(stale, 412, "version_mismatch")
    assert (refused["current"], stale.headers["etag"]) == (1, '"1"')
    sentence = 'It is at version 1 now: look at it again, then send If-Match: "1" if you still want it.'
    assert refused["detail"] == sentence
    fine = await world.client.patch("/schedules/hourly", json={"overlap": "queue"}, headers={"If-Match": '"1"'})
    assert shown(fine)["version"] == 2


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"cron": "x"}, "/cron"),
        ({"cron": None}, ""),
        ({"cron": "0 0 * * *", "interval": "1h"}, ""),
        ({"overlap": None}, ""),
        ({"job": None}, ""),
        ({"job": {"queue": None}}, "/job"),
        ({"job": {"queue": "a/b"}}, "/job/queue"),
        ({"job": {"retries": -1}}, "/job/retries"),
        ({"job": {"createdBy": "x"}}, "/job/createdBy"),
        ({"name": "other"}, "/name"),
        ({"jitter": "1h"}, "/jitter"),
        ({"timeZone": "Nowhere"}, "/timeZone"),
        ({"job": {"payload": "x"}}, "/job/payload"),
        ({"job": {"payload": None}}, "/job"),
        ({"endsAt": "2020-01-01T00:00:00Z"}, "/endsAt"),
    ],
)
async def test_a_bad_change_changes_nothing(world: World, change: dict[str, Any], pointer: str) -> None:
    one = await made(world)
    body = problem(await world.client.patch("/schedules/hourly", json=change), 422, "invalid_body")
    assert [error["pointer"] for error in body["errors"]] == [pointer]
    assert shown(await world.client.get("/schedules/hourly")) == one


async def test_a_pause_ends_with_the_next_due_time_from_then_on(world: World) -> None:
    await made(world)
    paused = shown(await world.client.post("/schedules/hourly/pause", json={"reason": "the warehouse moves"}))
    assert (paused["state"], paused["dueAt"], paused["nextAt"], paused["version"]) == ("PAUSED", None, None, 2)
    assert shown(await world.client.post("/schedules/hourly/pause")) == paused
    changed = shown(await world.client.patch("/schedules/hourly", json={"interval": "2h"}))
    assert (changed["state"], changed["dueAt"]) == ("PAUSED", None)
    resumed = shown(await world.client.post("/schedules/hourly/resume"))
    assert (resumed["state"], resumed["pausedAt"]) == ("ACTIVE", None)
    assert datetime.fromisoformat(resumed["dueAt"]) > clock.now()
    assert shown(await world.client.post("/schedules/hourly/resume")) == resumed


async def test_a_run_by_hand(world: World) -> None:
    one = await made(world)
    answer = await world.client.post("/schedules/hourly/run", json={"reason": "at once"})
    assert answer.status_code == 201
    JobBody.model_validate(answer.json())
    (job,) = await runs(world, one)
    assert answer.headers["location"] == f"/jobs/{job.id}"
    assert (job.due_at, job.queue, job.payload is None, job.timeout_ms) == (None, "reports", True, 600_000)
    assert answer.json()["payload"] == {"month": 3}
    assert shown(await world.client.get("/schedules/hourly"))["lastJobId"] == job.id
    refused = problem(await world.client.post("/schedules/hourly/run"), 409, "illegal_transition")
    assert (
        refused["detail"]
        == "One of its runs is waiting to start, and its overlap is skip: wait until that run ends, or cancel it."
    )
    await at_work(world, job)
    refused = problem(await world.client.post("/schedules/hourly/run"), 409, "illegal_transition")
    assert "is running" in refused["detail"]


async def test_a_run_by_hand_waits_or_cancels_as_the_overlap_says(world: World) -> None:
    queue = await made(world, name="queue", overlap="queue")
    for _ in range(2):
        assert (await world.client.post("/schedules/queue/run")).status_code == 201
    assert [job.wake_at == QUEUED_WAKE_AT for job in await runs(world, queue)] == [False, True]
    other = await made(world, name="other", overlap="cancel_previous")
    await world.client.post("/schedules/other/run")
    (first,) = await runs(world, other)
    await at_work(world, first)
    assert (await world.client.post("/schedules/other/run")).json()["wakeAt"] is None
    assert (await world.client.post("/schedules/other/run")).status_code == 201
    first, second, third = await runs(world, other)
    assert (first.state, second.state, third.wake_at) == ("RUNNING", "CANCELLED", QUEUED_WAKE_AT)
    assert first.cancel_reason == "run-schedule: no reason was given"
    assert {stop.job.id for stop in world.stops} == {first.id}


async def test_a_range_of_the_past_is_made_up_for_once(world: World) -> None:
    one = await made(world, name="daily", interval=None, cron="0 12 * * *")
    span = {"from": "2024-01-01T00:00:00Z", "to": "2024-01-04T12:00:00Z"}
    path = "/schedules/daily/backfill"
    dry = (await world.client.post(path, json={**span, "dryRun": True})).json()
    BackfilledBody.model_validate(dry)
    expected = [f"2024-01-0{day}T12:00:00.000000Z" for day in (1, 2, 3)]
    assert dry == {"dryRun": True, "dueTimes": expected, "present": 0, "jobs": [], "note": None}
    assert await runs(world, one) == []
    done = (await world.client.post(path, json=span)).json()
    found = await runs(world, one)
    assert done == {
        "dryRun": False,
        "dueTimes": expected,
        "present": 0,
        "jobs": [job.id for job in found],
        "note": None,
    }
    assert [job.wake_at == QUEUED_WAKE_AT for job in found] == [False, True, True]
    again = (await world.client.post(path, json={**span, "to": "2024-01-05T12:00:01+00:00"})).json()
    assert (again["dueTimes"], again["present"]) == (["2024-01-04T12:00:00.000000Z", "2024-01-05T12:00:00.000000Z"], 3)


@pytest.mark.parametrize(
    ("span", "pointer", "says"),
    [
        ({"from": "2024-01-02T00:00:00Z", "to": "2024-01-01T00:00:00Z"}, "/to", "later than from"),
        ({"from": "2024-01-02T00:00:00Z", "to": "2199-01-01T00:00:00Z"}, "/to", "must not be in the future"),
        ({"from": "2023-01-01T00:00:00Z", "to": "2023-02-12T00:00:00Z"}, "/to", f"more than {BACKFILL_LIMIT}"),
        ({"from": "yesterday", "to": "2024-01-01T00:00:00Z"}, "/from", "2026-01-31T12:00:00Z"),
        ({"from": "0001-01-02T00:00:00Z", "to": "2024-01-01T00:00:00Z"}, "/from", "from the year 2000"),
        ({"to": "2024-01-01T00:00:00Z"}, "/from", "is missing: send a time with its zone"),
    ],
)
async def test_a_backfill_is_bounded(world: World, span: dict[str, str], pointer: str, says: str) -> None:
    await made(world, interval=None, cron="@hourly")
    body = problem(await world.client.post("/schedules/hourly/backfill", json=span), 422, "invalid_body")
    assert body["errors"][0]["pointer"] == pointer
    assert says in body["errors"][0]["detail"]
    exactly = {"from": "2023-01-01T00:00:00Z", "to": "2023-02-11T16:00:00Z", "dryRun": True}
    fine = (await world.client.post("/schedules/hourly/backfill", json=exactly)).json()
    assert len(fine["dueTimes"]) == BACKFILL_LIMIT


@pytest.mark.parametrize("more", [{"interval": "1h"}, {"interval": None, "cron": "@hourly"}], ids=["interval", "cron"])
async def test_a_backfill_says_that_the_schedule_begins_later(world: World, more: dict[str, Any]) -> None:
    await made(world, **more, startsAt="2024-01-01T22:00:00+02:00")
    path, end = "/schedules/hourly/backfill", "2024-01-01T22:00:00Z"
    early = (await world.client.post(path, json={"from": "2024-01-01T12:00:00Z", "to": end, "dryRun": True})).json()
    assert early["dueTimes"] == [f"2024-01-01T2{hour}:00:00.000000Z" for hour in (0, 1)]
    assert early["note"] == "the schedule starts at 2024-01-01T20:00:00Z: it has no earlier due times"
    late = (await world.client.post(path, json={"from": "2024-01-01T20:00:00Z", "to": end, "dryRun": True})).json()
    assert late == {**early, "note": None}


async def test_a_backfill_says_when_an_interval_without_a_start_begins(world: World) -> None:
    one = await made(world)
    span = {"from": "2024-01-01T00:00:00Z", "to": "2024-01-02T00:00:00Z"}
    done = (await world.client.post("/schedules/hourly/backfill", json=span)).json()
    assert done["dueTimes"] == []
    assert done["note"].startswith(f"the schedule starts at {one['createdAt'][:19]}Z")


async def test_a_backfill_that_the_next_due_time_would_cancel_is_refused(world: World) -> None:
    await made(world, overlap="cancel_previous", interval=None, cron="@daily")
    span = {"from": "2024-01-01T00:00:00Z", "to": "2024-01-03T00:00:00Z"}
    refused = problem(await world.client.post("/schedules/hourly/backfill", json=span), 409, "illegal_transition")
    assert "pause it first" in refused["detail"]
    await world.client.post("/schedules/hourly/pause")
    assert len((await world.client.post("/schedules/hourly/backfill", json=span)).json()["jobs"]) == 2


async def test_a_preview_shows_local_times(world: World) -> None:
    await made(world, **{**NIGHTLY, "interval": None, "startsAt": "2026-03-28T00:00:00Z", "jitter": "10m"})
    async with world.database.begin() as tx:
        one = await schedules.lock(tx, "nightly")
        assert one is not None
        due = datetime(2026, 3, 28, 1, 30, tzinfo=UTC)
        await schedules.store(tx, one, replace(one, due_at=due))
    body = (await world.client.get("/schedules/nightly/preview?count=3")).json()
    PreviewBody.model_validate(body)
    assert [item["local"] for item in body["items"]] == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]
    assert [item["dueAt"] for item in body["items"]][1] == "2026-03-29T01:00:00.000000Z"
    assert all(item["dueAt"] <= item["beginsAt"] for item in body["items"])
    assert len((await world.client.get("/schedules/nightly/preview")).json()["items"]) == 10
    for count in ("0", "101", "x"):
        problem(await world.client.get(f"/schedules/nightly/preview?count={count}"), 400, "bad_parameter")


async def test_a_preview_of_a_paused_one_is_as_if_it_were_resumed(world: World) -> None:
    await made(world)
    await world.client.post("/schedules/hourly/pause")
    items = (await world.client.get("/schedules/hourly/preview?count=2")).json()["items"]
    assert datetime.fromisoformat(items[1]["dueAt"]) - datetime.fromisoformat(items[0]["dueAt"]) == timedelta(hours=1)


async def test_what_waits_ends_with_its_schedule(world: World) -> None:
    one = await made(world, overlap="queue")
    for _ in range(3):
        await world.client.post("/schedules/hourly/run")
    first = (await runs(world, one))[0]
    await at_work(world, first)
    answer = await world.client.delete("/schedules/hourly?reason=rubbish")
    gone = answer.json()
    DeletedBody.model_validate(gone)
    assert (gone["id"], gone["runsCancelled"], gone["runsOngoing"]) == (one["id"], 2, 1)
    assert answer.headers["etag"] == f'"{gone["version"]}"'
    assert [job.state for job in await runs(world, one)] == ["RUNNING", "CANCELLED", "CANCELLED"]
    problem(await world.client.get("/schedules/hourly"), 404, "not_found")
    problem(await world.client.delete("/schedules/hourly"), 404, "not_found")


async def changed(world: World, job: JobRow, **fields: Any) -> None:
    """Something has happened to it."""
    async with world.database.begin() as tx:
        (before,) = (await jobs.lock(tx, [job.id])).values()
        after = replace(before, history_id=clock.uuid7(), dispatched_at=tx.now(), version=before.version + 1, **fields)
        await jobs.store(tx, [(before.version, after)])


@pytest.mark.parametrize(
    ("state", "attempt", "after"),
    [
        (PENDING, 0, "CANCELLED"),
        (DISPATCHED, 1, "CANCELLED"),
        (RUNNING, 1, RUNNING),
        (PENDING, 1, PENDING),
        (DISPATCHED, 2, DISPATCHED),
    ],
)
async def test_a_run_ends_with_its_schedule_unless_a_worker_has_begun_it(
    world: World, state: str, attempt: int, after: str
) -> None:
    one = await made(world)
    await world.client.post("/schedules/hourly/run")
    (run,) = await runs(world, one)
    await changed(world, run, state=state, attempt=attempt)
    gone = (await world.client.delete("/schedules/hourly")).json()
    (left,) = await runs(world, one)
    ended = after == "CANCELLED"
    assert (left.state, left.cancel_reason) == (after, "its schedule was deleted" if ended else None)
    assert (gone["runsCancelled"], gone["runsOngoing"]) == (int(ended), int(not ended))


async def test_a_run_that_is_begun_while_its_schedule_is_deleted_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await made(world)
    await world.client.post("/schedules/hourly/run")
    (run,) = await runs(world, one)
    async with world.database.read() as connection:
        seen = await schedules.not_started_ids(connection, one["id"])
    assert seen == [run.id]
    await changed(world, run, state=RUNNING, attempt=1)

    async def earlier(*_: Any) -> list[str]:
        return seen

    monkeypatch.setattr(schedules, "not_started_ids", earlier)
    gone = (await world.client.delete("/schedules/hourly")).json()
    assert (gone["runsCancelled"], gone["runsOngoing"]) == (0, 1)
    (left,) = await runs(world, one)
    assert (left.state, left.cancel_reason) == (RUNNING, None)


async def test_a_stored_schedule_that_cannot_be_read_is_a_problem_and_no_riddle(world: World) -> None:
    await made(world)
    await world.client.post("/schedules/hourly/pause")
    async with world.database.begin() as tx:
        before = await schedules.lock(tx, "hourly")
        assert before is not None
        await schedules.store(tx, before, replace(before, zone="Mars/Olympus"))
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    for answer in (
        await world.client.post("/schedules/hourly/resume"),
        await world.client.get("/schedules/hourly/preview"),
        await world.client.post("/schedules/hourly/backfill", json=span),
    ):
        assert problem(answer, 422, "invalid_body")["errors"][0]["pointer"] == "/timeZone"
    assert (await world.client.patch("/schedules/hourly", json={"timeZone": "UTC"})).status_code == 200
    assert (await world.client.post("/schedules/hourly/resume")).status_code == 200


async def test_a_schedule_that_only_an_earlier_version_lets_in_goes_on_until_it_is_edited(world: World) -> None:
    await made(world)
    await world.client.post("/schedules/hourly/pause")
    async with world.database.begin() as tx:
        before = await schedules.lock(tx, "hourly")
        assert before is not None
        await schedules.store(tx, before, replace(before, zone="Factory", cron="*/90 * * * *", interval_ms=None))
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T03:00:00Z", "dryRun": True}
    for answer in (
        await world.client.post("/schedules/hourly/backfill", json=span),
        await world.client.post("/schedules/hourly/resume"),
        await world.client.get("/schedules/hourly/preview"),
    ):
        assert answer.status_code == 200, answer.text
    for change, pointer in (({"timeZone": "UTC"}, "/cron"), ({"cron": "0 * * * *"}, "/timeZone")):
        body = problem(await world.client.patch("/schedules/hourly", json=change), 422, "invalid_body")
        assert [error["pointer"] for error in body["errors"]] == [pointer]


async def test_what_people_do_is_written_down(world: World) -> None:
    await made(world)
    await world.client.post("/schedules/hourly/pause", json={"reason": "the warehouse moves"})
    await world.client.post("/schedules/hourly/run")
    await world.client.delete("/schedules/hourly")
    async with world.database.read() as connection:
        found = (
            await connection.execute(select(audit.c.verb, audit.c.reason, audit.c.actor).order_by(audit.c.id))
        ).all()
    assert [tuple(row) for row in found] == [
        ("create-schedule", "no reason was given", "anonymous"),
        ("pause-schedule", "the warehouse moves", "anonymous"),
        ("run-schedule", "no reason was given", "anonymous"),
        ("delete-schedule", "no reason was given", "anonymous"),
    ]


@pytest.mark.parametrize("name", ["%00", "a%20b", "%F0%9F%98%80", "x" * 101, "..%2F"])
async def test_what_is_no_name_is_not_there(world: World, name: str) -> None:
    problem(await world.client.get(f"/schedules/{name}"), 404, "not_found")


async def test_an_id_may_be_written_large(world: World) -> None:
    one = await made(world)
    assert shown(await world.client.get(f"/schedules/{one['id'].upper()}")) == one


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("PATCH", ""),
        ("DELETE", ""),
        ("POST", "/pause"),
        ("POST", "/resume"),
        ("POST", "/run"),
        ("POST", "/backfill"),
        ("GET", "/preview"),
    ],
)
async def test_what_is_not_there(world: World, method: str, path: str) -> None:
    body = b'{"from": "2024-01-01T00:00:00Z", "to": "2024-01-02T00:00:00Z"}' if path == "/backfill" else b"{}"
    given: dict[str, Any] = {} if method == "GET" else {"content": body, "headers": JSON}
    answer = await world.client.request(method, f"/schedules/nobody{path}", **given)
    assert "'nobody'" in problem(answer, 404, "not_found")["detail"]
