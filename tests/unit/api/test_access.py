"""How often may somebody guess a token, and who is locked out by it?"""

from __future__ import annotations

import logging

import pytest
from starlette.requests import Request

from orchestrix.api import auth
from orchestrix.api.auth import GUESSES, Door, client
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


def asked(door: Door, secret: str | None, address: str = "10.0.0.1") -> str | int:
    """The actor, or the status of the refusal."""
    try:
        return door.admit(sent(secret, address))
    except Problem as problem:
        return problem.status if problem.headers.get("Retry-After", "3") == "3" else 0


def test_guesses_end_with_429_and_a_right_one_tells_nothing(clock: Clock) -> None:
    door = Door(TOKENS)
    assert [asked(door, f"guess-{n}") for n in range(GUESSES)] == [401] * GUESSES
    assert [asked(door, f"guess-{n}") for n in range(5)] == [429] * 5
    assert asked(door, TOKENS["ada"]) == 429, "else the guesses could go on"
    assert asked(door, TOKENS["ada"], "10.0.0.2") == "ada", "other addresses are not locked out"
    clock.now += 3
    assert asked(door, TOKENS["ada"]) == "ada"


def test_who_was_let_in_before_stays_in(clock: Clock) -> None:
    door = Door(TOKENS)
    assert asked(door, TOKENS["ada"]) == "ada"
    for n in range(2 * GUESSES):
        asked(door, f"guess-{n}")
    assert (asked(door, TOKENS["ada"]), asked(door, TOKENS["bob"])) == ("ada", 429)


def test_guesses_come_back_one_by_one(clock: Clock) -> None:
    door = Door(TOKENS)
    for n in range(GUESSES):
        asked(door, f"guess-{n}")
    clock.now += 6.1
    assert [asked(door, "x") for _ in range(3)] == [401, 401, 429]
    clock.now += 3600
    assert [asked(door, "x") for _ in range(GUESSES + 1)] == [401] * GUESSES + [429]


def test_to_send_no_token_is_no_guess(clock: Clock) -> None:
    door = Door(TOKENS)
    assert {asked(door, None) for _ in range(3 * GUESSES)} == {401}
    assert asked(door, TOKENS["ada"]) == "ada"


def test_what_is_told_to_some_costs_a_guess_too(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    door = Door(TOKENS)
    assert not door.knows(sent(None))
    assert not caplog.records, "probes send no token"
    assert door.knows(sent(TOKENS["ada"], "10.0.0.2"))
    assert not any(door.knows(sent(f"guess-{n}")) for n in range(GUESSES))
    assert not door.knows(sent(TOKENS["bob"])), "else the guesses could go on"
    assert (asked(door, "x"), asked(door, TOKENS["ada"], "10.0.0.2")) == (429, "ada")
    assert "10.0.0.1" in caplog.records[0].getMessage()
    clock.now += 3
    assert door.knows(sent(TOKENS["bob"]))
    assert Door({}).knows(sent(None))
    assert Door({}).knows(sent("x"))


def test_what_is_remembered_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MOST_ADDRESSES", 3)
    door = Door(TOKENS)
    for n in range(10):
        asked(door, "guess", f"10.0.1.{n}")
        asked(door, TOKENS["ada"], f"10.0.1.{n}")
    assert (len(door._guesses), len(door._known)) == (3, 3)


def test_a_refusal_leaves_a_line_but_not_each_time(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="orchestrix.api")
    door = Door(TOKENS)
    for n in range(100):
        asked(door, f"guess-{n}")
    asked(door, None, "10.0.0.9")
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
