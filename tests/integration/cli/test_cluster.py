"""What do the commands about the cluster ask of the API, and what do they show?"""

from __future__ import annotations

import pytest

from tests.integration.cli.fake_api import FakeApi, Reply
from tests.integration.cli.samples import CLUSTER
from tests.unit.cli.shell import Shell


def test_the_status_as_tables(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/cluster", Reply(body=CLUSTER))
    answer = shell("cluster", "status")
    assert answer.code == 0
    words = [line.split() for line in answer.out.splitlines()]
    assert ["leader", "node-1-5f3a9c55"] in words
    assert ["term", "7"] in words
    assert ["mode", "broker"] in words
    assert ["NODE", "STATE", "LEADER", "ROLES", "JOBS", "VERSION", "HOST", "LAST", "SEEN", "STARTED"] in words
    assert any(
        line[:7] == ["node-1-5f3a9c55", "ALIVE", "yes", "api,", "coordinator,", "orchestrator", "12"] for line in words
    )
    (worker,) = [line for line in words if line[:1] == ["worker-1-7b1f0c9f"]]
    assert worker[1:8] == ["ALIVE", "cmd.registerApp", "reports", "4", "3", "host-2", "0.1.0"]
    assert any(line[:5] == ["7", "node-2-c0ffee00", "node-1-5f3a9c55", "broker", "lost"] for line in words)


def test_the_status_in_json_is_as_it_came(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/cluster", Reply(body=CLUSTER))
    assert shell("cluster", "status", "-o", "json").json == CLUSTER


NOBODY = {**CLUSTER, "leader": None, "mode": None, "lease": None, "nodes": [], "workers": [], "handovers": []}


def test_a_cluster_without_leader_is_a_failure(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/cluster", Reply(body=NOBODY))
    answer = shell("cluster", "status")
    assert answer.code == 1
    assert answer.out.splitlines()[0].split() == ["leader", "nobody"]
    assert "NODE" not in answer.out


@pytest.mark.parametrize(
    ("components", "says"),
    [
        (["Start", "Database"], "nobody (this node is starting)"),
        (["Stop", "Coordinator"], "nobody (this node is stopping)"),
        (["Start", "Stop"], "nobody (this node is stopping)"),
        (["Database"], "nobody"),
    ],
)
def test_a_node_that_only_starts_or_stops_says_so_where_nobody_leads(
    api: FakeApi, shell: Shell, components: list[str], says: str
) -> None:
    checks = [{"component": name, "isHealthy": name == "Broker"} for name in ("Broker", *components)]
    api.on("GET", "/cluster", Reply(body=NOBODY))
    api.on("GET", "/health/ready", Reply(503, {"status": "not ready", "checks": checks}))
    answer = shell("cluster", "status")
    assert (answer.code, answer.out.splitlines()[0].split(maxsplit=1)) == (1, ["leader", says])
    answer = shell("cluster", "status", "-o", "json")
    assert (answer.code, answer.json) == (1, NOBODY)
    assert answer.err == ("" if says == "nobody" else f"{says.removeprefix('nobody (').removesuffix(')')}\n")


def test_where_somebody_leads_nothing_else_is_asked(api: FakeApi, shell: Shell) -> None:
    api.on("GET", "/cluster", Reply(body=CLUSTER))
    assert shell("cluster", "status").code == 0
    assert [one.path for one in api.requests] == ["/cluster"]
