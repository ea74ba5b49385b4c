"""Negotiation: client and broker agree on user, limits, heartbeat and virtual host before any channel opens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pamqp import commands

from orchestrix.broker.embedded import errors, frames

if TYPE_CHECKING:
    from pamqp.base import Frame
    from pamqp.common import FieldTable

CHANNEL_MAX = 2_047
HEARTBEAT_S = 60
MECHANISM = "PLAIN"
CAPABILITIES: FieldTable = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": False,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": False,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": False,
}


@dataclass(slots=True)
class ConnectionParameters:
    """What was agreed on. `heartbeat` in seconds, 0 is none; `frame_max` in bytes."""

    user: str = ""
    channel_max: int = CHANNEL_MAX
    frame_max: int = frames.FRAME_MAX
    heartbeat: int = 0
    vhost: str = ""
    notifies_cancel: bool = False
    notifies_blocked: bool = False


class Negotiation:
    """The four steps of AMQP 0-9-1, 2.2.4, each allowed once and in this order."""

    def __init__(self) -> None:
        self.terms = ConnectionParameters()
        self._expected: type[Frame] = commands.Connection.StartOk

    @staticmethod
    def start(profile: str) -> Frame:
        properties: FieldTable = {
            "product": "Orchestrix embedded broker",
            "version": "0-9-1",
            "platform": "Python",
            "information": f"for development only: memory only, loopback only, profile {profile}",
            "capabilities": CAPABILITIES,
        }
        return commands.Connection.Start(server_properties=properties, mechanisms=MECHANISM, locales="en_US")

    @property
    def done(self) -> bool:
        return bool(self.terms.vhost)

    def on_method(self, index: int, payload: bytes) -> Frame | None:
        """The answer to the next step. Raises AmqpError 503 for any other method."""
        if index != self._expected.index:
            raise errors.command_invalid(f"{self._expected.name} was expected here")
        method = self._expected()
        method.unmarshal(payload[4:])
        if isinstance(method, commands.Connection.StartOk):
            return self._on_start_ok(method)
        if isinstance(method, commands.Connection.TuneOk):
            self._on_tune_ok(method)
            return None
        return self._on_open(method)

    def _on_start_ok(self, method: commands.Connection.StartOk) -> Frame:
        """Any user and password will do: only processes of this machine can connect."""
        if method.mechanism != MECHANISM:
            raise errors.command_invalid(f"unknown authentication mechanism '{method.mechanism}'; offered: {MECHANISM}")
        parts = str(method.response).split("\0")
        if len(parts) != 3:
            raise errors.access_refused("the PLAIN response is not of the form NUL user NUL password")
        capabilities: Any = (method.client_properties or {}).get("capabilities")
        known = capabilities if isinstance(capabilities, dict) else {}
        self.terms.user = parts[1]
        self.terms.notifies_cancel = bool(known.get("consumer_cancel_notify"))
        self.terms.notifies_blocked = bool(known.get("connection.blocked"))
        self._expected = commands.Connection.TuneOk
        return commands.Connection.Tune(CHANNEL_MAX, frames.FRAME_MAX, HEARTBEAT_S)

    def _on_tune_ok(self, method: commands.Connection.TuneOk) -> None:
        """The client's figures hold as long as they are within ours; 0 asks for ours (heartbeat: for none)."""
        if method.frame_max and not frames.FRAME_MIN <= method.frame_max <= frames.FRAME_MAX:
            raise errors.not_allowed(f"frame_max={method.frame_max} is not in {frames.FRAME_MIN}..{frames.FRAME_MAX}")
        if method.channel_max > CHANNEL_MAX:
            raise errors.not_allowed(f"negotiated channel_max = {method.channel_max} is higher than {CHANNEL_MAX}")
        self.terms.channel_max = method.channel_max or CHANNEL_MAX
        self.terms.frame_max = method.frame_max or frames.FRAME_MAX
        self.terms.heartbeat = method.heartbeat
        self._expected = commands.Connection.Open

    def _on_open(self, method: Any) -> Frame:
        if not method.virtual_host:
            raise errors.not_allowed("the virtual host needs a name")
        self.terms.vhost = method.virtual_host
        return commands.Connection.OpenOk()
