"""What does a worker of your own need?

from workers import Context, Permanent, handles
from sagas import Command

@handles("cmd.sendWelcome")
async def send(context: Context, command: Command) -> dict[str, str]:
    return {"mailId": …}          # becomes the data of the saga

@job("reindex", queue="search")
async def reindex(context: JobContext) -> dict[str, int]:
    await context.log(f"attempt {context.attempt}")
    return {"pages": …}           # becomes the result of the job
"""

from workers.sdk.context import Context
from workers.sdk.errors import BadCall, Hold, Permanent, Retry, StepFailed, Transient, Unavailable
from workers.sdk.handlers import HandlerTable, handles
from workers.sdk.jobs.context import JobContext
from workers.sdk.jobs.functions import JobTable, job
from workers.sdk.jobs.halt import JobCancelled
from workers.sdk.worker import Worker

__all__ = [
    "BadCall",
    "Context",
    "HandlerTable",
    "Hold",
    "JobCancelled",
    "JobContext",
    "JobTable",
    "Permanent",
    "Retry",
    "StepFailed",
    "Transient",
    "Unavailable",
    "Worker",
    "handles",
    "job",
]
