"""Do the commands about shards work with a real API, and do they show what a person needs?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from orchestrix.api.guards.connections import ConnectionLimits, Server, config
from orchestrix.bootstrap.listening_socket import listening
from orchestrix.cli.output import width
from orchestrix.domain.shards.state import Event, MemberLeave, ServiceCheck
from orchestrix.persistence.shards import generations
from tests.conformance.store.test_shards import activated, heartbeat, registration, transact
from tests.integration.api.world import World
from tests.integration.cli.fake_api import FakeApi, problem
from tests.unit.cli.shell import Answer, Shell

Type = Callable[..., Coroutine[Any, Any, Answer]]


@pytest.fixture
async def type_in(world: World, shell: Shell) -> AsyncIterator[Type]:
    """Types `orchestrix shards …` where the API of `world` listens."""
    limits = ConnectionLimits(head=10.0, body=10.0, keep_alive=60.0, connections=100)
    server, socket = Server(config(world.built(), limits, stop=1)), listening("127.0.0.1", [0])
    serving = asyncio.create_task(server.serve(sockets=[socket]))
    shell.set(ORCHESTRIX_API_URL=f"http://127.0.0.1:{socket.getsockname()[1]}", COLUMNS="100")

    async def run(*words: str) -> Answer:
        return await asyncio.to_thread(shell, "shards", *words)

    yield run
    server.should_exit = True
    await serving


async def changed(world: World, *events: Event, name: str = "orders") -> None:
    """These events, and the generation that follows, which is active at once."""
    await transact(world.database, events, name=name)
    async with world.database.begin() as tx:
        await generations.acquire_leader_lock(tx, "node-1", world.database.now())
    await transact(world.database, [ServiceCheck("node-1", world.database.now())], after_s=3.0, name=name)


def words(answer: Answer) -> list[list[str]]:
    assert answer.code == 0, answer.err
    tables = [line for line in answer.out.splitlines() if not line.startswith(("  ", "if "))]  # nor sentences
    assert max(map(width, tables)) <= 100
    return [line.split() for line in answer.out.splitlines()]


async def test_there_are_no_services(type_in: Type) -> None:
    answer = await type_in("show")
    assert (answer.code, answer.out) == (0, "none\n")
    assert (await type_in("show", "-o", "json")).json == {"items": []}
    for line in (["show", "orders"], ["history", "orders"], ["preview", "orders", "--shards", "5"]):
        answer = await type_in(*line)
        assert (answer.code, answer.err.count("'orders'")) == (3, 1), line


async def test_the_services_are_a_table(world: World, type_in: Type) -> None:
    await activated(world.database, "w-1", "w-2")
    await transact(world.database, [registration("w-1")], name="a/b c")
    head, first, second = words(await type_in("show"))
    assert head[:5] == ["SERVICE", "SHARDS", "MEMBERS", "GENERATION", "SINCE"]
    assert " ".join(first[:6]) == "a/b c 10 1 - -"
    assert second[:4] == ["orders", "10", "2", "1"]
    assert "WITHOUT MEMBER" in " ".join(head), "of the one that has no generation yet"
    items = (await type_in("show", "-o", "json")).json["items"]
    assert [one["service"] for one in items] == ["a/b c", "orders"]
    assert words(await type_in("show", "a/b c"))[0] == ["service", "a/b", "c"]


async def test_one_service_is_shown_with_a_strip_and_its_members(world: World, type_in: Type) -> None:
    await activated(world.database, "w-1", "w-2", "w-3")
    await transact(world.database, [MemberLeave("w-2", "i-1")])
    answer = await type_in("show", "orders")
    lines = words(answer)
    texts = [" ".join(line) for line in lines]
    assert texts[:3] == ["service orders", "shards 10, by even allocation", "members 2"]
    assert texts[3].startswith("active generation 1, ")
    assert texts[3].endswith("(joined w-1), 0 shards moved")
    assert texts[4].startswith("pending generation 2, now (left w-2)")
    assert texts[5].startswith("without a member 3, the first ")
    assert texts[7:9] == ["0 AAAA...BBB 9", ". without a member"]
    assert texts[10].startswith("MEMBER MARK STATE SHARE HAS SHARDS")
    assert [line[:6] for line in lines[11:13]] == [
        ["w-1", "A", "ACTIVE", "4", "4", "0-3"], ["w-3", "B", "ACTIVE", "3", "3", "7-9"]
    ]  # fmt: skip
    why = lines.index(["why:"])
    assert texts[why + 1].startswith("generation 2 is pending: members may join it until ")
    assert "w-2 is gone; the next generation gives them to others" in answer.out
    table = lines[lines.index(["generations:"]) + 1 :]
    assert [line[:4] for line in table[1:]] == [["2", "pending", "left", "w-2"], ["1", "active", "joined", "w-1"]]
    assert (await type_in("show", "orders", "-o", "json")).json["service"] == "orders"
    wide = (await type_in("show", "orders", "-o", "wide")).out
    assert all(text in wide for text in ("INSTANCE", "i-1", "VIA", "rabbitmq"))


async def test_neighbouring_shards_of_several_epochs_are_one_range(world: World, type_in: Type) -> None:
    await activated(world.database, "w-1", "w-2")
    await changed(world, MemberLeave("w-2", "i-1"))
    (member,) = [line for line in words(await type_in("show", "orders")) if line[:1] == ["w-1"]]
    assert member[4:6] == ["10", "0-9"]
    found = (await type_in("show", "orders", "-o", "json")).json["members"][0]
    assert found["shards"] == [[0, 4], [5, 9]]
    assert found["epochs"][0] < found["epochs"][1]


async def test_what_waits_is_told_beside_the_members(world: World, type_in: Type) -> None:
    state = await activated(world.database, "w-1")
    follows = heartbeat("w-1", state.members["w-1"].shards, seq=2, generation=1)
    await changed(world, follows, registration("w-2", grace_s=600.0))
    await transact(world.database, [MemberLeave("w-2", "i-1"), registration("w-1", instance="i-2")])
    answer = await type_in("show", "orders")
    lines = words(answer)
    assert "0 AAAAAaaaaa 9" in answer.out
    assert "a small letter: to be let go of" in answer.out
    assert ["members", "2", "(1", "AWAY),", "and", "1", "WAITING"] in lines
    assert "w-1 is to let go of 5 shards since " in answer.out
    assert "a second process runs as w-1" in answer.out
    (away,) = [line for line in lines if line[:3] == ["w-2", "-", "AWAY"]]
    assert "left," in away
    (head,) = [" ".join(line) for line in lines if line[:1] == ["MEMBER"]]
    assert head.startswith("MEMBER MARK STATE SHARE HAS SHARDS REVOKING AWAY WEIGHT")
    wide = (await type_in("show", "orders", "-o", "wide")).out
    assert "left, grace ends 20" in wide, "a time there"
    assert "REVOKING SINCE" in wide


async def test_the_history_goes_on_by_its_cursor(world: World, type_in: Type) -> None:
    for number in range(4):
        await changed(world, registration(f"w-{number}"))
    answer = await type_in("history", "orders", "--limit", "3")
    assert [line[:4] for line in words(answer)[1:]] == [
        ["4", "active", "joined", "w-3"], ["3", "superseded", "joined", "w-2"], ["2", "superseded", "joined", "w-1"]
    ]  # fmt: skip
    rest = await type_in("history", "orders", answer.err.split()[-1])
    assert [line[0] for line in words(rest)[1:]] == ["1"]
    found = (await type_in("history", "orders", "-o", "json")).json
    assert ([one["number"] for one in found["items"]], found["nextCursor"]) == ([4, 3, 2, 1], None)


async def test_another_shard_count_is_named_whatever_began_the_generation(world: World, type_in: Type) -> None:
    await activated(world.database, "w-1")
    await changed(world, registration("w-2"), registration("w-1", seq=2, shard_count=12))
    await changed(world, registration("w-3", shard_count=12))
    table = [" ".join(line) for line in words(await type_in("history", "orders"))[1:]]
    assert table[0].startswith("3 active joined w-3 12 3 ")
    assert table[1].startswith("2 superseded joined w-2 12 (was 10) 2 ")
    assert table[2].startswith("1 superseded joined w-1 10 1 ")
    found = (await type_in("history", "orders", "--limit", "2", "-o", "json")).json["items"]
    assert [(one["shardCount"], one["shardCountBefore"]) for one in found] == [(12, 12), (12, 10)]
    await transact(world.database, [registration("w-4", shard_count=12)])
    found = (await type_in("history", "orders", "-o", "json")).json["items"]
    assert [one["shardCountBefore"] for one in found] == [None, 12, 10, None]


# What if.


async def previewed(type_in: Type, *line: str) -> tuple[str, list[list[str]]]:
    """The sentence, and the rows of the table."""
    answer = await type_in("preview", "orders", *line)
    lines = words(answer)
    assert lines[1] == ["MEMBER", "NOW", "THEN", "CHANGE", "SHARDS"]
    return answer.out.splitlines()[0], lines[2:]


async def test_what_if_a_member_left(world: World, type_in: Type) -> None:
    await activated(world.database, "w-1", "w-2", "w-3")
    sentence, rows = await previewed(type_in, "--leave", "w-1")
    assert sentence == "if w-1 left orders, 6 of 10 shards would move (4 is the fewest for shares this even)"
    assert rows == [["w-1", "4", "0", "-4", "-"], ["w-2", "3", "5", "+2", "0-4"], ["w-3", "3", "5", "+2", "5-9"]]
    sentence, rows = await previewed(type_in, "--leave", "w-1", "--allocation", "minimal")
    assert sentence == "if w-1 left orders, 4 of 10 shards would move (no fewer could)"
    assert rows[1:] == [["w-2", "3", "5", "+2", "0-1,", "4-6"], ["w-3", "3", "5", "+2", "2-3,", "7-9"]]


async def test_what_if_one_joined(world: World, type_in: Type) -> None:
    await activated(world.database, "w-1", "w-2")
    sentence, rows = await previewed(type_in, "--join", "w-3", "--allocation", "minimal", "--weight", "2")
    assert sentence == "if w-3 joined orders, 5 of 10 shards would move (no fewer could)"
    assert [row[:4] for row in rows] == [["w-1", "5", "3", "-2"], ["w-2", "5", "2", "-3"], ["w-3", "0", "5", "+5"]]
    found = (await type_in("preview", "orders", "--join", "w-3", "-o", "json")).json
    assert (found["allocation"], found["shardCount"], found["moved"], found["fewest"]) == ("even", 10, 4, 3)
    assert found["members"][2] == {"workerId": "w-3", "now": 0, "then": 3, "change": 3, "shards": [[7, 9]]}
    answer = await type_in("preview", "orders", "--join", "w-3", "--weight", "2")
    assert answer.err == "note: even allocation knows no weights: --weight changes nothing\n"


@pytest.mark.parametrize("rule", ["even", "minimal"])
async def test_what_if_one_joined_that_takes_nothing(world: World, type_in: Type, rule: str) -> None:
    await activated(world.database, "w-1", "w-2")
    answer = await type_in("preview", "orders", "--join", "w-3", "--weight", "0", "--allocation", rule)
    assert (answer.err, answer.out.splitlines()[0]) == (
        "",
        "if w-3 joined orders, 0 of 10 shards would move (no fewer could)",
    )
    assert words(answer)[-1] == ["w-3", "0", "0", "0", "-"]


async def test_what_if_the_shard_count_changed(world: World, type_in: Type) -> None:
    await activated(world.database, "w-1", "w-2")
    sentence, rows = await previewed(type_in, "--shards", "12")
    assert sentence == (
        "if orders had 12 shards, 1 of 12 shards would move (0 is the fewest for shares this even); 2 shards "
        "without a member would get one"
    )
    assert [row[:4] for row in rows] == [["w-1", "5", "6", "+1"], ["w-2", "5", "6", "+1"]]
    sentence, _ = await previewed(type_in, "--shards", "1")
    assert sentence == "if orders had 1 shard, 0 of 1 shard would move (no fewer could); 9 would end"


async def test_what_if_the_last_one_left(world: World, type_in: Type) -> None:
    await activated(world.database, "w-1")
    sentence, rows = await previewed(type_in, "--leave", "w-1")
    assert sentence == "if w-1 left orders, none of its 10 shards would have a member: none takes shards"
    assert rows == [["w-1", "10", "0", "-10", "-"]]


async def test_a_preview_says_of_what_it_is_made(world: World, type_in: Type) -> None:
    await transact(world.database, [registration("w-1")])
    answer = await type_in("preview", "orders", "--join", "w-2")
    assert answer.err == "note: no generation is active yet: nobody has a share that could move\n"
    await changed(world)
    await transact(world.database, [registration("w-2")])
    answer = await type_in("preview", "orders", "--leave", "w-2")
    assert answer.err == "note: generation 2 is pending: the shares until now are those of the one before\n"
    assert answer.out.startswith("if w-2 left orders, 0 of 10 shards would move")


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (("--leave", "w-9"), 3, "'w-9' is no member of orders: its members are w-1, w-2"),
        (("--join", "w-1"), 4, "'w-1' is a member of orders already: name another one, or use --leave"),
        (("--join", " x"), 2, "--join must not begin or end with white space"),
        (("--leave", "w-1", "--weight", "3"), 2, "--weight is for --join"),
        ((), 2, "one of the arguments --leave --join --shards is required"),
        (("--shards", "0"), 2, "no whole number from 1 to 100000"),
    ],
)
async def test_what_cannot_be_previewed_is_told(
    world: World, type_in: Type, given: tuple[str, ...], code: int, said: str
) -> None:
    await activated(world.database, "w-1", "w-2")
    answer = await type_in("preview", "orders", *given)
    assert (answer.code, answer.out, answer.err.count(said)) == (code, "", 1), answer.err


async def test_a_member_more_than_there_may_be_is_told(
    type_in: Type, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await activated(world.database, "w-1", "w-2")
    monkeypatch.setattr("orchestrix.cli.commands.shards.MOST_MEMBERS", 2)
    answer = await type_in("preview", "orders", "--join", "w-3")
    assert (answer.code, answer.err) == (
        4,
        "error: orders has 2 members, and can have no more: another one is refused\n",
    )


async def test_names_that_could_steer_a_terminal_are_shown_as_escapes(world: World, type_in: Type) -> None:
    await activated(world.database, "w-\u202e1")
    for line in (("show", "orders"), ("history", "orders"), ("preview", "orders", "--leave", "w-\u202e1")):
        answer = await type_in(*line)
        assert "\u202e" not in answer.out, line
        assert "\\u202e" in answer.out, line


@pytest.mark.parametrize(("status", "code"), [(403, 2), (404, 3), (503, 5)])
def test_exit_codes(api: FakeApi, shell: Shell, status: int, code: int) -> None:
    for path in ("/shards", "/shards/orders"):
        api.on("GET", path, problem(status, "x", "It is not to be."))
    for line in (("show",), ("show", "orders"), ("history", "orders"), ("preview", "orders", "--shards", "1")):
        assert shell("shards", *line).code == code
