"""Are generations a legal chain over SQLite without a disk, where more orders of statements come about?"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from orchestrix.domain.shards.allocation import Allocation
from orchestrix.domain.shards.state import ShardRules
from orchestrix.testing.simulation.inline_sqlite import SqliteClient, SqliteFile
from tests.conformance.store.shard_interleaving import NODES, Interleaving
from tests.servers import templates

pytestmark = pytest.mark.virtual_time

SEEDS = 2


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An upgraded database."""
    path = tmp_path_factory.mktemp("interleavings") / "template.db"
    templates.upgraded(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.mark.req("S4-12", "S4-35", "S4-41", "S4-42")
@pytest.mark.parametrize("allocation", list(Allocation))
async def test_any_interleaving_makes_a_legal_chain(tmp_path: Path, template: Path, allocation: Allocation) -> None:
    counts: dict[str, int] = {}
    for seed in range(SEEDS):
        for what, many in (
            await _run(allocation, Random(f"{allocation}:{seed}"), tmp_path / f"{seed}.db", template)
        ).items():
            counts[what] = counts.get(what, 0) + many
    assert counts["activations"] >= 2 * SEEDS, counts
    assert counts["abandoned"], counts


async def _run(allocation: Allocation, dice: Random, path: Path, template: Path) -> dict[str, int]:
    file = SqliteFile(path, template=template, delay=lambda: dice.uniform(0.0, 0.05))
    databases = [SqliteClient(file).database() for _ in NODES]
    rules = ShardRules(allocation=allocation, window_s=2.0, heartbeat_timeout_s=20.0)
    made = Interleaving(databases, rules, dice, databases[0].now())
    await made.run(40)
    file.close()
    return made.counts
