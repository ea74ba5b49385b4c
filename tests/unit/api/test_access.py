"""How often may somebody guess a token, and who is locked out by it?"""

from __future__ import annotations

import logging

import pytest
from starlette.requests import Request

from orchestrix.api.guards import auth
from orchestrix.api.guards.auth import GUESSES, Authenticator, client
from orchestrix.api.problems import Problem

TOKENS = {"ada": "the-secret-of-ada", "bob": "the-secret-of-bob"}


class Clock:
    """Stands in for the clock."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(auth, "clock", found)
    return found


def sent(secret: str | None, address: str = "10.0.0.1") -> Request:
    """A request that carries this token."""
    headers = [] if secret is None else [(b"authorization", f"Bearer {secret}".encode())]
    return Request({"type": "http", "method": "GET", "path": "/apps", "headers": headers, "client": (address, 1)})


def asked(authenticator: Authenticator, secret: str | None, address: str = "10.0.0.1") -> str | int:
    """The actor, or the status of the refusal."""
    try:
        return authenticator.admit(sent(secret, address))
    except Problem as problem:
        return problem.status if problem.headers.get("Retry-After", "3") == "3" else 0


def test_guesses_end_with_429_and_a_right_one_tells_nothing(clock: Clock) -> None:
    authenticator = Authenticator(TOKENS)
    assert [asked(authenticator, f"guess-{n}") for n in range(GUESSES)] == [401] * GUESSES
    assert [asked(authenticator, f"guess-{n}") for n in range(5)] == [429] * 5
    assert asked(authenticator, TOKENS["ada"]) == 429, "else the guesses could go on"
    assert asked(authenticator, TOKENS["ada"], "10.0.0.2") == "ada", "other addresses are not locked out"
    clock.now += 3
    assert asked(authenticator, TOKENS["ada"]) == "ada"


def test_who_was_let_in_before_stays_in(clock: Clock) -> None:
    authenticator = Authenticator(TOKENS)
    assert asked(authenticator, TOKENS["ada"]) == "ada"
    for n in range(2 * GUESSES):
        asked(authenticator, f"guess-{n}")
    assert (asked(authenticator, TOKENS["ada"]), asked(authenticator, TOKENS["bob"])) == ("ada", 429)


def test_guesses_come_back_one_by_one(clock: Clock) -> None:
    authenticator = Authenticator(TOKENS)
    for n in range(GUESSES):
        asked(authenticator, f"guess-{n}")
    clock.now += 6.1
    assert [asked(authenticator, "x") for _ in range(3)] == [401, 401, 429]
    clock.now += 3600
    assert [asked(authenticator, "x") for _ in range(GUESSES + 1)] == [401] * GUESSES + [429]


def test_to_send_no_token_is_no_guess(clock: Clock) -> None:
    authenticator = Authenticator(TOKENS)
    assert {asked(authenticator, None) for _ in range(3 * GUESSES)} == {401}
    assert asked(authenticator, TOKENS["ada"]) == "ada"


def test_what_is_told_to_some_costs_a_guess_too(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    authenticator = Authenticator(TOKENS)
    assert not authenticator.knows(sent(None))
    assert not caplog.records, "probes send no token"
    assert authenticator.knows(sent(TOKENS["ada"], "10.0.0.2"))
    assert not any(authenticator.knows(sent(f"guess-{n}")) for n in range(GUESSES))
    assert not authenticator.knows(sent(TOKENS["bob"])), "else the guesses could go on"
    assert (asked(authenticator, "x"), asked(authenticator, TOKENS["ada"], "10.0.0.2")) == (429, "ada")
    assert "10.0.0.1" in caplog.records[0].getMessage()
    clock.now += 3
    assert authenticator.knows(sent(TOKENS["bob"]))
    assert Authenticator({}).knows(sent(None))
    assert Authenticator({}).knows(sent("x"))


def test_two_that_let_in_different_tokens_count_guesses_together(clock: Clock) -> None:
    people = Authenticator(TOKENS)
    executors = people.with_more({"executors:": "the-secret-of-all"})
    assert [asked(executors, "the-secret-of-all"), asked(executors, TOKENS["ada"])] == ["executors:", "ada"]
    assert asked(people, "the-secret-of-all") == 401, "the first guess"
    answers = [asked(one, f"guess-{n}") for n in range(GUESSES // 2) for one in (people, executors)]
    assert answers == [401] * (GUESSES - 1) + [429]
    assert (asked(people, TOKENS["bob"]), asked(executors, TOKENS["bob"])) == (429, 429)
    assert (asked(people, TOKENS["ada"]), asked(executors, "the-secret-of-all")) == ("ada", "executors:")


def test_what_is_remembered_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MOST_ADDRESSES", 3)
    authenticator = Authenticator(TOKENS)
    for n in range(10):
        asked(authenticator, "guess", f"10.0.1.{n}")
        asked(authenticator, TOKENS["ada"], f"10.0.1.{n}")
    assert (len(authenticator._guesses), len(authenticator._known)) == (3, 3)


def test_a_refusal_leaves_a_line_but_not_each_time(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="orchestrix.api")
    authenticator = Authenticator(TOKENS)
    for n in range(100):
        asked(authenticator, f"guess-{n}")
    asked(authenticator, None, "10.0.0.9")
    first, second = caplog.records
    assert "10.0.0.1" in first.getMessage()
    assert "guess" not in first.getMessage()
    assert (vars(first)["actor"], vars(first)["client"], vars(second)["client"]) == ("unknown", "10.0.0.1", "10.0.0.9")


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("testclient", "testclient"),
    ],
)
def test_all_addresses_of_a_customer_are_one(address: str, found: str) -> None:
    assert client(Request({"type": "http", "client": (address, 1), "headers": []})) == found
    assert client(Request({"type": "http", "client": None, "headers": []})) == "unknown"
