"""Have the sagas lost nothing, done nothing twice, and are they stuck nowhere?

Read from the database, from a tap on the exchanges (`tests.taps`) and from what the steps have made.

I1 each answered start has one row           I5 each step of a completed saga was done once; of a failed one nothing is
I2 nothing is left to do                        left, but where a person said so; and nothing else is there
I3 versions without a gap                    I9 each owed command was on the wire, in the order of its saga
I4 histories are paths of the graph that     I10 each message on the wire belongs to a row, and what moved one
   the version of their saga declares           answers a command that was on the wire; no event is held that a
                                                stored version of its saga could judge
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from orchestrix.saga.actions.requests import SagaAction
from orchestrix.saga.definition import (
    COMPENSATING,
    COMPENSATION_FAILED,
    COMPLETED,
    FAILED,
    TERMINAL,
    Compensation,
    Saga,
    Step,
)
from orchestrix.saga.effect_keys import step_key
from orchestrix.saga.versions.serialization import UnknownFormatError, saga_from
from sagas.app_provisioning import APP_PROVISIONING
from tests import tally
from tests.taps import COMMANDS, EVENTS, Seen

GOOD_PATH = [
    (1, None, "APP_INITIATED"),
    (2, "APP_INITIATED", "GIT_REPO_CREATED"),
    (3, "GIT_REPO_CREATED", "REGISTERING"),
    (4, "REGISTERING", "COMPLETED"),
]
UNFINISHED = ".unfinished-"
ARCHIVE = ".archive"
VERBS = tuple(f"{verb.value}: " for verb in SagaAction)
"""How the reasons of those rows begin that a person has asked for."""
STOPPED = ("terminate: ", "skip: ")
"""Those after which effects may stay, or be missing."""
MIGRATED = re.compile(r"migrated (\d+) -> (\d+)")
"""The reason of the row by which an instance becomes one of another version of its saga."""
AGAIN = "retry "
"""How the reason of a row begins that gives out another attempt, which is sent only when its wait is over.

An edit of what is paused gives out one too, which is sent when that ends."""
APP_TABLES = ("apps", "app_name", "app_state_history", "app_id")
OTHER_TABLES = ("saga_instances", "saga_instances.key", "saga_history", "instance_id")


@dataclass(frozen=True)
class Change:
    """One row of history: what moved the app there, and which command it then owed."""

    version: int
    source: str | None
    target: str
    correlation_id: str
    caused_by: str | None
    command_id: str | None
    reason: str = ""
    actor: str = ""

    @property
    def migration(self) -> tuple[int, int] | None:
        """From which version of its saga to which it was moved by this row."""
        found = MIGRATED.fullmatch(self.reason)
        return (int(found[1]), int(found[2])) if found else None

    @property
    def asked(self) -> bool:
        """Whether a person did it."""
        return self.reason.startswith(VERBS)


@dataclass(frozen=True)
class Row:
    """One app as the database has it, with its history in the order of versions."""

    id: int
    name: str
    state: str
    version: int
    wake_at: object
    blocker: str | None
    changes: list[Change] = field(default_factory=list)
    origin: str = ""
    definition_version: int = 1

    def effect_key(self, saga: str, step: str) -> str:
        """What the step's effects are keyed by, without the run."""
        return f"{self.origin}:{step}" if self.origin else f"{saga}:{self.id}:{step}:do"

    @property
    def history(self) -> list[tuple[int, str | None, str]]:
        """(version, from, to) of each change."""
        return [(change.version, change.source, change.target) for change in self.changes]

    @property
    def owed(self) -> list[str]:
        """The ids of the commands that it has owed, in order."""
        return list(dict.fromkeys(change.command_id for change in self.changes if change.command_id))

    @property
    def reasons(self) -> list[str]:
        """Why it has moved, in order."""
        return [change.reason for change in self.changes]

    def definition_at(self, version: int) -> int:
        """By which version of its saga it ran when it became `version`."""
        moves = [(change.version, change.migration) for change in self.changes if change.migration]
        passed = [move[1] for at, move in moves if at <= version]
        return passed[-1] if passed else moves[0][1][0] if moves else self.definition_version

    @property
    def stopped(self) -> bool:
        """Whether a person has said that something is left as it is."""
        return any(change.reason.startswith(STOPPED) for change in self.changes)

    @property
    def unsent(self) -> set[str]:
        """The commands that were owed and need not have left: attempts that were waited with until something else came,
        and what a person has taken back or held until then."""
        found = set()
        for owing, ending in self._reigns():
            later = self._during(owing, ending)
            waits = owing.reason.startswith((AGAIN, f"{SagaAction.EDIT.value}: "))
            if (waits and later) or any(one.asked or one.migration for one in later):
                found.add(owing.command_id or "")
        return found

    def _reigns(self) -> list[tuple[Change, Change | None]]:
        """For each command the row that has owed it first, and the row that owed the next one; None for the last."""
        first = [next(one for one in self.changes if one.command_id == id) for id in self.owed]
        return list(zip(first, [*first[1:], None], strict=True))

    def _during(self, owing: Change, ending: Change | None) -> list[Change]:
        """The rows behind `owing`, to that which owed the next command."""
        last = ending.version if ending is not None else self.version
        return [one for one in self.changes if owing.version < one.version <= last]


@dataclass(frozen=True)
class Ledger:
    """What a database holds. `groups` are the executor groups with the key of the step that made each, `stored` the
    versions of the saga that nodes have had, `held` the ids of instances whose events wait for one that knows theirs.
    """

    apps: list[Row]
    outbox: list[str]
    groups: list[tuple[str, str | None]]
    stored: Mapping[int, Saga] = field(default_factory=dict)
    held: Sequence[int] = ()

    def named(self, name: str) -> list[Row]:
        """The apps of that name."""
        return [app for app in self.apps if app.name == name]

    def check(self, answered: Iterable[str], *, saga: Saga = APP_PROVISIONING, ended: bool = True) -> None:
        """I1 to I4, and what is held of I10. `answered` are the names whose start was answered with success, `saga` is
        the definition of its version; those of others are stored."""
        tally.saw("sagas", len(self.apps), part=saga.name)
        count = Counter(app.name for app in self.apps)
        for name in answered:
            assert count[name] == 1, f"I1: {name} has {count[name]} rows"
        for app in self.apps:
            _check_history(app, lambda app, version: self.version_of(app, saga, version))
            if ended:
                assert app.state in TERMINAL or app.blocker, f"I2: {app.name} is stuck in {app.state}"
        if ended:
            assert not self.outbox, f"I2, I9: {len(self.outbox)} rows are left in the outbox"
            self._check_held()

    def version_of(self, app: Row, saga: Saga, version: int) -> Saga:
        """The definition by which the app ran in that version of its saga."""
        if version == saga.version:
            return saga
        assert version in self.stored, f"I4: version {version} of {app.name} is not stored"
        return self.stored[version]

    def _check_held(self) -> None:
        """Nothing waits any more for a node that knows the version of its instance, where that is stored."""
        versions = {app.id: app.definition_version for app in self.apps}
        left = [id for id in self.held if id not in versions or versions[id] in self.stored]
        assert not left, f"I10: events of {left[:5]} are held still, {len(left)} in all"

    def check_completed(self, answered: Iterable[str]) -> None:
        """All of `check`, and every app has gone exactly the good run's way."""
        self.check(answered)
        for app in self.apps:
            assert app.history == GOOD_PATH, f"{app.name} went {app.history}: {app.reasons}"

    def check_ended(self, names: Iterable[str], state: str) -> None:
        """All of `check`, and every app has ended in that state."""
        self.check(names)
        for app in self.apps:
            assert app.state == state, f"{app.name} is {app.state}, not {state}: {app.reasons}"

    def check_effects(self, repos: Path, *, drafts: int = 0) -> None:
        """I5, for the steps of the app saga. `drafts` is how many half-made repositories killed workers may leave."""
        made = {path.name: _marker(path) for path in repos.iterdir() if not path.name.startswith(".")}
        keys = {f"{app.id}.git": app.effect_key("app", "createGitRepo") for app in self.apps}
        _check_made("repositories", made, keys, self._names(lambda app: f"{app.id}.git"))
        left = [path.name for path in repos.iterdir() if path.name.startswith(UNFINISHED)]
        assert len(left) <= drafts, f"I5: {left} were left behind"
        groups = dict(self.groups)
        assert len(groups) == len(self.groups), f"I5: groups {self.groups}"
        keys = {app.name: app.effect_key("app", "registerApp") for app in self.apps}
        _check_made("groups", groups, keys, self._names(lambda app: app.name))
        self._check_archive(repos / ARCHIVE)

    def _names(self, name: Callable[[Row], str]) -> tuple[set[str], set[str]]:
        """What must be there, and what can be."""
        must = {name(app) for app in self.apps if app.state == COMPLETED and not app.stopped}
        return must, must | {name(app) for app in self.apps if app.stopped or app.state not in TERMINAL}

    def _check_archive(self, archive: Path) -> None:
        """What is put away was that of an app that was undone."""
        undone = {app.id: app for app in self.apps if any(one.target == COMPENSATING for one in app.changes)}
        for path in archive.glob("*"):
            id = int(path.name.partition("-")[0])
            assert id in undone, f"I5: {path.name} is put away, and no app {id} was undone"
            assert _marker(path) == undone[id].effect_key("app", "createGitRepo"), f"I5: {path.name} is another's"

    def check_wire(self, seen: Sequence[Seen], *, saga: Saga = APP_PROVISIONING) -> None:
        """I9 and I10, for a tap that was there from the start."""
        apps = {app.id: app for app in self.apps}
        commands = [one for one in seen if one.exchange == COMMANDS]
        for one in commands:
            _check_command(one, apps.get(one.body["appId"]), lambda app, version: self.version_of(app, saga, version))
        for one in seen:
            if one.exchange == EVENTS:
                _check_event(one, apps.get(one.body["appId"]))
        answers = {one.message_id: one.body["causationId"] for one in seen if one.exchange == EVENTS}
        first = {id: place for place, id in reversed(list(enumerate(one.message_id for one in commands)))}
        for app in self.apps:
            owed = [id for id in app.owed if id not in self.outbox]
            missing = [id for id in owed if id not in first and id not in app.unsent]
            assert not missing, f"I9: {app.name} owed {missing}, which were not sent: {app.changes}"
            places = [first[id] for id in owed if id in first]
            assert places == sorted(places), f"I9: first copies of {app.name} were sent out of order: {places}"
            causes = {change.caused_by for change in app.changes if change.caused_by}
            assert causes <= answers.keys(), (
                f"I10: {app.name} was moved by {causes - answers.keys()}, which nobody sent"
            )
            unasked = {answers[one] for one in causes} - first.keys()
            assert not unasked, f"I10: {app.name} was moved by answers to {unasked}, which were not sent"


def _check_history(app: Row, definition: Callable[[Row, int], Saga]) -> None:
    versions = [change.version for change in app.changes]
    assert versions == list(range(1, app.version + 1)), f"I3: {app.name} has versions {versions}, is at {app.version}"
    before: str | None = None
    runs_by = app.definition_at(1)
    for change in app.changes:
        version, source, target = change.version, change.source, change.target
        assert source == before, f"I4: {app.name}, version {version} comes from {source}, not from {before}"
        saga = definition(app, app.definition_at(version))
        if change.migration:
            assert change.migration[0] == runs_by < saga.version, (
                f"I4: {app.name}: {change.reason}, it ran by {runs_by}"
            )
            assert target in (*saga.path, COMPENSATING, COMPENSATION_FAILED), f"I4: {app.name} was moved to {target}"
        else:
            assert (source, target) in saga.moves or source == target, f"I4: {app.name} went from {source} to {target}"
        before, runs_by = target, saga.version
    assert runs_by == app.definition_version, f"I4: {app.name} ran by {runs_by}, its row says {app.definition_version}"
    assert before == app.state, f"I4: the history of {app.name} ends in {before}, its row says {app.state}"


def _check_command(one: Seen, app: Row | None, definition: Callable[[Row, int], Saga]) -> None:
    assert app is not None, f"I10: {one} belongs to no app"
    owed = {change.command_id: change for change in reversed(app.changes)}
    assert one.message_id in owed, f"I10: {app.name} has never owed {one}"
    state, change = one.body["expectedState"], owed[one.message_id]
    runs_by = app.definition_at(change.version)
    saga = definition(app, runs_by)
    step, undoes = _order(one.routing_key, saga)
    there = (COMPENSATING, FAILED) if undoes else (step.state,)
    assert state in there, f"I10: {one} expects {state}"
    assert state == change.target, f"I10: {one}, but {app.name} was in {change.target}"
    assert one.body["step"] == step.name, f"I10: {one} is of another step"
    assert one.body["definitionVersion"] == runs_by, f"I10: {one} names another version of its saga"
    key = f"{saga.name}:{app.id}:{{}}:{'undo' if undoes else 'do'}"
    first = _first_name(one, key, step, app, definition)
    assert one.body["idempotencyKey"] == key.format(first), f"I10: {one} has another key"
    assert step_key(one.body["effectKey"]) == app.effect_key(saga.name, first), f"I10: {one} has another effect key"
    assert ("undoesAttempt" in one.body) == undoes, f"I10: {one} says whether it undoes"
    assert one.body["id"] == one.message_id, f"I10: {one} has two ids"
    assert one.body["correlationId"] == one.correlation_id == change.correlation_id, f"I10: {one} of {app.name}"


def _first_name(one: Seen, key: str, step: Step, app: Row, definition: Callable[[Row, int], Saga]) -> str:
    """Under which name the step was first sent: that of a version by which the app ran, where it was moved since."""
    olds = [definition(app, change.migration[0]) for change in app.changes if change.migration]
    names = [old.name for saga in olds for old in saga.steps if key.format(old.name) == one.body["idempotencyKey"]]
    return names[0] if names else step.name


def _order(command: str, saga: Saga) -> tuple[Step, bool]:
    """The step of a command, and whether it is the step's undo."""
    for step in saga.steps:
        if step.command == command:
            return step, False
        if isinstance(step.undo, Compensation) and step.undo.command == command:
            return step, True
    raise AssertionError(f"I10: {command} belongs to no step of {saga.name}")


def _check_made(
    what: str, made: Mapping[str, object], keys: Mapping[str, str], expected: tuple[set[str], set[str]]
) -> None:
    must, can = expected
    assert must <= set(made) <= can, f"I5: {what}: missing {must - set(made)}, left {set(made) - can}"
    for name, key in made.items():
        assert step_key(str(key)) == keys[name], f"I5: {what}: {name} was made by {key}"


def _check_event(one: Seen, app: Row | None) -> None:
    assert app is not None, f"I10: {one} belongs to no app"
    assert one.body["causationId"] in app.owed, f"I10: {one} answers a command that {app.name} has never owed"
    assert one.body["correlationId"] == app.changes[0].correlation_id, f"I10: {one} of {app.name}"


def _marker(repository: Path) -> object:
    """The key of the step that made the repository, if a first commit is in it."""
    assert (repository / "refs" / "heads" / "main").exists(), f"I5: {repository} is empty"
    return step_key(str(json.loads((repository / "orchestrix.json").read_bytes()).get("effectKey")))


async def read(url: str, *, saga: str = APP_PROVISIONING.name) -> Ledger:
    """The rows of one saga in the database at `url`, through a connection of its own."""
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            return await _read(connection, saga)
    finally:
        await engine.dispose()


def _micros(made: datetime | str) -> int:
    """Microseconds since 1970, of a time as the database's driver gives it."""
    at = datetime.fromisoformat(made) if isinstance(made, str) else made
    return (at.replace(tzinfo=at.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


async def _read(connection: AsyncConnection, saga: str) -> Ledger:
    ours = saga == APP_PROVISIONING.name
    table, name, past, owner = APP_TABLES if ours else OTHER_TABLES
    which = "" if ours else " WHERE saga = :saga"
    columns = f"id, {name}, state, version, wake_at, blocker, definition_version, created_at"
    rows = await connection.execute(
        text(f"SELECT {columns} FROM {table}{which} ORDER BY id"),
        {} if ours else {"saga": saga},
    )
    found = rows.all()
    changes: dict[int, list[Change]] = defaultdict(list)
    for app_id, *change in await connection.execute(
        text(
            f"SELECT {owner}, version, from_state, to_state, correlation_id, caused_by, command_id, reason, actor"
            f" FROM {past} ORDER BY {owner}, version"
        )
    ):
        changes[app_id].append(Change(*change))
    outbox = await connection.execute(text("SELECT id FROM outbox"))
    groups = await connection.execute(text("SELECT app_name, marker FROM job_group"))
    installation = (await connection.execute(text("SELECT installation FROM installation"))).scalar_one()
    return Ledger(
        [
            Row(
                id,
                key,
                state,
                version,
                wake_at,
                blocker,
                changes[id],
                f"{installation}:{saga}:{id}:{_micros(made)}",
                by,
            )
            for id, key, state, version, wake_at, blocker, by, made in found
        ],
        [row[0] for row in outbox],
        [(row[0], row[1]) for row in groups],
        await _stored(connection, saga),
        await _held(connection, saga),
    )


async def _stored(connection: AsyncConnection, saga: str) -> dict[int, Saga]:
    """The versions of the saga that can be read."""
    found: dict[int, Saga] = {}
    asked = text("SELECT version, form, body FROM saga_definitions WHERE saga = :saga")
    for version, form, body in await connection.execute(asked, {"saga": saga}):
        with suppress(UnknownFormatError):
            found[version] = saga_from(json.loads(body) if isinstance(body, str) else body, form)
    return found


async def _held(connection: AsyncConnection, saga: str) -> list[int]:
    asked = text("SELECT instance_id FROM held_events WHERE saga = :saga ORDER BY id")
    return [row[0] for row in await connection.execute(asked, {"saga": saga})]
