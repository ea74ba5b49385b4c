"""Does Prometheus take our rules, and does each alert fire in the situation that it is for, and not before?"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from orchestrix.config.settings import Settings
from orchestrix.telemetry.metrics.catalogue import CATALOGUE
from orchestrix.telemetry.metrics.exposition import render
from tests.documents import MONITORING, OBSERVABILITY, ROOT
from tests.integration.metrics import situations
from tests.monitoring.alerts import ALERTS, Alert
from tests.monitoring.dashboard import ROWS, dashboard
from tests.servers.tools import PROMTOOL

RULES: Final = MONITORING / "rules.yml"
OPERATIONS: Final = ROOT / "docs" / "operations.md"
INTERVAL: Final = "15s"


class Recording(NamedTuple):
    """Series as Prometheus has recorded them, with its notation of values; at `minutes` the alert has these labels and
    this summary. With the values in `healthy` instead it does not fire.
    """

    series: Mapping[str, str]
    healthy: Mapping[str, str]
    summary: str
    labels: Mapping[str, str] = {}
    minutes: str = "15m"


GOOD, BAD = '{saga="order",outcome="completed"}', '{saga="order",outcome="failed"}'
OK, MISSING, AWAY = (f'{{http_response_status_code="{code}"}}' for code in (200, 404, 503))
WAITS: Final = "outbox_wait_seconds_bucket"
USED: Final = 'database_pool_connections{state="used",instance="a"}'
SIZE: Final = 'database_pool_size{instance="a"}'


def waits(short: str, within: str, every: str) -> dict[str, str]:
    """How many messages have left within 0.1 s, within 5 s, and at all."""
    bounds = {"0.1": short, "5.0": within, "30.0": every, "+Inf": every}
    return {f'{WAITS}{{le="{bound}"}}': values for bound, values in bounds.items()}


ONE: Final = {'coordinator_is_leader{instance="a"}': "1x400", 'coordinator_is_leader{instance="b"}': "0x400"}
REQUESTS: Final = "http_server_request_duration_seconds_count"
ENDED: Final = "saga_completed_total"
RECORDINGS: Final[dict[str, Recording]] = {
    "OrchestrixNoLeader": Recording(
        dict.fromkeys(ONE, "0x400"), ONE, "No node leads: no job is dispatched, and no schedule fires."
    ),
    "OrchestrixTwoLeaders": Recording(dict.fromkeys(ONE, "1x400"), ONE, "2 nodes say that they lead."),
    "OrchestrixNodeSilent": Recording(
        {"coordinator_nodes_died_total": "0x40 1x400"},
        {"coordinator_nodes_died_total": "1x440"},
        "A node fell silent and was declared dead.",
    ),
    "OrchestrixNodeNotScraped": Recording(
        {**ONE, 'coordinator_nodes{state="alive"}': "3x400"},
        {**ONE, 'coordinator_nodes{state="alive"}': "2x400", 'coordinator_nodes{state="dead"}': "1x400"},
        "3 nodes are alive, and fewer are scraped.",
    ),
    "OrchestrixCommandQueueWithoutConsumers": Recording(
        {'command_queue_consumers{queue="cmd.pay",instance="a"}': "2x20 0x400"},
        {
            'command_queue_consumers{queue="cmd.pay",instance="a"}': "0x400",
            'command_queue_consumers{queue="cmd.pay",instance="b"}': "1x400",
        },
        "No worker serves cmd.pay.",
        {"queue": "cmd.pay"},
    ),
    "OrchestrixSagasStuck": Recording(
        {'saga_stuck{saga="order"}': "0x10 2x400", 'saga_stuck{saga="app"}': "0x400"},
        {'saga_stuck{saga="order"}': "0x10 2x30 0x400"},
        "2 sagas order are stuck.",
        {"saga": "order"},
    ),
    "OrchestrixSagasFail": Recording(
        {ENDED + GOOD: "0+4x400", ENDED + BAD: "0+1x400"},
        {ENDED + GOOD: "0+99x400", ENDED + BAD: "0+1x400"},
        "20% of the sagas order that end have failed.",
        {"saga": "order"},
        "40m",
    ),
    "OrchestrixTimersLate": Recording(
        {"saga_timers_late": "7x400"}, {"saga_timers_late": "0x400"}, "7 sagas were due and no node has handled them."
    ),
    "OrchestrixEventsIgnored": Recording(
        {'event_ignored_total{reason="bad-output"}': "_x50 1x400"},
        {'event_ignored_total{reason="repeated"}': "0+1x400"},
        "Events are ignored: bad-output.",
        {"reason": "bad-output"},
    ),
    "OrchestrixDeadLetters": Recording(
        {"dead_letter_open": "2x400"}, {"dead_letter_open": "0x400"}, "2 messages could not be handled."
    ),
    "OrchestrixOutboxSlow": Recording(
        waits("0x400", "0+1x400", "0+5x400"),
        waits("0+5x400", "0+5x400", "0+5x400"),
        "One message in a hundred leaves later than 5 s after its commit.",
    ),
    "OrchestrixOutboxStalled": Recording(
        {"outbox_oldest_age_seconds": "0+15x400"},
        {"outbox_oldest_age_seconds": "30x400"},
        "The oldest message has waited in the outbox for 15m 0s.",
    ),
    "OrchestrixBrokerUnreachable": Recording(
        {'broker_links{state="down",instance="a",job="orchestrix"}': "2x400"},
        {'broker_links{state="down",instance="a",job="orchestrix"}': "2x4 0x400"},
        "a does not reach the broker.",
        {"instance": "a", "job": "orchestrix"},
    ),
    "OrchestrixBrokerBlocked": Recording(
        {'broker_blocked{instance="a"}': "1x400"},
        {'broker_blocked{instance="a"}': "0x400"},
        "The broker takes no messages: it is short of memory or disk.",
    ),
    "OrchestrixDatabasePoolEmpty": Recording(
        {USED: "10x400", SIZE: "10x400"},
        {USED: "9x400", SIZE: "10x400"},
        "All 10 database connections of a are in use.",
        {"instance": "a"},
    ),
    "OrchestrixApiErrors": Recording(
        {REQUESTS + OK: "0+95x400", REQUESTS + AWAY: "0+5x400"},
        {REQUESTS + OK: "0+99x400", REQUESTS + MISSING: "0+5x400"},
        "5% of the requests are answered with 5xx.",
    ),
    "OrchestrixJobsOrphaned": Recording(
        {'coordinator_handoffs_total{result="orphaned"}': "0x40 2x400"},
        {'coordinator_handoffs_total{result="ack"}': "0+1x400"},
        "Jobs had lost the node that owned them.",
    ),
    "OrchestrixRegistryGrows": Recording(
        {"registry_registered_total": "0+1x800", 'registry_instances{app="shop",status="up"}': "5x800"},
        {"registry_registered_total": "0x10 50x800", 'registry_instances{app="shop",status="up"}': "50x800"},
        "Executors registered under 240 new addresses within an hour.",
        minutes="90m",
    ),
    "OrchestrixShardsUnowned": Recording(
        {'shard_unowned{service="orders"}': "3x400"},
        {'shard_unowned{service="orders"}': "10x4 0x400"},
        "3 shards of orders have no owner.",
        {"service": "orders"},
    ),
    "OrchestrixShardsRestless": Recording(
        {'shard_rebalances_total{service="orders"}': "0+1x400"},
        {'shard_rebalances_total{service="orders"}': "0x10 5x400"},
        "The shards of orders were assigned 40 times within ten minutes.",
        {"service": "orders"},
    ),
    "OrchestrixLogLinesLost": Recording(
        {'log_lines_lost_total{reason="slow_reader",instance="a",job="orchestrix"}': "0x40 9x400"},
        {'log_lines_lost_total{reason="rate_limit",instance="a",job="orchestrix"}': "0+1x400"},
        "The log of a is not read fast enough.",
        {"instance": "a", "job": "orchestrix"},
    ),
}


def recorded(alert: Alert, series: Mapping[str, str], minutes: str, expected: list[dict[str, Any]]) -> dict[str, Any]:
    """One test of promtool's."""
    return {
        "interval": INTERVAL,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [{"eval_time": minutes, "alertname": alert.name, "exp_alerts": expected}],
    }


def fired(alert: Alert, labels: Mapping[str, str], summary: str) -> dict[str, Any]:
    """The alert, as promtool sees it."""
    return {
        "exp_labels": {"severity": alert.severity, **labels},
        "exp_annotations": {"summary": summary, "runbook_url": alert.runbook},
    }


def check(folder: Path, tests: list[dict[str, Any]]) -> None:
    """Lets promtool evaluate the rules over recorded series. JSON is YAML too."""
    file = folder / "tests.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": INTERVAL, "tests": tests}))
    done = PROMTOOL.run("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.req("S1-53")
def test_prometheus_takes_the_rules() -> None:
    done = PROMTOOL.run("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_prometheus_takes_the_example_of_what_to_scrape() -> None:
    example = MONITORING / "prometheus.example.yml"
    done = PROMTOOL.run("check", "config", str(example))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout, "the rules beside it are found"
    text = example.read_text()
    jobs = re.findall(r"job_name: (\S+)\n    static_configs:\n      - targets: \[(.+)\]", text)
    assert [name for name, _ in jobs] == ["orchestrix-nodes", "orchestrix-workers"]
    assert "metrics_path" not in text, "the default, /metrics, is where it is"
    assert f":{Settings().http.port}" in jobs[0][1]
    for variable in re.findall(r"ORCHESTRIX_[A-Z_]+", text):
        assert f"`{variable}`" in OPERATIONS.read_text()
    for page in (ROOT / "deploy" / "README.md", OBSERVABILITY):
        assert example.name in page.read_text()


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_each_alert_fires_in_its_situation_and_only_there(alert: Alert, tmp_path: Path) -> None:
    assert alert.name in RECORDINGS, "an alert needs a recording of what it is for"
    one = RECORDINGS[alert.name]
    ill = recorded(alert, one.series, one.minutes, [fired(alert, one.labels, one.summary)])
    check(tmp_path, [ill, recorded(alert, one.healthy, one.minutes, [])])


def test_what_a_node_has_shown_fires_the_alerts_that_it_should(tmp_path: Path) -> None:
    shown = asyncio.run(situations.what_the_leader_counts(tmp_path / "store"))
    series = {name: f"{value}x400" for name, value in shown.items()}
    texts = {
        "OrchestrixSagasStuck": ({"saga": "app"}, "2 sagas app are stuck."),
        "OrchestrixTimersLate": ({}, "1 sagas were due and no node has handled them."),
        "OrchestrixDeadLetters": ({}, "1 messages could not be handled."),
    }
    for alert in ALERTS:
        if alert.name in texts:
            labels, summary = texts[alert.name]
            check(tmp_path, [recorded(alert, series, "15m", [fired(alert, labels, summary)])])


def test_what_is_exposed_is_as_prometheus_wants_it() -> None:
    done = PROMTOOL.run("check", "metrics", text=render("")[1].decode())
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_each_promise_has_an_alert() -> None:
    promised = {metric.name for metric in CATALOGUE if metric.promise}
    assert promised == {alert.metric.name for alert in ALERTS if alert.metric.promise}
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_each_alert_has_a_section_in_the_runbooks() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text()
    titles = [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")]
    assert sorted(titles) == sorted(alert.name for alert in ALERTS)
    for section in text.split("\n## ")[1:]:
        assert all(part in section for part in ("**Meaning.**", "**See.**", "**Do.**")), section.partition("\n")[0]


def test_the_dashboard_shows_every_metric() -> None:
    shown = [panel.metric.name for row in ROWS.values() for panel in row]
    assert sorted(shown) == sorted(metric.name for metric in CATALOGUE)
    made = json.loads(dashboard())
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])


def test_prometheus_takes_every_query_of_the_dashboard(tmp_path: Path) -> None:
    queries = [target["expr"] for panel in json.loads(dashboard())["panels"] for target in panel.get("targets", ())]
    rules = [{"record": f"x:{n}", "expr": one.replace("$__rate_interval", "5m")} for n, one in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "x", "rules": rules}]}))
    done = PROMTOOL.run("check", "rules", str(file))
    assert "FAILED" not in done.stderr + done.stdout, done.stdout + done.stderr
    assert f"{len(queries)} rules found" in done.stdout
