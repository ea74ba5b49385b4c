"""Is every metric of the catalogue emitted by the situation that it names?"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from orchestrix.telemetry.metrics.catalogue import CATALOGUE
from orchestrix.telemetry.metrics.definitions import Kind, Metric
from orchestrix.version import VERSION
from tests.integration.metrics import situations
from tests.integration.metrics.situations import Samples, Situation


class Case(NamedTuple):
    """After the situation the series of these labels has so much more, or if it is a gauge, has that value."""

    situation: Situation
    labels: str = ""
    value: float = 1


_DEV, _FAILS, _COUNTED = (
    situations.a_saga_in_dev,
    situations.a_saga_that_fails,
    situations.what_the_leader_counts,
)
_HANDS_OFF, _BLOCKED = situations.a_node_that_hands_its_jobs_off, situations.a_broker_that_takes_nothing
_CLIENTS = situations.clients_of_shards
CASES: Final[dict[str, list[Case]]] = {
    "broker.blocked": [Case(_BLOCKED)],
    "broker.links": [Case(_BLOCKED, 'state="down"'), Case(_DEV, 'state="up"', 3)],
    "command.queue.consumers": [Case(_DEV, 'queue="cmd.createGitRepo"')],
    "command.queue.messages": [Case(_FAILS, "", 18)],
    "coordinator.handoffs": [
        Case(_HANDS_OFF, 'result="ack"'),
        Case(_HANDS_OFF, 'result="retry"'),
        Case(_HANDS_OFF, 'result="orphaned"'),
    ],
    "coordinator.is_leader": [Case(_DEV)],
    "coordinator.jobs.owned": [Case(_DEV)],
    "coordinator.lease.remaining": [Case(_DEV)],
    "coordinator.nodes": [Case(_DEV, 'state="alive"'), Case(_COUNTED, 'state="alive"', 2)],
    "coordinator.nodes.died": [Case(situations.a_node_that_dies)],
    "database.pool.connections": [Case(_DEV, 'state="idle"')],
    "database.pool.size": [Case(_DEV, "", 10)],
    "dead_letter.open": [Case(_COUNTED)],
    "dead_letter.recorded": [Case(_DEV)],
    "event.ignored": [Case(_FAILS, 'reason="repeated"'), Case(_DEV, 'reason="not-json"')],
    "http.server.active_requests": [Case(_DEV)],
    "http.server.request.duration": [
        Case(_DEV, 'http_request_method="POST",http_route="/apps",http_response_status_code="200"')
    ],
    "log.lines.lost": [
        Case(situations.lines_that_are_lost, 'reason="rate_limit"', 2),
        Case(situations.lines_that_are_lost, 'reason="slow_reader"'),
    ],
    "messaging.client.consumed.messages": [Case(_DEV, 'messaging_destination_name="orchestrator.commands"', 2)],
    "messaging.client.operation.duration": [Case(_DEV, 'messaging_operation_name="publish"')],
    "messaging.client.sent.messages": [Case(_DEV, 'messaging_destination_name="orchestrator.commands"', 2)],
    "messaging.process.duration": [
        Case(_DEV, 'messaging_destination_name="cmd.createGitRepo"'),
        Case(_DEV, 'messaging_destination_name="orchestrator.events"'),
    ],
    "orchestrix.info": [Case(_DEV, f'roles="api,coordinator,orchestrator",version="{VERSION}"')],
    "outbox.oldest.age": [Case(_COUNTED, "", 300)],
    "outbox.pending": [Case(_COUNTED)],
    "outbox.wait": [Case(_DEV)],
    "registry.instances": [
        Case(_COUNTED, 'app="shop",status="up"'),
        Case(_COUNTED, 'app="shop",status="drained"'),
        Case(_COUNTED, 'app="shop",status="silent"'),
    ],
    "registry.registered": [Case(situations.an_executor_that_registers)],
    "saga.active": [Case(_COUNTED, 'state="APP_INITIATED"', 3)],
    "saga.compensations": [Case(_FAILS, 'saga="app"')],
    "saga.completed": [
        Case(_DEV, 'saga="app",outcome="completed"'),
        Case(_FAILS, 'saga="app",outcome="failed"'),
    ],
    "saga.duration": [Case(_DEV, 'saga="app"')],
    "saga.started": [Case(_DEV, 'saga="app"')],
    "saga.step.duration": [
        Case(_DEV, 'saga="app",step="createGitRepo",outcome="succeeded"'),
        Case(_FAILS, 'saga="app",step="registerApp",outcome="failed"'),
    ],
    "saga.step.retries": [Case(_FAILS, 'saga="hasty"')],
    "saga.stuck": [Case(_COUNTED, 'saga="app"', 2)],
    "saga.timers.late": [Case(_COUNTED)],
    "shard.assigned": [Case(_COUNTED, f'service="orders",statistic="{one}"', 10) for one in ("min", "max", "sum")],
    "shard.client.answers": [
        Case(_CLIENTS, 'result="sent"', 2),
        Case(_CLIENTS, 'result="not_connected"'),
        Case(_CLIENTS, 'result="not_read"', 0),
    ],
    "shard.client.messages": [Case(_CLIENTS, "", 2)],
    "shard.client.refused": [Case(_CLIENTS, 'reason="unreadable"', 2), Case(_CLIENTS, 'reason="no_room"')],
    "shard.generation": [Case(_COUNTED, 'service="orders"')],
    "shard.generations": [Case(_COUNTED, 'service="orders",status="active"')],
    "shard.rebalances": [Case(_COUNTED, 'service="orders"')],
    "shard.unowned": [Case(_COUNTED, 'service="orders"', 0)],
}


@cache
def observed(situation: Situation, folder: Path) -> tuple[Samples, Samples]:
    """What a scrape shows before the situation, and in it. Each is brought about once."""
    before = situations.scrape()
    return before, asyncio.run(situation(folder))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where each situation has its files."""
    root = tmp_path_factory.mktemp("situations")
    return lambda situation: root / situation.__name__


@pytest.mark.req("S1-53")
@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_each_metric_is_emitted(metric: Metric, folders: Any) -> None:
    assert metric.name in CASES, "a metric needs the situation that it is of"
    for case in CASES[metric.name]:
        before, after = observed(case.situation, folders(case.situation))
        name = f"{metric.sample}_count" if metric.kind is Kind.HISTOGRAM else metric.sample
        series = f"{name}{{{case.labels}}}" if case.labels else name
        assert series in after, sorted(one for one in after if one.startswith(name))
        value = after[series] - (before.get(series, 0) if metric.kind is not Kind.GAUGE else 0)
        assert value >= case.value, (series, value)
        if metric.kind is Kind.GAUGE and case.situation is not _DEV:
            assert value <= case.value + 60, (series, value)


def test_no_case_is_of_a_metric_that_is_gone() -> None:
    assert CASES.keys() <= {metric.name for metric in CATALOGUE}
