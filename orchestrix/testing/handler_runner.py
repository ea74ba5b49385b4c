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
from orchestrix.testing.trace import shortened
from orchestrix.worker.context import Context
from orchestrix.worker.error_mapping import ends_task, main_error, step_error_of, unexpected_error
from orchestrix.worker.errors import StepFailed
from orchestrix.worker.handlers import HandlerTable, Output

T = TypeVar("T")


class HandlerRunner:
    """Executes every command: by the scenario's stubbed answer, or by the author's own handler.

    `passes_crash_point` is called at each crash point, `note` for the trace, `drop_answer` for each command whose
    events must be lost. `running` counts the executions that will end. `problem` is an error that is not a step's
    failure.
    """

    def __init__(
        self,
        handlers: HandlerTable,
        stubs: Mapping[str, When],
        passes_crash_point: Callable[[Moment, str], bool],
        note: Callable[[str, str], None],
        drop_answer: Callable[[str], None] | None = None,
    ) -> None:
        self._drop_answer = drop_answer
        self._handlers, self._settings, self._stubs = handlers, handlers.settings, stubs
        self._passes_crash_point, self._note = passes_crash_point, note
        self._tries: dict[str, list[str]] = {}
        self.running: set[asyncio.Task[Any]] = set()
        self.problem: OrchestrixError | None = None

    async def handle(self, context: Context, command: Command) -> Output:
        """Handles any command."""
        answer = self._answer(command)
        await self._passes(BEFORE, command.type)
        self._note("worker", f"begins {command.type}")
        task = asyncio.current_task()
        if task is not None and not (answer and answer.silent):
            self.running.add(task)
        try:
            output = await self._run_stub(answer, context, command)
        except BaseException as error:
            if not ends_task(error, task):
                self._failed(command, error)
            raise
        finally:
            self.running.discard(task)
        self._note("worker", f"ends {command.type} {shortened(output)}")
        await self._passes(AFTER, command.type)
        return output

    async def _run_stub(self, answer: StubbedAnswer | None, context: Context, command: Command) -> Output:
        async def own() -> Output:
            return await self._own(context, command)

        if answer is not None and answer.silent and self._drop_answer is not None:
            self._drop_answer(command.id)
            await asyncio.Event().wait()  # until its timeout: then its slot is free, and still no event arrives
        work = own() if answer is None else _coroutine(answer.run(own))
        output: Output = await ObservedAwaitable(work, lambda: self._passes_crash_point(DURING, command.type))
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
        when = self._stubs.get(command.type)
        return to_try(tries.index(command.id) + 1, when.answers) if when is not None else None

    async def _passes(self, moment: Moment, subject: str) -> None:
        if self._passes_crash_point(moment, subject):
            await asyncio.Event().wait()  # its process was killed

    def _failed(self, command: Command, group: BaseException) -> None:
        error = main_error(group)
        failure = step_error_of(error) if isinstance(error, StepFailed) else unexpected_error(error)
        self._note("worker", f"fails {command.type} {failure.type}: {failure.message}")
        if isinstance(error, UnsupportedOnVirtualTime | ConfigError):
            self.problem = self.problem or _refusal(command, error)


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
