"""Expectations: how a scenario ended, and where that differs from what was expected."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any, Final, TypedDict

from orchestrix.saga.definition import COMPENSATING, FAILED, Saga
from orchestrix.saga.validation.arguments import ArgumentKind, brief
from orchestrix.testing.allowed_differences import without
from orchestrix.testing.arguments import OBJECT, demand
from orchestrix.testing.durations import Between, Span, seconds_of
from orchestrix.testing.environment import StoredSaga
from orchestrix.testing.trace import SentCommand

TIME_TOLERANCE_S: Final = 0.05
"""Seconds that an `elapsed` may differ, because messages take time."""


class Expected(TypedDict, total=False):
    """What can be expected.

    `path`: the states, in their order. `commands`: what was sent, each try once. `undone`: the steps that were undone,
    in order. `attempts`: how often each of these commands was tried. `data`: these fields, among others. `elapsed`:
    seconds from the start to the last change, as a length of time or `between(...)`. `error`: part of the last
    failure's text. `blocker`: why the saga waits for a person; None if it does not.
    """

    state: str
    path: Sequence[str]
    commands: Sequence[str]
    undone: Sequence[str]
    attempts: Mapping[str, int]
    data: Mapping[str, Any]
    elapsed: Span | Between
    error: str
    blocker: str | None


@dataclass(frozen=True, slots=True)
class Ending:
    """The saga's final state. The fields are those of `Expected`."""

    state: str
    blocker: str | None
    data: Mapping[str, Any]
    path: tuple[str, ...]
    commands: tuple[str, ...]
    undone: tuple[str, ...]
    attempts: Mapping[str, int]
    elapsed: float
    error: str

    @classmethod
    def of(cls, stored: StoredSaga, sent: Sequence[SentCommand]) -> Ending:
        """The ending of a saga whose commands were `sent`."""
        instance, commands = stored.instance, tuple(one.command for one in sent)
        return cls(
            state=instance.state,
            blocker=instance.blocker,
            data=instance.data,
            path=tuple(state for state, _ in groupby(change.to_state for change in stored.changes)),
            commands=commands,
            undone=instance.progress.undone,
            attempts={command: commands.count(command) for command in commands},
            elapsed=stored.changes[-1].at.timestamp() - stored.began,
            error=instance.progress.error or "",
        )

    def without(self, paths: Sequence[list[str]]) -> Ending:
        """The same without these fields of the data."""
        return replace(self, data=without(self.data, paths)) if paths else self

    def result(self, may_differ: Collection[str] = ()) -> Expected:
        """What must be the same after any crash; `undone` in any case, except for steps in doubt."""
        same: Expected = {"undone": self.undone}
        if "state" not in may_differ:
            same["state"] = self.state
        if "blocker" not in may_differ:
            same["blocker"] = self.blocker
        if "data" not in may_differ:
            same["data"] = self.data
        return same


def in_doubt(saga: Saga, ending: Ending) -> frozenset[str]:
    """The steps that were pending when a run failed. After a crash their effects are unknown: like a redelivered or
    late step, they are undone too, although their worker reported a failure."""
    thread_bridge = (before for before, after in pairwise(ending.path) if after in (COMPENSATING, FAILED))
    return frozenset(step.name for before in thread_bridge if (step := saga.step_in(before)) is not None)


def differences(ending: Ending, expected: Expected, unsure: Collection[str] = ()) -> Iterator[str]:
    """A sentence for each expectation that is not met. Raises `TypeError` for an unknown one.

    `unsure` are steps that may be undone in addition to the expected ones.
    """
    for name, wanted in expected.items():
        if name not in Expected.__annotations__:
            raise TypeError(f"{name!r} cannot be expected: known are {', '.join(Expected.__annotations__)}")
        found = getattr(ending, name)
        if (kind := _KINDS.get(name)) is not None:
            demand("expect", **{name: (wanted, kind)})
        if name in ("data", "attempts"):
            yield from _fields(name, found, wanted)
        elif name == "elapsed":
            yield from differ_in_time(found, wanted)
        elif name == "error":
            yield from [] if str(wanted) in found else [f"error: {wanted!r} is not in {found!r}"]
        elif name in ("path", "commands", "undone"):
            names = list(wanted)  # type: ignore[call-overload]
            ignored = unsure if name == "undone" else ()
            yield from differ(name, [one for one in found if one in names or one not in ignored], names)
        else:
            yield from differ(name, found, wanted)


SEVERAL: Final = ArgumentKind(
    lambda value: isinstance(value, Sequence) and not isinstance(value, str),
    "a list of strings",
    lambda value: f"[{brief(value)}]" if isinstance(value, str) else '["…"]',
)
_KINDS: Final = {
    "path": SEVERAL,
    "commands": SEVERAL,
    "undone": SEVERAL,
    "attempts": OBJECT,
    "data": OBJECT,
}


def differ(name: str, found: object, wanted: object) -> list[str]:
    """A sentence if the two differ."""
    return [] if found == wanted else [f"{name}: {found!r}, expected {wanted!r}"]


def _fields(name: str, found: Mapping[str, Any], wanted: Any) -> Iterator[str]:
    absent: Any = 0 if name == "attempts" else "<absent>"
    for key, value in wanted.items():
        yield from differ(f"{name}[{key!r}]", found.get(key, absent), value)


def differ_in_time(found: float, wanted: Any) -> list[str]:
    """A sentence if the seconds are not within what is expected."""
    if not isinstance(wanted, Between):
        exact = seconds_of(wanted)
        wanted = Between(exact - TIME_TOLERANCE_S, exact + TIME_TOLERANCE_S)
    return [] if found in wanted else [f"elapsed: {found:.3f} s, expected {wanted}"]
