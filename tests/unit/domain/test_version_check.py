"""Version check: does it name what a release would do to live instances, and count them?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest

from orchestrix import COMPLETED, Compensation, Saga
from orchestrix.domain.version_check import Definition, Key, VersionFinding, check_versions
from orchestrix.saga.versions.serialization import body_of, digest_of
from tests.unit.sagas.builders import step

UNDO = Compensation("cmd.unpack", "evt.unpacked")
FIRST = Saga("parcel", (step("pack", "PACKING", "SENDING", undo=UNDO), step("send", "SENDING", COMPLETED)))
SECOND = replace(FIRST, version=2, steps=(step("wrap", "WRAPPING", "SENDING"), FIRST.steps[1]))
ALL = ("cmd.pack", "cmd.send", "cmd.wrap", "cmd.unpack")
LIVE = {("parcel", 1): {"PACKING": 3, "SENDING": 2}}


def row(saga: Saga) -> Definition:
    """The saga as it is stored."""
    body = body_of(saga)
    return Definition(saga.name, saga.version, digest_of(body), body)


def checked(
    code: list[Saga], stored: list[Saga], live: Mapping[Key, Mapping[str, int]] = LIVE, handled: tuple[str, ...] = ALL
) -> list[VersionFinding]:
    return check_versions([row(one) for one in code], [row(one) for one in stored], live, handled)


def test_the_same_code_is_nothing_to_know() -> None:
    assert checked([FIRST], [FIRST]) == []
    assert checked([FIRST], []) == []  # of a release that stored none: this one stores it
    assert checked([SECOND], [FIRST], {}) == []


def test_another_definition_of_a_live_version_is_a_contradiction() -> None:
    (found, *_) = checked([replace(SECOND, version=1)], [FIRST])
    assert (found.kind, found.saga, found.version, found.count) == ("other_definition", "parcel", 1, 5)
    assert found.contradiction
    assert "raise its version to 2" in found.detail


def test_instances_that_nobody_could_run_are_a_contradiction() -> None:
    (found,) = checked([SECOND], [])
    assert (found.kind, found.count, found.contradiction) == ("not_stored", 5, True)


def test_what_is_gone_in_the_next_version_is_counted_and_no_contradiction() -> None:
    found = {one.detail.split(" ")[0]: one for one in checked([SECOND], [FIRST])}
    assert found["state"].detail == "state PACKING was removed in version 2: they keep it"
    assert found["state"].count == 3
    assert {what: one.count for what, one in found.items()} == {"state": 3, "step": 5, "command": 5, "event": 5}
    assert "cmd.pack, cmd.unpack" in found["command"].detail
    assert not any(one.contradiction for one in found.values())


def test_other_times_are_told() -> None:
    slower = replace(FIRST, version=2, steps=(replace(FIRST.steps[0], timeout=timedelta(hours=1)), FIRST.steps[1]))
    (found,) = checked([slower], [FIRST])
    assert found.kind == "times_changed"
    assert "steps.pack.timeout was 60000000, is 3600000000" in found.detail


def test_a_saga_without_code_goes_on_by_its_row() -> None:
    (found,) = checked([replace(SECOND, name="other")], [FIRST])
    assert (found.kind, found.count, found.contradiction) == ("without_code", 5, False)


@pytest.mark.parametrize(
    ("states", "handled", "missing"),
    [
        ({"PACKING": 1}, ("cmd.wrap",), {"cmd.pack", "cmd.send", "cmd.unpack"}),
        ({"SENDING": 1}, ("cmd.unpack",), {"cmd.send"}),
        ({"COMPENSATING": 1}, ("cmd.pack", "cmd.send"), {"cmd.unpack"}),
        ({"SENDING": 1}, ALL, set()),
    ],
)
def test_commands_that_may_still_be_sent_need_a_handler(
    states: dict[str, int], handled: tuple[str, ...], missing: set[str]
) -> None:
    found = checked([FIRST], [FIRST], {("parcel", 1): states}, handled)
    assert {one.detail.split(" ")[3].rstrip(",") for one in found} == missing
