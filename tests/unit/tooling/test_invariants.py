"""Does the checker of the invariants see each way in which a saga can go wrong?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.invariants import Change, Ledger, Row
from tests.taps import COMMANDS, EVENTS, Seen

GIT, REGISTER = "c-git", "c-register"


def app(id: int = 1, **other: Any) -> Row:
    """An app that has gone the good run's way."""
    correlation = f"x-{id}"
    changes = [
        Change(1, None, "APP_INITIATED", correlation, None, f"{GIT}-{id}"),
        Change(2, "APP_INITIATED", "GIT_REPO_CREATED", correlation, f"e-git-{id}", f"{GIT}-{id}"),
        Change(3, "GIT_REPO_CREATED", "REGISTERING", correlation, f"e-git-{id}", f"{REGISTER}-{id}"),
        Change(4, "REGISTERING", "COMPLETED", correlation, f"e-register-{id}", f"{REGISTER}-{id}"),
    ]
    return replace(Row(id, f"app-{id}", "COMPLETED", 4, None, None, changes), **other)


def ledger(*apps: Row, outbox: tuple[str, ...] = ()) -> Ledger:
    groups: list[tuple[str, str | None]] = [(one.name, f"app:{one.id}:registerApp:do") for one in apps]
    return Ledger(list(apps), list(outbox), groups)


def without(row: Row, version: int) -> Row:
    return replace(row, changes=[change for change in row.changes if change.version != version])


def command(app_id: int, key: str, id: str, state: str, **other: Any) -> Seen:
    body = {"id": id, "appId": app_id, "expectedState": state, "correlationId": f"x-{app_id}"}
    return replace(Seen(COMMANDS, key, id, f"x-{app_id}", body), **other)


def event(app_id: int, key: str, id: str, cause: str, **other: Any) -> Seen:
    body = {"id": id, "appId": app_id, "causationId": cause, "correlationId": f"x-{app_id}", **other}
    return Seen(EVENTS, key, id, f"x-{app_id}", body)


def wire(id: int = 1) -> list[Seen]:
    """What goes over the wire for such an app."""
    return [
        command(id, "cmd.createGitRepo", f"{GIT}-{id}", "APP_INITIATED"),
        event(id, "evt.gitRepoCreated", f"e-git-{id}", f"{GIT}-{id}"),
        command(id, "cmd.registerApp", f"{REGISTER}-{id}", "REGISTERING"),
        event(id, "evt.appRegistered", f"e-register-{id}", f"{REGISTER}-{id}"),
    ]


def test_good_runs_pass() -> None:
    ledger(app(1), app(2)).check_completed(["app-1", "app-2"])
    ledger(app(1), app(2)).check_wire([*wire(1), *wire(2), *wire(1)])


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda: ledger(app(2)), "I1: app-1 has 0 rows"),
        (lambda: ledger(app(1), app(2, name="app-1")), "I1: app-1 has 2 rows"),
        (lambda: ledger(app(), outbox=("c",)), "I2, I9: 1 rows"),
        (lambda: ledger(app(state="REGISTERING", version=3, changes=app().changes[:3])), "I2: app-1 is stuck"),
        (lambda: ledger(without(app(), 2)), "I3: app-1 has versions"),
        (lambda: ledger(app(version=5)), "I3: app-1 has versions"),
        (lambda: ledger(app(changes=[*app().changes[:3], app().changes[2]])), "I3: app-1 has versions"),
        (lambda: ledger(app(state="FAILED")), "I4: the history of app-1 ends in COMPLETED"),
        (
            lambda: ledger(app(changes=[app().changes[0], replace(app().changes[1], source="X"), *app().changes[2:]])),
            "I4: app-1, version 2 comes from X",
        ),
        (
            lambda: ledger(app(version=2, changes=[app().changes[0], replace(app().changes[1], target="COMPLETED")])),
            "I4: app-1 went from APP_INITIATED to COMPLETED",
        ),
    ],
)
def test_what_the_database_tells(broken: Callable[[], Ledger], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        broken().check(["app-1"])


def test_another_path_than_the_good_one_is_no_completion() -> None:
    failed = [app().changes[0], replace(app().changes[1], target="FAILED")]
    made = ledger(app(state="FAILED", version=2, changes=failed))
    made.check(["app-1"])
    with pytest.raises(AssertionError, match="app-1 went"):
        made.check_completed(["app-1"])


@pytest.mark.parametrize(
    ("seen", "says"),
    [
        (wire()[1:], "I9: app-1 owed .* not all were sent"),
        ([wire()[2], *wire()], "I9: first copies of app-1 were sent out of order"),
        ([*wire(), *wire(7)], "I10: .* belongs to no app"),
        ([*wire(), command(1, "cmd.registerApp", "c-other", "REGISTERING")], "I10: app-1 has never owed"),
        ([*wire(), command(1, "cmd.registerApp", f"{GIT}-1", "REGISTERING")], "I10: .* app-1 was in APP_INITIATED"),
        ([*wire(), replace(wire()[0], correlation_id="y")], "I10: .* of app-1"),
        ([*wire(), event(1, "evt.appRegistered", "e", "c-other")], "I10: .* never owed"),
        ([*wire(), event(9, "evt.appRegistered", "e", "c")], "I10: .* belongs to no app"),
        ([*wire(), event(1, "evt.appRegistered", "e", f"{GIT}-1", correlationId="y")], "I10: .* of app-1"),
        (wire()[:3], "I10: app-1 was moved by .*e-register-1"),
    ],
)
def test_what_the_tap_tells(seen: list[Seen], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        ledger(app()).check_wire(seen)


def test_what_is_in_the_outbox_need_not_have_been_sent() -> None:
    ledger(app(), outbox=(f"{REGISTER}-1",)).check_wire([one for one in wire() if one.message_id != f"{REGISTER}-1"])


def repository(folder: Path, app_id: int, key: str | None = None) -> None:
    made = folder / f"{app_id}.git"
    (made / "refs" / "heads").mkdir(parents=True)
    (made / "refs" / "heads" / "main").write_text("0" * 40)
    (made / "orchestrix.json").write_text(json.dumps({"idempotencyKey": key or f"app:{app_id}:createGitRepo:do"}))


def test_what_the_steps_have_made(tmp_path: Path) -> None:
    repository(tmp_path, 1)
    good = ledger(app())
    good.check_effects(tmp_path)
    with pytest.raises(AssertionError, match="I5: groups"):
        replace(good, groups=[]).check_effects(tmp_path)
    with pytest.raises(AssertionError, match="I5: groups"):
        replace(good, groups=[*good.groups, ("app-1", "app:1:registerApp:do")]).check_effects(tmp_path)
    with pytest.raises(AssertionError, match="I5: repositories"):
        ledger(app(), app(2)).check_effects(tmp_path)
    (tmp_path / ".unfinished-1-ab").mkdir()
    good.check_effects(tmp_path, drafts=1)
    with pytest.raises(AssertionError, match="were left behind"):
        good.check_effects(tmp_path)


def test_a_repository_of_nobody_and_one_of_another_step(tmp_path: Path) -> None:
    repository(tmp_path, 1, "app:2:createGitRepo:do")
    with pytest.raises(AssertionError, match="I5: repositories"):
        ledger(app()).check_effects(tmp_path)
    repository(tmp_path, 7)
    with pytest.raises(AssertionError, match="I5: repositories"):
        ledger(app()).check_effects(tmp_path)
