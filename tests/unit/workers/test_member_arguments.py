"""What may be given to a shard member, and what is said of the rest?"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrix import ShardMember
from orchestrix.errors import ConfigError, OrchestrixError

URL = "amqp://127.0.0.1:1/"


async def work(shard: int, epoch: int) -> None:
    """Nothing."""


class Callable:
    async def __call__(self, shard: int, epoch: int) -> None:
        """Nothing."""


def made(**given: Any) -> ShardMember:
    arguments: dict[str, Any] = {
        "service": "orders",
        "worker_id": "w-1",
        "shard_count": 4,
        "on_assigned": work,
        "broker_url": URL,
    }
    return ShardMember(**{**arguments, **given})


async def test_what_is_right_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    made(worker_id="Bürö 1", weight=0, grace=3600, stop_timeout=0, heartbeat_timeout=1)
    made(on_assigned=partial(work), on_revoked=Callable())
    member = made(shard_count=100_000)
    assert (member.state, member.shards, member.revoking, member.generation) == ("joining", {}, {}, 0)
    assert member.problem == "not connected to the broker yet"
    with pytest.raises(ValueError, match=r"shard_count 0: write a whole number from 1 to 100000"):
        member.set_shard_count(0)
    with pytest.raises(ValueError, match=r"weight 1001: write a whole number from 0 to 1000"):
        member.set_weight(1001)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"service": ""}, "service '': must have 1 to"),
        ({"service": 5}, "service 5: write a string"),
        ({"worker_id": " a"}, "worker_id ' a': must not begin or end with white space"),
        ({"shard_count": 0}, "shard_count 0: write a whole number from 1 to 100000"),
        ({"shard_count": 100_001}, "shard_count 100001: write a whole number"),
        ({"shard_count": True}, "shard_count True: write a whole number"),
        ({"shard_count": 2.0}, "shard_count 2.0: write a whole number"),
        ({"weight": -1}, "weight -1: write a whole number from 0 to 1000"),
        ({"grace": -1}, "grace -1: write seconds, from 0 to 3600"),
        ({"grace": float("nan")}, "grace nan: write seconds"),
        ({"grace": "5"}, "grace '5': write seconds"),
        ({"stop_timeout": float("inf")}, "stop_timeout inf: write seconds"),
        ({"heartbeat_timeout": 0.5}, "heartbeat_timeout 0.5: write seconds, from 1 to 3600"),
        ({"on_assigned": print}, "is not an async function: write async def assigned(shard: int, epoch: int)"),
        ({"on_revoked": lambda shard, epoch: None}, "write async def revoked(shard: int, epoch: int)"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else None,
)
def test_what_is_wrong_is_named_with_what_to_write(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        made(**given)


def test_a_function_that_takes_something_else_is_found_at_once() -> None:
    async def one(shard: int) -> None:
        """Nothing."""

    with pytest.raises(ValueError, match=r"on_assigned .* cannot be called with a shard and an epoch"):
        made(on_assigned=one)


@pytest.mark.parametrize("url", [None, "embedded"])
def test_without_a_broker_it_is_said_where_to_name_it(
    url: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ORCHESTRIX_BROKER_URL", raising=False)
    with pytest.raises(ConfigError, match="ORCHESTRIX_BROKER_URL"):
        made(broker_url=url)


def test_a_url_of_something_else_is_refused_without_its_password() -> None:
    with pytest.raises(ConfigError) as error:
        made(broker_url="redis://user:s3cret@host")
    assert "amqp://" in str(error.value)
    assert "s3cret" not in str(error.value)


def test_the_settings_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ORCHESTRIX_BROKER_URL", URL)
    monkeypatch.setenv("ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT", "9")
    assert made(broker_url=None)._session.rules.lease_s == 6.0
    monkeypatch.setenv("ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT", "soon")
    with pytest.raises(OrchestrixError, match="ORCHESTRIX_SHARDS__HEARTBEAT_TIMEOUT"):
        made(broker_url=None)
    assert made(heartbeat_timeout=30)._session.rules.lease_s == 20.0, "nothing is read that is given"
