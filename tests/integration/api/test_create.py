"""What does POST /apps do?"""

from __future__ import annotations

import asyncio
import json
import unicodedata
from typing import Any
from uuid import UUID

import pytest

from app.apps import AppBody
from orchestrix.api.middleware import MAX_BODY
from orchestrix.engine.requests import ExistingSaga, InFlight
from orchestrix.errors import Contention, OutcomeUnknown, Unavailable

from .answers import BODY, JSON, problem
from .world import Exchange, World

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def pointers(body: dict[str, Any]) -> list[str]:
    assert all(error["detail"] for error in body["errors"])
    return [error["pointer"] for error in body["errors"]]


@pytest.mark.req("S3-2", "S3-15", "S3-18")
async def test_the_answer_is_200_with_the_new_app(world: World) -> None:
    answer = await world.client.post("/apps", json=BODY)
    assert answer.status_code == 200
    body = answer.json()
    AppBody.model_validate(body)
    assert (body["appName"], body["createdBy"], body["state"]) == ("billing", "ada", "APP_INITIATED")
    assert (body["version"], body["data"]) == (1, {})
    assert body["createdAt"] == body["updatedAt"]
    assert len(body["createdAt"]) == len("2026-01-31T12:00:00.000000Z")
    assert answer.headers["location"] == f"/apps/{body['id']}"
    assert answer.headers["etag"] == '"1"'
    assert answer.headers["content-type"] == "application/json"
    assert UUID(body["correlationId"])
    assert answer.headers["x-correlation-id"] == body["correlationId"]
    assert (await world.client.get(answer.headers["location"])).json() == body


async def test_data_is_handed_to_the_saga(world: World) -> None:
    answer = await world.client.post("/apps", json={**BODY, "data": {"team": ["a", {"b": None}], "repoUrl": "x"}})
    assert answer.json()["data"] == {"team": ["a", {"b": None}], "repoUrl": "x"}


@pytest.mark.parametrize("data", [[], "x", 1, None, True])
async def test_data_must_be_an_object(world: World, data: object) -> None:
    answer = await world.client.post("/apps", json={**BODY, "data": data})
    assert pointers(problem(answer, 422, "invalid_body")) == ["/data"]


async def test_data_must_fit_the_model_of_the_saga(world: World) -> None:
    answer = await world.client.post("/apps", json={**BODY, "data": {"repoUrl": 5}})
    assert pointers(problem(answer, 422, "invalid_body")) == ["/data/repoUrl"]
    assert not world.starter.requests


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ({}, ["/appName", "/createdBy"]),
        ({"appName": "x"}, ["/createdBy"]),
        ({**BODY, "state": "COMPLETED"}, ["/state"]),
        ({**BODY, "a/b~c": 1}, ["/a~1b~0c"]),
        ({**BODY, "appName": 5}, ["/appName"]),
        ({**BODY, "appName": None}, ["/appName"]),
        ({"appName": "", "createdBy": "x" * 201}, ["/appName", "/createdBy"]),
        ([BODY], [""]),
        ("x", [""]),
        (None, [""]),
    ],
)
async def test_a_body_of_another_shape_is_422(world: World, body: object, wrong: list[str]) -> None:
    answer = await world.client.post("/apps", content=json.dumps(body), headers=JSON)
    assert pointers(problem(answer, 422, "invalid_body")) == wrong
    assert not world.starter.requests


GOOD_NAMES = ["🚀" * 200, "x" * 200, "Billing", 'it\'s "x"; --', "../../etc/passwd", "日本語", "%00", "a\\b", "e\u0301"]
BAD_NAMES = ["🚀" * 201, "x" * 201, "", " a", "a ", "\u00a0a", "a\tb", "a\nb", "a\0b", "\x1b[31m", "a\x85", "\ud83d"]


@pytest.mark.parametrize("name", GOOD_NAMES)
async def test_a_name_is_kept_in_its_composed_form(world: World, name: str) -> None:
    answer = await world.client.post("/apps", json={"appName": name, "createdBy": name})
    composed = unicodedata.normalize("NFC", name)
    assert (answer.json()["appName"], answer.json()["createdBy"]) == (composed, composed)


@pytest.mark.parametrize("field", ["appName", "createdBy"])
@pytest.mark.parametrize("name", BAD_NAMES)
async def test_a_bad_name_is_422_and_named(world: World, name: str, field: str) -> None:
    content = json.dumps({**BODY, field: name})
    answer = await world.client.post("/apps", content=content, headers=JSON)
    assert pointers(problem(answer, 422, "invalid_body")) == [f"/{field}"]
    assert not world.starter.requests


async def test_names_that_differ_in_case_are_two_and_composed_forms_are_one(world: World) -> None:
    codes = [
        (await world.client.post("/apps", json={**BODY, "appName": name})).status_code
        for name in ("caf\u00e9", "Caf\u00e9", "cafe\u0301")
    ]
    assert codes == [200, 200, 409]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"rubbish",
        b'{"appName":"a","createdBy":"b",}',
        b'{"appName":"a","createdBy":"b","data":{"x":NaN}}',
        b'{"appName":"a","createdBy":"b","data":{"x":-Infinity}}',
        b'{"appName":"a","createdBy":"b","data":{"x":1e999}}',
        b'{"appName":"a","appName":"c","createdBy":"b"}',
        b'{"appName":"a","createdBy":"b","data":{"x":1,"x":1}}',
        b'{"appName":"a","createdBy":"b","data":{"x":' + b"[" * 64 + b"]" * 64 + b"}}",
        b'{"appName":"a","createdBy":"b","data":' + b'{"x":' * 50_000 + b"1" + b"}" * 50_001,
        b'{"appName":"a","createdBy":"b","data":{"x":' + b"9" * 5000 + b"}}",
        b'{"appName":"\xff","createdBy":"b"}',
        b'{"appName":"\xed\xa0\x80","createdBy":"b"}',
        '{"appName":"a","createdBy":"b"}'.encode("utf-16"),
        b'\xef\xbb\xbf{"appName":"a","createdBy":"b"}',
    ],
)
async def test_what_is_no_strict_json_is_400(world: World, content: bytes) -> None:
    answer = await world.client.post("/apps", content=content, headers=JSON)
    code = "body_too_large" if len(content) > MAX_BODY else "malformed_json"
    problem(answer, 413 if len(content) > MAX_BODY else 400, code)
    assert not world.starter.requests


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"appName":' + b"[" * 64 + b"]" * 64 + b"}", "nested too deeply: 64 levels of objects and arrays"),
        (b'{"appName":"\xff"}', "The body is not UTF-8"),
        (b"", "The body is empty: send a JSON object."),
        (b'{"appName":}', "The body is not strict JSON: line 1, column 12: expected a value"),
        (b"{'appName': 1}", "strict JSON: line 1, column 2: expected a property name in double quotes"),
        (b'{"appName":"a",\n }', "The body is not strict JSON: line "),
        (b'{"appName" "a"}', "strict JSON: line 1, column 12: expected a colon"),
        (b'{"appName":"a" "createdBy":"b"}', "strict JSON: line 1, column 16: expected a comma"),
        (b'{"appName":"a"} x', "strict JSON: line 1, column 17: unexpected data after the end"),
        (b'{"appName":"a', "strict JSON: line 1, column 12: unterminated string"),
        (b'{"appName":"a\tb"}', "strict JSON: line 1, column 14: control character in a string"),
        (b'{"appName":\n"\\x"}', "strict JSON: line 2, column 2: invalid escape"),
        (b'{"appName":"\\u12"}', "strict JSON: line 1, column 14: invalid escape"),
        (b'\xef\xbb\xbf{"appName":"a"}', "strict JSON: line 1, column 1: byte order mark"),
        (b'{"appName":NaN}', "The body is not strict JSON: NaN is not JSON."),
        (
            b'{"appName":"a","appName":"b"}',
            "The body is not strict JSON: a key was given more than once in one object.",
        ),
    ],
)
async def test_a_refused_body_is_told_why_in_a_sentence(world: World, content: bytes, said: str) -> None:
    answer = await world.client.post("/apps", content=content, headers=JSON)
    detail = problem(answer, 400, "malformed_json")["detail"]
    assert said in detail
    assert "Expecting" not in detail


async def test_wrong_fields_are_told_in_a_sentence(world: World) -> None:
    answer = await world.client.post("/apps", json={"appName": "", "createdBy": 5})
    detail = problem(answer, 422, "invalid_body")["detail"]
    sentence = "appName must have 1 to 200 code points, not 0; createdBy must be a text of 1 to 200 code points."
    assert detail == sentence
    answer = await world.client.post("/apps", json={**BODY, **{f"f{number}": 1 for number in range(7)}})
    assert problem(answer, 422, "invalid_body")["detail"].endswith("; 2 more are wrong.")
    assert len(answer.json()["errors"]) == 7
    answer = await world.client.post("/apps", json=[])
    assert problem(answer, 422, "invalid_body")["detail"] == "the body must be an object."


@pytest.mark.parametrize(
    ("data", "place"),
    [('{"x":"\\u0000"}', "/data/x"), ('{"x":[1,{"y":"\\ud800"}]}', "/data/x/1/y"), ('{"\\u0000":1}', "/data")],
)
async def test_what_no_database_keeps_is_422_and_named(world: World, data: str, place: str) -> None:
    answer = await world.client.post("/apps", content=f'{{"appName":"a","createdBy":"b","data":{data}}}', headers=JSON)
    assert pointers(problem(answer, 422, "invalid_body")) == [place]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/jsonx"},
        {"Content-Type": "application/json; charset=latin-1"},
        {**JSON, "Content-Encoding": "gzip"},
    ],
)
async def test_another_type_is_415(world: World, headers: dict[str, str]) -> None:
    answer = await world.client.post("/apps", content=json.dumps(BODY), headers=headers)
    problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", 'Application/JSON;charset="UTF-8"'])
async def test_json_in_utf8_is_taken(world: World, kind: str) -> None:
    answer = await world.client.post("/apps", content=json.dumps(BODY), headers={"Content-Type": kind})
    assert answer.status_code == 200


async def test_an_unknown_parameter_is_400(world: World) -> None:
    answer = await world.client.post("/apps?dryRun=true", json=BODY)
    assert problem(answer, 400, "bad_parameter")["parameter"] == "dryRun"


async def test_a_taken_name_is_409_and_leads_to_its_owner(world: World) -> None:
    first = await world.client.post("/apps", json=BODY)
    again = await world.client.post("/apps", json={**BODY, "createdBy": "bob"})
    assert problem(again, 409, "already_exists")["existing"] == first.headers["location"]


async def test_a_taken_name_whose_owner_is_not_known(world: World) -> None:
    world.starter.answer = ExistingSaga(None)
    assert problem(await world.client.post("/apps", json=BODY), 409, "already_exists")["existing"] is None


async def test_one_hundred_at_once_make_one(world: World) -> None:
    answers = await asyncio.gather(*(world.client.post("/apps", json=BODY) for _ in range(100)))
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 99


# Headers


async def test_a_correlation_id_is_honoured_and_may_repeat(world: World) -> None:
    for name in ("one", "two"):
        answer = await world.client.post(
            "/apps", json={**BODY, "appName": name}, headers={"X-Correlation-ID": "order-4711"}
        )
        assert answer.json()["correlationId"] == answer.headers["x-correlation-id"] == "order-4711"


@pytest.mark.parametrize("value", ["x" * 129, "a b", "", "ü"])
async def test_a_bad_correlation_id_is_400(world: World, value: str) -> None:
    answer = await world.client.post("/apps", json=BODY, headers={b"X-Correlation-ID": value.encode()})
    problem(answer, 400, "bad_header")
    assert not world.starter.requests


async def test_trace_context_is_carried(world: World) -> None:
    await world.client.post("/apps", json=BODY, headers={"traceparent": PARENT, "tracestate": "a=1"})
    asked = world.starter.requests[0].start
    assert (asked.traceparent, asked.tracestate) == (PARENT, "a=1")


async def test_a_bad_trace_context_is_passed_over(world: World) -> None:
    answer = await world.client.post("/apps", json=BODY, headers={"traceparent": "rubbish", "tracestate": "a=1"})
    asked = world.starter.requests[0].start
    assert (answer.status_code, asked.traceparent, asked.tracestate) == (200, None, None)


# Repetition


async def test_a_repeated_key_gives_the_stored_answer(world: World) -> None:
    headers = {"Idempotency-Key": "k-1"}
    first = await world.client.post("/apps", json=BODY, headers=headers)
    reordered = json.dumps(dict(reversed(BODY.items())), indent=3)
    again = await world.client.post("/apps", content=reordered, headers={**headers, **JSON})
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    for name in ("location", "etag", "content-type", "x-correlation-id"):
        assert again.headers[name] == first.headers[name]


async def test_a_key_in_quotes_is_the_same_key(world: World) -> None:
    await world.client.post("/apps", json=BODY, headers={"Idempotency-Key": 'a"b'})
    again = await world.client.post("/apps", json=BODY, headers={"Idempotency-Key": r'"a\"b"'})
    assert again.headers["idempotent-replayed"] == "true"


async def test_a_key_with_another_body_is_422(world: World) -> None:
    headers = {"Idempotency-Key": "k-1"}
    await world.client.post("/apps", json=BODY, headers=headers)
    again = await world.client.post("/apps", json={**BODY, "data": {"x": 1}}, headers=headers)
    problem(again, 422, "idempotency_key_reused")


async def test_a_key_belongs_to_its_path(world: World) -> None:
    headers = {"Idempotency-Key": "k-1"}
    await world.client.post("/apps", json=BODY, headers=headers)
    other = await world.client.post("/sagas/order", json={"key": "a", "createdBy": "b"}, headers=headers)
    assert other.status_code == 200
    one, two = (request.idempotency for request in world.starter.requests)
    assert one is not None
    assert two is not None
    assert one.scope != two.scope
    assert max(len(one.scope), len(one.fingerprint)) <= 64


@pytest.mark.parametrize("key", ["", "x" * 256, '"', '"open', '""', "a b", '"a b"', "ü", '"a"b"', '"a";p=1'])
async def test_a_bad_key_is_400(world: World, key: str) -> None:
    answer = await world.client.post("/apps", json=BODY, headers={b"Idempotency-Key": key.encode()})
    assert problem(answer, 400, "bad_header")["header"] == "Idempotency-Key"
    assert not world.starter.requests


async def test_two_keys_are_400(world: World) -> None:
    headers = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    problem(await world.client.post("/apps", json=BODY, headers=headers), 400, "bad_header")


@pytest.mark.parametrize("key", ["x" * 255, '"' + "x" * 255 + '"'])
async def test_the_longest_key(world: World, key: str) -> None:
    assert (await world.client.post("/apps", json=BODY, headers={"Idempotency-Key": key})).status_code == 200


async def test_a_key_in_flight_is_409_with_a_hint(world: World) -> None:
    world.starter.answer = InFlight()
    answer = await world.client.post("/apps", json=BODY, headers={"Idempotency-Key": "k"})
    problem(answer, 409, "idempotency_in_flight")
    assert answer.headers["retry-after"] == "1"


# Bad days


@pytest.mark.parametrize("error", [Unavailable("password is hunter2"), Contention("a deadlock")])
async def test_no_database_is_503_with_a_hint(world: World, error: Exception) -> None:
    world.starter.answer = error
    answer = await world.client.post("/apps", json=BODY)
    assert "hunter2" not in problem(answer, 503, "unavailable")["detail"]
    assert int(answer.headers["retry-after"]) > 0


async def test_an_unknown_outcome_is_503_and_says_what_to_do(world: World) -> None:
    world.starter.answer = OutcomeUnknown("lost during commit")
    answer = await world.client.post("/apps", json=BODY)
    assert "Idempotency-Key" in problem(answer, 503, "outcome_unknown")["detail"]
    assert int(answer.headers["retry-after"]) > 0


async def test_a_bug_is_500_without_a_trace(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.starter.answer = RuntimeError("secret inside")
    answer = await world.client.post("/apps", json=BODY, headers={"X-Correlation-ID": "c-500"})
    problem(answer, 500, "internal_error")
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    assert "secret inside" in caplog.text
    record = next(record for record in caplog.records if record.levelname == "ERROR")
    assert (record.name, record.__dict__["correlation_id"]) == ("orchestrix.api", "c-500")
    assert record.exc_info


async def test_a_client_that_hangs_up_does_not_stop_a_start(world: World) -> None:
    world.starter.hold = asyncio.Event()
    async with Exchange(world.app, "/apps", "POST", JSON) as exchange:
        exchange.give(json.dumps(BODY).encode())
        exchange.hang_up()
        while not world.starter.requests:
            await asyncio.sleep(0)
        world.starter.hold.set()
        await exchange.done()
    assert await world.id_of("app", "billing") is not None


async def test_a_client_that_hangs_up_within_its_body_starts_nothing(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async with Exchange(world.app, "/apps", "POST", JSON) as exchange:
        exchange.give(b'{"appName":', more=True)
        exchange.hang_up()
        await exchange.done()
    assert exchange.status == 0
    assert not world.starter.requests
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
