"""Timeline: the commands and events that belong to one instance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from orchestrix.api.instances.kinds import InstanceKind
from orchestrix.api.instances.message_history import MessageHistory, commands, events
from orchestrix.api.instances.models import DeadMessage, MessageBody, MessagePage
from orchestrix.api.operations import Call
from orchestrix.api.traces.links import trace_id_of
from orchestrix.persistence import dead_letters, outbox
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import history, ignored_messages
from orchestrix.persistence.sagas.ignored_messages import IgnoredMessage
from orchestrix.saga.state import PAUSED, RETRY, UNSENT, Instance, StateChange

CHUNK: Final = 500


async def messages_of(call: Call, kind: InstanceKind, instance: Instance) -> MessagePage:
    """Commands and events of one instance, the oldest first.

    Composed of history, pending outbox, notes and dead letters.
    """
    async with call.context.database.read() as connection:
        changes = await _all_changes(connection, kind, instance.id)
        unsent = await outbox.of_instance(connection, kind.saga.name, instance.id)
        ignored = await ignored_messages.listing(connection, kind.saga.name, instance.id)
        dead = await dead_letters.of_instance(connection, kind.saga.name, instance.id)
    saga = call.context.catalog.of(instance) or kind.saga
    present = {row.id for row in unsent}
    sent = [texts for texts in commands(saga, instance, changes) if texts.change.command_id not in present]
    found = [_unsent(row) for row in unsent]
    found += [_sent(texts, instance) for texts in sent]
    found += [_accepted(texts) for texts in events(saga, changes)]
    found += [_ignored(note) for note in ignored]
    found += [_dead(dead_letter) for dead_letter in dead]
    found.sort(key=lambda one: (one.at, one.version or 0, one.kind == "command"))
    return MessagePage(items=found)


async def _all_changes(connection: Connection, kind: InstanceKind, wanted: int) -> Sequence[StateChange]:
    found: list[StateChange] = []
    while True:
        after = found[-1].version if found else 0
        more = await history.listing(connection, kind.pair, wanted, after, CHUNK)
        found += more
        if len(more) < CHUNK:
            return found


def _sent(text: MessageHistory, instance: Instance) -> MessageBody:
    change = text.change
    later = _later(instance) if change.command_id == instance.command_id else None
    status = "pending" if later else "sent"
    more = {"version": change.version, "reason": later, "trace_id": change.trace_id}
    return _message("command", text.type, change.command_id, status, change.at, **more)


def _later(instance: Instance) -> str | None:
    """Why the command in flight for `instance` is not to be sent yet; history names it when it is decided on."""
    paused = instance.blocker == PAUSED
    reason = instance.progress.resume if paused else instance.wake_reason
    if paused and reason in (RETRY, UNSENT):
        return "it is paused"
    return "it waits for its next try" if reason == RETRY else None


def _accepted(text: MessageHistory) -> MessageBody:
    change = text.change
    more = {"version": change.version, "reason": text.detail, "trace_id": change.trace_id}
    return _message("event", text.type, change.caused_by, "accepted", change.at, **more)


def _unsent(row: OutboxRow) -> MessageBody:
    status = "parked" if row.parked_reason else "pending"
    more = {"version": row.version, "reason": row.parked_reason, "trace_id": trace_id_of(row.traceparent)}
    return _message("command", row.type, row.id, status, row.created_at, **more)


def _ignored(note: IgnoredMessage) -> MessageBody:
    kind = "command" if note.type.startswith("cmd.") else "event"
    more = {"reason": note.reason, "count": note.count, "last_at": note.last_at}
    return _message(kind, note.type, None, "ignored", note.first_at, **more)


def _dead(dead_letter: DeadLetter) -> MessageBody:
    kind = "command" if dead_letter.queue.startswith("cmd.") else "event"
    return DeadMessage.of(
        dead_letter,
        kind=kind,
        id=dead_letter.message_id,
        status="dead",
        count=1,
        version=None,
        trace_id=trace_id_of(dead_letter.headers.get("traceparent")),
        at=dead_letter.died_at,
        last_at=dead_letter.died_at,
        dead_letter=dead_letter.id,
        deliveries=dead_letter.deliveries or None,
    )


def _message(kind: Any, name: str, message_id: str | None, status: Any, at: datetime, **more: Any) -> MessageBody:
    return MessageBody(kind=kind, type=name, id=message_id, status=status, at=at, **{"last_at": at, **more})
