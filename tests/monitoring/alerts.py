"""Alerts: one or more for each promise of the catalogue, as Prometheus' rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from orchestrix.telemetry.metrics import catalogue as metrics
from orchestrix.telemetry.metrics.definitions import Metric

RUNBOOKS: Final = "https://orchestrix.example/docs/runbooks.md"  # there is no public address yet (RFC 2606)
PAGE, TICKET = "critical", "warning"
"""Severities: a person is needed now, or in office hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert: `condition` holds for the time `lasting`. `metric` is the one whose promise is broken."""

    name: str
    metric: Metric
    condition: str
    lasting: str
    severity: str
    summary: str

    @property
    def promise(self) -> str:
        """The promise that is broken."""
        return self.metric.promise or self.metric.help

    @property
    def runbook(self) -> str:
        """Where it stands what to do."""
        return f"{RUNBOOKS}#{self.name.lower()}"


def _ratio(metric: Metric, failed: str, window: str, by: str = "") -> str:
    group = f" by ({by})" if by else ""
    name = metric.sample if metric is metrics.SAGA_COMPLETED else f"{metric.sample}_count"
    return f"sum{group} (rate({name}{{{failed}}}[{window}])) / sum{group} (rate({name}[{window}]))"


_EXPECTED: Final = "|".join(metrics.EXPECTED_REASONS)
_IGNORED: Final = f'{metrics.EVENTS_IGNORED.sample}{{reason!~"{_EXPECTED}"}}'
_UNREAD: Final = f'{metrics.LOG_LINES_LOST.sample}{{reason="{metrics.SLOW_READER}"}}'
_WAIT: Final = f"sum by (le) (rate({metrics.OUTBOX_WAIT.sample}_bucket[5m]))"
_EXECUTORS: Final = f"clamp_min(sum({metrics.EXECUTORS.sample}) or vector(0), 30)"

ALERTS: Final = (
    Alert(
        name="OrchestrixNoLeader",
        metric=metrics.IS_LEADER,
        condition=f"(sum({metrics.IS_LEADER.sample}) or vector(0)) < 1",
        lasting="45s",
        severity=PAGE,
        summary="No node leads: no job is dispatched, and no schedule fires.",
    ),
    Alert(
        name="OrchestrixTwoLeaders",
        metric=metrics.IS_LEADER,
        condition=f"sum({metrics.IS_LEADER.sample}) > 1",
        lasting="1m",
        severity=PAGE,
        summary="{{ $value }} nodes say that they lead.",
    ),
    Alert(
        name="OrchestrixNodeSilent",
        metric=metrics.NODES_DIED,
        condition=f"sum(increase({metrics.NODES_DIED.sample}[10m])) > 0",
        lasting="0s",
        severity=TICKET,
        summary="A node fell silent and was declared dead.",
    ),
    Alert(
        name="OrchestrixNodeNotScraped",
        metric=metrics.NODES,
        condition=f'sum({metrics.NODES.sample}{{state=~"alive|draining"}}) > count({metrics.IS_LEADER.sample})',
        lasting="2m",
        severity=TICKET,
        summary="{{ $value }} nodes are alive, and fewer are scraped.",
    ),
    Alert(
        name="OrchestrixCommandQueueWithoutConsumers",
        metric=metrics.COMMAND_CONSUMERS,
        condition=f"max by (queue) ({metrics.COMMAND_CONSUMERS.sample}) == 0",
        lasting="2m",
        severity=PAGE,
        summary="No worker serves {{ $labels.queue }}.",
    ),
    Alert(
        name="OrchestrixSagasStuck",
        metric=metrics.SAGA_STUCK,
        condition=f"sum by (saga) ({metrics.SAGA_STUCK.sample}) > 0",
        lasting="10m",
        severity=TICKET,
        summary="{{ $value }} sagas {{ $labels.saga }} are stuck.",
    ),
    Alert(
        name="OrchestrixSagasFail",
        metric=metrics.SAGA_COMPLETED,
        condition=_ratio(metrics.SAGA_COMPLETED, 'outcome="failed"', "15m", "saga") + " > 0.1",
        lasting="15m",
        severity=TICKET,
        summary="{{ $value | humanizePercentage }} of the sagas {{ $labels.saga }} that end have failed.",
    ),
    Alert(
        name="OrchestrixTimersLate",
        metric=metrics.SAGA_TIMERS_LATE,
        condition=f"sum({metrics.SAGA_TIMERS_LATE.sample}) > 0",
        lasting="2m",
        severity=PAGE,
        summary="{{ $value }} sagas were due and no node has handled them.",
    ),
    Alert(
        name="OrchestrixEventsIgnored",
        metric=metrics.EVENTS_IGNORED,
        condition=(
            f"(sum by (reason) (increase({_IGNORED}[10m])) > 0) or "
            f"((sum by (reason) ({_IGNORED}) unless sum by (reason) ({_IGNORED} offset 10m)) > 0)"
        ),
        lasting="0s",
        severity=TICKET,
        summary="Events are ignored: {{ $labels.reason }}.",
    ),
    Alert(
        name="OrchestrixDeadLetters",
        metric=metrics.DEAD_LETTERS,
        condition=f"sum({metrics.DEAD_LETTERS.sample}) > 0",
        lasting="1m",
        severity=TICKET,
        summary="{{ $value }} messages could not be handled.",
    ),
    Alert(
        name="OrchestrixOutboxSlow",
        metric=metrics.OUTBOX_WAIT,
        condition=f"histogram_quantile(0.99, {_WAIT}) > 5",
        lasting="2m",
        severity=TICKET,
        summary="One message in a hundred leaves later than 5 s after its commit.",
    ),
    Alert(
        name="OrchestrixOutboxStalled",
        metric=metrics.OUTBOX_AGE,
        condition=f"max({metrics.OUTBOX_AGE.sample}) > 60",
        lasting="1m",
        severity=PAGE,
        summary="The oldest message has waited in the outbox for {{ $value | humanizeDuration }}.",
    ),
    Alert(
        name="OrchestrixBrokerUnreachable",
        metric=metrics.BROKER_LINKS,
        condition=f'sum by (job, instance) ({metrics.BROKER_LINKS.sample}{{state="down"}}) > 0',
        lasting="2m",
        severity=PAGE,
        summary="{{ $labels.instance }} does not reach the broker.",
    ),
    Alert(
        name="OrchestrixBrokerBlocked",
        metric=metrics.BROKER_BLOCKED,
        condition=f"max({metrics.BROKER_BLOCKED.sample}) > 0",
        lasting="2m",
        severity=PAGE,
        summary="The broker takes no messages: it is short of memory or disk.",
    ),
    Alert(
        name="OrchestrixDatabasePoolEmpty",
        metric=metrics.POOL_CONNECTIONS,
        condition=f'{metrics.POOL_CONNECTIONS.sample}{{state="used"}} >= ignoring (state) {metrics.POOL_LIMIT.sample}',
        lasting="2m",
        severity=TICKET,
        summary="All {{ $value }} database connections of {{ $labels.instance }} are in use.",
    ),
    Alert(
        name="OrchestrixApiErrors",
        metric=metrics.HTTP_DURATION,
        condition=_ratio(metrics.HTTP_DURATION, 'http_response_status_code=~"5.."', "5m") + " > 0.01",
        lasting="5m",
        severity=PAGE,
        summary="{{ $value | humanizePercentage }} of the requests are answered with 5xx.",
    ),
    Alert(
        name="OrchestrixJobsOrphaned",
        metric=metrics.HANDOFFS,
        condition=f'sum(increase({metrics.HANDOFFS.sample}{{result="orphaned"}}[10m])) > 0',
        lasting="0s",
        severity=TICKET,
        summary="Jobs had lost the node that owned them.",
    ),
    Alert(
        name="OrchestrixRegistryGrows",
        metric=metrics.REGISTERED,
        condition=f"sum(increase({metrics.REGISTERED.sample}[1h])) > 3 * {_EXECUTORS}",
        lasting="5m",
        severity=TICKET,
        summary="Executors registered under {{ $value | humanize }} new addresses within an hour.",
    ),
    Alert(
        name="OrchestrixShardsUnowned",
        metric=metrics.SHARDS_UNOWNED,
        condition=f"sum by (service) ({metrics.SHARDS_UNOWNED.sample}) > 0",
        lasting="2m",
        severity=PAGE,
        summary="{{ $value }} shards of {{ $labels.service }} have no owner.",
    ),
    Alert(
        name="OrchestrixShardsRestless",
        metric=metrics.SHARD_REBALANCES,
        condition=f"sum by (service) (increase({metrics.SHARD_REBALANCES.sample}[10m])) > 10",
        lasting="0s",
        severity=TICKET,
        summary="The shards of {{ $labels.service }} were assigned {{ $value | humanize }} times within ten minutes.",
    ),
    Alert(
        name="OrchestrixLogLinesLost",
        metric=metrics.LOG_LINES_LOST,
        condition=f"sum by (job, instance) (increase({_UNREAD}[10m])) > 0",
        lasting="0s",
        severity=TICKET,
        summary="The log of {{ $labels.instance }} is not read fast enough.",
    ),
)


def rules() -> str:
    """The file of rules."""
    return "\n".join(
        [
            "# Alerts on the metrics of Orchestrix. Made from the catalogue by `python -m tests.documents`.",
            f"# Replace {RUNBOOKS} by where your people read docs/runbooks.md.",
            "groups:",
            "  - name: orchestrix",
            "    rules:",
            *(line for alert in ALERTS for line in _rule(alert)),
            "",
        ]
    )


def _rule(alert: Alert) -> Iterator[str]:
    yield f"      - alert: {alert.name}"
    yield f"        expr: {json.dumps(alert.condition)}"
    yield f"        for: {alert.lasting}"
    yield f"        labels: {{severity: {alert.severity}}}"
    yield "        annotations:"
    yield f"          summary: {json.dumps(alert.summary)}"
    yield f"          runbook_url: {alert.runbook}"
