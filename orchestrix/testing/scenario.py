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
from orchestrix.testing.crash_points import AFTER, BEFORE, CrashPoint, PlannedCrash, crash_point_of
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

    def __init__(self, setup: ScenarioSetup) -> None:
        self._setup = setup
        self._crashes: list[PlannedCrash] = []
        self._acts: list[Act] = []
        self._environment: ScenarioEnvironment | None = None
        self._closing: Callable[[], object] = lambda: None
        self._closed = False
        open_scenarios.add(self)

    @called_as('story.when("cmd.pay")', ConfigError)
    def when(self, command: str) -> When:
        """Stubs the answer to the command instead of its handler's; for a job, its result after all its tries.

        Raises `ConfigError` if the saga has no such command.
        """
        self._known(command)
        return self._setup.stubs.setdefault(command, When(command))

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
        place = crash_point_of(self._setup.saga, before, during, after, nth)
        self._crashes.append(PlannedCrash(place, seconds_of(back_after)))
        return self

    @called_as('story.run(until="30s")', ConfigError)
    def run(self, until: Span | str | None = None, *, limit: Span = "1h") -> Story:
        """Runs until the saga has ended or waits for a person, or `until` something.

        That is a time after the start (`30s`), a state, a command whose work begins, or an event that the broker has.
        Raises `StoryError` if that is not reached within `limit`.
        """
        longest = seconds_of(limit)
        self._do(lambda environment: _run(environment, until, longest))
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
        wrong = [*differences(self.ending, expected), *_missed(self._ran)]
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
        paths = fields(self._setup.saga, may_differ)
        undisturbed = self._run_with_crashes([], expected, fresh, check)
        if undisturbed.wrong:
            raise AssertionError("\n".join(["without a crash:", *undisturbed.wrong, "", undisturbed.table]))
        assert undisturbed.ending is not None, "it has come to its end, for nothing is wrong"
        wanted: Expected = {**undisturbed.ending.without(paths).result(may_differ), **expected}
        unsure = in_doubt(self._setup.saga, undisturbed.ending) if "undone" in may_differ else ()
        free_fields = [] if "data" in expected else paths
        again = partial(
            self._run_with_crashes, expected=wanted, fresh=fresh, check=check, unsure=unsure, free_fields=free_fields
        )
        bad = [played for place in undisturbed.places if (played := again([PlannedCrash(place)])).wrong]
        if bad:
            lines = [
                f"{len(bad)} of {len(undisturbed.places)} crashes change the end:",
                *(str(one) for one in bad[:SHOWN_RUNS]),
            ]
            raise AssertionError("\n".join([*lines, "", f"{bad[0]}:", bad[0].table]))
        return undisturbed.places

    @property
    def ending(self) -> Ending:
        """The saga's current state. Raises `StoryError` before the first `run`."""
        return _ending(self._ran)

    def tries(self, command: str) -> list[float]:
        """When each try of the command was sent, in seconds after the start. Raises `ConfigError` if the saga has no
        such command."""
        self._known(command)
        return [sent.at for sent in self._ran.trace.commands if sent.command == command]

    def table(self) -> str:
        """All that happened: messages, handler executions, crashes, and the saga's history."""
        return _table(self._ran)

    def close(self) -> None:
        """Releases its resources; it cannot be used afterwards. Otherwise that is done on garbage collection."""
        self._closed = True
        self._closing()

    def _known(self, command: str) -> None:
        """Raises `ConfigError` unless the saga has the command, or the job."""
        catalog = Catalog([self._setup.saga])
        known = (*catalog.commands, *catalog.jobs)
        if command not in known:
            raise ConfigError(f"saga {self._setup.saga.name!r} has no command {command}; it has {', '.join(known)}")

    @property
    def _ran(self) -> ScenarioEnvironment:
        self._refuse_closed()
        if self._environment is None:
            raise StoryError("the story has not run yet: call run() first")
        return self._environment

    def _ask(self, ask: ActionRequest) -> Story:
        demand(ask.verb.value, reason=(ask.reason, REASON))
        self._do(lambda environment: environment.run_in_virtual_time(environment.ask(ask)))
        return self

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StoryError("the story is closed: query it before, or create another")

    def _do(self, act: Act) -> None:
        self._refuse_closed()
        if self._environment is None:
            self._environment = environment = self._made(self._crashes)
            self._closing = weakref.finalize(self, environment.close)
            environment.run_in_virtual_time(environment.open())
        self._acts.append(act)
        act(self._environment)

    def _made(self, crashes: list[PlannedCrash]) -> ScenarioEnvironment:
        catalog = Catalog([self._setup.saga])
        for command in (*catalog.commands, *catalog.jobs):
            if command not in self._setup.handlers and command not in self._setup.stubs:
                raise ConfigError(f'{command} has no handler: give one, or use story.when("{command}").succeeds()')
        return ScenarioEnvironment(self._setup, crashes)

    def _run_with_crashes(
        self,
        crashes: list[PlannedCrash],
        expected: Expected,
        fresh: Check | None,
        check: Check | None,
        unsure: Collection[str] = (),
        free_fields: Sequence[list[str]] = (),
    ) -> CrashRun:
        if fresh is not None:
            fresh()
        environment, again = self._made([*self._crashes, *crashes]), CrashRun(crashes)
        try:
            environment.run_in_virtual_time(environment.open())
            for act in self._acts or [lambda environment: _run(environment, None, 3600.0)]:
                act(environment)
            again.ending = _ending(environment)
            again.wrong += [
                *differences(again.ending.without(free_fields), expected, unsure),
                *_missed(environment),
                *_checked(check),
            ]
        except OrchestrixError as error:
            again.wrong.append(str(error))
        finally:
            again.places += environment.crash_points.passed
            again.table = _table(environment) if again.wrong and again.ending is not None else ""
            environment.close()
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


def _run(environment: ScenarioEnvironment, until: Span | str | None, limit: float) -> None:
    if until is None:
        if not environment.run_in_virtual_time(_until_idle(environment, limit)):
            raise StoryError(f"the saga neither ended nor blocked within {limit:g} s\n\n{_table(environment)}")
    elif is_span(until):
        ends = seconds_of(until) + environment.began
        environment.run_in_virtual_time(environment.until(lambda: False, ends - environment.loop.time()))
    else:
        reached = _reached(environment, str(until))
        environment.run_in_virtual_time(environment.until(lambda: reached() or environment.is_idle, limit))
        if not reached():
            raise StoryError(f"it did not reach {until}\n\n{_table(environment)}")


async def _until_idle(environment: ScenarioEnvironment, limit: float) -> bool:
    rests = await environment.until(lambda: environment.is_idle, limit)
    if rests:
        await environment.settle()
    return rests


def _reached(environment: ScenarioEnvironment, what: str) -> Callable[[], bool]:
    catalog = Catalog([environment.setup.saga])
    work = (*catalog.commands, *catalog.jobs)
    if what in work or what in catalog.events:
        moment = BEFORE if what in work else AFTER
        before = environment.passed(moment, what)
        return lambda: environment.passed(moment, what) > before
    states = {state for move in environment.setup.saga.moves for state in move}
    if what not in states:
        raise ConfigError(
            f"{what!r} is not a time, nor a state, command or event of saga {environment.setup.saga.name!r}"
        )
    return lambda: environment.row is not None and environment.row.state == what


def _ending(environment: ScenarioEnvironment) -> Ending:
    return Ending.of(environment.run_in_virtual_time(environment.stored_saga()), environment.trace.commands)


def _missed(environment: ScenarioEnvironment) -> list[str]:
    return [f"the crash {place} never happened" for place in environment.crash_points.missed()]


def _checked(check: Check | None) -> list[str]:
    try:
        return ["check() is False"] if check is not None and check() is False else []
    except AssertionError as wrong:
        return [f"check: {wrong}"]


def _table(environment: ScenarioEnvironment) -> str:
    stored = environment.run_in_virtual_time(environment.stored_saga())
    return environment.trace.table(stored.rows())
