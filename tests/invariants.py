"""Do the database's rows tell of sagas that lost nothing, did nothing twice and are stuck nowhere?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from sagas.app_provisioning import APP_PROVISIONING
from sagas.engine.definition import TERMINAL, Saga

GOOD_PATH = [
    (1, None, "APP_INITIATED"),
    (2, "APP_INITIATED", "GIT_REPO_CREATED"),
    (3, "GIT_REPO_CREATED", "REGISTERING"),
    (4, "REGISTERING", "COMPLETED"),
]


@dataclass(frozen=True)
class Row:
    """One app as the database has it, with its history in the order of versions."""

    id: int
    name: str
    state: str
    version: int
    wake_at: object
    blocker: str | None
    history: list[tuple[int, str | None, str]]


@dataclass(frozen=True)
class Ledger:
    """What a database holds."""

    apps: list[Row]
    outbox: int

    def named(self, name: str) -> list[Row]:
        """The apps of that name."""
        return [app for app in self.apps if app.name == name]

    def check(self, answered: Iterable[str], *, saga: Saga = APP_PROVISIONING, ended: bool = True) -> None:
        """Invariants I1–I4 and I9. `answered` are the names whose start was answered with success."""
        for name in answered:
            assert len(self.named(name)) == 1, f"I1: {name} has {len(self.named(name))} rows"
        for app in self.apps:
            _check_history(app, saga)
            if ended:
                assert app.state in TERMINAL or app.blocker, f"I2: {app.name} is stuck in {app.state}"
        if ended:
            assert self.outbox == 0, f"I2, I9: {self.outbox} rows are left in the outbox"

    def check_completed(self, answered: Iterable[str]) -> None:
        """All of `check`, and every app has gone exactly the good run's way."""
        self.check(answered)
        for app in self.apps:
            assert app.history == GOOD_PATH, f"{app.name} went {app.history}"


def _check_history(app: Row, saga: Saga) -> None:
    versions = [version for version, _, _ in app.history]
    assert versions == list(range(1, app.version + 1)), f"I3: {app.name} has versions {versions}, is at {app.version}"
    before: str | None = None
    for version, source, target in app.history:
        assert source == before, f"I4: {app.name}, version {version} comes from {source}, not from {before}"
        assert (source, target) in saga.moves or source == target, f"I4: {app.name} went from {source} to {target}"
        before = target
    assert before == app.state, f"I4: the history of {app.name} ends in {before}, its row says {app.state}"


async def read(url: str) -> Ledger:
    """The rows of the database at `url`, through a connection of its own."""
    engine = create_async_engine(url)
    try:
        async with engine.connect() as connection:
            rows = await connection.execute(
                text("SELECT id, app_name, state, version, wake_at, blocker FROM apps ORDER BY id")
            )
            apps = rows.all()
            rows = await connection.execute(
                text("SELECT app_id, version, from_state, to_state FROM app_state_history ORDER BY app_id, version")
            )
            history: dict[int, list[tuple[int, str | None, str]]] = defaultdict(list)
            for app_id, version, source, target in rows:
                history[app_id].append((version, source, target))
            outbox = (await connection.execute(text("SELECT count(*) FROM outbox"))).scalar_one()
    finally:
        await engine.dispose()
    return Ledger([Row(*app, history[app[0]]) for app in apps], outbox)
