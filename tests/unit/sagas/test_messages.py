"""Which bodies are read, which are refused, and what does a command look like?"""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrix.saga import messages
from orchestrix.saga.commands import command_for
from orchestrix.saga.messages import MAX_BODY, MAX_ID, Event, StepError, UnreadableMessage, dump, load
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import CORRELATION, FIRST, along, began, body, sent


def read(raw: bytes, kind: str = "evt.gitRepoCreated", **properties: str | None) -> Event:
    """`raw` as an event."""
    return messages.event(kind, raw, **properties)


def refused(raw: bytes, kind: str = "evt.gitRepoCreated", **properties: str | None) -> str:
    """Why `raw` is refused; that it ends as one short line is part of it, for it becomes a header."""
    with pytest.raises(UnreadableMessage) as error:
        read(raw, kind, **properties)
    assert len(str(error.value)) <= 200
    return str(error.value)


def with_data(raw: str) -> bytes:
    """An event body whose `data.x` is written exactly so."""
    return b'{"appId":7,"correlationId":"corr-1","data":{"x":' + raw.encode() + b"}}"


# What is read.


def test_smallest_event() -> None:
    assert read(body()) == Event("evt.gitRepoCreated", 7, CORRELATION, None, None, None, {}, None)


@pytest.mark.req("S3-44")
def test_full_event() -> None:
    raw = body(type="evt.lies", id="e-1", saga="app", causationId=FIRST, data={"repoUrl": "x", "é": [None, True, 1.5]})
    assert read(raw) == Event(
        type="evt.gitRepoCreated",
        app_id=7,
        correlation_id=CORRELATION,
        saga="app",
        id="e-1",
        causation_id=FIRST,
        data={"repoUrl": "x", "é": [None, True, 1.5]},
        error=None,
    )


def test_routing_key_wins_over_type() -> None:
    assert read(body(type="evt.appRegistered"), "evt.gitRepoCreated").type == "evt.gitRepoCreated"


def test_unknown_fields_are_ignored() -> None:
    assert read(body(colour="red", appName=5, attempt="one", error="none")) == read(body())


def test_null_stands_for_an_optional_field_that_is_left_out() -> None:
    assert read(body(saga=None, id=None, causationId=None, data=None)) == read(body())


def test_properties_stand_in_for_the_body() -> None:
    event = read(body(correlationId=...), correlation_id="corr-2", message_id="m-1")
    assert (event.correlation_id, event.id) == ("corr-2", "m-1")


def test_correlation_of_the_body_wins_and_the_property_names_the_message() -> None:
    event = read(body(id="in-body"), correlation_id="corr-2", message_id="m-1")
    assert (event.correlation_id, event.id) == (CORRELATION, "m-1")
    assert read(body(id="in-body"), correlation_id="", message_id="").id == "in-body"


@pytest.mark.parametrize(("written", "is_"), [(1, 1), ("42", 42), ("007", 7), (MAX_ID - 1, MAX_ID - 1)])
def test_app_id_may_be_a_decimal_string(written: object, is_: int) -> None:
    assert read(body(appId=written)).app_id == is_
    assert read(body(appId=str(MAX_ID - 1))).app_id == MAX_ID - 1


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (r'"\\u0000"', r"\u0000"),
        (r'"\\ud800"', r"\ud800"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\uD83D\uDE00"', "😀"),
        ('"😀"', "😀"),
        ('"\\u0001\\n"', "\x01\n"),
        ("1e308", 1e308),
        ("1e-999", 0.0),
        ("-0", 0),
        ("9007199254740993", 9007199254740993),
        ("[]", []),
        ('"' + "[" * 100 + '"', "[" * 100),
        ('"NaN"', "NaN"),
    ],
    ids=[
        "escaped backslash before u0000",
        "escaped backslash before ud800",
        "pair",
        "pair in capitals",
        "emoji",
        "other control characters",
        "large float",
        "small float",
        "minus nothing",
        "above 2^53",
        "empty list",
        "brackets in a string",
        "the word NaN",
    ],
)
def test_data_that_is_fine(raw: str, value: object) -> None:
    assert read(with_data(raw)).data == {"x": value}


def test_white_space_around_is_fine() -> None:
    assert read(b" \r\n\t" + body() + b"\n") == read(body())


def nested(levels: int, innermost: str) -> bytes:
    """A body of so many levels: the object itself, `data`, then lists; `innermost` stands in the last."""
    lists = levels - 2
    return b'{"appId":7,"correlationId":"c","data":{"x":' + b"[" * lists + innermost.encode() + b"]" * lists + b"}}"


@pytest.mark.parametrize("innermost", ["", "1", '"x"', "null"])
def test_64_levels_are_read_and_65_are_not(innermost: str) -> None:
    assert read(nested(64, innermost)).app_id == 7
    assert refused(nested(65, innermost)) == "too-deep"


def test_depth_of_objects_counts_like_that_of_lists() -> None:
    assert load(b'{"a":' * 63 + b"{}" + b"}" * 63)
    with pytest.raises(UnreadableMessage, match="too-deep"):
        load(b'{"a":' * 64 + b"{}" + b"}" * 64)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert len(read(with_data("[" + ",".join(["[{}]"] * 5000) + "]")).data["x"]) == 5000


@pytest.mark.parametrize("levels", [500, 990, 1010, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_abyss_is_refused_without_a_crash(levels: int, opening: bytes, closing: bytes) -> None:
    with pytest.raises(UnreadableMessage, match="too-deep"):
        load(b'{"a":' + opening * levels + b"1" + closing * levels + b"}")
    with pytest.raises(UnreadableMessage):
        load(opening * levels)


def test_one_mebibyte_is_the_limit() -> None:
    frame = len(with_data('""'))
    assert read(with_data('"' + "x" * (MAX_BODY - frame) + '"')).app_id == 7
    too_large = with_data('"' + "x" * (MAX_BODY - frame + 1) + '"')
    assert refused(too_large) == "too-large: 1048577 bytes, at most 1048576"


# What is refused.


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not-json"),
        (b"hello", "not-json"),
        (b"{", "not-json"),
        (b'{"appId":7}{"appId":8}', "not-json: line 1, column 12: unexpected data after the end"),
        (b"{'appId':7}", "not-json"),
        (b'{"appId":7,}', "not-json"),
        (b"\xef\xbb\xbf" + body(), "not-json: line 1, column 1: byte order mark"),
        (b"\xff\xfe{}", "not-utf8"),
        (body()[:-2] + b'\xe9"}', "not-utf8"),
        (b'{"appId":7,"correlationId":"\xed\xa0\x80"}', "not-utf8"),
        (b'{"appId":7,"correlationId":"\xc0\x80"}', "not-utf8"),
        (json.dumps({"appId": 7}).encode("utf-16"), "not-utf8"),
        (b"null", "not-an-object"),
        (b"true", "not-an-object"),
        (b"7", "not-an-object"),
        (b'"text"', "not-an-object"),
        (b"[]", "not-an-object"),
        (b"[" + body() + b"]", "not-an-object"),
        (b"NaN", "not-json: NaN is not JSON"),
    ],
)
def test_body_that_is_no_json_object(raw: bytes, reason: str) -> None:
    assert refused(raw).startswith(reason)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("NaN", "not-json: NaN is not JSON"),
        ("Infinity", "not-json: Infinity is not JSON"),
        ("-Infinity", "not-json: -Infinity is not JSON"),
        ("1e999", "not-json: 1e999 is out of range"),
        ("-1E999", "not-json: -1E999 is out of range"),
        ("1" + "0" * 400 + ".0", "not-json: 1000000000"),
        ("9" * 5000, "not-json: a number has more than 4300 digits"),
        ("01", "not-json"),
        ('"a\0b"', "not-json"),
        (r'"a\u0000b"', "nul-or-lone-surrogate"),
        (r'{"\u0000":1}', "nul-or-lone-surrogate"),
        (r'[[{"k":["\u0000"]}]]', "nul-or-lone-surrogate"),
        (r'"\\\u0000"', "nul-or-lone-surrogate"),
        (r'"\ud800"', "nul-or-lone-surrogate"),
        (r'"\uDFFF"', "nul-or-lone-surrogate"),
        (r'"\ude00\ud83d"', "nul-or-lone-surrogate"),
        (r'{"\ud800":1}', "nul-or-lone-surrogate"),
        ('"line\nbreak"', "not-json"),
        ('{"a":1,"a":1}', "not-json: a key was given more than once"),
        (r'{"a":1,"\u0061":2}', "not-json: a key was given more than once"),
        ('[{"b":{"a":1,"a":2}}]', "not-json: a key was given more than once"),
    ],
    ids=[
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        "-1E999",
        "401 digits and a point",
        "5000 digits",
        "leading zero",
        "raw NUL",
        "NUL",
        "NUL in a key",
        "NUL deep down",
        "NUL behind a backslash",
        "lone high surrogate",
        "lone low surrogate",
        "pair the wrong way round",
        "surrogate in a key",
        "raw line break",
        "key twice",
        "key twice, once in disguise",
        "key twice deep down",
    ],
)
def test_data_that_not_everybody_would_read_alike(raw: str, reason: str) -> None:
    assert refused(with_data(raw)).startswith(reason)


def test_the_same_key_twice_at_the_top_is_refused() -> None:
    assert refused(b'{"appId":7,"correlationId":"c","appId":8}').startswith("not-json: a key was given more than once")


@pytest.mark.parametrize(
    "value",
    [
        *(..., None, True, False, 0, -1, 7.0, 1.5, MAX_ID, 2**64, [7], {"id": 7}),
        *("0", "-7", "+7", " 7", "7 ", "seven", "", "7.0", "٧", "1_000", str(MAX_ID), "9" * 17),
        pytest.param("1" * 5000, id="5000 digits"),
    ],
)
def test_app_id_that_is_none(value: Any) -> None:
    assert refused(body(appId=value)) == "appId: must be a whole number from 1 to 2^53 - 1"


@pytest.mark.parametrize("field", ["correlationId", "saga", "id", "causationId"])
@pytest.mark.parametrize("value", [5, True, ["x"], {"x": 1}, 1.5])
@pytest.mark.parametrize("properties", [{}, {"correlation_id": CORRELATION, "message_id": "m-1"}], ids=["bare", "with"])
def test_text_of_another_type(field: str, value: Any, properties: dict[str, str]) -> None:
    assert refused(body(**{field: value}), **properties) == f"{field}: must be a string"


@pytest.mark.parametrize("value", [..., None, ""])
def test_event_without_correlation(value: Any) -> None:
    assert refused(body(correlationId=value)) == "correlationId: is missing"
    assert refused(body(correlationId=value), correlation_id="") == "correlationId: is missing"


@pytest.mark.parametrize("value", [[], [1], "x", "", 0, False, True, 1.5])
def test_data_that_is_no_object(value: Any) -> None:
    assert refused(body(data=value)) == "data: must be an object"


def test_ids_that_history_cannot_hold() -> None:
    assert read(body(id="é" * 255)).id == "é" * 255
    assert refused(body(id="é" * 256)) == "id: must be at most 255 characters, none of them NUL"
    assert refused(body(), message_id="m\0") == "id: must be at most 255 characters, none of them NUL"
    assert refused(body(), message_id="m\udc80") == "id: must be at most 255 characters, none of them NUL"


# Failures.


@pytest.mark.parametrize(
    ("error", "means"),
    [
        (..., StepError("Error", "", True)),
        (None, StepError("Error", "", True)),
        ({}, StepError("Error", "", True)),
        ({"type": "T", "message": "m"}, StepError("T", "m", True)),
        ({"retryable": False, "retryAfterMs": 0}, StepError("Error", "", False, 0)),
        ({"retryAfterMs": 1500, "more": [1]}, StepError("Error", "", True, 1500)),
    ],
)
def test_error_of_a_failure(error: Any, means: StepError) -> None:
    assert read(body(error=error), "evt.stepFailed").error == means


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("disk", "error: must be an object"),
        ([], "error: must be an object"),
        ({"type": 5}, "type: must be a string"),
        ({"message": {}}, "message: must be a string"),
        ({"retryable": "yes"}, "error.retryable: must be true or false"),
        ({"retryable": None}, "error.retryable: must be true or false"),
        ({"retryable": 1}, "error.retryable: must be true or false"),
        ({"retryAfterMs": -1}, "error.retryAfterMs: must be a whole number of milliseconds"),
        ({"retryAfterMs": True}, "error.retryAfterMs: must be a whole number of milliseconds"),
        ({"retryAfterMs": 1.5}, "error.retryAfterMs: must be a whole number of milliseconds"),
        ({"retryAfterMs": "1"}, "error.retryAfterMs: must be a whole number of milliseconds"),
        ({"retryAfterMs": 2**53}, "error.retryAfterMs: must be a whole number of milliseconds"),
    ],
)
def test_error_of_another_shape(error: Any, reason: str) -> None:
    assert refused(body(error=error), "evt.stepFailed") == reason


def test_only_failures_have_an_error() -> None:
    assert read(body(error={"type": "T"}), "evt.gitRepoCreated").error is None


# Commands.

FIELDS = ["id", "type", "saga", "appId", "appName", "correlationId", "expectedState", "step", "attempt", "timeoutMs"]
FIELDS += ["idempotencyKey", "effectKey", "definitionVersion", "data"]


@pytest.mark.req("S3-44")
def test_body_of_a_command() -> None:
    command = sent(command_for(APP_PROVISIONING, began(data={"team": "blau ü"}).instance))
    said = json.loads(command.body())
    assert list(said) == FIELDS
    assert said == {
        "id": FIRST,
        "type": "cmd.createGitRepo",
        "saga": "app",
        "appId": 7,
        "appName": "billing",
        "correlationId": CORRELATION,
        "expectedState": "APP_INITIATED",
        "step": "createGitRepo",
        "attempt": 1,
        "timeoutMs": 60_000,
        "idempotencyKey": "app:7:createGitRepo:do",
        "effectKey": "app:7:createGitRepo:do",
        "definitionVersion": 1,
        "data": {"team": "blau ü"},
    }
    assert "ü".encode() in command.body()


def test_a_command_reads_as_it_was_written() -> None:
    command = sent(command_for(APP_PROVISIONING, along(APP_PROVISIONING, 1, {"😀": [1, {"b": None}]})))
    assert messages.command(command.body()) == command
    assert messages.command(command.body()).body() == command.body()


def command_body(**changes: Any) -> bytes:
    """The body of a command with `changes`; `...` takes a field away."""
    fields = json.loads(sent(began().command).body()) | changes
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


TEXTS = ["id", "type", "saga", "appName", "correlationId", "expectedState", "step", "idempotencyKey"]


@pytest.mark.parametrize("field", TEXTS)
@pytest.mark.parametrize("value", [..., None, "", 5, ["x"]])
def test_command_without_one_of_its_texts(field: str, value: Any) -> None:
    with pytest.raises(UnreadableMessage, match=f"^{field}: (is missing|must be a string)$"):
        messages.command(command_body(**{field: value}))


@pytest.mark.parametrize("field", ["attempt", "timeoutMs"])
@pytest.mark.parametrize("value", [..., None, 0, -1, "1", True, 1.0, 2**53])
def test_command_without_one_of_its_numbers(field: str, value: Any) -> None:
    with pytest.raises(UnreadableMessage, match=f"^{field}: must be a whole number above 0$"):
        messages.command(command_body(**{field: value}))


def test_command_that_is_no_json() -> None:
    for raw in (b"null", b"\xff", b"[]", b'{"id":1,"id":1}', command_body(appId=0), command_body(data=[])):
        with pytest.raises(UnreadableMessage):
            messages.command(raw)


def test_a_command_may_leave_out_data() -> None:
    assert messages.command(command_body(data=...)).data == {}


# Writing.


def test_dump_is_compact_utf8() -> None:
    assert dump({"a": [1, "é"], "b": None}) == '{"a":[1,"é"],"b":null}'.encode()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), "\ud800"])
def test_what_cannot_be_said_in_json_is_not_written(value: object) -> None:
    with pytest.raises(ValueError):
        dump({"x": value})
