"""Do names work where ids do, and do errors speak of the shell's own words?"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from tests.integration.cli.fake_api import FakeApi, Reply, app, change, problem
from tests.unit.cli.shell import Shell


def page(*items: object) -> Reply:
    return Reply(body={"items": list(items), "nextCursor": None})


@pytest.mark.parametrize(
    ("words", "method", "path"),
    [
        ("show", "GET", "/apps/42"),
        ("history", "GET", "/apps/42/history"),
        ("why", "GET", "/apps/42/why"),
        ("retry", "POST", "/apps/42/retry"),
        ("edit --data {}", "PATCH", "/apps/42"),
    ],
)
def test_an_app_is_found_by_its_name(api: FakeApi, shell: Shell, words: str, method: str, path: str) -> None:
    api.on("GET", "/apps", page(app()))
    api.on(method, path, page() if "history" in path else Reply(body=app()))
    verb, *more = words.split()
    assert shell("apps", verb, "billing", *more, "-o", "json").code == 0
    assert api.requests[0].query == {"q": ["billing"], "sort": ["appName"], "limit": ["1"]}
    assert (api.requests[-1].method, api.requests[-1].path) == (method, path)


def test_a_saga_is_found_by_its_key(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/sagas/order", page({**app(), "appName": None, "key": "o-1", "id": 7}))
    api.on("PATCH", "/sagas/order/7/deadline", Reply(body=app()))
    assert shell("deadlines", "extend", "o-1", "--saga", "order", "--by", "5m").code == 0
    assert api.requests[0].query["sort"] == ["key"]


def test_one_is_watched_by_its_name(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps", page(app()))
    done = [change(1, None, "APP_INITIATED"), change(2, "APP_INITIATED", "COMPLETED")]
    api.on("GET", "/apps/42/history", page(*done))
    assert shell("apps", "watch", "billing").code == 0


def test_a_name_that_only_begins_like_it_is_another(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps", page(app(appName="billing-2")))
    answer = shell("apps", "terminate", "billing")
    assert (answer.code, answer.err) == (3, "error: no app named 'billing'\n")
    assert [request.method for request in api.requests] == ["GET"]


def test_a_number_is_an_id_first_and_then_a_name(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/apps/7", problem(404, "not_found", "There is no app 7."))
    api.on("GET", "/apps", page(app(appName="7")), page())
    api.on("GET", "/apps/42", Reply(body=app(appName="7")))
    assert shell("apps", "show", "7", "-o", "json").json["id"] == 42
    answer = shell("apps", "show", "7")
    assert (answer.code, answer.err) == (3, "error: no app with id 7, and none named '7'\n")


def test_whose_the_id_is_instead_is_said(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/sagas", page({"saga": "app"}, {"saga": "lone"}, {"saga": "trip"}))
    api.on("GET", "/sagas/lone", page())
    api.on("GET", "/sagas/trip/1", Reply(body={**app(), "id": 1, "key": "t-ok"}))
    answer = shell("sagas", "why", "lone", "1")
    assert answer.code == 3
    assert (
        "no lone instance with id 1, and none named '1': 1 is trip 't-ok' (ids are shared by all sagas)" in answer.err
    )


def test_a_name_that_is_taken_says_whose_it_is(api: FakeApi, shell: Shell) -> None:
    taken = problem(409, "already_exists", "There is one named 'billing' already.", existing="/apps/42")
    api.on("POST", "/apps", taken)
    api.on("GET", "/apps/42", Reply(body=app(4, "COMPLETED")))
    answer = shell("apps", "create", "billing", "--by", "ada")
    assert (answer.code, answer.err) == (4, "error: 'billing' already exists: it is app 42 (COMPLETED)\n")


@pytest.mark.parametrize(
    ("line", "refused", "said"),
    [
        (
            "sagas list trip --state NOPE",
            problem(400, "bad_parameter", "state: 'NOPE' is none of COMPLETED, FAILED."),
            "--state: 'NOPE' is none of COMPLETED, FAILED",
        ),
        (
            "apps list --created-before 2026-01-31T12:00:00Z",
            problem(400, "bad_parameter", "createdBefore: must be a time such as 2026-01-31T12:00:00%2B01:00."),
            "--created-before: must be a time such as 2026-01-31T12:00:00+01:00",
        ),
        (
            "apps retry 2 --if-version 1",
            problem(412, "version_mismatch", 'It is at version 5 now: look at it again, then send If-Match: "5".'),
            "It is at version 5 now: look at it again, then use --if-version 5",
        ),
        (
            "apps pause 2",
            problem(409, "illegal_transition", "It is X.", allowed=["retry", "set-deadline", "cancel-deadline"]),
            "It is X; possible now: retry, deadlines extend, deadlines cancel",
        ),
        (
            "jobs submit q h --timeout soon",
            problem(422, "invalid_body", "Wrong.", errors=[{"pointer": "/timeout", "detail": "must be 30s"}]),
            "Wrong; --timeout must be 30s",
        ),
    ],
)
def test_errors_speak_of_options(api: FakeApi, shell: Shell, line: str, refused: Reply, said: str) -> None:
    for method, path in (
        ("GET", "/sagas/trip"),
        ("GET", "/apps"),
        ("POST", "/apps/2/retry"),
        ("POST", "/apps/2/pause"),
    ):
        api.on(method, path, refused)
    api.on("POST", "/jobs", refused)
    assert shell(*line.split()).err == f"error: {said}\n"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("2h", "2026-02-01T10:30:00.000000Z"),
        ("90min ago", "2026-02-01T11:00:00.000000Z"),
        ("1d", "2026-01-31T12:30:00.000000Z"),
        ("yesterday", "2026-01-31T00:00:00.000000Z"),
        ("now", "2026-02-01T12:30:00.000000Z"),
        ("2026-01-31", "2026-01-31T00:00:00.000000Z"),
        ("2026-01-31T12:00:00+01:00", "2026-01-31T12:00:00+01:00"),
    ],
)
def test_a_time_can_be_told_from_now(
    api: FakeApi, shell: Shell, given: str, sent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrix.clock.now", lambda: datetime(2026, 2, 1, 12, 30, tzinfo=UTC))
    api.on("GET", "/apps", page())
    assert shell("apps", "list", "--created-after", given).code == 0
    assert api.requests[0].query == {"createdAfter": [sent]}


@contextmanager
def amqp() -> Iterator[str]:
    """Something that answers every greeting as RabbitMQ does one of HTTP."""

    def greet(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(b"AMQP\x00\x00\x09\x01")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet, args=(server,))
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_what_is_no_http_server_is_said(shell: Shell) -> None:
    with amqp() as url:
        answer = shell("apps", "list", "--api", url)
    assert answer.code == 2
    assert f"{url} is no HTTP server (it speaks AMQP)" in answer.err
