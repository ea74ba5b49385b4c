"""Conventions: the names of spans and attributes, by OpenTelemetry's semantic conventions 1.44 and our own."""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SCOPE: Final = "orchestrix"

# Messaging (https://opentelemetry.io/docs/specs/semconv/messaging/rabbitmq/).
MESSAGING_SYSTEM: Final = "messaging.system"
RABBITMQ: Final = "rabbitmq"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_TEMPLATE: Final = "messaging.destination.template"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_CONVERSATION_ID: Final = "messaging.message.conversation_id"
MESSAGING_ROUTING_KEY: Final = "messaging.rabbitmq.destination.routing_key"
MESSAGING_DELIVERY_TAG: Final = "messaging.rabbitmq.message.delivery_tag"
MESSAGING_BATCH_SIZE: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

# HTTP servers (https://opentelemetry.io/docs/specs/semconv/http/http-spans/#http-server-span).
HTTP_METHOD: Final = "http.request.method"
HTTP_METHOD_ORIGINAL: Final = "http.request.method_original"
HTTP_ROUTE: Final = "http.route"
HTTP_STATUS: Final = "http.response.status_code"
URL_PATH: Final = "url.path"
URL_SCHEME: Final = "url.scheme"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
CLIENT_ADDRESS: Final = "client.address"
USER_AGENT: Final = "user_agent.original"

# Resources.
SERVICE_NAME: Final = "service.name"
SERVICE_NAMESPACE: Final = "service.namespace"
SERVICE_VERSION: Final = "service.version"
SERVICE_INSTANCE_ID: Final = "service.instance.id"

# Sagas.
SAGA_ID: Final = "saga.id"
SAGA_NAME: Final = "saga.name"
SAGA_STEP: Final = "saga.step"
SAGA_ATTEMPT: Final = "saga.attempt"
SAGA_STATE_FROM: Final = "saga.state.from"
SAGA_STATE_TO: Final = "saga.state.to"
SAGA_COMPENSATING: Final = "saga.compensating"
CORRELATION_ID: Final = "orchestrix.correlation_id"

# Of messages, where the conventions have no name.
OUTBOX_WAIT_MS: Final = "orchestrix.outbox.wait_ms"
"""Milliseconds between the commit of a message and its publishing."""
QUEUE_WAIT_MS: Final = "orchestrix.queue.wait_ms"
"""Milliseconds between the sending of a message and its handling, by the clocks of both sides; never below 0."""
REDELIVERED: Final = "orchestrix.redelivered"
"""Whether the broker has delivered the message before."""
IGNORED: Final = "orchestrix.ignored"
"""Why a message changed nothing."""
TIMER_REASON: Final = "orchestrix.timer.reason"
ACTION: Final = "orchestrix.action"
"""The verb of a person."""
JOB_ID: Final = "orchestrix.job.id"
JOB_ATTEMPT: Final = "orchestrix.job.attempt"
JOB_HANDLER: Final = "orchestrix.job.handler"
JOB_QUEUE: Final = "orchestrix.job.queue"
SCHEDULE_ID: Final = "orchestrix.schedule.id"
NODE_ID: Final = "orchestrix.node.id"
WORKER_ID: Final = "orchestrix.worker.id"

LINK_KIND: Final = "orchestrix.link.kind"
LINK_MESSAGE: Final = "message"
"""To the span that published the message which is handled: it is the parent too."""
LINK_RETRY: Final = "retry"
"""To the span that published the try before this one, or this one before it was delivered again."""
LINK_CONTINUED: Final = "continued"
"""From the root of a trace that continues another one after a long time, to that one."""
LINK_ACTION: Final = "action"
"""From a person's request to what it acts on."""
LINK_BATCH: Final = "batch"
"""From a commit to what it commits."""
LINK_REDRIVE: Final = "redrive"
"""From a dead letter that is sent again to the message that it was."""
