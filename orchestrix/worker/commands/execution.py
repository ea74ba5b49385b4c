"""Command execution: runs a handler, and maps its return value or error to an event."""

from __future__ import annotations

import asyncio

from orchestrix.broker.port import Outgoing
from orchestrix.quantities import duration
from orchestrix.saga.messages import Command, StepError
from orchestrix.worker import error_mapping
from orchestrix.worker.commands import events
from orchestrix.worker.commands.delivery import CommandDelivery
from orchestrix.worker.commands.time_limit import MoreTime, StepTimeLimit, no_extension
from orchestrix.worker.context import LOGGER, Context
from orchestrix.worker.errors import INFRASTRUCTURE_ERRORS, StepFailed
from orchestrix.worker.handlers import Handler
from orchestrix.worker.output_validation import sendable
from orchestrix.worker.threads import Scope, call


async def invoke(
    handler: Handler, command: CommandDelivery, more: MoreTime = no_extension, context: Context | None = None
) -> tuple[Outgoing, bool]:
    """Runs the handler; the event to send, and whether it is that of success. `more` returns time that was granted
    meanwhile.

    Raises `INFRASTRUCTURE_ERRORS` (`Unavailable` among others) if the worker's own infrastructure is unavailable, which
    is not the step's failure, and `asyncio.CancelledError` if the worker itself abandons the step.
    """
    outcome = await _outcome(handler, command, more, context or Context.of(command.message, command.ends))
    if isinstance(outcome, StepError):
        return events.failed(command, outcome), False
    try:
        return events.succeeded(command, sendable(outcome) or {}), True
    except ValueError as bad:
        error = StepError("BadOutput", f"the handler's result cannot be sent: {bad}", retryable=False)
        LOGGER.error("%s: %s", command.message.type, error.message, extra=command.failure_fields(error.type))
        return events.failed(command, error), False


async def _outcome(handler: Handler, command: CommandDelivery, more: MoreTime, context: Context) -> object:
    task = asyncio.current_task()
    limits: list[StepTimeLimit] = []

    def scope() -> StepTimeLimit:
        limits.append(StepTimeLimit(command, context.remaining, more))
        return limits[-1]

    try:
        return await _answer(handler, context, command.message, scope)
    except INFRASTRUCTURE_ERRORS:
        raise
    except StepFailed as failure:
        reported = error_mapping.step_error_of(failure)
        what = (command.message.type, reported.type, reported.message)
        LOGGER.warning("%s failed: %s: %s", *what, extra=command.failure_fields(reported.type))
        return reported
    except BaseException as error:  # of any class: otherwise no event would be sent
        if error_mapping.ends_task(error, task):
            raise
        if isinstance(error, TimeoutError) and any(limit.expired for limit in limits):
            return _timeout(command)
        return _bug(command, error)


async def _answer(handler: Handler, context: Context, command: Command, scope: Scope) -> object:
    try:
        return await call(handler, context, command, scope=scope)
    except BaseExceptionGroup as group:
        error = error_mapping.main_error(group)
    raise error


def _bug(command: CommandDelivery, error: BaseException) -> StepError:
    """The failure of an unexpected error, whose stack trace goes to this worker's log alone."""
    reported = error_mapping.unexpected_error(error)
    extra = command.failure_fields(reported.type)
    LOGGER.error("%s failed", command.message.type, exc_info=error_mapping.traced(error), extra=extra)
    return reported


def _timeout(command: CommandDelivery) -> StepError:
    after = duration(command.message.timeout_ms / 1000)
    error = StepError("Timeout", f"{command.what} timed out after {after}", retryable=True)
    LOGGER.warning("%s", error.message, extra=command.failure_fields(error.type))
    return error
