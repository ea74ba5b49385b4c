"""Do the commands about executors work with a real API, and do they show what a person needs?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from typing import Any

import pytest

from orchestrix.api.guards.connections import ConnectionLimits, Server, config
from orchestrix.bootstrap.listening_socket import listening
from orchestrix.cli.output import width
from orchestrix.errors import Unavailable
from orchestrix.persistence.registry import registrations
from orchestrix.persistence.registry.registrations import Heartbeat
from tests.integration.api.world import World
from tests.integration.cli.fake_api import FakeApi, Reply, problem
from tests.unit.cli.shell import Answer, Shell

A, B, C = (f"http://10.0.0.{n}:9999" for n in (7, 8, 9))
OUTSIDE = "http://203.0.113.9:9999"
Type = Callable[..., Coroutine[Any, Any, Answer]]


@pytest.fixture
async def type_in(world: World, shell: Shell) -> AsyncIterator[Type]:
    """Types `orchestrix registry …` where the API of `world` listens."""
    limits = ConnectionLimits(head=10.0, body=10.0, keep_alive=60.0, connections=100)
    server, socket = Server(config(world.built(), limits, stop=1)), listening("127.0.0.1", [0])
    serving = asyncio.create_task(server.serve(sockets=[socket]))
    shell.set(ORCHESTRIX_API_URL=f"http://127.0.0.1:{socket.getsockname()[1]}", COLUMNS="100")

    async def run(*words: str) -> Answer:
        return await asyncio.to_thread(shell, "registry", *words)

    yield run
    server.should_exit = True
    await serving


async def seen(world: World, address: str, ago: float = 0.0, app: str = "shop", **more: Any) -> None:
    """An executor whose first and last heartbeats came 10 minutes and `ago` seconds ago."""
    now = world.database.now()
    async with world.database.begin() as tx:
        for at in (timedelta(minutes=10), timedelta(seconds=ago)):
            await registrations.record(tx, [Heartbeat(app, address, "i-1", **more)], now - at)


def words(answer: Answer) -> list[list[str]]:
    assert answer.code == 0, answer.err
    assert max(map(width, answer.out.splitlines())) <= 100
    return [line.split() for line in answer.out.splitlines()]


async def test_nobody_is_registered(type_in: Type) -> None:
    answer = await type_in("list")
    assert (answer.code, answer.out) == (0, "none\n")
    assert (await type_in("list", "-o", "json")).json == {"items": [], "nextCursor": None, "asOf": None}
    for line in (["show", "shop"], ["delete", "shop"], ["route", "shop", "--strategy", "FIRST"], ["drain", "shop", A]):
        answer = await type_in(*line)
        assert answer.code == 3, line
        assert "'shop'" in answer.err


async def test_apps_named_like_steps_of_a_path_are_managed(type_in: Type) -> None:
    for app in (".", "..", "a/../b"):
        assert (await type_in("set", app, "--auto")).code == 0
        assert (await type_in("show", app, "-o", "json")).json["appName"] == app
    assert [row[0] for row in words(await type_in("list"))[1:]] == [".", "..", "a/../b"]
    for app in ("..", "."):
        assert (await type_in("delete", app)).code == 0
        assert (await type_in("show", app)).code == 3
    assert [row[0] for row in words(await type_in("list"))[1:]] == ["a/../b"]


async def test_the_list_counts_executors_by_state(world: World, type_in: Type) -> None:
    await seen(world, A)
    await seen(world, B, ago=45.0)
    await seen(world, C, ago=5.0)
    await seen(world, A, app="unassigned", ago=7.0)
    assert (await type_in("set", "shop", "--auto")).code == 0
    assert (await type_in("drain", "shop", C)).code == 0
    head, shop, other = words(await type_in("list"))
    assert " ".join(head) == "APP TYPE ADDRESSES EXECUTORS OLDEST LAST SEEN"
    assert " ".join(shop[:-3]) == "shop AUTO 2 1 HEALTHY, 1 GRACE_30, 1 DEREGISTERING (1 drained)"
    assert 45 <= int(shop[-3]) < 60
    assert shop[-2:] == ["s", "ago"]
    assert " ".join(other[:5]) == "unassigned - 0 1 HEALTHY"
    wide = (await type_in("list", "-o", "wide")).out
    assert all(text in wide for text in ("ADDRESS LIST", "CREATED", A, B))
    assert C not in wide, "it is drained"
    first = await type_in("list", "--limit", "1")
    assert [line.split()[0] for line in first.out.splitlines()] == ["APP", "shop"]
    assert words(await type_in("list", first.err.split()[-1]))[1][0] == "unassigned"


async def test_one_group_with_its_executors_and_addresses(world: World, type_in: Type) -> None:
    await seen(world, A, weight=3, load=0.5)
    await seen(world, B, ago=45.0)
    await type_in("set", "shop", "--auto")
    lines = words(await type_in("show", "shop"))
    assert lines[0] == ["app", "shop"]
    assert lines[1] == ["type", "AUTO"]
    head, first, second = lines[lines.index(["executors:"]) + 1 : lines.index(["addresses:"])]
    assert " ".join(head) == "ADDRESS STATE SINCE LAST SEEN WEIGHT LOAD"
    assert first[:5] == [A, "HEALTHY", "10", "min", "ago"]
    assert first[-2:] == ["3", "0.5"]
    assert second[:2] == [B, "GRACE_30"]
    assert lines[lines.index(["addresses:"]) + 1 :] == [[A], [B]]
    wide = (await type_in("show", "shop", "-o", "wide")).out
    assert all(text in wide for text in ("IN FLIGHT", "DRAINED"))
    found = (await type_in("show", "shop", "-o", "json")).json
    assert [one["state"] for one in found["executors"]] == ["HEALTHY", "GRACE_30"]
    assert found["addressList"] == [A, B]


async def test_an_app_without_executors_or_group_says_so(world: World, type_in: Type) -> None:
    lines = words(await type_in("set", "a/b c", "--auto"))
    assert lines[-4:] == [["executors:"], ["none"], ["addresses:"], ["none"]]
    await seen(world, A)
    assert words(await type_in("show", "shop"))[1] == ["type", "-"]


async def test_a_group_is_set_by_hand_and_back(world: World, type_in: Type, shell: Shell) -> None:
    await seen(world, A)
    lines = words(await type_in("set", "shop", "--address", C, "--address", B.upper(), "--reason", "fixed hosts"))
    assert lines[1] == ["type", "MANUAL"]
    assert lines[-2:] == [[C], [B]]
    lines = words(await type_in("set", "shop", "--auto"))
    assert (lines[1], lines[-1]) == (["type", "AUTO"], [A])
    audit = (await asyncio.to_thread(shell, "audit", "-o", "json")).json["items"]
    assert [(one["action"], one["reason"]) for one in audit][1] == ("set-group", "fixed hosts")
    assert audit[0]["reason"].startswith("by hand")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "one of the arguments --address --auto is required"),
        (["--auto", "--address", A], "argument --address: not allowed with argument --auto"),
        (["--address", A, "--address", f"{B}/"], "--address (number 2) "),
        (["--address", OUTSIDE], f"--address (number 1) {OUTSIDE} is not in ORCHESTRIX_REGISTRY__ALLOW"),
        (["--address", "http://169.254.169.254:80"], "a cloud's metadata service and never called"),
    ],
)
async def test_wrong_addresses_are_refused_in_terms_of_flags(type_in: Type, given: list[str], said: str) -> None:
    answer = await type_in("set", "shop", *given)
    assert answer.code == 2
    assert said in answer.err
    assert "addressList" not in answer.err
    assert (await type_in("show", "shop")).code == 3, "nothing was set"


async def test_a_group_is_deleted_and_its_executors_stay(world: World, type_in: Type) -> None:
    await seen(world, A)
    await seen(world, B)
    await type_in("set", "shop", "--auto")
    answer = await type_in("delete", "shop", "--yes", "--reason", "not needed")
    assert answer.out == "the group of shop is deleted; 2 executors of shop registered, without a group\n"
    assert words(await type_in("list"))[1][:2] == ["shop", "-"]
    assert (await type_in("delete", "shop", "--yes")).code == 3
    await type_in("set", "shop", "--auto")
    assert (await type_in("delete", "shop", "-o", "json")).json["addressList"] == [A, B]


async def test_where_one_would_be_routed(world: World, type_in: Type) -> None:
    await seen(world, A)
    await type_in("set", "shop", "--auto")
    assert words(await type_in("route", "shop", "--strategy", "first")) == [
        ["address", A], ["reason", "first", "seen", "of", "1"]
    ]  # fmt: skip
    await seen(world, B)
    await type_in("set", "shop", "--auto")
    key = ("--strategy", "CONSISTENT_HASH", "--key")
    picks = [(await type_in("route", "shop", *key, "customer-7", "-o", "json")).json["address"] for _ in range(3)]
    assert len({*picks}) == 1
    assert words(await type_in("route", "shop", "--strategy", "ADDRESS", "--address", A))[0] == ["address", A]
    failover = words(await type_in("route", "shop", "--strategy", "FAILOVER"))
    assert failover[-3:] == [["ORDER", "ADDRESS"], ["1", A], ["2", B]]
    shards = words(await type_in("route", "shop", "--strategy", "SHARDING_BROADCAST"))
    assert shards[-3:] == [["SHARD", "ADDRESS"], ["0", A], ["1", B]]
    assert ["address", "-"] not in shards


async def test_how_many_picks_are_spread(world: World, type_in: Type) -> None:
    await seen(world, A)
    await seen(world, B)
    await seen(world, C)
    await type_in("set", "shop", "--auto")
    assert words(await type_in("route", "shop", "--strategy", "ROUND_ROBIN"))[0] == ["address", A]
    lines = words(await type_in("route", "shop", "--strategy", "ROUND_ROBIN", "--count", "10"))
    assert lines[0] == ["ADDRESS", "PICKS", "SHARE"]
    assert sorted(line[1:] for line in lines[1:]) == [["3", "30.0", "%"], ["3", "30.0", "%"], ["4", "40.0", "%"]]
    assert lines[1][:2] == [B, "4"], "the most picked one comes first"
    found = (await type_in("route", "shop", "--strategy", "WEIGHTED", "--count", "30", "-o", "json")).json
    assert sum(found["spread"].values()) == len(found["addresses"]) == 30


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ((), 2, "the following arguments are required: --strategy"),
        (("--strategy", "BEST"), 2, "--strategy: invalid choice: 'BEST'"),
        (("--strategy", "FIRST", "--count", "10001"), 2, "no whole number from 1 to 10000"),
        (("--strategy", "ADDRESS", "--address", B), 2, f"--address: No executor has the address {B}: use one of {A}"),
        (("--strategy", "ADDRESS", "--address", "x"), 2, "--address cannot be read: write http://host:port"),
    ],
)
async def test_what_cannot_be_routed_is_told(
    world: World, type_in: Type, given: tuple[str, ...], code: int, said: str
) -> None:
    await seen(world, A)
    await type_in("set", "shop", "--auto")
    answer = await type_in("route", "shop", *given)
    assert (answer.code, answer.err.count(said)) == (code, 1), answer.err


@pytest.mark.req("S2-36")
async def test_a_group_without_addresses_routes_nothing(type_in: Type) -> None:
    await type_in("set", "shop", "--auto")
    answer = await type_in("route", "shop", "--strategy", "RANDOM")
    assert (answer.code, answer.err) == (4, "error: No executors available\n")


async def test_one_is_drained_and_back(world: World, type_in: Type) -> None:
    await seen(world, A)
    await seen(world, B)
    await type_in("set", "shop", "--auto")
    lines = words(await type_in("drain", "shop", A, "--reason", "new disk"))
    (head,) = [line for line in lines if line[:1] == ["ADDRESS"]]
    assert head[-1] == "DRAINED"
    (row,) = [line for line in lines if line[0] == A]
    assert row[-1] == "yes"
    assert lines[-1] == [B]
    assert words(await type_in("drain", "shop", A, "--undo"))[-2:] == [[A], [B]]
    answer = await type_in("drain", "shop", C)
    assert answer.code == 3
    assert C.removeprefix("http") in answer.err


async def test_an_undo_that_gives_no_jobs_says_why(world: World, type_in: Type) -> None:
    await seen(world, A)
    await type_in("set", "shop", "--auto")
    await type_in("drain", "shop", A)
    assert (await type_in("drain", "shop", A, "--undo")).err == ""
    answer = await type_in("drain", "shop", A, "--undo")
    assert (answer.code, answer.err) == (0, f"note: {A} was not drained: nothing has changed\n")
    await world.database.run(
        lambda tx: registrations.record(tx, [Heartbeat("shop", A, "i-1", registrations.DRAINING)], tx.now())
    )
    answer = await type_in("drain", "shop", A, "--undo")
    assert (answer.code, answer.err) == (0, f"note: {A} drains itself: it takes no jobs until it says otherwise\n")


async def test_a_wrong_name_or_too_many_addresses_are_told(type_in: Type) -> None:
    answer = await type_in("set", " x", "--auto")
    assert (answer.code, answer.err) == (2, "error: app must not begin or end with white space\n")
    answer = await type_in("set", "x", *(word for _ in range(1001) for word in ("--address", A)))
    assert (answer.code, answer.err) == (2, "error: --address must be at most 1000 addresses\n")


async def test_while_the_database_is_away_it_is_said_of_when_the_answer_is(
    world: World, type_in: Type, monkeypatch: pytest.MonkeyPatch
) -> None:
    await seen(world, A)
    await type_in("set", "shop", "--auto")
    assert "as of" not in (await type_in("list")).out

    def away() -> Any:
        raise Unavailable("the database is away")

    monkeypatch.setattr(world.database, "read", away)
    for line in (["list"], ["show", "shop"]):
        answer = await type_in(*line)
        assert answer.code == 0
        assert re.fullmatch(r"as of \d{4}-\S+Z \(the database is away\)", answer.out.splitlines()[0])
        assert A in answer.out or "1 HEALTHY" in answer.out
        assert (await type_in(*line, "-o", "json")).json["asOf"] is not None


def group(*executors: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"appName": "shop", "addressType": "AUTO", "addressList": [A], "executors": list(executors),
            "createdAt": "2026-01-31T12:00:00.000000Z", "updatedAt": "2026-01-31T12:00:00.000000Z", "asOf": None,
            **more}  # fmt: skip


def test_long_addresses_and_many_states_fit_a_usual_terminal(api: FakeApi, shell: Shell) -> None:
    long = f"https://shop-{'x' * 28}.example:9999"
    one = {"address": long, "state": "DEREGISTERING", "since": "2026-01-31T12:00:00.000000Z",
           "lastSeen": "2026-01-31T12:00:00.000000Z", "weight": 1, "load": 0.25, "inFlight": 0,
           "drained": True}  # fmt: skip
    states = ["REGISTERING", "HEALTHY", "GRACE_30", "GRACE_60", "GRACE_90", "DEREGISTERING", "REMOVED"]
    many = group(*({**one, "state": state} for state in states), appName="a-shop-with-a-long-name")
    api.on("GET", "/registry/groups", Reply(body={"items": [many], "nextCursor": None, "asOf": None}))
    api.on("GET", "/registry/groups/shop", Reply(body=group(one)))
    shell.set(COLUMNS="100")
    for line in (("list",), ("show", "shop")):
        assert max(map(width, shell("registry", *line).out.splitlines())) <= 100
    assert long in shell("registry", "show", "shop").out


def test_who_was_removed_is_counted_as_removed_alone(api: FakeApi, shell: Shell) -> None:
    gone = {"address": A, "state": "REMOVED", "since": "2026-01-31T12:00:00.000000Z", "weight": None, "load": None,
            "lastSeen": "2026-01-31T11:58:30.000000Z", "inFlight": 0, "drained": False}  # fmt: skip
    there = {**gone, "address": B, "state": "HEALTHY", "weight": 1, "lastSeen": "2026-01-31T12:00:00.000000Z"}
    api.on("GET", "/registry/groups", Reply(body={"items": [group(gone, there)], "nextCursor": None, "asOf": None}))
    row = shell("registry", "list", "--utc").out.splitlines()[1].split()
    assert row[3:] == ["1", "REMOVED,", "1", "HEALTHY", "2026-01-31T12:00:00Z"]
    api.on("DELETE", "/registry/groups/shop", Reply(body=group(gone, there)))
    assert "; 1 executor of shop registered" in shell("registry", "delete", "shop").out


@pytest.mark.parametrize(("status", "code"), [(403, 2), (404, 3), (409, 4), (503, 5)])
def test_exit_codes(api: FakeApi, shell: Shell, status: int, code: int) -> None:
    for method, path in (("PUT", "/registry/groups/shop"), ("POST", "/registry/drain")):
        api.on(method, path, problem(status, "x", "It is not to be."))
    assert shell("registry", "set", "shop", "--auto").code == code
    assert shell("registry", "drain", "shop", A).code == code
