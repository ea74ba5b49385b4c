"""Have the sagas lost nothing, done nothing twice, and are they stuck nowhere?

Read from the database, from a tap on the exchanges (`tests.taps`) and from what the steps have made.

I1 each answered start has one row           I5 each step of a completed saga was done once, and nothing else is there
I2 nothing is left to do                     I9 each owed command was on the wire, in the order of its saga
I3 versions without a gap                    I10 each message on the wire belongs to a row
I4 histories are paths of the declared graph
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from sagas.app_provisioning import APP_PROVISIONING
from sagas.engine.definition import TERMINAL, Saga
from tests.taps import COMMANDS, EVENTS, Seen

GOOD_PATH = [
    (1, None, "APP_INITIATED"),
    (2, "APP_INITIATED", "GIT_REPO_CREATED"),
    (3, "GIT_REPO_CREATED", "REGISTERING"),
    (4, "REGISTERING", "COMPLETED"),
]
UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class Change:
    """One row of history: what moved the app there, and which command it then owed."""

    version: int
    source: str | None
    target: str
    correlation_id: str
    caused_by: str | None
    command_id: str | None


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

    @property
    def history(self) -> list[tuple[int, str | None, str]]:
        """(version, from, to) of each change."""
        return [(change.version, change.source, change.target) for change in self.changes]

    @property
    def owed(self) -> list[str]:
        """The ids of the commands that it has owed, in order."""
        return list(dict.fromkeys(change.command_id for change in self.changes if change.command_id))


@dataclass(frozen=True)
class Ledger:
    """What a database holds. `groups` are the executor groups with the key of the step that made each."""

    apps: list[Row]
    outbox: list[str]
    groups: list[tuple[str, str | None]]

    def named(self, name: str) -> list[Row]:
        """The apps of that name."""
        return [app for app in self.apps if app.name == name]

    def check(self, answered: Iterable[str], *, saga: Saga = APP_PROVISIONING, ended: bool = True) -> None:
        """I1 to I4. `answered` are the names whose start was answered with success."""
        count = Counter(app.name for app in self.apps)
        for name in answered:
            assert count[name] == 1, f"I1: {name} has {count[name]} rows"
        for app in self.apps:
            _check_history(app, saga)
            if ended:
                assert app.state in TERMINAL or app.blocker, f"I2: {app.name} is stuck in {app.state}"
        if ended:
            assert not self.outbox, f"I2, I9: {len(self.outbox)} rows are left in the outbox"

    def check_completed(self, answered: Iterable[str]) -> None:
        """All of `check`, and every app has gone exactly the good run's way."""
        self.check(answered)
        for app in self.apps:
            assert app.history == GOOD_PATH, f"{app.name} went {app.history}"

    def check_effects(self, repos: Path, *, drafts: int = 0) -> None:
        """I5, for the steps of the app saga. `drafts` is how many half-made repositories killed workers may leave."""
        completed = {app.id: app.name for app in self.apps if app.state == "COMPLETED"}
        made = {path.name: _marker(path) for path in repos.iterdir() if not path.name.startswith(".")}
        assert made == {f"{id}.git": f"app:{id}:createGitRepo:do" for id in completed}, f"I5: repositories {made}"
        left = [path.name for path in repos.iterdir() if path.name.startswith(UNFINISHED)]
        assert len(left) <= drafts, f"I5: {left} were left behind"
        groups = sorted((name, f"app:{id}:registerApp:do") for id, name in completed.items())
        assert sorted(self.groups) == groups, f"I5: groups {self.groups}"

    def check_wire(self, seen: Sequence[Seen], *, saga: Saga = APP_PROVISIONING) -> None:
        """I9 and I10, for a tap that was there from the start."""
        apps = {app.id: app for app in self.apps}
        commands = [one for one in seen if one.exchange == COMMANDS]
        for one in commands:
            _check_command(one, apps.get(one.body["appId"]), saga)
        for one in seen:
            if one.exchange == EVENTS:
                _check_event(one, apps.get(one.body["appId"]))
        events = {one.message_id for one in seen if one.exchange == EVENTS}
        first = {id: place for place, id in reversed(list(enumerate(one.message_id for one in commands)))}
        for app in self.apps:
            places = [first.get(id, -1) for id in app.owed if id not in self.outbox]
            assert -1 not in places, f"I9: {app.name} owed {app.owed}, of which not all were sent"
            assert places == sorted(places), f"I9: first copies of {app.name} were sent out of order: {places}"
            causes = {change.caused_by for change in app.changes if change.caused_by}
            assert causes <= events, f"I10: {app.name} was moved by {causes - events}, which nobody has sent"


def _check_history(app: Row, saga: Saga) -> None:
    versions = [change.version for change in app.changes]
    assert versions == list(range(1, app.version + 1)), f"I3: {app.name} has versions {versions}, is at {app.version}"
    before: str | None = None
    for version, source, target in app.history:
        assert source == before, f"I4: {app.name}, version {version} comes from {source}, not from {before}"
        assert (source, target) in saga.moves or source == target, f"I4: {app.name} went from {source} to {target}"
        before = target
    assert before == app.state, f"I4: the history of {app.name} ends in {before}, its row says {app.state}"


def _check_command(one: Seen, app: Row | None, saga: Saga) -> None:
    assert app is not None, f"I10: {one} belongs to no app"
    owed = {change.command_id: change for change in reversed(app.changes)}
    assert one.message_id in owed, f"I10: {app.name} has never owed {one}"
    step = next(step for step in saga.steps if step.command == one.routing_key)
    state, change = one.body["expectedState"], owed[one.message_id]
    assert (state, state) == (step.state, change.target), f"I10: {one}, but {app.name} was in {change.target}"
    assert one.body["id"] == one.message_id, f"I10: {one} has two ids"
    assert one.body["correlationId"] == one.correlation_id == change.correlation_id, f"I10: {one} of {app.name}"


def _check_event(one: Seen, app: Row | None) -> None:
    assert app is not None, f"I10: {one} belongs to no app"
    assert one.body["causationId"] in app.owed, f"I10: {one} answers a command that {app.name} has never owed"
    assert one.body["correlationId"] == app.changes[0].correlation_id, f"I10: {one} of {app.name}"


def _marker(repository: Path) -> object:
    """The key of the step that made the repository, if a first commit is in it."""
    assert (repository / "refs" / "heads" / "main").exists(), f"I5: {repository} is empty"
    return json.loads((repository / "orchestrix.json").read_bytes()).get("idempotencyKey")


async def read(url: str) -> Ledger:
    """The rows of the database at `url`, through a connection of its own."""
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            return await _read(connection)
    finally:
        await engine.dispose()


async def _read(connection: AsyncConnection) -> Ledger:
    apps = await connection.execute(text("SELECT id, app_name, state, version, wake_at, blocker FROM apps ORDER BY id"))
    rows = apps.all()
    changes: dict[int, list[Change]] = defaultdict(list)
    for app_id, *change in await connection.execute(
        text(
            "SELECT app_id, version, from_state, to_state, correlation_id, caused_by, command_id"
            " FROM app_state_history ORDER BY app_id, version"
        )
    ):
        changes[app_id].append(Change(*change))
    outbox = await connection.execute(text("SELECT id FROM outbox"))
    groups = await connection.execute(text("SELECT app_name, marker FROM job_group"))
    return Ledger(
        [
            Row(id, name, state, version, wake_at, blocker, changes[id])
            for id, name, state, version, wake_at, blocker in rows
        ],
        [row[0] for row in outbox],
        [(row[0], row[1]) for row in groups],
    )
