"""Commands `jobs`: long work for the workers of a queue."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import BY, CREATED_BY, PAGE, REASON, RETRIES, STATE
from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand, columns, option, switch
from orchestrix.cli.syntax.parsing import uuid, whole
from orchestrix.cli.syntax.values import json_object

_JOB = option("id", "as `jobs list` shows it", "ID", type=uuid)
_A_JOB: Final = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"
_SUBMIT = (
    option("queue", "whose workers do it", "QUEUE", "queue"),
    option("handler", "which of their functions", "HANDLER", "handler"),
    option("--payload", "what the function gets: an object", "JSON", "payload", json_object),
    option(
        "--timeout", "how long an attempt may wait for a worker, and then take, as 30s, 5m or 2h", "TIME", "timeout"
    ),
    option("--retries", "how many attempts may follow a failed one", "N", "retries", type=whole(*RETRIES)),
    BY,
    option("--idempotency-key", "asking again with the same key submits nothing, but gives the same answer", "KEY"),
)
_COLUMNS = columns(
    "id queue handler state attempt progress workerId=WORKER createdBy=BY createdAt=CREATED waitsFor=WAITS_FOR"
)
JOBS: Final = CommandGroup("jobs", "jobs: long work for the workers of a queue", (
    ShellCommand("submit", "submit a job", """jobs submit reports monthly --payload '{"month": 3}'""", _SUBMIT,
            "POST /jobs"),
    ShellCommand("list", "list jobs, newest first", "jobs list --state RUNNING --queue reports",
            (STATE, option("--queue", "only those for the workers of QUEUE", "QUEUE", "?queue"), CREATED_BY, *PAGE),
            "GET /jobs", _COLUMNS),
    ShellCommand("show", "show a job with its attempts", f"jobs show {_A_JOB}", (_JOB,), "GET /jobs/{id}"),
    ShellCommand("logs", "what it has logged", f"jobs logs -f {_A_JOB}",
            (_JOB, switch("-f --follow", "go on with each line as it comes, until the end")),
            "GET /jobs/{id}/logs", run="commands.jobs:logs"),
    ShellCommand("cancel", "stop a job", f"jobs cancel {_A_JOB}", (_JOB, REASON), "POST /jobs/{id}/cancel"),
))  # fmt: skip
