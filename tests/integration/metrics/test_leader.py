"""Does the leader show what it has counted just now, and nothing else?"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrix.cluster.cluster_metrics import GAUGES, ClusterMetrics
from orchestrix.errors import Unavailable
from orchestrix.persistence.cluster import cluster_counts
from orchestrix.persistence.engine import Connection
from orchestrix.saga.catalog import Catalog
from sagas.app_provisioning import APP_PROVISIONING
from tests.conformance.store.test_nodes import leader
from tests.integration.metrics.situations import store


@pytest.mark.parametrize("error", [Unavailable("away"), ValueError("a bug")], ids=["an outage", "a bug"])
async def test_what_cannot_be_counted_is_not_shown(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(connection: Connection) -> int:
        raise error

    async with store(tmp_path / "store") as database:
        metrics = ClusterMetrics(await leader(database), database, Catalog([APP_PROVISIONING]), 30.0)
        await metrics.count()
        assert any(one.values() for one in GAUGES)
        monkeypatch.setattr(cluster_counts, "open_dead_letters", fail)
        with pytest.raises(type(error)):
            await metrics.count()
        assert not any(one.values() for one in GAUGES), "they would say for ever what was then"
