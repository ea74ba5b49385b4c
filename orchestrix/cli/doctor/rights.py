"""Rights: whether the user of RabbitMQ may do what nodes and workers do, and what lets it."""

from __future__ import annotations

import shlex
from typing import Final
from urllib.parse import unquote, urlsplit

from orchestrix.broker.port import Binding, Broker, Queue, Topology
from orchestrix.broker.topology import EVENTS
from orchestrix.cli.doctor.result import FAIL, CheckResult
from orchestrix.errors import OrchestrixError

_REFUSED: Final = ("ACCESS_REFUSED", "refused for user")
_RIGHTS: Final = ("configure", "write", "read")


async def rights(broker: Broker, url: str) -> list[CheckResult]:
    """Makes a queue that ends with this connection, and binds it: that takes all three rights."""
    from orchestrix import clock

    name = f"orchestrix.doctor.{clock.token()}"
    wanted = Topology((), (Queue(name, exclusive=True),), (Binding(name, EVENTS, name),))
    try:
        await broker.declare(wanted)
    except OrchestrixError as refused:
        return _describe(str(refused), url)
    return []


def _describe(refusal: str, url: str) -> list[CheckResult]:
    if not any(text in refusal for text in _REFUSED):
        return []  # an exchange that is not there yet, which is reported elsewhere
    parts = urlsplit(url)
    user, host = unquote(parts.username or "guest"), unquote(parts.path[1:]) or "/"
    right = next((one for one in _RIGHTS if f"{one} access" in refusal), _by_what_was_refused(refusal))
    fix = f"rabbitmqctl set_permissions -p {shlex.quote(host)} {shlex.quote(user)} '.*' '.*' '.*'"
    said = f"RabbitMQ's user {user!r} may not {right} in virtual host {host!r} what nodes and workers need"
    return [CheckResult(FAIL, "rights", said, fix)]


def _by_what_was_refused(refusal: str) -> str:
    """RabbitMQ before 3.11 does not name the right: making a queue is `configure`, binding it needs the others."""
    if "binding of" not in refusal:
        return "configure"
    return "read" if "access to exchange" in refusal else "write"
