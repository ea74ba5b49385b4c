"""Does the checker of the invariants see each way in which a saga can go wrong?"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sagas.app_provisioning import APP_PROVISIONING
from tests.invariants import Change, Ledger, Row
from tests.taps import COMMANDS, EVENTS, Seen

GIT, REGISTER = "c-git", "c-register"
STEPS = {
    "cmd.createGitRepo": ("createGitRepo", "do"),
    "cmd.registerApp": ("registerApp", "do"),
    "cmd.deleteGitRepo": ("createGitRepo", "undo"),
}


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
    step, way = STEPS[key]
    body = {
        "id": id,
        "appId": app_id,
        "expectedState": state,
        "correlationId": f"x-{app_id}",
        "step": step,
        "idempotencyKey": f"app:{app_id}:{step}:{way}",
        "effectKey": f"app:{app_id}:{step}:do",
        "definitionVersion": 1,
        **({"undoesAttempt": 1} if way == "undo" else {}),
    }
    return replace(Seen(COMMANDS, key, id, f"x-{app_id}", body), **other)


def event(app_id: int, key: str, id: str, cause: str, **other: Any) -> Seen:
    body = {"id": id, "appId": app_id, "causationId": cause, "correlationId": f"x-{app_id}", **other}
    return Seen(EVENTS, key, id, f"x-{app_id}", body)


def told(one: Seen, **other: Any) -> Seen:
    """The same with another body."""
    return replace(one, body={**one.body, **other})


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
        (wire()[1:], "I9: app-1 owed .* which were not sent"),
        ([wire()[2], *wire()], "I9: first copies of app-1 were sent out of order"),
        ([*wire(), *wire(7)], "I10: .* belongs to no app"),
        ([*wire(), command(1, "cmd.registerApp", "c-other", "REGISTERING")], "I10: app-1 has never owed"),
        ([*wire(), command(1, "cmd.registerApp", f"{GIT}-1", "REGISTERING")], "I10: .* app-1 was in APP_INITIATED"),
        ([*wire(), replace(wire()[0], correlation_id="y")], "I10: .* of app-1"),
        ([*wire(), command(1, "cmd.deleteGitRepo", f"{GIT}-1", "APP_INITIATED")], "I10: .* expects APP_INITIATED"),
        ([*wire(), told(wire()[0], step="registerApp")], "I10: .* of another step"),
        ([*wire(), told(wire()[0], idempotencyKey="app:1:createGitRepo:undo")], "I10: .* another key"),
        ([*wire(), told(wire()[0], effectKey="app:2:createGitRepo:do")], "I10: .* another effect key"),
        ([*wire(), told(wire()[0], undoesAttempt=1)], "I10: .* says whether it undoes"),
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
    waits = app(state="REGISTERING", version=3, changes=app().changes[:3])
    ledger(waits, outbox=(f"{REGISTER}-1",)).check_wire(wire()[:2])
    with pytest.raises(AssertionError, match=f"I9: app-1 owed .*{REGISTER}-1"):
        ledger(waits).check_wire(wire()[:2])


def test_what_was_answered_must_have_been_sent_even_so() -> None:
    answered = [one for one in wire() if one.message_id != f"{REGISTER}-1"]
    with pytest.raises(AssertionError, match=f"I10: app-1 was moved by answers to .*{REGISTER}-1"):
        ledger(app(), outbox=(f"{REGISTER}-1",)).check_wire(answered)


def undone(*more: tuple[str, str], id: int = 1) -> Row:
    """An app whose registration failed after a second attempt; what follows is (reason, actor) of rows before."""
    x = f"x-{id}"
    steps = [
        (None, "APP_INITIATED", "created", None, f"{GIT}-{id}"),
        ("APP_INITIATED", "GIT_REPO_CREATED", "evt.gitRepoCreated", f"e-git-{id}", f"{GIT}-{id}"),
        ("GIT_REPO_CREATED", "REGISTERING", "immediate", None, f"{REGISTER}-{id}"),
        ("REGISTERING", "REGISTERING", "retry 2: deadline", None, f"{REGISTER}-{id}-2"),
        *(("REGISTERING", "REGISTERING", reason, None, f"{REGISTER}-{id}-2") for reason, _ in more),
        ("REGISTERING", "COMPENSATING", "evt.stepFailed: DiskFull: no", f"e-failed-{id}", f"c-undo-{id}"),
        ("COMPENSATING", "COMPENSATING", "undone createGitRepo", f"e-undone-{id}", f"c-undo-{id}"),
        ("COMPENSATING", "FAILED", "undone: evt.stepFailed: DiskFull: no", f"e-undone-{id}", f"c-undo-{id}"),
    ]
    changes = [
        Change(version, source, target, x, cause, owed, reason, "ada")
        for version, (source, target, reason, cause, owed) in enumerate(steps, 1)
    ]
    return Row(id, f"app-{id}", "FAILED", len(changes), None, None, changes)


def wire_of_undone() -> list[Seen]:
    """What goes over the wire for it; the second attempt fails."""
    return [
        *wire()[:3],
        command(1, "cmd.registerApp", f"{REGISTER}-1-2", "REGISTERING"),
        event(1, "evt.stepFailed", "e-failed-1", f"{REGISTER}-1-2"),
        command(1, "cmd.deleteGitRepo", "c-undo-1", "COMPENSATING"),
        event(1, "evt.gitRepoDeleted", "e-undone-1", "c-undo-1"),
    ]


def test_an_app_that_is_undone_passes() -> None:
    made = Ledger([undone()], [], [])
    made.check_ended(["app-1"], "FAILED")
    made.check_wire(wire_of_undone())
    with pytest.raises(AssertionError, match="is FAILED, not COMPLETED"):
        made.check_ended(["app-1"], "COMPLETED")


def test_an_attempt_that_was_waited_with_need_not_have_left() -> None:
    """Here the run's own time was over before the wait was."""
    seen = [one for one in wire_of_undone() if f"{REGISTER}-1-2" not in (one.message_id, one.body.get("causationId"))]
    app = undone()
    over = [replace(one, caused_by=None) if one.caused_by == "e-failed-1" else one for one in app.changes]
    Ledger([replace(app, changes=over)], [], []).check_wire(seen)


def test_an_attempt_that_was_waited_with_and_was_answered_must_have_left() -> None:
    seen = [one for one in wire_of_undone() if one.message_id != f"{REGISTER}-1-2"]
    with pytest.raises(AssertionError, match=f"I10: app-1 was moved by answers to .*{REGISTER}-1-2"):
        Ledger([undone()], [], []).check_wire(seen)


@pytest.mark.parametrize("lost", [f"{GIT}-1", f"{REGISTER}-1", "c-undo-1"])
def test_any_other_command_of_it_must_have_left(lost: str) -> None:
    seen = [one for one in wire_of_undone() if one.message_id != lost]
    with pytest.raises(AssertionError, match=f"I9: app-1 owed .*{lost}.* which were not sent"):
        Ledger([undone()], [], []).check_wire(seen)


def test_what_a_person_took_back_need_not_have_left() -> None:
    """The pause comes while the first registration is owed."""
    app = undone()
    paused = replace(app.changes[3], target="REGISTERING", reason="pause: lunch", command_id=f"{REGISTER}-1")
    again = replace(app.changes[3], version=5, command_id=f"{REGISTER}-1-2")
    later = [replace(one, version=one.version + 1) for one in app.changes[4:]]
    held = replace(app, version=8, changes=[*app.changes[:3], paused, again, *later])
    held_ledger = Ledger([held], [], [])
    held_ledger.check(["app-1"])
    held_ledger.check_wire([one for one in wire_of_undone() if one.message_id != f"{REGISTER}-1"])


QUICK = replace(
    APP_PROVISIONING,
    version=2,
    steps=(APP_PROVISIONING.steps[0], replace(APP_PROVISIONING.steps[1], state="GIT_REPO_CREATED")),
    immediate={},
)
"""A version that lacks a state."""


def quick(id: int = 1) -> Row:
    """An app that has gone the way of that version."""
    *some, registered, done = app(id).changes
    done = replace(done, version=3, source="GIT_REPO_CREATED")
    return replace(app(id), version=3, changes=[some[0], replace(some[1], command_id=registered.command_id), done])


def test_a_history_is_a_path_of_its_own_version() -> None:
    with pytest.raises(AssertionError, match="I4: app-1 went from GIT_REPO_CREATED to COMPLETED"):
        ledger(quick()).check(["app-1"])
    second = replace(quick(), definition_version=2)
    replace(ledger(second, app(2)), stored={2: QUICK}).check(["app-1"])
    with pytest.raises(AssertionError, match="I4: version 2 of app-1 is not stored"):
        ledger(second).check(["app-1"])
    with pytest.raises(AssertionError, match="I4: app-1 went from GIT_REPO_CREATED to REGISTERING"):
        replace(ledger(replace(app(), definition_version=2)), stored={2: QUICK}).check(["app-1"])


def test_a_command_is_that_of_its_version() -> None:
    made = replace(ledger(replace(quick(), definition_version=2)), stored={2: QUICK})
    first, told_of, second, told_last = wire()
    seen = [told(first, definitionVersion=2), told_of, told(second, expectedState="GIT_REPO_CREATED"), told_last]
    with pytest.raises(AssertionError, match=r"I10: .* names another version of its saga"):
        made.check_wire(seen)
    made.check_wire([*seen[:2], told(seen[2], definitionVersion=2), told_last])


def test_nothing_is_held_that_a_stored_version_can_judge() -> None:
    ended = ledger(app(), app(2))
    replace(ended, held=[1]).check(["app-1"])
    replace(ended, held=[1], stored={1: APP_PROVISIONING}).check(["app-1"], ended=False)
    with pytest.raises(AssertionError, match=r"I10: events of \[2\] are held still, 1 in all"):
        replace(ended, held=[2], stored={1: APP_PROVISIONING}).check(["app-1"])


def test_nothing_is_left_of_what_was_undone(tmp_path: Path) -> None:
    made = Ledger([undone()], [], [])
    repository(tmp_path / ".archive", "1-1")
    for folder in (".tombstones", ".locks"):
        (tmp_path / folder).mkdir()
    made.check_effects(tmp_path)
    with pytest.raises(AssertionError, match="I5: groups"):
        replace(made, groups=[("app-1", "app:1:registerApp:do")]).check_effects(tmp_path)
    repository(tmp_path, 1)
    with pytest.raises(AssertionError, match="I5: repositories"):
        made.check_effects(tmp_path)


@pytest.mark.parametrize("said", ["terminate: enough", "skip: it is there"])
def test_something_can_be_left_where_a_person_said_so(tmp_path: Path, said: str) -> None:
    made = Ledger([undone((said, "ada"))], [], [])
    made.check_effects(tmp_path)
    repository(tmp_path, 1)
    made.check_effects(tmp_path)
    repository(tmp_path, 7)
    with pytest.raises(AssertionError, match="I5: repositories"):
        made.check_effects(tmp_path)


def test_only_what_was_undone_is_put_away(tmp_path: Path) -> None:
    repository(tmp_path, 1)
    repository(tmp_path / ".archive", "1-1")
    with pytest.raises(AssertionError, match=r"I5: 1-1\.git is put away"):
        ledger(app()).check_effects(tmp_path)


def repository(folder: Path, name: int | str, key: str | None = None) -> None:
    app_id = str(name).partition("-")[0]
    made = folder / f"{name}.git"
    (made / "refs" / "heads").mkdir(parents=True)
    (made / "refs" / "heads" / "main").write_text("0" * 40)
    (made / "orchestrix.json").write_text(json.dumps({"effectKey": key or f"app:{app_id}:createGitRepo:do"}))


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
    with pytest.raises(AssertionError, match=r"I5: repositories.* was made by"):
        ledger(app()).check_effects(tmp_path)
    repository(tmp_path, 7)
    with pytest.raises(AssertionError, match="I5: repositories"):
        ledger(app()).check_effects(tmp_path)


def moved(id: int = 1) -> Row:
    """An app that was moved to the quick version behind its first step, before the next command left."""
    created, made, registered, done = app(id).changes
    rest = replace(registered, source="REGISTERING", target="GIT_REPO_CREATED", reason="migrated 1 -> 2")
    changes = [
        created,
        made,
        replace(registered, command_id="never-left"),
        replace(rest, version=4),
        replace(done, version=5, source="GIT_REPO_CREATED"),
    ]
    return replace(app(id), version=5, changes=changes, definition_version=2)


def test_a_history_crosses_a_migration() -> None:
    stored = {1: APP_PROVISIONING, 2: QUICK}
    crossed = replace(ledger(moved()), stored=stored)
    crossed.check(["app-1"])
    assert moved().unsent == {"never-left"}
    one = moved()
    for changes, said in (
        (
            [*one.changes[:3], replace(one.changes[3], reason="paused"), one.changes[4]],
            "GIT_REPO_CREATED to REGISTERING",
        ),
        ([*one.changes[:3], replace(one.changes[3], reason="migrated 0 -> 2"), one.changes[4]], "version 0 of app-1"),
        ([*one.changes[:3], replace(one.changes[3], target="NOWHERE"), one.changes[4]], "was moved to NOWHERE"),
        ([*one.changes[:3], replace(one.changes[3], reason="migrated 1 -> 1"), one.changes[4]], "it ran by 1"),
    ):
        with pytest.raises(AssertionError, match=f"I4: .*{said}"):
            replace(crossed, apps=[replace(one, changes=changes)]).check(["app-1"])
