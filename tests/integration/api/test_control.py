"""What do the calls of a person who steps in ask of the orchestrator, and what do they answer?"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from app.apps import AppBody
from orchestrix.api.instances.models import WhyBody
from orchestrix.engine.control import ActionResult, VersionMismatch
from orchestrix.errors import Invalid, NotFound, Unavailable
from orchestrix.saga.actions.apply import InvalidActionError
from orchestrix.saga.actions.requests import ActionNotAllowed, SagaAction
from orchestrix.saga.definition import InvalidDataError
from orchestrix.saga.messages import Command
from orchestrix.saga.state import Instance, StateChange

from .answers import JSON, problem
from .world import AppPreview, Because, SagaBody, SagaPreview, World

WORDS = ["retry", "skip", "pause", "resume", "cancel", "terminate"]
REASON = {"reason": "the forge is back"}
AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture
async def instance(world: World) -> Instance:
    """An app; whatever is asked leaves it as it is."""
    found = await world.started()
    world.control.answer = ActionResult(found)
    return found


async def asked(world: World, path: str, body: dict[str, Any], method: str = "POST") -> Any:
    """What the one action asks for that the call makes."""
    answer = await world.client.request(method, path, json=body)
    assert answer.status_code == 200, answer.text
    [action] = world.control.actions
    return action.ask


# Verbs


@pytest.mark.parametrize("word", WORDS)
async def test_a_verb_is_handed_on_and_answered_with_the_app(world: World, instance: Instance, word: str) -> None:
    paused = replace(instance, version=7, blocker="paused", wake_at=None, wake_reason=None)
    world.control.answer = ActionResult(paused)
    answer = await world.client.post(f"/apps/{instance.id}/{word}", json=REASON)
    assert (answer.status_code, answer.headers["etag"]) == (200, '"7"')
    AppBody.model_validate(answer.json())
    assert (answer.json()["appName"], answer.json()["blocker"], answer.json()["wakeAt"]) == ("billing", "paused", None)
    [action] = world.control.actions
    assert (action.saga, action.id, action.version, action.dry_run) == ("app", instance.id, None, False)
    assert (action.ask.verb, action.ask.reason) == (SagaAction(word), "the forge is back")


@pytest.mark.parametrize("word", [*WORDS, "deadline"])
async def test_any_saga_has_the_same_verbs(world: World, word: str) -> None:
    order = await world.started("o-1", "order")
    world.control.answer = ActionResult(order)
    method, body = ("PATCH", {**REASON, "extendBy": 1}) if word == "deadline" else ("POST", REASON)
    answer = await world.client.request(method, f"/sagas/order/{order.id}/{word}", json=body)
    assert answer.status_code == 200
    SagaBody.model_validate(answer.json())
    assert (world.control.actions[0].saga, answer.json()["key"]) == ("order", "o-1")


async def test_apps_are_reached_as_sagas_too(world: World, instance: Instance) -> None:
    answer = await world.client.post(f"/sagas/app/{instance.id}/pause", json=REASON)
    assert (answer.json()["saga"], answer.json()["appName"]) == ("app", "billing")


async def test_skip_hands_on_what_the_step_would_have_answered(world: World, instance: Instance) -> None:
    ask = await asked(world, f"/apps/{instance.id}/skip", {**REASON, "output": {"repository": "x"}})
    assert ask.output == {"repository": "x"}


async def test_retry_hands_on_the_patch(world: World, instance: Instance) -> None:
    ask = await asked(world, f"/apps/{instance.id}/retry", {**REASON, "data": {"team": None, "n": 1}})
    assert (ask.verb, ask.patch) == (SagaAction.RETRY, {"team": None, "n": 1})


async def test_edit_hands_on_the_patch(world: World, instance: Instance) -> None:
    ask = await asked(world, f"/apps/{instance.id}", {**REASON, "data": {"team": None, "n": 1}}, "PATCH")
    assert (ask.verb, ask.patch) == (SagaAction.EDIT, {"team": None, "n": 1})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("2h", timedelta(hours=2)),
        ("1d", timedelta(days=1)),
        ("500ms", timedelta(milliseconds=500)),
        ("1.5s", timedelta(seconds=1.5)),
        ("90", timedelta(seconds=90)),
        (90, timedelta(seconds=90)),
        (0.5, timedelta(seconds=0.5)),
    ],
)
async def test_a_deadline_is_extended(world: World, instance: Instance, given: Any, meant: timedelta) -> None:
    ask = await asked(world, f"/apps/{instance.id}/deadline", {**REASON, "extendBy": given}, "PATCH")
    assert (ask.verb, ask.extend_by, ask.at) == (SagaAction.SET_DEADLINE, meant, None)


async def test_a_deadline_takes_no_reason_where_there_is_none(world: World, instance: Instance) -> None:
    ask = await asked(world, f"/apps/{instance.id}/deadline", {"extendBy": "5m"}, "PATCH")
    assert (ask.extend_by, ask.reason) == (timedelta(minutes=5), "no reason was given")


async def test_a_deadline_is_set(world: World, instance: Instance) -> None:
    body = {**REASON, "at": "2026-01-31T13:00:00+01:00"}
    ask = await asked(world, f"/apps/{instance.id}/deadline", body, "PATCH")
    assert (ask.at, ask.extend_by) == (AT, None)


@pytest.mark.parametrize(
    ("query", "body", "reason"),
    [
        ("", None, "no reason was given"),
        ("?reason=no+hurry", None, "no hurry"),
        ("", {"reason": "no hurry"}, "no hurry"),
        ("", {}, "no reason was given"),
        ("?reason=a", {"reason": "b"}, "b"),
    ],
)
async def test_a_deadline_is_taken_away(
    world: World, instance: Instance, query: str, body: dict[str, Any] | None, reason: str
) -> None:
    answer = await world.client.request("DELETE", f"/apps/{instance.id}/deadline{query}", json=body)
    assert answer.status_code == 200
    [action] = world.control.actions
    assert (action.ask.verb, action.ask.reason) == (SagaAction.CANCEL_DEADLINE, reason)


async def test_a_reason_is_kept_in_nfc(world: World, instance: Instance) -> None:
    ask = await asked(world, f"/apps/{instance.id}/pause", {"reason": "Cafe\u0301"})
    assert ask.reason == "Caf\u00e9"


# What does not fit


REASONS = ["", " ", "x" * 501, "a\nb", "\x1b[2J", "\x7f", 7, None, []]


@pytest.mark.parametrize("reason", REASONS)
async def test_a_bad_reason_is_422(world: World, instance: Instance, reason: Any) -> None:
    body = problem(await world.client.post(f"/apps/{instance.id}/cancel", json={"reason": reason}), 422, "invalid_body")
    assert [error["pointer"] for error in body["errors"]] == ["/reason"]
    assert not world.control.actions


async def test_the_longest_reason_is_taken(world: World, instance: Instance) -> None:
    assert (await asked(world, f"/apps/{instance.id}/cancel", {"reason": "x" * 500})).reason == "x" * 500


@pytest.mark.parametrize(
    ("method", "suffix", "body", "pointers"),
    [
        ("POST", "/retry", {}, ["/reason"]),
        ("POST", "/retry", {**REASON, "output": {}}, ["/output"]),
        ("POST", "/retry", {**REASON, "data": []}, ["/data"]),
        ("POST", "/skip", {**REASON, "output": []}, ["/output"]),
        ("POST", "/skip", {**REASON, "colour": 1}, ["/colour"]),
        ("PATCH", "", REASON, ["/data"]),
        ("PATCH", "", {**REASON, "data": []}, ["/data"]),
        ("PATCH", "/deadline", REASON, [""]),
        ("PATCH", "/deadline", {**REASON, "at": "2026-01-31T12:00:00Z", "extendBy": 1}, [""]),
        ("PATCH", "/deadline", {**REASON, "at": "2026-01-31T12:00:00"}, ["/at"]),
        ("PATCH", "/deadline", {**REASON, "at": 1}, ["/at"]),
        ("PATCH", "/deadline", {**REASON, "extendBy": "soon"}, ["/extendBy"]),
        ("PATCH", "/deadline", {**REASON, "extendBy": 0}, ["/extendBy"]),
        ("PATCH", "/deadline", {**REASON, "extendBy": -1}, ["/extendBy"]),
        ("PATCH", "/deadline", {**REASON, "extendBy": True}, ["/extendBy"]),
        ("PATCH", "/deadline", {**REASON, "extendBy": "3651d"}, ["/extendBy"]),
        ("PATCH", "/deadline", {**REASON, "extendBy": 10**400}, ["/extendBy"]),
        ("DELETE", "/deadline", {"reason": ""}, ["/reason"]),
        ("DELETE", "/deadline", {"why": "x"}, ["/why"]),
    ],
)
async def test_a_body_that_does_not_fit_is_422(
    world: World, instance: Instance, method: str, suffix: str, body: dict[str, Any], pointers: list[str]
) -> None:
    answer = await world.client.request(method, f"/apps/{instance.id}{suffix}", json=body)
    assert [error["pointer"] for error in problem(answer, 422, "invalid_body")["errors"]] == pointers
    assert not world.control.actions


async def test_a_verb_needs_a_body_of_json(world: World, instance: Instance) -> None:
    path = f"/apps/{instance.id}/retry"
    problem(await world.client.post(path), 415, "unsupported_media_type")
    problem(await world.client.post(path, content=b"", headers=JSON), 400, "malformed_json")
    problem(await world.client.post(path, content=b"[]", headers=JSON), 422, "invalid_body")


@pytest.mark.parametrize("query", ["dryRun=yes", "dryRun=", "dryRun=1", "dryRun=true&dryRun=true", "dry=true"])
async def test_a_wrong_parameter_is_400(world: World, instance: Instance, query: str) -> None:
    answer = await world.client.post(f"/apps/{instance.id}/retry?{query}", json=REASON)
    problem(answer, 400, "bad_parameter")
    assert not world.control.actions


@pytest.mark.parametrize("query", ["reason=", "reason=%20", "reason=" + "x" * 501, "reason=a%0ab"])
async def test_a_bad_reason_in_the_query_is_400(world: World, instance: Instance, query: str) -> None:
    answer = await world.client.delete(f"/apps/{instance.id}/deadline?{query}")
    assert problem(answer, 400, "bad_parameter")["parameter"] == "reason"


@pytest.mark.parametrize("wanted", ["0", "x", "9007199254740992"])
@pytest.mark.parametrize("suffix", ["/retry", "/why"])
async def test_an_id_of_nothing_is_404(world: World, wanted: str, suffix: str) -> None:
    method = "GET" if suffix == "/why" else "POST"
    problem(await world.client.request(method, f"/apps/{wanted}{suffix}", json=REASON), 404, "not_found")
    assert not world.control.actions


async def test_one_that_is_not_there_is_404(world: World) -> None:
    world.control.answer = NotFound("no such thing")
    said = problem(await world.client.post("/apps/7/retry", json=REASON), 404, "not_found")
    assert said["detail"] == "There is no app 7."
    problem(await world.client.post("/sagas/nothing/7/retry", json=REASON), 404, "not_found")


async def test_a_verb_that_does_not_fit_names_those_that_do(world: World, instance: Instance) -> None:
    world.control.answer = ActionNotAllowed(
        "the app is COMPLETED, which is the end", [SagaAction.RETRY, SagaAction.SET_DEADLINE]
    )
    body = problem(await world.client.post(f"/apps/{instance.id}/pause", json=REASON), 409, "illegal_transition")
    assert body["allowed"] == ["retry", "set-deadline"]
    assert body["detail"] == "The app is COMPLETED, which is the end."


BLUE = "Value error, must be blue"


@pytest.mark.parametrize(
    ("suffix", "method", "error", "pointer"),
    [
        (
            "/skip",
            "POST",
            InvalidDataError([{"type": "value_error", "loc": ("output", "a"), "msg": BLUE}]),
            "/output/a",
        ),
        ("", "PATCH", InvalidDataError([{"loc": ("a", 0), "msg": "must be blue"}]), "/data/a/0"),
        ("", "PATCH", InvalidActionError("data", "must be blue"), "/data"),
        ("/deadline", "PATCH", InvalidActionError("at", "must be blue"), "/at"),
    ],
)
async def test_what_the_saga_refuses_is_422(
    world: World, instance: Instance, suffix: str, method: str, error: Exception, pointer: str
) -> None:
    world.control.answer = error
    bodies: dict[str, Any] = {"/skip": {"output": {"a": 1}}, "": {"data": {"a": 1}}, "/deadline": {"extendBy": 1}}
    answer = await world.client.request(method, f"/apps/{instance.id}{suffix}", json={**REASON, **bodies[suffix]})
    assert problem(answer, 422, "invalid_body")["errors"] == [{"pointer": pointer, "detail": "must be blue"}]


async def test_what_only_the_orchestrator_can_judge_is_422_too(world: World, instance: Instance) -> None:
    world.control.answer = Invalid("the deadline would be in the past")
    answer = await world.client.patch(f"/apps/{instance.id}/deadline", json={**REASON, "extendBy": 1})
    assert problem(answer, 422, "invalid_body")["errors"][0]["detail"] == "the deadline would be in the past"


async def test_a_database_that_is_away_is_503(world: World, instance: Instance) -> None:
    world.control.answer = Unavailable("away")
    answer = await world.client.post(f"/apps/{instance.id}/retry", json=REASON)
    problem(answer, 503, "unavailable")
    assert answer.headers["retry-after"] == "1"


# If-Match


@pytest.mark.parametrize(("value", "version"), [('"3"', 3), ('W/"3"', 3), ("*", None)])
async def test_the_version_that_was_seen_is_handed_on(
    world: World, instance: Instance, value: str, version: int | None
) -> None:
    for method, suffix, body in (
        ("POST", "/retry", REASON),
        ("PATCH", "", {**REASON, "data": {}}),
        ("DELETE", "/deadline", None),
    ):
        path = f"/apps/{instance.id}{suffix}"
        assert (await world.client.request(method, path, json=body, headers={"If-Match": value})).status_code == 200
    assert [action.version for action in world.control.actions] == [version] * 3


@pytest.mark.parametrize("value", ["3", '"x"', '""', '"0"', '"03"', '"3", "4"', '"-1"', '"' + "9" * 11 + '"', "'3'"])
async def test_a_malformed_if_match_is_400(world: World, instance: Instance, value: str) -> None:
    answer = await world.client.post(f"/apps/{instance.id}/retry", json=REASON, headers={"If-Match": value})
    assert problem(answer, 400, "bad_header")["header"] == "If-Match"
    assert not world.control.actions


async def test_another_version_is_412_and_says_which(world: World, instance: Instance) -> None:
    world.control.answer = VersionMismatch(5)
    answer = await world.client.post(f"/apps/{instance.id}/retry", json=REASON, headers={"If-Match": '"3"'})
    assert problem(answer, 412, "version_mismatch")["current"] == 5
    assert answer.headers["etag"] == '"5"'


# Dry run


def would_be(instance: Instance) -> ActionResult:
    after = replace(instance, version=2, state="COMPENSATING")
    row = StateChange(2, instance.state, after.state, "cancel: no", "ada", "c-1", None, "c-2", AT)
    command = Command("c-2", "cmd.deleteGitRepo", "app", 1, "billing", "c-1", after.state, "x", 1, 1000, "k", {})
    return ActionResult(after, (row,), command, None, ("registerApp", "createGitRepo"))


@pytest.mark.parametrize("path", ["/apps/1", "/sagas/app/1"])
async def test_a_dry_run_tells_what_would_happen(world: World, instance: Instance, path: str) -> None:
    world.control.answer = would_be(instance)
    answer = await world.client.post(f"{path}/cancel?dryRun=true", json=REASON)
    assert answer.status_code == 200
    body = answer.json()
    (AppPreview if path == "/apps/1" else SagaPreview).model_validate(body)
    assert (body["dryRun"], body["undo"], body["command"]) == (
        True,
        ["registerApp", "createGitRepo"],
        "cmd.deleteGitRepo",
    )
    assert [row["toState"] for row in body["history"]] == ["COMPENSATING"]
    assert body["note"] is None
    assert body["app" if path == "/apps/1" else "instance"]["state"] == "COMPENSATING"
    assert [action.dry_run for action in world.control.actions] == [True]


async def test_a_dry_run_of_nothing(world: World, instance: Instance) -> None:
    body = (await world.client.delete(f"/apps/{instance.id}/deadline?dryRun=true")).json()
    assert (body["history"], body["undo"], body["command"]) == ([], [], None)
    assert body["note"] == "its deadline already has this value"
    wet = await world.client.delete(f"/apps/{instance.id}/deadline?dryRun=false")
    assert "dryRun" not in wet.json()


# Why


@pytest.mark.parametrize("path", ["/apps/1", "/sagas/app/1"])
async def test_why_is_one_sentence_and_what_helps(world: World, path: str) -> None:
    assert (await world.started()).id == 1
    world.explainer.known["app", 1] = Because("no_consumer", "Nobody reads cmd.x.", "Start a worker.", AT, None)
    answer = await world.client.get(f"{path}/why")
    WhyBody.model_validate(answer.json())
    assert answer.json() == {
        "id": 1,
        "saga": "app",
        "blocker": "no_consumer",
        "sentence": "Nobody reads cmd.x.",
        "nextAction": "Start a worker.",
        "since": "2026-01-31T12:00:00.000000Z",
        "nextAt": None,
        "traceId": None,
    }


async def test_nobody_explains_what_is_not_there(world: World) -> None:
    assert problem(await world.client.get("/apps/4/why"), 404, "not_found")["detail"] == "There is no app 4."


# Redispatch


@pytest.mark.parametrize(
    ("more", "asked", "count"),
    [
        ({}, (None, None), 7),
        ({"saga": "order"}, (["order"], None), 7),
        ({"saga": "app", "ids": [3, 1]}, (["app"], [3, 1]), 2),
    ],
)
async def test_redispatch(world: World, more: dict[str, Any], asked: tuple[Any, Any], count: int) -> None:
    answer = await world.client.post("/redispatch", json={**REASON, **more})
    assert (answer.status_code, answer.json()) == (200, {"redispatched": count})
    assert world.redispatcher.asked == [(*asked, "anonymous", "the forge is back")]


async def test_all_is_sent_again_where_nothing_is_said(world: World) -> None:
    assert (await world.client.post("/redispatch")).status_code == 200
    assert world.redispatcher.asked == [(None, None, "anonymous", "no reason was given")]


@pytest.mark.parametrize(
    ("body", "pointers"),
    [
        ({"reason": ""}, ["/reason"]),
        ({**REASON, "ids": [1]}, [""]),
        ({**REASON, "saga": "app", "ids": []}, ["/ids"]),
        ({**REASON, "saga": "app", "ids": [0, "1"]}, ["/ids/0", "/ids/1"]),
        ({**REASON, "saga": "app", "ids": [1] * 1001}, ["/ids"]),
        ({**REASON, "sagas": ["app"]}, ["/sagas"]),
    ],
)
async def test_a_redispatch_that_does_not_fit_is_422(world: World, body: dict[str, Any], pointers: list[str]) -> None:
    answer = await world.client.post("/redispatch", json=body)
    assert [error["pointer"] for error in problem(answer, 422, "invalid_body")["errors"]] == pointers
    assert not world.redispatcher.asked


@pytest.mark.parametrize(("more", "count"), [({}, 7), ({"saga": "app", "ids": [1, 2]}, 2)])
async def test_a_dry_run_of_a_redispatch_sends_nothing(world: World, more: dict[str, Any], count: int) -> None:
    answer = await world.client.post("/redispatch", json={**more, "dryRun": True})
    assert (answer.status_code, answer.json()) == (200, {"dryRun": True, "redispatched": count})
    assert world.redispatcher.asked == []


async def test_a_redispatch_of_an_unknown_saga_is_404(world: World) -> None:
    problem(await world.client.post("/redispatch", json={**REASON, "saga": "nothing"}), 404, "not_found")
