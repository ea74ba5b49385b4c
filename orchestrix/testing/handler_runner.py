"""Handler runner: executes a command in a scenario, by a stubbed answer or by the author's handler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from orchestrix.errors import ConfigError, OrchestrixError
from orchestrix.saga.messages import Command
from orchestrix.testing.crash_points import AFTER, BEFORE, DURING, Moment
from orchestrix.testing.simulation.virtual_time import UnsupportedOnVirtualTime
from orchestrix.testing.stubs import StubbedAnswer, When, to_try
from orchestrix.testing.trace import told
from orchestrix.worker.context import Context
from orchestrix.worker.error_mapping import ends_task, main_error, step_error_of, unexpected_error
from orchestrix.worker.errors import StepFailed
from orchestrix.worker.handlers import HandlerTable, Output

T = TypeVar("T")


class HandlerRunner:
    """Executes every command: by the scenario's stubbed answer, or by the author's own handler.

    `through` is called at each crash point, `note` for the trace, `mute` for each command whose events must be lost.
    `going` counts the executions that will end. `trouble` is an error that is not a step's failure.
    """

    def __init__(
        self,
        handlers: HandlerTable,
        whens: Mapping[str, When],
        through: Callable[[Moment, str], bool],
        note: Callable[[str, str], None],
        mute: Callable[[str], None] | None = None,
    ) -> None:
        self._mute = mute
        self._handlers, self._settings, self._whens = handlers, handlers.settings, whens
        self._through, self._note = through, note
        self._tries: dict[str, list[str]] = {}
        self.going: set[asyncio.Task[Any]] = set()
        self.trouble: OrchestrixError | None = None

    async def handle(self, context: Context, command: Command) -> Output:
        """Handles any command."""
        answer = self._answer(command)
        await self._passes(BEFORE, command.type)
        self._note("worker", f"begins {command.type}")
        task = asyncio.current_task()
        if task is not None and not (answer and answer.silent):
            self.going.add(task)
        try:
            output = await self._played(answer, context, command)
        except BaseException as error:
            if not ends_task(error, task):
                self._failed(command, error)
            raise
        finally:
            self.going.discard(task)
        self._note("worker", f"ends {command.type} {told(output)}")
        await self._passes(AFTER, command.type)
        return output

    async def _played(self, answer: StubbedAnswer | None, context: Context, command: Command) -> Output:
        async def own() -> Output:
            return await self._own(context, command)

        if answer is not None and answer.silent and self._mute is not None:
            self._mute(command.id)
            await asyncio.Event().wait()  # until its time is over: then its slot is free, and still no event arrives
        work = own() if answer is None else _coroutine(answer.play(own))
        output: Output = await ObservedAwaitable(work, lambda: self._through(DURING, command.type))
        return output

    async def _own(self, context: Context, command: Command) -> Output:
        handler = self._handlers.get(command.type)
        if handler is None:
            raise ConfigError(f"{command.type} has no handler for an attempt without a stubbed answer")
        known = replace(context, settings=self._settings.get(command.type))
        output = handler(known, command)  # a plain function runs here: threads do not exist on virtual time
        return await output if inspect.isawaitable(output) else output

    def _answer(self, command: Command) -> StubbedAnswer | None:
        tries = self._tries.setdefault(command.type, [])
        if command.id not in tries:
            tries.append(command.id)
        when = self._whens.get(command.type)
        return to_try(tries.index(command.id) + 1, when.answers) if when is not None else None

    async def _passes(self, moment: Moment, subject: str) -> None:
        if self._through(moment, subject):
            await asyncio.Event().wait()  # its process was killed

    def _failed(self, command: Command, group: BaseException) -> None:
        error = main_error(group)
        failure = step_error_of(error) if isinstance(error, StepFailed) else unexpected_error(error)
        self._note("worker", f"fails {command.type} {failure.type}: {failure.message}")
        if isinstance(error, UnsupportedOnVirtualTime | ConfigError):
            self.trouble = self.trouble or _refusal(command, error)


def _refusal(command: Command, error: OrchestrixError) -> OrchestrixError:
    if not isinstance(error, UnsupportedOnVirtualTime):
        return error
    return UnsupportedOnVirtualTime(
        f"the handler of {command.type} cannot run in a story: {error}; give it a double that only awaits"
    )


async def _coroutine(work: Any) -> Output:
    output: Output = await work
    return output


class ObservedAwaitable:
    """Awaits `work`; `waits` is called each time that it suspends."""

    def __init__(self, work: Coroutine[Any, Any, T], waits: Callable[[], object]) -> None:
        self._work, self._waits = work, waits

    def __await__(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        try:
            while True:
                try:
                    waited = self._work.send(None) if error is None else self._work.throw(error)
                except StopIteration as done:
                    return done.value
                self._waits()
                try:
                    yield waited
                    error = None
                except BaseException as thrown:
                    error = thrown
        finally:
            self._work.close()
