"""Stubs: the answers that a scenario gives to commands instead of, or before, their handlers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from orchestrix.errors import ConfigError, Invalid
from orchestrix.saga.validation.signatures import called_as
from orchestrix.testing.arguments import COUNT, FLAG, OBJECT, REASON, demand, perhaps, plain
from orchestrix.testing.durations import Span, seconds_of
from orchestrix.testing.simulation.virtual_time import current_process
from orchestrix.worker.errors import Hold, StepFailed
from orchestrix.worker.handlers import Output

OwnHandler: TypeAlias = Callable[[], Awaitable[Output]]
"""The author's own handler, with its arguments bound."""


@dataclass(frozen=True, slots=True)
class StubbedAnswer:
    """`run` is called instead of the handler; `times` is for how many tries, None for all that follow."""

    run: Callable[[OwnHandler], Awaitable[Output]]
    times: int | None = None
    silent: bool = False


class When:
    """The stubbed answers to one command, in the order of their definition; then its own handler answers.

    They are counted by tries: a redelivered command gets the same answer again.
    """

    def __init__(self, command: str) -> None:
        self.command = command
        self.answers: list[StubbedAnswer] = []

    @called_as('.fails("Busy", "no line is free", retryable=False)', ConfigError)
    def fails(
        self, type: str, message: str = "stubbed", *, retryable: bool = True, retry_after: Span | None = None
    ) -> When:
        """The step fails, with an error of this type; `retryable` says whether another try may help.

        Raises `Invalid` for arguments that `StepFailed` does not take.
        """
        demand("fails", retryable=(retryable, FLAG))
        after = None if retry_after is None else seconds_of(retry_after)
        failure = StepFailed(type, message, retryable=retryable, retry_after=after)

        async def answer(_own: OwnHandler) -> Output:
            raise StepFailed(
                failure.type, failure.message, retryable=failure.retryable, retry_after=failure.retry_after
            )

        return self._add(StubbedAnswer(answer))

    @called_as('.holds("the amount is over the limit")', ConfigError)
    def holds(self, reason: str = "stubbed", *, unsure: bool = False) -> When:
        """The step asks for a person: the saga waits for one, with the blocker `held`. `unsure` is as in `Hold`."""
        demand("holds", reason=(reason, REASON), unsure=(unsure, FLAG))

        async def answer(_own: OwnHandler) -> Output:
            raise Hold(reason, unsure=unsure)

        return self._add(StubbedAnswer(answer))

    @called_as('.succeeds({"seat": "row 1"})', ConfigError)
    def succeeds(self, output: Mapping[str, Any] | None = None) -> When:
        """The step succeeds with `output` without running its handler."""
        demand("succeeds", output=(output, perhaps(OBJECT)))
        plain("succeeds", output=output)

        async def answer(_own: OwnHandler) -> Output:
            return output

        return self._add(StubbedAnswer(answer))

    @called_as('.takes("5m")', ConfigError)
    def takes(self, span: Span) -> When:
        """The command's own handler is called after this time."""
        wait = seconds_of(span)

        async def answer(own: OwnHandler) -> Output:
            await asyncio.sleep(wait)
            return await own()

        return self._add(StubbedAnswer(answer))

    def never_answers(self) -> When:
        """No event ever arrives: only the step's deadline ends the try."""
        return self._add(StubbedAnswer(_silence, silent=True))

    @called_as(".times(2)", ConfigError)
    def times(self, tries: int) -> When:
        """Limits the last answer to so many tries. Raises `Invalid`."""
        demand("times", tries=(tries, COUNT))
        if not self.answers:
            raise Invalid("times(n) limits an answer to n attempts: stub the answer first")
        self.answers[-1] = replace(self.answers[-1], times=tries)
        return self

    def _add(self, answer: StubbedAnswer) -> When:
        if self.answers and self.answers[-1].times is None:
            raise Invalid(f"{self.command} already has an answer for all attempts: limit that one with .times(n)")
        self.answers.append(answer)
        return self


def to_try(number: int, answers: Iterable[StubbedAnswer]) -> StubbedAnswer | None:
    """The answer to the `number`-th try, which counts from 1; None if the command's own handler gives it."""
    for answer in answers:
        if answer.times is None or number <= answer.times:
            return answer
        number -= answer.times
    return None


async def _silence(_own: OwnHandler) -> Output:
    """Ignores the time limit like a worker that hangs; ends with its process."""
    process = current_process()
    while process is not None and process.alive:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    raise asyncio.CancelledError
