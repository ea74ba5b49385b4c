"""Version check: what the code of a release would do to the live instances of sagas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from orchestrix.saga.versions.serialization import differences

Key = tuple[str, int]
"""A saga's name and a version of it."""
OTHER_DEFINITION: Final = "other_definition"
NOT_STORED: Final = "not_stored"
GONE: Final = "gone"
TIMES: Final = "times_changed"
UNHANDLED: Final = "unhandled_command"
WITHOUT_CODE: Final = "without_code"
_TIMES: Final = ("timeout", "queue_timeout", "base", "cap")


class Definition(NamedTuple):
    """A version of a saga, as `orchestrix.saga.versions.serialization` writes it."""

    saga: str
    version: int
    digest: str
    body: Mapping[str, Any]

    @property
    def key(self) -> Key:
        """Which saga and version it is."""
        return self.saga, self.version


@dataclass(frozen=True, slots=True)
class VersionFinding:
    """One thing to know before a release. `count` is how many live instances it concerns.

    A `contradiction` keeps a node of that release from starting, or leaves instances that no node can run.
    """

    kind: str
    saga: str
    version: int
    count: int
    detail: str
    contradiction: bool = False
    subject: str = ""
    """The command that it is about, if it is about one."""


def check_versions(
    code: Sequence[Definition],
    stored: Sequence[Definition],
    live: Mapping[Key, Mapping[str, int]],
    handled: Collection[str],
) -> list[VersionFinding]:
    """The findings, the contradictions first. `live` counts instances by state; `handled` are the commands
    that the workers of this code have a handler for."""
    codes, rows = ({one.key: one for one in some} for some in (code, stored))
    newest = {name: max((one for one in code if one.saga == name), key=lambda one: one.version) for name, _ in codes}
    found: list[VersionFinding] = []
    for (saga, version), states in sorted(live.items()):
        row, mine = rows.get((saga, version)), codes.get((saga, version))
        count = sum(states.values())
        if row is None and mine is None:
            found.append(_not_stored(saga, version, count))
        elif row is not None and mine is not None and row.digest != mine.digest:
            found.append(_other(saga, version, count, differences(row.body, mine.body)))
        runs = row or mine
        if runs is not None:
            found += _changes(runs, newest.get(saga), states)
            found += _unhandled(runs, states, handled)
    return sorted(found, key=lambda one: not one.contradiction)


def _not_stored(saga: str, version: int, count: int) -> VersionFinding:
    detail = "is neither stored nor in this code, so no node can run them: start a node that has its code once"
    return VersionFinding(NOT_STORED, saga, version, count, detail, contradiction=True)


def _other(saga: str, version: int, count: int, changes: Sequence[str]) -> VersionFinding:
    detail = f"differs in this code ({'; '.join(changes)}): raise its version to {version + 1}"
    return VersionFinding(OTHER_DEFINITION, saga, version, count, detail, contradiction=True)


def _changes(runs: Definition, newest: Definition | None, states: Mapping[str, int]) -> list[VersionFinding]:
    """How the version that they run by differs from that with which new ones start: they keep theirs."""
    count = sum(states.values())
    if newest is None:
        detail = "has no code here: they continue by the stored definition; none can be started"
        return [VersionFinding(WITHOUT_CODE, *runs.key, count, detail)]
    if newest.key == runs.key:
        return []
    found = []
    for what in ("state", "step", "command", "event"):
        lost = sorted(_names(runs, what) - _names(newest, what))
        if lost:
            concerned = sum(states.get(name, 0) for name in lost) if what == "state" else count
            detail = f"{what} {', '.join(lost)} was removed in version {newest.version}: they keep it"
            found.append(VersionFinding(GONE, *runs.key, concerned, detail))
    times = [one for one in differences(runs.body, newest.body) if one.split(" ")[0].split(".")[-1] in _TIMES]
    if times:
        detail = f"times (in µs) differ in version {newest.version}: {'; '.join(times)}; they keep theirs"
        found.append(VersionFinding(TIMES, *runs.key, count, detail))
    return found


def _unhandled(runs: Definition, states: Mapping[str, int], handled: Collection[str]) -> list[VersionFinding]:
    count = sum(states.values())
    lost = sorted(_still_to_send(runs, states) - set(handled))
    return [
        VersionFinding(
            UNHANDLED, *runs.key, count, f"may still send {name}, which no worker of this code handles", subject=name
        )
        for name in lost
    ]


def _still_to_send(runs: Definition, states: Mapping[str, int]) -> set[str]:
    """The commands that instances in these states can still send: of later steps, and of any undo."""
    steps = runs.body["steps"]
    places = [place for place, step in enumerate(steps) if states.get(step["state"])]
    first = min(places, default=0)
    ahead = {step.get("command") for step in steps[first:]}
    undos = {step["undo"].get("command") for step in steps if step.get("undo")}
    return {name for name in ahead | undos if name}


def _names(one: Definition, what: str) -> set[str]:
    found: Iterable[Any] = (part for step in one.body["steps"] for part in (step, step.get("undo") or {}))
    return {part["name" if what == "step" else what] for part in found if part.get("name" if what == "step" else what)}
