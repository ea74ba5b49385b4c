"""Does no shard ever have two holders, and each one again soon, whatever happens to members, nodes and links?

Twenty members of a service in four processes share 1,000 shards, by the rule of fewest moves; three nodes coordinate
them. What each process has logged of its shards is judged after each fault.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.system import System
from tests.fault import shard_acts
from tests.fault.shard_acts import story
from tests.fault.shard_world import FileWorld, ShardWorld
from tests.fault.world import World
from tests.processes import Processes

Start = Callable[[World], Awaitable[ShardWorld]]


@pytest.fixture
def made(request: pytest.FixtureRequest, processes: Processes, tmp_path: Path, rabbitmq_url: str) -> Iterator[World]:
    """A world on the shared servers, of which none breaks here."""
    kind = FileWorld if request.param == "sqlite" else World
    world = kind(System(processes, tmp_path, request.getfixturevalue(f"{request.param}_url"), rabbitmq_url))
    world.system.upgrade()
    yield world
    world.close()


def on(database: str) -> pytest.MarkDecorator:
    """The world of a test stands on that database."""
    return pytest.mark.parametrize("made", [database], indirect=True)


# In `make test` each fault comes once, in a soak on each database.


@on("postgres")
async def test_no_shard_has_two_holders(start: Start, made: World, short: bool) -> None:
    shards = await start(made)
    await story(shards, shard_acts.BRIEF)
    assert shards.of_other_service() == [], "the members of another service were interrupted"
    if not short:
        acts = [shard_acts.messages_are_late, shard_acts.a_node_stands_still, shard_acts.all_nodes_are_killed]
        await story(shards, acts)


@on("mariadb")
async def test_no_shard_has_two_holders_on_mariadb(start: Start, made: World, short: bool) -> None:
    shards = await start(made)
    await story(shards, [shard_acts.a_node_stands_still, shard_acts.all_nodes_are_killed])
    if not short:
        await story(shards, [*shard_acts.BRIEF, shard_acts.messages_are_late])


@on("sqlite")
async def test_no_shard_has_two_holders_on_sqlite(start: Start, made: World, short: bool) -> None:
    """A node that stands still can block its file, and so that is left out."""
    shards = await start(made)
    await story(shards, [shard_acts.messages_are_late])
    if not short:
        await story(shards, [*shard_acts.BRIEF, shard_acts.all_nodes_are_killed])
