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
    handler: Handler, job: CommandDelivery, more: MoreTime = no_extension, context: Context | None = None
) -> tuple[Outgoing, bool]:
    """Runs the handler; the event to send, and whether it is that of success. `more` returns time that was granted
    meanwhile.

    Raises `INFRASTRUCTURE_ERRORS` (`Unavailable` among others) if the worker's own infrastructure is unavailable, which
    is not the step's failure, and `asyncio.CancelledError` if the worker itself abandons the step.
    """
    outcome = await _outcome(handler, job, more, context or Context.of(job.command, job.ends))
    if isinstance(outcome, StepError):
        return events.failed(job, outcome), False
    try:
        return events.succeeded(job, sendable(outcome) or {}), True
    except ValueError as bad:
        error = StepError("BadOutput", f"the handler's result cannot be sent: {bad}", retryable=False)
        LOGGER.error("%s: %s", job.command.type, error.message, extra=job.log_fields)
        return events.failed(job, error), False


async def _outcome(handler: Handler, job: CommandDelivery, more: MoreTime, context: Context) -> object:
    task = asyncio.current_task()
    limits: list[StepTimeLimit] = []

    def scope() -> StepTimeLimit:
        limits.append(StepTimeLimit(job, context.remaining, more))
        return limits[-1]

    try:
        return await _answer(handler, context, job.command, scope)
    except INFRASTRUCTURE_ERRORS:
        raise
    except StepFailed as failure:
        reported = error_mapping.step_error_of(failure)
        LOGGER.warning("%s failed: %s: %s", job.command.type, reported.type, reported.message, extra=job.log_fields)
        return reported
    except BaseException as error:  # of any class: otherwise no event would be sent
        if error_mapping.ends_task(error, task):
            raise
        if isinstance(error, TimeoutError) and any(limit.expired for limit in limits):
            return _timeout(job)
        return _bug(job, error)


async def _answer(handler: Handler, context: Context, command: Command, scope: Scope) -> object:
    try:
        return await call(handler, context, command, scope=scope)
    except BaseExceptionGroup as group:
        error = error_mapping.main_error(group)
    raise error


def _bug(job: CommandDelivery, error: BaseException) -> StepError:
    """The failure of an unexpected error, whose stack trace goes to this worker's log alone."""
    LOGGER.error("%s failed", job.command.type, exc_info=error_mapping.traced(error), extra=job.log_fields)
    return error_mapping.unexpected_error(error)


def _timeout(job: CommandDelivery) -> StepError:
    after = duration(job.command.timeout_ms / 1000)
    error = StepError("Timeout", f"{job.what} timed out after {after}", retryable=True)
    LOGGER.warning("%s", error.message, extra=job.log_fields)
    return error
