"""Metric catalogue: every metric, under its name in OpenTelemetry; that in Prometheus follows from it.

Labels are few and never ids: see `instruments` for the limits on names that users choose.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from orchestrix.telemetry.metrics.definitions import Kind, Label, Metric, ReportedBy

_counter = partial(Metric, kind=Kind.COUNTER)
_gauge = partial(Metric, kind=Kind.GAUGE)
_histogram = partial(Metric, kind=Kind.HISTOGRAM, unit="s")

# Labels.
SAGA: Final = Label("saga", given=True)
STEP: Final = Label("step", given=True)
STATE: Final = Label("state", given=True)
QUEUE: Final = Label("queue", given=True)
APP: Final = Label("app", given=True)
SERVICE: Final = Label("service", given=True)
DESTINATION: Final = Label("messaging.destination.name", given=True)
OPERATION: Final = Label("messaging.operation.name")
ERROR: Final = Label("error.type")
METHOD: Final = Label("http.request.method", given=True)  # by clients: each with each status would be many
ROUTE: Final = Label("http.route", given=True)
STATUS_CODE: Final = Label("http.response.status_code")
OUTCOME: Final = Label("outcome")
REASON: Final = Label("reason")
RESULT: Final = Label("result")
STATUS: Final = Label("status")
NODE_STATE: Final = Label("state")
CONNECTION_STATE: Final = Label("state")
STATISTIC: Final = Label("statistic")
POOL_STATE: Final = Label("state")
ROLES: Final = Label("roles")
VERSION: Final = Label("version")

# Values of labels.
COMPLETED, FAILED = "completed", "failed"
SUCCEEDED: Final = "succeeded"
ACKNOWLEDGED, RETRIED, ORPHANED = "ack", "retry", "orphaned"
UP, DOWN = "up", "down"
IDLE, USED = "idle", "used"
MINIMUM, MAXIMUM, SUM = "min", "max", "sum"
PENDING, ACTIVE = "pending", "active"
RATE_LIMIT, SLOW_READER = "rate_limit", "slow_reader"
UNREADABLE, NO_ROOM = "unreadable", "no_room"
SENT, NOT_CONNECTED, NOT_READ = "sent", "not_connected", "not_read"
EXPECTED_REASONS: Final = (
    *("repeated", "ended", "future", "ambiguous", "cloned", "will-be-undone", "nothing-to-undo", "not-undoing"),
    "failure-of-another-attempt",
)
"""Why an event changes nothing where all is well: it came twice, or after another one had decided."""

_SHORT: Final = (0.005, 0.025, 0.1, 0.25, 1.0, 2.5, 10.0)

# Sagas.
SAGA_STARTED: Final = _counter(name="saga.started", unit="{saga}", labels=(SAGA,), help="Sagas that were started.")
SAGA_COMPLETED: Final = _counter(
    name="saga.completed",
    unit="{saga}",
    labels=(SAGA, OUTCOME),
    help="Sagas that have ended: completed, or failed and so undone.",
    promise="Sagas reach their goal.",
)
SAGA_DURATION: Final = _histogram(
    name="saga.duration",
    labels=(SAGA,),
    buckets=(0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0),
    help="Time from the start of a saga to its end.",
)
SAGA_ACTIVE: Final = _gauge(
    name="saga.active", unit="{saga}", labels=(STATE,), reported_by=ReportedBy.LEADER, help="Sagas that have not ended."
)
SAGA_STEP_DURATION: Final = _histogram(
    name="saga.step.duration",
    labels=(SAGA, STEP, OUTCOME),
    buckets=(0.1, 1.0, 10.0, 60.0, 600.0),
    help="Time of a try of a step or of its undo, from the commit of its command to that of its event.",
)
SAGA_STEP_RETRIES: Final = _counter(
    name="saga.step.retries", unit="{try}", labels=(SAGA,), help="Tries that have failed and are followed by another."
)
SAGA_STUCK: Final = _gauge(
    name="saga.stuck",
    unit="{saga}",
    labels=(SAGA,),
    reported_by=ReportedBy.LEADER,
    help="Sagas that do not continue by themselves, or whose command has no consumer.",
    promise="No saga is stuck: each continues by itself, or names what it waits for.",
)
SAGA_COMPENSATIONS: Final = _counter(
    name="saga.compensations", unit="{saga}", labels=(SAGA,), help="Sagas that have begun to be undone."
)
SAGA_TIMERS_LATE: Final = _gauge(
    name="saga.timers.late",
    unit="{saga}",
    reported_by=ReportedBy.LEADER,
    help="Sagas whose retry or deadline was due more than 30 s ago and has not been handled.",
    promise="Retries and deadlines are handled when they are due.",
)
EVENTS_IGNORED: Final = _counter(
    name="event.ignored",
    unit="{message}",
    labels=(REASON,),
    help="Events that have changed nothing, by the reason; repeated and late ones are normal after a restart.",
    promise="Every event of a worker is understood.",
)
COMMAND_CONSUMERS: Final = _gauge(
    name="command.queue.consumers",
    unit="{consumer}",
    labels=(QUEUE,),
    reported_by=ReportedBy.EVERY_NODE,
    help="Consumers of a command queue.",
    promise="Every command queue has a worker.",
)
COMMAND_MESSAGES: Final = _gauge(
    name="command.queue.messages",
    unit="{message}",
    reported_by=ReportedBy.EVERY_NODE,
    help="Commands that wait in all command queues and that no worker has taken.",
)

# Outbox and dead letters.
OUTBOX_PENDING: Final = _gauge(
    name="outbox.pending",
    unit="{message}",
    reported_by=ReportedBy.LEADER,
    help="Committed messages that are not confirmed yet.",
)
OUTBOX_AGE: Final = _gauge(
    name="outbox.oldest.age",
    unit="s",
    reported_by=ReportedBy.LEADER,
    help="Age of the oldest committed message that is not confirmed yet and does not wait for a person.",
)
OUTBOX_WAIT: Final = _histogram(
    name="outbox.wait",
    buckets=(0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0),
    help="Time from the commit of a message to its confirmation by the broker.",
    promise="What is committed leaves at once.",
)
DEAD_LETTERS: Final = _gauge(
    name="dead_letter.open",
    unit="{message}",
    reported_by=ReportedBy.LEADER,
    help="Dead letters that were not sent again.",
    promise="No message is lost, and none is given up silently.",
)
DEAD_LETTERED: Final = _counter(
    name="dead_letter.recorded", unit="{message}", help="Messages that were recorded as dead letters."
)

# Cluster.
IS_LEADER: Final = _gauge(
    name="coordinator.is_leader",
    unit="{leader}",
    help="1 on the node that leads, 0 on the other nodes with the role coordinator.",
    promise="Exactly one node leads.",
)
LEASE_REMAINING: Final = _gauge(
    name="coordinator.lease.remaining", unit="s", help="Time until the leader's lease expires; of the leader alone."
)
JOBS_OWNED: Final = _gauge(name="coordinator.jobs.owned", unit="{job}", help="Jobs whose events this node reads.")
HANDOFFS: Final = _counter(
    name="coordinator.handoffs",
    unit="{job}",
    labels=(RESULT,),
    start=((ACKNOWLEDGED,), (RETRIED,), (ORPHANED,)),
    help="Jobs that were to get another owner: acknowledged by it, offered again, or found without an owner.",
    promise="A job keeps an owner when its node leaves.",
)
NODES: Final = _gauge(
    name="coordinator.nodes",
    unit="{node}",
    labels=(NODE_STATE,),
    reported_by=ReportedBy.LEADER,
    help="Nodes with the role coordinator, by their state in the database.",
    promise="Every living node is scraped.",
)
NODES_DIED: Final = _counter(
    name="coordinator.nodes.died",
    unit="{node}",
    help="Nodes that were declared dead, because they were silent.",
    promise="No node falls silent.",
)

# Registry of executors.
EXECUTORS: Final = _gauge(
    name="registry.instances",
    unit="{executor}",
    labels=(APP, STATUS),
    reported_by=ReportedBy.LEADER,
    help="Registered executors of an app: alive, or silent for more than a heartbeat and a half.",
)
REGISTERED: Final = _counter(
    name="registry.registered",
    unit="{executor}",
    help="Executors that were registered under an address that was not known before.",
    promise="The registry holds executors that exist.",
)

# Shards.
SHARDS_ASSIGNED: Final = _gauge(
    name="shard.assigned",
    unit="{shard}",
    labels=(SERVICE, STATISTIC),
    reported_by=ReportedBy.LEADER,
    help="Shards that the members of a service have: the fewest of one member, the most, and all together.",
)
SHARDS_UNOWNED: Final = _gauge(
    name="shard.unowned",
    unit="{shard}",
    labels=(SERVICE,),
    reported_by=ReportedBy.LEADER,
    help="Shards of a service that no member has.",
    promise="Every shard has an owner.",
)
SHARD_GENERATION: Final = _gauge(
    name="shard.generation",
    unit="{generation}",
    labels=(SERVICE,),
    reported_by=ReportedBy.LEADER,
    help="The number of the active generation of a service.",
)
SHARD_GENERATIONS: Final = _gauge(
    name="shard.generations",
    unit="{generation}",
    labels=(SERVICE, STATUS),
    reported_by=ReportedBy.LEADER,
    help="Generations of a service that are pending or active.",
)
SHARD_REBALANCES: Final = _counter(
    name="shard.rebalances", unit="{generation}", labels=(SERVICE,), help="Generations that were activated."
)
SHARD_CLIENT_MESSAGES: Final = _counter(
    name="shard.client.messages", unit="{message}", help="Messages that shard clients have sent by ZeroMQ."
)
SHARD_CLIENT_REFUSED: Final = _counter(
    name="shard.client.refused",
    unit="{message}",
    labels=(REASON,),
    help="Those of them that were not handled: answered with what is wrong with them, or dropped because many waited.",
)
SHARD_CLIENT_ANSWERS: Final = _counter(
    name="shard.client.answers",
    unit="{message}",
    labels=(RESULT,),
    help="Answers to shard clients: sent, or dropped for clients that are not connected or do not read.",
)

# Database, broker, logs.
POOL_CONNECTIONS: Final = _gauge(
    name="database.pool.connections",
    unit="{connection}",
    labels=(POOL_STATE,),
    help="Database connections of this process.",
    promise="The connections to the database suffice.",
)
POOL_LIMIT: Final = _gauge(
    name="database.pool.size", unit="{connection}", help="Database connections that this process may have."
)
BROKER_LINKS: Final = _gauge(
    name="broker.links",
    unit="{link}",
    labels=(CONNECTION_STATE,),
    help="Links of this process to the broker, by whether they work.",
    promise="Every process reaches the broker.",
)
BROKER_BLOCKED: Final = _gauge(
    name="broker.blocked", unit="{link}", help="Links on which the broker takes no messages for now."
)
LOG_LINES_LOST: Final = _counter(
    name="log.lines.lost",
    unit="{line}",
    labels=(REASON,),
    start=((RATE_LIMIT,), (SLOW_READER,)),
    help="Log lines that were not written: more than are written in a second, or not read fast enough.",
)
INFO: Final = _gauge(
    name="orchestrix.info", unit="{process}", labels=(ROLES, VERSION), help="1 for this process: what it is."
)

# By the conventions of OpenTelemetry.
SENT_MESSAGES: Final = _counter(
    name="messaging.client.sent.messages",
    unit="{message}",
    labels=(DESTINATION, ERROR),
    help="Messages that were published to an exchange, also again; an error where the broker did not confirm one.",
)
CONSUMED_MESSAGES: Final = _counter(
    name="messaging.client.consumed.messages",
    unit="{message}",
    labels=(DESTINATION,),
    help="Messages that were received from an exchange, also again.",
)
OPERATION_DURATION: Final = _histogram(
    name="messaging.client.operation.duration",
    labels=(OPERATION,),
    buckets=_SHORT,
    help="Time until the broker has confirmed a batch of messages.",
)
PROCESS_DURATION: Final = _histogram(
    name="messaging.process.duration",
    labels=(DESTINATION, ERROR),
    buckets=_SHORT,
    help="Time in which a worker has handled a command of a queue, or a node a batch of events.",
)
HTTP_DURATION: Final = _histogram(
    name="http.server.request.duration",
    labels=(METHOD, ROUTE, STATUS_CODE),
    buckets=_SHORT,
    help="Time in which requests were answered; long polls and streams are as long as their clients want.",
    promise="The API answers what it is asked.",
)
HTTP_ACTIVE: Final = _gauge(
    name="http.server.active_requests", unit="{request}", help="Requests that are being answered."
)

CATALOGUE: Final[tuple[Metric, ...]] = tuple(
    sorted((one for one in list(globals().values()) if isinstance(one, Metric)), key=lambda one: one.name)
)
"""All of them, by name."""
