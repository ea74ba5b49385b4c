"""Setting aliases: usual names of the environment that stand for settings of ours."""

from __future__ import annotations

from typing import Final

ALIASES: Final = {
    "PORT": "http.port",
    "LOG_LEVEL": "log.level",
    "PROCESS_NAME": "node_id",
    "HEARTBEAT_TIMEOUT_SECONDS": "shards.heartbeat_timeout",
    "HEARTBEAT_CHECK_INTERVAL_SECONDS": "shards.check",
    "SHARD_COORDINATOR_BIND_HOST": "shards.zmq_host",
    "SHARD_COORDINATOR_BIND_PORT": "shards.zmq_port",
}
"""Usual names that are aliases of ours. `NODE_ENV` is no setting: `development` turns `dev --reload` on; anything
else changes nothing, for there is one way to run."""
