"""Which commands and events belong to one instance?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from starlette.responses import Response

from app.api.kinds import Kind
from app.api.listing import page_response
from app.api.routes import Call
from app.api.single import awaited
from app.api.views import moment
from app.persistence import history, notes, outbox
from app.persistence.engine import Connection
from app.persistence.notes import Note
from app.persistence.outbox import OutboxRow
from sagas.engine.definition import STEP_FAILED, Saga
from sagas.engine.state import Change

CHUNK: Final = 500
Message = dict[str, Any]


async def list_messages(call: Call, kind: Kind) -> Response:
    """Commands and events of one instance, composed of history, pending outbox and notes; the oldest first.

    With `wait`, as they are at the end of the wait.
    """
    wanted = (await awaited(call, kind)).id
    async with call.context.database.read() as connection:
        changes = await _all_changes(connection, kind, wanted)
        unsent = await outbox.of_instance(connection, kind.saga.name, wanted)
        ignored = await notes.listing(connection, kind.saga.name, wanted)
    found = [(row.created_at, _unsent(row)) for row in unsent]
    found += _sent(kind.saga, changes, {row.id for row in unsent})
    found += _events(kind.saga, changes)
    found += [(note.first_at, _ignored(note)) for note in ignored]
    found.sort(key=lambda pair: (pair[0], pair[1]["version"] or 0, pair[1]["kind"] == "command"))
    return page_response(call, [message for _, message in found], None)


async def _all_changes(connection: Connection, kind: Kind, wanted: int) -> Sequence[Change]:
    found: list[Change] = []
    while True:
        after = found[-1].version if found else 0
        more = await history.listing(connection, kind.pair, wanted, after, CHUNK)
        found += more
        if len(more) < CHUNK:
            return found


def _sent(saga: Saga, changes: Iterable[Change], unsent: set[str]) -> list[tuple[datetime, Message]]:
    """The commands that have left: a row sends one where it leads into the state of a step."""
    found: dict[str, tuple[datetime, Message]] = {}
    for change in changes:
        step = saga.step_in(change.to_state)
        if step is None or change.command_id is None or change.command_id in unsent:
            continue
        message = _message("command", step.command, change.command_id, "sent", change.version, change.at)
        found.setdefault(change.command_id, (change.at, message))
    return list(found.values())


def _events(saga: Saga, changes: Iterable[Change]) -> list[tuple[datetime, Message]]:
    known = {step.event for step in saga.steps} | {STEP_FAILED}
    found = []
    for change in changes:
        name, _, said = change.reason.partition(": ")
        if name in known:
            message = _message("event", name, change.caused_by, "accepted", change.version, change.at)
            found.append((change.at, {**message, "reason": said or None}))
    return found


def _unsent(row: OutboxRow) -> Message:
    status = "parked" if row.parked_reason else "pending"
    message = _message("command", row.type, row.id, status, row.version, row.created_at)
    return {**message, "reason": row.parked_reason}


def _ignored(note: Note) -> Message:
    kind = "command" if note.type.startswith("cmd.") else "event"
    message = _message(kind, note.type, None, "ignored", None, note.first_at)
    return {**message, "reason": note.reason, "count": note.count, "lastAt": moment(note.last_at)}


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
