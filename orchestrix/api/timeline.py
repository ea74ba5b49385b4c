"""Timeline: the commands and events that belong to one instance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from orchestrix.api.instance import awaited
from orchestrix.api.instance_resource import InstanceResource
from orchestrix.api.listing import page_response
from orchestrix.api.message_history import MessageHistory, commands, events
from orchestrix.api.routes import Call
from orchestrix.api.serializers import moment, perhaps
from orchestrix.persistence import dead_letters, outbox
from orchestrix.persistence.dead_letters import DeadLetter
from orchestrix.persistence.engine import Connection
from orchestrix.persistence.outbox import OutboxRow
from orchestrix.persistence.sagas import history, ignored_messages
from orchestrix.persistence.sagas.ignored_messages import IgnoredMessage
from orchestrix.saga.state import PAUSED, RETRY, UNSENT, Instance, StateChange

CHUNK: Final = 500
Message = dict[str, Any]


async def list_messages(call: Call, kind: InstanceResource) -> Response:
    """Commands and events of one instance, the oldest first.

    Composed of history, pending outbox, notes and dead letters. With `wait`, as they are at the end of the wait.
    """
    instance = await awaited(call, kind)
    async with call.context.database.read() as connection:
        changes = await _all_changes(connection, kind, instance.id)
        unsent = await outbox.of_instance(connection, kind.saga.name, instance.id)
        ignored = await ignored_messages.listing(connection, kind.saga.name, instance.id)
        dead = await dead_letters.of_instance(connection, kind.saga.name, instance.id)
    saga = call.context.catalog.of(instance) or kind.saga
    present = {row.id for row in unsent}
    sent = [told for told in commands(saga, instance, changes) if told.change.command_id not in present]
    found = [(row.created_at, _unsent(row)) for row in unsent]
    found += [(told.change.at, _sent(told, instance)) for told in sent]
    found += [(told.change.at, _accepted(told)) for told in events(saga, changes)]
    found += [(note.first_at, _ignored(note)) for note in ignored]
    found += [(letter.died_at, _dead(letter)) for letter in dead]
    found.sort(key=lambda pair: (pair[0], pair[1]["version"] or 0, pair[1]["kind"] == "command"))
    return page_response(call, [message for _, message in found], None)


async def _all_changes(connection: Connection, kind: InstanceResource, wanted: int) -> Sequence[StateChange]:
    found: list[StateChange] = []
    while True:
        after = found[-1].version if found else 0
        more = await history.listing(connection, kind.pair, wanted, after, CHUNK)
        found += more
        if len(more) < CHUNK:
            return found


def _sent(told: MessageHistory, instance: Instance) -> Message:
    change = told.change
    later = _later(instance) if change.command_id == instance.command_id else None
    status = "pending" if later else "sent"
    message = _message("command", told.type, change.command_id, status, change.version, change.at)
    return {**message, "reason": later}


def _later(instance: Instance) -> str | None:
    """Why the command that is out for `instance` is not to leave yet; history names it when it is decided on."""
    paused = instance.blocker == PAUSED
    reason = instance.progress.resume if paused else instance.wake_reason
    if paused and reason in (RETRY, UNSENT):
        return "it is paused"
    return "it waits for its next try" if reason == RETRY else None


def _accepted(told: MessageHistory) -> Message:
    change = told.change
    message = _message("event", told.type, change.caused_by, "accepted", change.version, change.at)
    return {**message, "reason": told.said}


def _unsent(row: OutboxRow) -> Message:
    status = "parked" if row.parked_reason else "pending"
    message = _message("command", row.type, row.id, status, row.version, row.created_at)
    return {**message, "reason": row.parked_reason}


def _ignored(note: IgnoredMessage) -> Message:
    kind = "command" if note.type.startswith("cmd.") else "event"
    message = _message(kind, note.type, None, "ignored", None, note.first_at)
    return {**message, "reason": note.reason, "count": note.count, "lastAt": moment(note.last_at)}


def _dead(letter: DeadLetter) -> Message:
    kind = "command" if letter.queue.startswith("cmd.") else "event"
    message = _message(kind, letter.type, letter.message_id, "dead", None, letter.died_at)
    return {
        **message,
        "reason": letter.reason,
        "deadLetter": letter.id,
        "error": letter.error,
        "deliveries": letter.deliveries or None,
        "redriven": letter.redriven,
        "redrivenAt": perhaps(letter.redriven_at),
    }


def _message(kind: str, name: str, message_id: str | None, status: str, version: int | None, at: datetime) -> Message:
    return {
        "kind": kind,
        "type": name,
        "id": message_id,
        "status": status,
        "reason": None,
        "count": 1,
        "version": version,
        "at": moment(at),
        "lastAt": moment(at),
    }
