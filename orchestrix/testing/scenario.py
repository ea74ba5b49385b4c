"""Scenario: tests a saga by its input, the answers to its commands, crashes, and expectations.

    story = given(ORDER, handlers=orders, data={"amount": 12})
    story.when("cmd.ship").fails("NoStock", retryable=False)
    story.crash(after="cmd.pay")
    story.run()
    story.expect(state="FAILED", undone=["pay", "reserve"])

The real node and the real worker run it, on virtual time: it behaves here as in production.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias, Unpack

from orchestrix.errors import ConfigError, OrchestrixError
from orchestrix.saga.actions.requests import ActionRequest, SagaAction
from orchestrix.saga.catalog import Catalog
from orchestrix.saga.definition import Saga
from orchestrix.saga.initial_data import begun
from orchestrix.saga.validation.signatures import called_as
from orchestrix.testing import open_scenarios
from orchestrix.testing.allowed_differences import DIFFERENCES, fields
from orchestrix.testing.arguments import (
    COUNT,
    FUNCTION,
    NAME,
    OBJECT,
    REASON,
    SAGA,
    SECTIONS,
    TEXT,
    WHOLE,
    demand,
    perhaps,
    plain,
)
from orchestrix.testing.author_settings import Given
from orchestrix.testing.crash_points import AFTER, BEFORE, CrashPoint, PlannedCrash, place_of
from orchestrix.testing.durations import Span, is_span, seconds_of
from orchestrix.testing.environment import ScenarioEnvironment, ScenarioSetup, StoryError
from orchestrix.testing.expectations import Ending, Expected, differences, in_doubt
from orchestrix.testing.handlers import Part, handlers_for
from orchestrix.testing.stubs import When

Act: TypeAlias = Callable[[ScenarioEnvironment], object]
Check: TypeAlias = Callable[[], object]
ACTOR: Final = "ada"
DEFAULT_REASON: Final = "requested by the story"
SHOWN_RUNS: Final = 10
"""How many crashes that change the ending are named."""


@called_as('given(ORDER, handlers=orders, data={"film": "Metropolis"})', ConfigError)
def given(
    saga: Saga,
    *,
    handlers: Part | Iterable[Part] = (),
    data: Mapping[str, Any] | None = None,
    settings: Given | None = None,
    key: str = "story",
    seed: int = 0,
) -> Story:
    """A scenario of one run of `saga`, which starts with `data`.

    `handlers` are functions with `@handles`, modules of them, or functions by their commands. `settings` are those of
    their modules, by section and name. `seed` is the seed of all random decisions, such as the jitter of retries: the
    same seed, the same scenario. Raises `ConfigError` for handlers that do not fit the saga, and for settings that
    their modules reject, and `InvalidDataError` for data that the saga rejects.
    """
    demand("given", saga=(saga, SAGA), data=(data, perhaps(OBJECT)), key=(key, NAME), seed=(seed, WHOLE))
    demand("given", settings=(settings, perhaps(SECTIONS)))
    plain("given", data=data)
    return Story(ScenarioSetup(saga, handlers_for(handlers, saga, settings), begun(saga, data or {}), key, seed, {}))


class Story:
    """One run of a saga: stub answers with `when`, `run` it, `expect` its ending.

    Actions of a person can be applied between two `run`s. Times are virtual: ten minutes pass in half a second.
    """

    def __init__(self, plot: ScenarioSetup) -> None:
        self._plot = plot
        self._crashes: list[PlannedCrash] = []
        self._acts: list[Act] = []
        self._stage: ScenarioEnvironment | None = None
        self._closing: Callable[[], object] = lambda: None
        self._closed = False
        open_scenarios.add(self)

    @called_as('story.when("cmd.pay")', ConfigError)
    def when(self, command: str) -> When:
        """Stubs the answer to the command instead of its handler's; for a job, its result after all its tries.

        Raises `ConfigError` if the saga has no such command.
        """
        self._known(command)
        return self._plot.whens.setdefault(command, When(command))

    @called_as('story.crash(after="cmd.pay", nth=2, back_after="5s")', ConfigError)
    def crash(
        self,
        *,
        before: str | None = None,
        during: str | None = None,
        after: str | None = None,
        nth: int = 1,
        back_after: Span = 1.0,
    ) -> Story:
        """Kills the process that reaches a crash point for the `nth` time, and starts it again later.

        Before or after a command (`cmd.pay`): the worker, around the work of its handler; during: where that waits.
        Before or after an event: the worker, around sending it; after, its command is not acknowledged yet. Before or
        after a state: the node, around the commit that leads there. After `cmd.pay sent`: the node, before it knows.
        Before or after the name of a `crash_point`: the process that reaches that line, there.
        """
        names = {"before": before, "during": during, "after": after}
        demand("crash", **{name: (value, perhaps(TEXT)) for name, value in names.items()}, nth=(nth, COUNT))
        place = place_of(self._plot.saga, before, during, after, nth)
        self._crashes.append(PlannedCrash(place, seconds_of(back_after)))
        return self

    @called_as('story.run(until="30s")', ConfigError)
    def run(self, until: Span | str | None = None, *, limit: Span = "1h") -> Story:
        """Runs until the saga has ended or waits for a person, or `until` something.

        That is a time after the start (`30s`), a state, a command whose work begins, or an event that the broker has.
        Raises `StoryError` if that is not reached within `limit`.
        """
        longest = seconds_of(limit)
        self._do(lambda stage: _run(stage, until, longest))
        return self

    # Actions of a person; each raises `IllegalTransition` where it is not allowed.

    def pause(self, reason: str = DEFAULT_REASON) -> Story:
        """Holds the saga: what is in flight may end, nothing new is sent."""
        return self._ask(ActionRequest(SagaAction.PAUSE, ACTOR, reason))

    def resume(self, reason: str = DEFAULT_REASON) -> Story:
        """Ends a pause."""
        return self._ask(ActionRequest(SagaAction.RESUME, ACTOR, reason))

    def cancel(self, reason: str = DEFAULT_REASON) -> Story:
        """Starts the compensation of all that was done."""
        return self._ask(ActionRequest(SagaAction.CANCEL, ACTOR, reason))

    def terminate(self, reason: str = DEFAULT_REASON) -> Story:
        """Ends the saga and undoes nothing."""
        return self._ask(ActionRequest(SagaAction.TERMINATE, ACTOR, reason))

    @called_as('story.retry(data={"amount": 12})', ConfigError)
    def retry(self, reason: str = DEFAULT_REASON, *, data: Mapping[str, Any] | None = None) -> Story:
        """Retries at once: a step that waits for its retry or is held, a failed compensation, a failed saga.

        `data` is a merge patch of its data.
        """
        demand("retry", data=(data, perhaps(OBJECT)))
        plain("retry", data=data)
        return self._ask(ActionRequest(SagaAction.RETRY, ACTOR, reason, patch=data))

    def skip(self, output: Mapping[str, Any] | None = None, reason: str = DEFAULT_REASON) -> Story:
        """Marks the step as done, with `output`, or a failed compensation."""
        demand("skip", output=(output, perhaps(OBJECT)))
        plain("skip", output=output)
        return self._ask(ActionRequest(SagaAction.SKIP, ACTOR, reason, output=output))

    @called_as('story.edit({"film": "Metropolis"})', ConfigError)
    def edit(self, patch: Mapping[str, Any], reason: str = DEFAULT_REASON) -> Story:
        """Changes the data by a merge patch."""
        demand("edit", patch=(patch, OBJECT))
        plain("edit", patch=patch)
        return self._ask(ActionRequest(SagaAction.EDIT, ACTOR, reason, patch=patch))

    # The result.

    def expect(self, **expected: Unpack[Expected]) -> None:
        """Raises `AssertionError`, with all that happened, if the saga's state differs, or a crash point was never
        reached."""
        __tracebackhide__ = True
        wrong = [*differences(self.ending, expected), *_missed(self._played)]
        if wrong:
            raise AssertionError("\n".join([*wrong, "", self.table()]))

    def crash_everywhere(
        self,
        *,
        fresh: Check | None = None,
        check: Check | None = None,
        may_differ: Collection[str] = ("undone",),
        **expected: Unpack[Expected],
    ) -> list[CrashPoint]:
        """Runs the scenario once as it is, then once for each further crash point of a process.

        The ending must be as `expected`, and its state, data, undone steps and blocker the same each time. `fresh` is
        called before each run, to reset the handlers' state; `check` after it: it raises `AssertionError`, or returns
        False, if the handlers have done something wrong. Earlier runs and actions of the scenario are repeated.
        `may_differ` names what may differ, also single fields (`data.mailId`): `undone` (the default) lets the failed
        step be undone too, because after a crash its effects are unknown; () lets nothing differ. Returns the crash
        points. Raises `AssertionError` that names those where the ending differs, with all that happened.
        """
        __tracebackhide__ = True
        demand("crash_everywhere", fresh=(fresh, perhaps(FUNCTION)), check=(check, perhaps(FUNCTION)))
        demand("crash_everywhere", may_differ=(may_differ, DIFFERENCES))
        paths = fields(self._plot.saga, may_differ)
        calm = self._again([], expected, fresh, check)
        if calm.wrong:
            raise AssertionError("\n".join(["without a crash:", *calm.wrong, "", calm.table]))
        assert calm.ending is not None, "it has come to its end, for nothing is wrong"
        wanted: Expected = {**calm.ending.without(paths).result(may_differ), **expected}
        doubtful = in_doubt(self._plot.saga, calm.ending) if "undone" in may_differ else ()
        loose = [] if "data" in expected else paths
        again = partial(self._again, expected=wanted, fresh=fresh, check=check, doubtful=doubtful, loose=loose)
        bad = [played for place in calm.places if (played := again([PlannedCrash(place)])).wrong]
        if bad:
            lines = [
                f"{len(bad)} of {len(calm.places)} crashes change the end:",
                *(str(one) for one in bad[:SHOWN_RUNS]),
            ]
            raise AssertionError("\n".join([*lines, "", f"{bad[0]}:", bad[0].table]))
        return calm.places

    @property
    def ending(self) -> Ending:
        """The saga's current state. Raises `StoryError` before the first `run`."""
        return _ending(self._played)

    def tries(self, command: str) -> list[float]:
        """When each try of the command was sent, in seconds after the start. Raises `ConfigError` if the saga has no
        such command."""
        self._known(command)
        return [sent.at for sent in self._played.chronicle.commands if sent.command == command]

    def table(self) -> str:
        """All that happened: messages, handler executions, crashes, and the saga's history."""
        return _table(self._played)

    def close(self) -> None:
        """Releases its resources; it cannot be used afterwards. Otherwise that is done on garbage collection."""
        self._closed = True
        self._closing()

    def _known(self, command: str) -> None:
        """Raises `ConfigError` unless the saga has the command, or the job."""
        catalog = Catalog([self._plot.saga])
        known = (*catalog.commands, *catalog.jobs)
        if command not in known:
            raise ConfigError(f"saga {self._plot.saga.name!r} has no command {command}; it has {', '.join(known)}")

    @property
    def _played(self) -> ScenarioEnvironment:
        self._refuse_closed()
        if self._stage is None:
            raise StoryError("the story has not run yet: call run() first")
        return self._stage

    def _ask(self, ask: ActionRequest) -> Story:
        demand(ask.verb.value, reason=(ask.reason, REASON))
        self._do(lambda stage: stage.play(stage.ask(ask)))
        return self

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoryError("the story is closed: query it before, or create another")

    def _do(self, act: Act) -> None:
        self._refuse_closed()
        if self._stage is None:
            self._stage = stage = self._made(self._crashes)
            self._closing = weakref.finalize(self, stage.close)
            stage.play(stage.open())
        self._acts.append(act)
        act(self._stage)

    def _made(self, crashes: list[PlannedCrash]) -> ScenarioEnvironment:
        catalog = Catalog([self._plot.saga])
        for command in (*catalog.commands, *catalog.jobs):
            if command not in self._plot.handlers and command not in self._plot.whens:
                raise ConfigError(f'{command} has no handler: give one, or use story.when("{command}").succeeds()')
        return ScenarioEnvironment(self._plot, crashes)

    def _again(
        self,
        crashes: list[PlannedCrash],
        expected: Expected,
        fresh: Check | None,
        check: Check | None,
        doubtful: Collection[str] = (),
        loose: Sequence[list[str]] = (),
    ) -> CrashRun:
        if fresh is not None:
            fresh()
        stage, again = self._made([*self._crashes, *crashes]), CrashRun(crashes)
        try:
            stage.play(stage.open())
            for act in self._acts or [lambda stage: _run(stage, None, 3600.0)]:
                act(stage)
            again.ending = _ending(stage)
            again.wrong += [
                *differences(again.ending.without(loose), expected, doubtful),
                *_missed(stage),
                *_checked(check),
            ]
        except OrchestrixError as error:
            again.wrong.append(str(error))
        finally:
            again.places += stage.passages.passed
            again.table = _table(stage) if again.wrong and again.ending is not None else ""
            stage.close()
        return again


@dataclass
class CrashRun:
    """The result of running a scenario again with these additional crashes."""

    crashes: list[PlannedCrash]
    ending: Ending | None = None
    wrong: list[str] = field(default_factory=list)
    places: list[CrashPoint] = field(default_factory=list)
    table: str = ""

    def __str__(self) -> str:
        where = ", ".join(str(crash.place) for crash in self.crashes)
        return f"{where}: {'; '.join(one.splitlines()[0] for one in self.wrong)}"


def _run(stage: ScenarioEnvironment, until: Span | str | None, limit: float) -> None:
    if until is None:
        if not stage.play(_to_rest(stage, limit)):
            raise StoryError(f"the saga neither ended nor blocked within {limit:g} s\n\n{_table(stage)}")
    elif is_span(until):
        ends = seconds_of(until) + stage.began
        stage.play(stage.until(lambda: False, ends - stage.loop.time()))
    else:
        reached = _reached(stage, str(until))
        stage.play(stage.until(lambda: reached() or stage.rests, limit))
        if not reached():
            raise StoryError(f"it did not reach {until}\n\n{_table(stage)}")


async def _to_rest(stage: ScenarioEnvironment, limit: float) -> bool:
    rests = await stage.until(lambda: stage.rests, limit)
    if rests:
        await stage.settle()
    return rests


def _reached(stage: ScenarioEnvironment, what: str) -> Callable[[], bool]:
    catalog = Catalog([stage.plot.saga])
    work = (*catalog.commands, *catalog.jobs)
    if what in work or what in catalog.events:
        moment = BEFORE if what in work else AFTER
        before = stage.passed(moment, what)
        return lambda: stage.passed(moment, what) > before
    states = {state for move in stage.plot.saga.moves for state in move}
    if what not in states:
        raise ConfigError(f"{what!r} is not a time, nor a state, command or event of saga {stage.plot.saga.name!r}")
    return lambda: stage.row is not None and stage.row.state == what


def _ending(stage: ScenarioEnvironment) -> Ending:
    return Ending.of(stage.play(stage.told()), stage.chronicle.commands)


def _missed(stage: ScenarioEnvironment) -> list[str]:
    return [f"the crash {place} never happened" for place in stage.passages.missed()]


def _checked(check: Check | None) -> list[str]:
    try:
        return ["check() is False"] if check is not None and check() is False else []
    except AssertionError as wrong:
        return [f"check: {wrong}"]


def _table(stage: ScenarioEnvironment) -> str:
    told = stage.play(stage.told())
    return stage.chronicle.table(told.rows())
