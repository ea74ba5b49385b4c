"""Does what goes over the wire and into the rows keep the promises, at every moment and in the end?"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from orchestrix.broker.port import Delivery, Outgoing
from orchestrix.broker.topology import COMMANDS, DEAD, EVENTS
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import COMPLETED, FAILED, STEP_FAILED, STEP_STARTED, TERMINAL, Compensation, Saga
from orchestrix.saga.messages import Command
from orchestrix.testing.simulation.inline_sqlite import SqliteFile
from orchestrix.testing.simulation.virtual_time import EPOCH_S

LOOK_IS_GOOD = 1.5
"""Seconds after which whoever begins to work on a step must know of its end: the look itself may be 1 s old."""
_STOPS = re.compile("(pause|cancel|skip|terminate): ")
_GOOD = {"created", "immediate"}
_TABLES = {"app": ("apps", "app_state_history", "app_id", "app_name")}
_OTHERS = ("saga_instances", "saga_history", "instance_id", "key")
_WAITS = ("begun_id", "wake_reason", "definition_version")
_NOTED = "SELECT count(*) FROM saga_notes WHERE saga = ? AND instance_id = ? AND type = ?"
_HELD = "SELECT count(*) FROM held_events WHERE saga = ? AND instance_id = ? AND queue = ?"
_TRIED = ("tries", "progress")


class Witness:
    """Sees every message, acknowledgement and effect, compares them with what is committed, and keeps what is wrong.

    `trace` are lines of what happened, in order.
    """

    def __init__(self, file: SqliteFile, catalog: Catalog) -> None:
        self.file = file
        self.wrong: list[str] = []
        self.trace: list[str] = []
        self.answered: dict[tuple[str, str], int] = {}
        self.started: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.effects: dict[str, tuple[Mapping[str, Any], int]] = {}
        self.tombstones: defaultdict[str, int] = defaultdict(int)
        self.runs: defaultdict[str, int] = defaultdict(int)
        self.judged = 0
        """How many sagas `judge` has looked at."""
        self.last_thaw = 0.0
        self.is_over = False
        self._catalog = catalog
        self._arrived: set[str] = set()
        self._furthest: dict[tuple[str, int], int] = {}
        self._reported: set[str] = set()
        self._dead: set[str] = set()
        self._withdrawn: set[str] = set()
        self._versions: dict[str, int] = {}
        self._settled: defaultdict[tuple[str, str, int], int] = defaultdict(int)

    def note(self, what: str) -> None:
        """One more line of the trace."""
        if self.is_over:
            return
        self.trace.append(f"{asyncio.get_running_loop().time():.6f} {what}")

    def complain(self, what: str) -> None:
        """Something is wrong."""
        if self.is_over:
            return
        self.note(f"WRONG {what}")
        self.wrong.append(what)

    # What is seen.

    def published(self, message: Outgoing, queues: Sequence[str]) -> None:
        self.note(f"published {message.routing_key} {message.message_id} to {','.join(queues) or 'nobody'}")
        if message.exchange == COMMANDS:
            self._command_published(message)
        elif message.exchange == EVENTS and queues:
            self._event_published(message)
        elif message.exchange == DEAD:
            self.note(f"dead {message.headers.get('x-reason')}")
            self._dead.add(message.message_id)

    def _event_published(self, message: Outgoing) -> None:
        cause = json.loads(message.body).get("causationId")
        self._check_version(message.routing_key, cause)
        if message.routing_key != STEP_STARTED:  # which is no answer
            self._reported.add(str(cause))
        if cause is not None and cause not in self._arrived:
            self.complain(f"I10: {message.routing_key} answers {cause}, which never went out")

    def _check_version(self, kind: str, cause: str | None) -> None:
        """A success is that of the version that the command named."""
        named = self._versions.get(cause or "")
        if named is None or kind in (STEP_FAILED, STEP_STARTED):
            return
        if self._catalog.event(kind, named) is None:
            self.complain(f"{kind} answers {cause}, and version {named} has no such event")

    def _command_published(self, message: Outgoing) -> None:
        body = json.loads(message.body)
        self._versions[message.message_id] = body["definitionVersion"]
        saga, number = body["saga"], body["appId"]
        _, history, owner, _ = _tables(saga)
        asked = f"SELECT min(version) FROM {history} WHERE {owner} = ? AND command_id = ?"
        ((version,),) = self.file.query(asked, (number, message.message_id))
        if version is None:
            self.complain(f"I10: {message.routing_key} of {saga} {number} is on the wire, its row is not committed")
            return
        furthest = self._furthest.get((saga, number), 0)
        if message.message_id not in self._arrived and version < furthest:
            self.complain(f"I9: the first {message.routing_key} of {saga} {number} came after a later command")
        self._furthest[saga, number] = max(version, furthest)
        self._arrived.add(message.message_id)

    def acknowledging(self, delivery: Delivery) -> None:
        self.note(f"acknowledged {delivery.queue} {delivery.message_id} {delivery.tag}")
        if delivery.message_id in self._dead or not delivery.queue.startswith(("cmd.", "evt.")):
            return
        if delivery.queue.endswith(".dead"):
            return
        body = json.loads(delivery.body)
        if delivery.queue == STEP_STARTED:
            self._begin_acknowledged(body)
        elif delivery.queue.startswith("evt."):
            self._event_acknowledged(delivery.queue, body)
        else:
            self._command_acknowledged(body)

    def _event_acknowledged(self, kind: str, body: Mapping[str, Any]) -> None:
        saga = self._saga(kind, body)
        self._settled[kind, saga.name, body["appId"]] += 1
        if self._settled[kind, saga.name, body["appId"]] > 1:
            self.note(f"repeated {kind} of {saga.name} {body['appId']}")
        row = self._row(saga.name, body["appId"])
        if row is None:
            self.complain(f"{kind} of {saga.name} {body['appId']} was acknowledged, there is no such row")
            return
        saga = self._of(saga, row)
        answers = row["command_id"] == body.get("causationId") and row["blocker"] is None
        done = not answers
        owner = self._catalog.event(kind, saga.version)
        if owner is not None and not owner.undoes:
            done = saga.position(row["state"]) > saga.position(owner.step.state) or row["state"] == FAILED
        key = (saga.name, body["appId"], kind)
        if done:
            return
        if self.file.query(_HELD, key)[0][0]:
            self.note(f"held {kind} of {saga.name} {body['appId']}")
        elif not self.file.query(_NOTED, key)[0][0]:
            self.complain(f"{kind} of {saga.name} {body['appId']} was acknowledged before its commit")
        elif answers and row["state"] not in TERMINAL:
            self.complain(f"{kind} of {saga.name} {body['appId']} was ignored, and its saga waits for it")

    def _begin_acknowledged(self, body: Mapping[str, Any]) -> None:
        row = self._row(body["saga"], body["appId"])
        waits = row is not None and row["command_id"] == body["causationId"] and row["state"] not in TERMINAL
        if row is None or not waits or row["blocker"] is not None or row["wake_reason"] == "retry":
            return
        if row["begun_id"] != row["command_id"] and self._is_stored(body["saga"], row["definition_version"]):
            self.complain(f"a begin of {body['saga']} {body['appId']} was acknowledged before its commit")

    def _command_acknowledged(self, body: Mapping[str, Any]) -> None:
        row = self._row(body["saga"], body["appId"])
        over = row is not None and (row["command_id"], row["state"], row["blocker"]) != (
            body["id"],
            body["expectedState"],
            None,
        )
        if not over and body["id"] not in self._reported:
            self.complain(f"{body['type']} of {body['saga']} {body['appId']} was acknowledged before its event arrived")

    def removed(self, message_id: str) -> None:
        """A row leaves the outbox: it was sent, or a person stopped its saga, which is looked at in the end."""
        if message_id not in self._arrived:
            self._withdrawn.add(message_id)

    def begins(self, command: Command) -> None:
        """A handler begins to work."""
        self.runs[command.id] += 1
        self.note(f"works {'again ' if self.runs[command.id] > 1 else ''}on {command.type} {command.id}")
        row = self._row(command.saga, command.app_id)
        if row is None:
            self.complain(f"I10: {command.type} of {command.saga} {command.app_id} is worked on, there is no such row")
        elif row["command_id"] != command.id:
            self._check_look(command)

    def _check_look(self, command: Command) -> None:
        _, history, owner, _ = _tables(command.saga)
        known = f"SELECT max(version) FROM {history} WHERE {owner} = ? AND command_id = ?"
        # The move that ended the command carries its id too, unless it sent the next one.
        asked = f"SELECT max(at) FROM {history} WHERE {owner} = ? AND version <= 1 + ({known})"
        ((at,),) = self.file.query(asked, (command.app_id, command.app_id, command.id))
        over = _seconds(at)
        now = asyncio.get_running_loop().time()
        if now - over > LOOK_IS_GOOD and self.last_thaw < over:
            self.complain(
                f"{command.type} of {command.saga} {command.app_id} is worked on {now - over:.1f} s after its end"
            )

    def effect(self, key: str, result: Mapping[str, Any], attempt: int = 1) -> Mapping[str, Any]:
        """A handler does its work, which can be done once: whoever comes later finds it done, and answers for it."""
        self.note(f"effect {key} {attempt}")
        made, before = self.effects.get(key, (result, 0))
        self.effects[key] = made, max(before, attempt)
        return made

    def undone(self, key: str, attempt: int) -> None:
        """A handler takes away what that attempt, or one before it, has made, and refuses it from now on."""
        self.note(f"undoes {key} {attempt}")
        self.tombstones[key] = max(self.tombstones[key], attempt)
        if key in self.effects and self.effects[key][1] <= attempt:
            del self.effects[key]

    # What must hold in the end.

    def is_quiet(self) -> bool:
        """Whether every saga has ended and nothing waits in the outbox."""
        terminal = ", ".join(f"'{state}'" for state in sorted(TERMINAL))
        waiting = [f"SELECT 1 FROM {table} WHERE state NOT IN ({terminal})" for table in ("apps", "saga_instances")]
        return not self.file.query(
            f"SELECT 1 FROM outbox UNION ALL SELECT 1 FROM held_events UNION ALL {' UNION ALL '.join(waiting)} LIMIT 1"
        )

    def judge(self, sagas: Sequence[Saga]) -> None:
        """Invariants I1 to I5 and I9 over the rows."""
        for saga in sagas:
            for row in self._rows(saga.name):
                self._judge_row(self._of(saga, row), row)
                self.judged += 1
        for (saga_name, key), number in sorted(self.answered.items()):
            found = self._named(saga_name, key)
            if found != [number]:
                self.complain(f"I1: {saga_name} {key} was answered as {number}; there is {found}")
        for (saga_name, key), times in sorted(self.started.items()):
            if times > 1:
                self.complain(f"I1: {saga_name} {key} was started {times} times")
        ((left,),) = self.file.query("SELECT count(*) FROM outbox")
        if left:
            self.complain(f"I2, I9: {left} rows are left in the outbox")

    def _judge_row(self, saga: Saga, row: Mapping[str, Any]) -> None:
        name = f"{saga.name} {row['id']}"
        _, history, owner, _ = _tables(saga.name)
        columns = "version, from_state, to_state, command_id, reason"
        asked = f"SELECT {columns} FROM {history} WHERE {owner} = ? ORDER BY version"
        changes = self.file.query(asked, (row["id"],))
        if row["state"] not in TERMINAL and row["blocker"] is None:
            self.complain(f"I2: {name} is stuck in {row['state']}")
        if [change[0] for change in changes] != list(range(1, row["version"] + 1)):
            self.complain(f"I3: {name} is at {row['version']}, its history is {changes}")
        before = None
        for _, source, target, *_ in changes:
            if source != before or (source != target and (source, target) not in saga.moves):
                self.complain(f"I4: {name} went from {source} to {target} when it was {before}")
            before = target
        if before != row["state"]:
            self.complain(f"I4: the history of {name} ends in {before}, its row says {row['state']}")
        reasons = [str(change[4]) for change in changes]
        owed = {change[3]: place for place, change in reversed(list(enumerate(changes)))}
        for command_id in sorted((self._withdrawn - self._arrived) & owed.keys()):
            if not any(map(_STOPS.match, reasons[owed[command_id] :])):
                self.complain(f"I9: {command_id} of {name} was removed from the outbox before it was sent")
        if row["state"] == COMPLETED and all(reason in _GOOD or reason.startswith("evt.") for reason in reasons):
            for command_id in sorted({str(change[3]) for change in changes if change[3]} - self._arrived):
                self.complain(f"I10: {name} owed {command_id}, which never went out")
        begun = max(place for place, change in enumerate(changes) if place == 0 or change[1] == FAILED)
        if row["state"] == COMPLETED:
            self._judge_effects(saga, row, {change[1] for change in changes if str(change[4]).startswith("skip: ")})
        elif row["state"] == FAILED and not any(reason.startswith(("terminate: ", "skip: ")) for reason in reasons):
            self._judge_undone(saga, row, changes[begun:])

    def _judge_effects(self, saga: Saga, row: Mapping[str, Any], skipped: set[str]) -> None:
        data = json.loads(row["data"])
        for step in saga.steps:
            key = f"{saga.name}:{row['id']}:{step.name}:do"
            if step.state in skipped:
                continue
            if key not in self.effects:
                self.complain(f"I5: {saga.name} {row['id']} is completed, {step.name} was never done")
            elif any(data.get(name) != value for name, value in self.effects[key][0].items()):
                self.complain(f"I5: {saga.name} {row['id']} does not know what {step.name} has made")

    def _judge_undone(self, saga: Saga, row: Mapping[str, Any], changes: Sequence[Sequence[Any]]) -> None:
        """Nothing of a saga that failed is left, and each step that had ended well was undone."""
        passed = {change[1] for change in changes if str(change[4]).startswith("evt.") and change[2] in saga.path}
        said = {str(change[4]) for change in changes}
        told = json.loads(row["progress"] or "null") or {}
        for step in saga.steps:
            if not isinstance(step.undo, Compensation) or step.name in told.get("todo", ()):
                continue  # what is still to be undone after the end is told to people
            if step.state in passed and f"undone {step.name}" not in said:
                self.complain(f"I5: {saga.name} {row['id']} has failed, the undo of {step.name} was forgotten")
            if f"{saga.name}:{row['id']}:{step.name}:do" in self.effects:
                self.complain(f"I5: {saga.name} {row['id']} has failed, what {step.name} made is left behind")

    # Looking things up.

    def _of(self, saga: Saga, row: Mapping[str, Any]) -> Saga:
        """The definition by which the instance runs."""
        return self._catalog.version(saga.name, row["definition_version"]) or saga

    def _saga(self, kind: str, body: Mapping[str, Any]) -> Saga:
        owner = self._catalog.event(kind)
        saga = owner.saga if owner else self._catalog.saga(body.get("saga") or "app")
        assert saga is not None
        return saga

    def rows(self, saga: Saga) -> list[Mapping[str, Any]]:
        """Every row."""
        return self._rows(saga.name)

    def live(self, saga: Saga) -> list[Mapping[str, Any]]:
        """The rows that have not ended."""
        return [row for row in self._rows(saga.name) if row["state"] not in TERMINAL]

    def _is_stored(self, saga: str, version: int) -> bool:
        """Whether every node can read that version: else nobody knows how long its steps may take."""
        asked = "SELECT count(*) FROM saga_definitions WHERE saga = ? AND version = ?"
        return bool(self.file.query(asked, (saga, version))[0][0])

    def _row(self, saga: str, number: int) -> Mapping[str, Any] | None:
        return next(iter(self._rows(saga, number)), None)

    def _rows(self, saga: str, number: int | None = None) -> list[Mapping[str, Any]]:
        table, _, _, key = _tables(saga)
        columns = (
            "id",
            key,
            "state",
            "version",
            "command_id",
            "correlation_id",
            "blocker",
            "data",
            *_WAITS,
            *_TRIED,
        )
        where = ("" if table == "apps" else f" AND saga = '{saga}'") + ("" if number is None else f" AND id = {number}")
        found = self.file.query(f"SELECT {', '.join(columns)} FROM {table} WHERE 1 = 1{where} ORDER BY id")
        return [dict(zip(columns, row, strict=True)) for row in found]

    def _named(self, saga: str, name: str) -> list[int]:
        table, _, _, key = _tables(saga)
        where = "" if table == "apps" else f" AND saga = '{saga}'"
        return [row[0] for row in self.file.query(f"SELECT id FROM {table} WHERE {key} = ?{where}", (name,))]


def watched(raw: sqlite3.Connection, witness: Witness) -> None:
    """Lets the trigger of the template tell `witness` what leaves the outbox."""
    raw.create_function("removed", 1, witness.removed)


TRIGGER = "CREATE TRIGGER removed AFTER DELETE ON outbox BEGIN SELECT removed(OLD.id); END"


def _tables(saga: str) -> tuple[str, str, str, str]:
    return _TABLES.get(saga, _OTHERS)


def _seconds(stored: str) -> float:
    return datetime.fromisoformat(f"{stored}+00:00").timestamp() - EPOCH_S
