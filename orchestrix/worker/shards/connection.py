"""Member connection: how a shard member finds its broker, from its arguments or the settings."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrix.broker.port import Broker
from orchestrix.config import file
from orchestrix.config.settings import load
from orchestrix.domain.shards.state import ShardRules
from orchestrix.errors import ConfigError
from orchestrix.worker.shards.arguments import LONGEST_TIMEOUT_S, checked_seconds

HEARTBEATS_PER_TIMEOUT: Final = 5
"""Heartbeats of the connection in the heartbeat time-out: a link that fell silent is left before the lease ends."""
_SHORTEST_TIMEOUT_S: Final = 1.0
_SHOWN_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Where the broker is, and the heartbeat time-out of the nodes in seconds."""

    broker_url: str
    heartbeat_timeout_s: float


def member_settings(broker_url: str | None, heartbeat_timeout: float | None) -> MemberSettings:
    """The arguments; what is not given is read from `ORCHESTRIX_…` and the file `orchestrix.toml`, as by a worker.

    Raises `ConfigError` without a broker, and ValueError for a time-out that cannot be.
    """
    if heartbeat_timeout is not None:
        checked_seconds("heartbeat_timeout", heartbeat_timeout, _SHORTEST_TIMEOUT_S, LONGEST_TIMEOUT_S)
    if broker_url is None or heartbeat_timeout is None:
        settings = load(file=file.found(None, os.environ, Path.cwd()))
        broker_url = settings.broker_url if broker_url is None else broker_url
        heartbeat_timeout = settings.shards.heartbeat_timeout if heartbeat_timeout is None else heartbeat_timeout
    if broker_url in (None, "embedded"):
        raise ConfigError(
            "no broker given: set ORCHESTRIX_BROKER_URL, or write ShardMember(…, broker_url=…); "
            "that of `orchestrix dev` is in what it prints"
        )
    if not broker_url.startswith(("amqp://", "amqps://")):
        raise ConfigError("broker_url: write amqp://… or amqps://…")
    return MemberSettings(broker_url, float(heartbeat_timeout))


def connect(settings: MemberSettings, name: str) -> Broker:
    """The broker; nothing is connected yet. `name` shows in its list of connections."""
    from orchestrix.broker.amqp.broker import AmqpBroker  # loads the driver: a definition does not need it

    timeout_s = settings.heartbeat_timeout_s
    return AmqpBroker(
        settings.broker_url,
        name=f"orchestrix {name}",
        heartbeat=max(1, int(timeout_s / HEARTBEATS_PER_TIMEOUT)),
        reconnect_max_s=ShardRules(heartbeat_timeout_s=timeout_s).reconnect_max_s,
    )


def queue_name_of(worker_id: str, instance: str) -> str:
    """What names the queue of a member's answers at the broker, as `member_queue` takes it."""
    return f"{re.sub('[^A-Za-z0-9._-]', '_', worker_id)[:_SHOWN_CHARS]}-{instance[-8:]}"
