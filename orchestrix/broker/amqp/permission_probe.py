"""Permission probe: asks RabbitMQ which permissions its user lacks, without changing or taking anything.

The doctor reports them (`orchestrix.cli.doctor.permissions`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pamqp import commands
from pamqp.base import Frame

from orchestrix import clock
from orchestrix.broker.amqp.channel import ChannelLost
from orchestrix.broker.amqp.connection import AmqpConnection
from orchestrix.broker.permission_commands import permissions_command_for

_DENIED: Final = 403
_IMPOSSIBLE: Final = {"x-priority": "none"}
"""RabbitMQ checks the right to read first, and then refuses to subscribe with this."""


async def refusals(link: AmqpConnection, queues: Iterable[str], exchanges: Iterable[str], source: str) -> list[str]:
    """What RabbitMQ says where it refuses to let the queues be read, or messages be sent to the exchanges.

    `source` is any other exchange. Another broker than RabbitMQ is asked nothing. Raises `Unavailable`.
    """
    if not link.is_rabbitmq:
        return []
    key = f"orchestrix.doctor.{clock.token()}"
    asked: list[Frame] = [commands.Basic.Consume(queue=queue, arguments=dict(_IMPOSSIBLE)) for queue in queues]
    asked += [commands.Exchange.Unbind(destination=one, source=source, routing_key=key) for one in exchanges]
    found = [await _refusal(link, one) for one in asked]
    return [one for one in found if one is not None and permissions_command_for(one) is not None]


async def _refusal(link: AmqpConnection, request: Frame) -> str | None:
    try:
        async with await link.channel() as channel:
            await channel.call(request)
    except ChannelLost as lost:
        if not lost.code:
            raise
        return str(lost) if lost.code == _DENIED else None
    return None
