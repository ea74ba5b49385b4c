"""Log events: the names in the field `event` of log lines, by which a program finds them whatever their text says."""

from __future__ import annotations

from typing import Final

SAGA_STARTED: Final = "saga.started"
"""A saga has been started: `saga`, `app_id`, `state`, `step`."""
STEP_SUCCEEDED: Final = "saga.step.succeeded"
"""A step's event was accepted: `step`, `try`, `worker`, `ms` (its work, where that is known), `from`, `state`."""
STEP_UNDONE: Final = "saga.step.undone"
"""A step's compensation was accepted; the same fields."""
ATTEMPT_FAILED: Final = "saga.attempt.failed"
"""A try has failed and another one follows: `error_type` besides."""
STEP_FAILED: Final = "saga.step.failed"
"""A try has failed and no other one follows; the same fields."""
SAGA_CHANGED: Final = "saga.changed"
"""Something else has changed a saga, such as a person's action: `reason`, `actor`."""
SAGA_ENDED: Final = "saga.ended"
"""A saga is COMPLETED or FAILED: `state`, and `ms` since its start."""
EVENT_UNKNOWN_APP: Final = "event.unknown_app"
"""An event names an app that does not exist; at most one such line in 10 seconds, `left_out` were not written."""
HANDLER_FAILED: Final = "worker.handler.failed"
"""A handler has raised: `step`, `try`, `ms`, `error_type`."""
LINES_LEFT_OUT: Final = "log.lines_left_out"
"""More lines than a process writes in a second: `left_out` were not written."""
PROCESS_READY: Final = "process.ready"
PROCESS_STOPPED: Final = "process.stopped"
"""A process has stopped: `why`, and `seconds` that it took."""
