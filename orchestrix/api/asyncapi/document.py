"""AsyncAPI document: describes the channels and messages of the catalogue, from the point of view of a node.

AsyncAPI 3.1: https://www.asyncapi.com/docs/reference/specification/v3.1.0
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import to_jsonable_python

from orchestrix.api.asyncapi.catalogue import CHANNELS, ChannelContract, MessageContract, Party, saga_channels
from orchestrix.domain.contracts import sagas
from orchestrix.saga.catalog import Catalog

Schema = dict[str, Any]
VERSION: Final = "3.1.0"
JSON: Final = "application/json"
ABOUT: Final = (
    "Every message between nodes, workers, executors and members of services. `send` and `receive` are a node's. A "
    "reader ignores the fields that it does not know; the contract of a worker in any language is to read its queue, "
    "to publish events to the exchange `orchestrator.events` with the event's name as routing key, and to acknowledge."
)
_PARAMETERS: Final = {
    "queue": "The name of a queue of jobs.",
    "jobId": "The job.",
    "historyId": "The attempt.",
    "nodeId": "The node.",
    "workerId": "The worker.",
    "member": "The member, new with each connection.",
}
_AMQP: Final = {"bindingVersion": "0.3.0"}
_SERVERS: Final[Schema] = {
    "rabbitmq": {
        "host": "localhost:5672",
        "protocol": "amqp",
        "protocolVersion": "0.9.1",
        "description": "RabbitMQ: `ORCHESTRIX_BROKER_URL`. Queues are durable quorum queues, but for the exclusive "
        "ones. Nodes and workers of Orchestrix declare them; a member of a service declares the one of its answers.",
    },
    "node": {"host": "localhost:8080", "protocol": "http", "description": "The API of a node, called by executors."},
    "executor": {"host": "localhost:9999", "protocol": "http", "description": "An executor, called by nodes."},
}
_HEADERS: Final[Schema] = {
    "type": "object",
    "properties": {
        "traceparent": {"type": "string", "description": "W3C Trace Context."},
        "tracestate": {"type": "string"},
    },
}


def document(version: str, catalog: Catalog) -> Schema:
    """The document of the release `version` for a node that has these sagas."""
    channels = [*saga_channels(catalog), *CHANNELS]
    messages = {one.name: one for each in channels for one in each.messages}
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "Orchestrix",
            "version": version,
            "description": ABOUT,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": JSON,
        "servers": _SERVERS,
        "channels": {one.name: _channel(one) for one in channels},
        "operations": {name: operation for one in channels for name, operation in _operations(one)},
        "components": {
            "messages": {name: _message(one) for name, one in messages.items()},
            "schemas": _schemas([one.model for one in messages.values()]),
        },
    }


def _channel(one: ChannelContract) -> Schema:
    fields: Schema = {
        "address": one.address,
        "summary": one.summary,
        "messages": {name.name: {"$ref": f"#/components/messages/{name.name}"} for name in one.messages},
    }
    if names := re.findall(r"{(\w+)}", one.address):
        fields["parameters"] = {name: {"description": _PARAMETERS[name]} for name in names}
    if one.method is not None:
        server = "executor" if one.receiver is Party.EXECUTOR else "node"
        return {**fields, "servers": [{"$ref": f"#/servers/{server}"}]}
    return {**fields, "servers": [{"$ref": "#/servers/rabbitmq"}], "bindings": {"amqp": _amqp_channel(one)}}


def _amqp_channel(one: ChannelContract) -> Schema:
    """How the channel is reached: a queue by its name through an exchange, or a topic."""
    exchange: Schema = {"name": one.exchange, "type": "default"}
    if one.exchange:
        exchange = {"name": one.exchange, "type": "topic", "durable": True, "autoDelete": False}
    if one.topic:
        return {"is": "routingKey", "exchange": exchange, **_AMQP}
    queue = {"name": one.address, "durable": not one.exclusive, "exclusive": one.exclusive, "autoDelete": one.exclusive}
    if not one.exchange:
        return {"is": "queue", "queue": queue, **_AMQP}
    return {"is": "routingKey", "exchange": exchange, **_AMQP}


def _operations(one: ChannelContract) -> Sequence[tuple[str, Schema]]:
    """What a node does with the channel: it sends to it, or receives from it, or both."""
    found = []
    if one.sender is Party.NODE:
        found.append(("send", f"For {_NAMES[one.receiver]}."))
    if one.receiver is Party.NODE:
        found.append(("receive", f"From {_NAMES[one.sender]}."))
    return [(f"{action}.{one.name}", _operation(one, action, summary)) for action, summary in found]


_NAMES: Final = {
    Party.NODE: "other nodes",
    Party.WORKER: "workers",
    Party.EXECUTOR: "executors",
    Party.MEMBER: "members of services",
}


def _operation(one: ChannelContract, action: str, summary: str) -> Schema:
    messages = [{"$ref": f"#/channels/{one.name}/messages/{each.name}"} for each in one.messages]
    fields: Schema = {
        "action": action,
        "channel": {"$ref": f"#/channels/{one.name}"},
        "summary": f"{one.summary} {summary}",
        "messages": messages,
    }
    if one.method is not None:
        return {**fields, "bindings": {"http": {"method": one.method, "bindingVersion": "0.3.0"}}}
    return {**fields, "bindings": {"amqp": {"ack": True, **({"deliveryMode": 2} if action == "send" else {}), **_AMQP}}}


def _message(one: MessageContract) -> Schema:
    payload: Schema = {"$ref": f"#/components/schemas/{_name(one.model)}"}
    if one.model is sagas.CommandMessage:
        payload = {"allOf": [payload, {"type": "object", "properties": {"type": {"const": one.name}}}]}
    return {"name": one.name, "summary": one.summary, "contentType": JSON, "headers": _HEADERS, "payload": payload}


def _schemas(models: Sequence[type[BaseModel]]) -> Schema:
    """The schemas of the models, and of all that is in them, under public names."""
    asked = list(dict.fromkeys(models))
    _, found = models_json_schema([(one, "validation") for one in asked], ref_template="#/components/schemas/{model}")
    text = json.dumps(to_jsonable_python(found["$defs"], fallback=str))
    named: Schema = json.loads(re.sub(r'(?<=[/"])_(?=[A-Z]\w+")', "Shard", text))
    return {name: {**schema, "title": name} if "title" in schema else schema for name, schema in sorted(named.items())}


def _name(model: type[BaseModel]) -> str:
    """The public name of a model: those of shards are private where they are."""
    return re.sub("^_", "Shard", model.__name__)
