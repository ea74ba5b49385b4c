"""Permission checks: whether the user of RabbitMQ may do what nodes and workers do, else the command that lets it.

How the broker is asked: `orchestrix.broker.amqp.permission_probe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from orchestrix.broker import topology
from orchestrix.broker.permission_commands import permissions_command
from orchestrix.broker.port import Binding, Queue, Topology
from orchestrix.cli.doctor.result import FAIL, CheckResult
from orchestrix.errors import OrchestrixError

if TYPE_CHECKING:
    from orchestrix.broker.amqp.broker import AmqpBroker

_REFUSED: Final = ("ACCESS_REFUSED", "refused for user")
_RIGHTS: Final = ("configure", "write", "read")
_DEFAULT_EXCHANGE: Final = ""
_WRITTEN: Final = (
    _DEFAULT_EXCHANGE,
    topology.COMMANDS,
    topology.EVENTS,
    topology.DEAD,
    topology.HEARTBEAT,
    topology.WORKER_HEARTBEAT,
    topology.JOB_CANCEL,
)
"""The exchanges that nodes and workers send to."""
_READ: Final = (
    topology.UNROUTED,
    topology.LEADER,
    topology.JOB_ASSIGNED,
    topology.JOB_HANDOFF,
    topology.SHARD_COORDINATOR,
)


async def check_permissions(broker: AmqpBroker, url: str, queues: Sequence[str] = ()) -> list[CheckResult]:
    """Makes a queue that ends with this connection, and binds it: that takes all three rights. Then asks for the right
    to send to each exchange, and to read each of `queues` and of those that nodes share. Raises `Unavailable`."""
    from orchestrix import clock

    name = f"orchestrix.doctor.{clock.token()}"
    wanted = Topology((), (Queue(name, exclusive=True),), (Binding(name, topology.EVENTS, name),))
    try:
        await broker.declare(wanted)
    except OrchestrixError as refused:
        if found := _describe(str(refused), url):
            return found  # else an exchange that is not there yet, which is reported elsewhere
    return await names_refused(broker, url, (*_READ, *queues), _WRITTEN)


async def names_refused(
    broker: AmqpBroker, url: str, queues: Sequence[str], exchanges: Sequence[str] = ()
) -> list[CheckResult]:
    """A failure for each right that is missing on a queue or an exchange of these. Raises `Unavailable`."""
    refused = await broker.refusals(queues, exchanges, topology.UNROUTED)
    return [found for one in dict.fromkeys(refused) for found in _describe(one, url, named=True)]


def _describe(refusal: str, url: str, *, named: bool = False) -> list[CheckResult]:
    if not any(text in refusal for text in _REFUSED):
        return []
    parts = urlsplit(url)
    user, host = unquote(parts.username or "guest"), unquote(parts.path[1:]) or "/"
    right = next((one for one in _RIGHTS if f"{one} access" in refusal), _by_what_was_refused(refusal))
    said = f"RabbitMQ's user {user!r} may not {right} in virtual host {host!r} what nodes and workers need"
    if named:
        what = refusal.partition("access to ")[2].partition(" in vhost")[0]
        said += f": {what}" if what else ""
    return [CheckResult(FAIL, "rights", said, permissions_command(host, user))]


def _by_what_was_refused(refusal: str) -> str:
    """RabbitMQ before 3.11 does not name the right: making a queue is `configure`, binding it needs the others."""
    if "binding of" in refusal:
        return "read" if "access to exchange" in refusal else "write"
    return "configure" if refusal.startswith("queue ") else "read" if "to queue" in refusal else "write"
