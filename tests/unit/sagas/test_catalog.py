"""Is every message owned by exactly one step of one saga?"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrix import Compensation, DefinitionError, Saga
from orchestrix.saga.catalog import Catalog, MessageOwner
from sagas.app_provisioning import APP_PROVISIONING
from tests.unit.sagas.builders import ORDER, step

UNDO = Compensation(command="cmd.undo", event="evt.undone")


def saga(saga_name: str, **step_changes: Any) -> Saga:
    """A saga of one step, whose messages are its own unless `step_changes` says otherwise."""
    return Saga(saga_name, (step(**({"name": saga_name} | step_changes)),))


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (saga("app", name="own"), "two sagas are named 'app': rename one"),
        (saga("x", command="cmd.registerApp"), "cmd.registerApp belongs to saga 'app' and to 'x': rename one"),
        (saga("x", event="evt.appRegistered"), "evt.appRegistered belongs to saga 'app' and to 'x'"),
        (saga("x", command="cmd.deleteGitRepo"), "cmd.deleteGitRepo belongs to saga 'app' and to 'x'"),
        (saga("x", event="evt.gitRepoDeleted"), "evt.gitRepoDeleted belongs to saga 'app' and to 'x'"),
        (
            saga("x", undo=Compensation(command="cmd.createGitRepo", event="evt.y")),
            "cmd.createGitRepo belongs to saga 'app' and to 'x'",
        ),
        (
            saga("x", undo=Compensation(command="cmd.y", event="evt.gitRepoCreated")),
            "evt.gitRepoCreated belongs to saga 'app' and to 'x'",
        ),
    ],
    ids=["name", "command", "event", "undo command", "undo event", "its undo command", "its undo event"],
)
def test_two_sagas_cannot_share_a_message(second: Saga, says: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        Catalog([APP_PROVISIONING, second])
    assert says in str(refused.value)


def test_a_saga_of_the_same_shape_under_other_names_is_welcome() -> None:
    assert [one.name for one in Catalog([saga("x"), saga("y")])] == ["x", "y"]


def test_the_same_step_name_in_two_sagas_is_no_conflict() -> None:
    catalog = Catalog(
        [saga("x", name="run", command="cmd.a", event="evt.a"), saga("y", name="run", command="cmd.b", event="evt.b")]
    )
    owners = [catalog.command(command) for command in ("cmd.a", "cmd.b")]
    assert [one.saga.name for one in owners if one is not None] == ["x", "y"]


def test_owners() -> None:
    catalog = Catalog([APP_PROVISIONING, ORDER])
    assert catalog.command("cmd.pay") == catalog.event("evt.payDone") == MessageOwner(ORDER, ORDER.steps[1])
    assert catalog.event("evt.appRegistered") == MessageOwner(APP_PROVISIONING, APP_PROVISIONING.steps[1])
    assert catalog.saga("order") is ORDER


def test_owners_of_undo() -> None:
    catalog, step = Catalog([APP_PROVISIONING]), APP_PROVISIONING.steps[0]
    owner = catalog.event("evt.gitRepoDeleted")
    assert catalog.command("cmd.deleteGitRepo") == owner == MessageOwner(APP_PROVISIONING, step, undoes=True)
    assert owner is not None
    assert owner.order is step.undo
    assert MessageOwner(APP_PROVISIONING, step).order is step


@pytest.mark.parametrize("name", ["evt.stepFailed", "evt.nobody", "cmd.pay", ""])
def test_events_without_an_owner(name: str) -> None:
    assert Catalog([APP_PROVISIONING, ORDER]).event(name) is None


def test_unknown_saga_and_command() -> None:
    catalog = Catalog([APP_PROVISIONING])
    assert catalog.saga("order") is None
    assert catalog.command("cmd.pay") is None


def test_names_of_all_queues() -> None:
    catalog = Catalog([APP_PROVISIONING, saga("x", undo=UNDO)])
    assert catalog.commands == (
        "cmd.createGitRepo",
        "cmd.deleteGitRepo",
        "cmd.registerApp",
        "cmd.unregisterApp",
        "cmd.x",
        "cmd.undo",
    )
    assert catalog.events == (
        "evt.gitRepoCreated",
        "evt.gitRepoDeleted",
        "evt.appRegistered",
        "evt.appUnregistered",
        "evt.xDone",
        "evt.undone",
        "evt.stepFailed",
    )


def test_an_empty_catalog_still_hears_of_failures() -> None:
    assert Catalog([]).events == ("evt.stepFailed",)
