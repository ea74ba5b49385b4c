"""What does a node need to take work, by its roles?"""

from __future__ import annotations

import pytest

from orchestrix.config.settings import Settings
from orchestrix.lifecycle import Check
from orchestrix.node import open_node


@pytest.mark.parametrize("roles", ["api", "api orchestrator", "api coordinator orchestrator"])
async def test_a_node_that_serves_http_needs_its_database_alone(roles: str, sqlite_url: str) -> None:
    node = open_node(Settings(database_url=sqlite_url), frozenset(roles.split()), "amqp://localhost/")
    assert [check.component for check in node.health.needed()] == ["Database"]
    shown = [check.component for check in node.health.checks()]
    assert shown[:3] == ["Coordinator", "Database", "Broker"]


@pytest.mark.parametrize("roles", ["orchestrator", "coordinator", "coordinator orchestrator"])
async def test_any_other_node_needs_the_broker_too(roles: str, sqlite_url: str) -> None:
    node = open_node(Settings(database_url=sqlite_url), frozenset(roles.split()), "amqp://localhost/")
    found = [check.component for check in node.health.needed()]
    assert found[:3] == ["Coordinator", "Database", "Broker"]


async def test_a_node_without_the_role_finds_nothing_wrong_before_it_has_looked_for_a_leader(sqlite_url: str) -> None:
    node = open_node(Settings(database_url=sqlite_url), frozenset({"api"}), "amqp://localhost/")
    assert node.health.checks()[0] == Check("Coordinator", True)
