"""What does a worker of your own need?

from workers import Context, Permanent, handles
from sagas import Command

@handles("cmd.sendWelcome")
async def send(context: Context, command: Command) -> dict[str, str]:
    return {"mailId": …}          # becomes the data of the saga
"""

from workers.sdk.context import Context
from workers.sdk.errors import Permanent, Retry, StepFailed, Transient, Unavailable
from workers.sdk.handlers import HandlerTable, handles
from workers.sdk.worker import Worker

__all__ = [
    "Context",
    "HandlerTable",
    "Permanent",
    "Retry",
    "StepFailed",
    "Transient",
    "Unavailable",
    "Worker",
    "handles",
]
