"""Redrive: turns a dead letter into a row of the outbox again."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from orchestrix.broker.port import Topology
from orchestrix.broker.topology import (
    COMMANDS,
    DEAD,
    DISPATCH_QUEUE_PREFIX,
    EVENTS,
    JOB_ASSIGNED,
    JOB_HANDOFF,
    SHARD_COORDINATOR,
    UNROUTED,
    queue_of_work,
    to_json,
    work_queue,
)
from orchestrix.dead_letters import parse
from orchestrix.errors import ConflictError
from orchestrix.outbox.rows import REDRIVE_OWNER, REPLY_TO
from orchestrix.persistence import dead_letters, outbox
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Transaction
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.saga.catalog import Catalog

log = logging.getLogger("orchestrix.dead_letters")

ID_LIMIT_BYTES: Final = 36
_LONGEST_NAME: Final = 255
_LONGEST_TYPE: Final = 110
CORRELATION_LIMIT_BYTES: Final = 128
_LONGEST_PARENT: Final = 64
_LONGEST_STATE: Final = 512
_OVER: Final = (
    "it dispatched one attempt of a job, which is over: the job was retried or has ended with this reason "
    "(see `orchestrix jobs show`; the body has the job's id). Drop it"
)
_UNNAMED: Final = 65
"""The last bits of a dead letter's id, which its row does not use: the others fill a whole number of 64 bits."""


class NotSendable(ConflictError):
    """The dead letter cannot be sent again as it is. The message says what helps."""


def target_of(dead_letter: DeadLetter, catalog: Catalog) -> tuple[str, str]:
    """(exchange, routing key) that lead back to where the dead letter came from. Raises `NotSendable`."""
    if dead_letter.queue in catalog.commands:
        return COMMANDS, dead_letter.queue
    if dead_letter.queue in catalog.events:
        return EVENTS, dead_letter.queue
    if dead_letter.queue in (JOB_ASSIGNED, JOB_HANDOFF, SHARD_COORDINATOR):
        return "", dead_letter.queue
    if dead_letter.queue.startswith(DISPATCH_QUEUE_PREFIX):
        raise NotSendable(_OVER)
    if dead_letter.queue != UNROUTED:
        unknown = f"no known saga has a queue {dead_letter.queue[:100]!r}"
        raise NotSendable(f"{unknown}: see ORCHESTRIX_SAGAS and orchestrix.toml")
    if dead_letter.exchange in ("", DEAD) or not 0 < len(dead_letter.routing_key.encode()) <= _LONGEST_NAME:
        raise NotSendable("it has no destination: drop it")
    return dead_letter.exchange, dead_letter.routing_key


def row_of(
    dead_letter: DeadLetter, catalog: Catalog, now: datetime, *, taken: Collection[str], body: bytes | None = None
) -> OutboxRow:
    """The row that sends the dead letter again, with `body` in place of its own if given. Raises `NotSendable`.

    Its message keeps its own id unless that does not fit or is `taken`; then it has the dead letter's. The row is
    outside of its saga's order: it neither waits for the saga's commands nor holds them up.
    """
    exchange, key = target_of(dead_letter, catalog)
    topology = None if exchange else queue_of_work(key)
    if dead_letter.queue == UNROUTED and exchange == EVENTS and key in catalog.events:  # its queue may still be missing
        topology = work_queue(EVENTS, key)
    body = dead_letter.body if body is None else body
    if body is None:
        raise NotSendable(
            f"its body ({dead_letter.body_size} bytes) was too large to be stored: edit it, then redrive it"
        )
    return OutboxRow(
        id=_own_id(dead_letter, taken) or dead_letter.id,
        saga=REDRIVE_OWNER,
        instance_id=UUID(dead_letter.id).int >> _UNNAMED,
        version=0,
        n=dead_letter.redriven + 1,
        exchange=exchange,
        routing_key=key,
        type=key[:_LONGEST_TYPE],
        correlation_id=text_within(dead_letter.correlation_id, CORRELATION_LIMIT_BYTES) or "",
        body=body,
        timeout_ms=0,
        topology=_stored(topology, text_within(dead_letter.headers.get(parse.REPLY_TO), _LONGEST_NAME)),
        created_at=now,
        traceparent=text_within(dead_letter.headers.get("traceparent"), _LONGEST_PARENT),
        tracestate=text_within(dead_letter.headers.get("tracestate"), _LONGEST_STATE),
    )


def _stored(topology: Topology | None, reply_to: str | None) -> dict[str, Any] | None:
    """What the row's column `topology` has: the message's `reply_to` beside it, where there is one."""
    if reply_to is None or not reply_to.isprintable():
        return None if topology is None else to_json(topology)
    return {**to_json(topology or Topology()), REPLY_TO: reply_to}


async def taken_ids(tx: Transaction, dead_letters: Collection[DeadLetter]) -> set[str]:
    """Which of the message ids cannot be used: a row of that id is in the outbox, or two dead letters have it."""
    ids = [dead_letter.message_id for dead_letter in dead_letters if dead_letter.message_id]
    twice = {id for id in ids if ids.count(id) > 1} if len(set(ids)) < len(ids) else set()
    return twice | await outbox.still_stored(tx, ids)


async def insert_rows(tx: Transaction, rows: Collection[OutboxRow]) -> None:
    """Inserts rows that any node may send at once.

    `claimed_by` is set though the claim has expired: `outbox.withdraw` takes rows without it as never sent.
    """
    await outbox.insert(tx, list(rows), claimed_by=REDRIVE_OWNER, lease_s=-1.0)


async def refused(tx: Transaction, row: OutboxRow, detail: str) -> bool:
    """Deletes a row that the broker refuses for good; its dead letter is open again, and says why. False for a row that
    is of no dead letter, which is left as it is.

    The dead letter of a command whose failure event is refused was never closed. Its row is only logged.
    """
    if row.saga != REDRIVE_OWNER:
        return False
    low = row.instance_id << _UNNAMED
    among = str(UUID(int=low)), str(UUID(int=low | (1 << _UNNAMED) - 1))
    if not await dead_letters.refused(tx, among, row.n, detail):
        log.error("%s %s is lost (correlation id %r): its dead letter is gone", row.type, row.id, row.correlation_id)
    await outbox.delete(tx, [row.id], claimed_by=row.claimed_by)
    return True


def _own_id(dead_letter: DeadLetter, taken: Collection[str]) -> str | None:
    """The message's own id, if its row can have it. Some databases ignore a space at the end."""
    own = text_within(dead_letter.message_id, ID_LIMIT_BYTES)
    return own if own is not None and own == own.rstrip() and own not in taken else None


def text_within(value: Any, limit: int) -> str | None:
    """`value` if it is a text of at most `limit` bytes; None for what would have to be cut."""
    return value if isinstance(value, str) and 0 < len(value.encode(errors="replace")) <= limit else None
