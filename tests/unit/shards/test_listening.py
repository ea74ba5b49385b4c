"""When does a coordinator know that it would have heard a member?"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from orchestrix import clock
from orchestrix.broker.port import Broker, LinkState
from orchestrix.shards.listening import Listening

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Link:
    state: LinkState = LinkState.UP
    blocked: str | None = None
    generation: int = 1


class Ear:
    """Looks each second; `ahead` is what the database's clock has jumped."""

    def __init__(self) -> None:
        self.link = Link()
        self.listening = Listening(cast(Broker, self.link))
        self.passed, self.ahead = 0.0, 0.0

    def look(self, seconds: int) -> float:
        """Since which second it has listened, after so many more."""
        since = START
        for _ in range(seconds):
            since = self.sleep(1.0)
        return (since - START).total_seconds()

    def sleep(self, seconds: float) -> datetime:
        self.passed += seconds
        return self.listening.update(START + timedelta(seconds=self.passed + self.ahead))


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture(autouse=True)
def _time(ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "monotonic", lambda: ear.passed)


def test_it_counts_from_the_first_look(ear: Ear) -> None:
    assert ear.look(1) == 1
    assert ear.look(100) == 1


def test_it_counts_from_the_end_of_a_pause_of_the_process(ear: Ear) -> None:
    ear.look(10)
    ear.sleep(3.5)
    assert ear.look(10) == 13.5


def test_a_slow_look_is_no_pause(ear: Ear) -> None:
    ear.look(10)
    ear.sleep(2.5)
    assert ear.look(10) == 1


@pytest.mark.parametrize("jump", [-60.0, -3.0, 3.0, 60.0])
def test_it_counts_from_a_jump_of_the_databases_clock(ear: Ear, jump: float) -> None:
    ear.look(10)
    ear.ahead = jump
    assert ear.look(10) == 11 + jump


def test_it_counts_from_the_last_look_at_a_broker_that_was_away(ear: Ear) -> None:
    ear.look(10)
    ear.link.state = LinkState.DOWN
    assert ear.look(10) == 20
    ear.link.state = LinkState.UP
    assert ear.look(10) == 20


def test_it_counts_from_a_reconnect_that_no_look_has_seen(ear: Ear) -> None:
    ear.look(10)
    ear.link.generation += 1
    assert ear.look(10) == 11


def test_it_counts_from_the_end_of_an_alarm(ear: Ear) -> None:
    ear.look(10)
    ear.link.blocked = "memory"
    ear.look(10)
    ear.link.blocked = None
    assert ear.look(10) == 20


def test_it_counts_from_what_interrupts_it(ear: Ear) -> None:
    ear.look(10)
    ear.listening.interrupt()
    assert ear.look(10) == 11
