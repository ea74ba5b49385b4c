"""Commands `jobs`: long work for the workers of a queue, or for the executors of an app."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import BY, CREATED_BY, PAGE, REASON, RETRIES, STATE, routing
from orchestrix.cli.syntax.declarations import CommandGroup, OneOf, ShellCommand, columns, option, switch
from orchestrix.cli.syntax.parsing import seconds, uuid, whole
from orchestrix.cli.syntax.values import json_object

_JOB = option("id", "as `jobs list` shows it", "ID", type=uuid)
_A_JOB: Final = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"
_SUBMIT = (
    option("queue", "whose workers do it; leave it out with --group", "QUEUE", "queue", unless="--group"),
    option("handler", "which of their functions", "HANDLER", "handler"),
    option("--payload", "what the function gets: an object", "JSON", "payload", json_object),
    option("--timeout", "how long an attempt may wait for a worker, and then take, as 30s, 5m or 2h (with --group 1h)",
           "TIME", "timeout"),
    option("--retries", "how many attempts may follow a failed one", "N", "retries", type=whole(*RETRIES)),
    *routing("", "the id of the job"),
    option("--deadline", "with --routing SHARDING_BROADCAST: how long all of it may take, as 30m or 2h", "TIME",
           "deadline"),
    BY,
    option("--idempotency-key", "asking again with the same key submits nothing, but gives the same answer", "KEY"),
)  # fmt: skip
_OUTCOME = OneOf((
    option("--wait", "wait until it ends (60 s at most if no number is given)", "SECONDS", nargs="?", type=seconds,
           const=60.0),
    switch("--follow", "show its log until it ends"),
))  # fmt: skip
_COLUMNS = columns(
    "id queue|group=QUEUE_OR_GROUP handler state attempt shardIndex?=SHARD progress? createdAt=CREATED"
    " waitsFor?=WAITING_FOR group+ routing.strategy+=ROUTING address+=EXECUTOR workerId+=WORKER createdBy+=BY"
    " scheduleId+=SCHEDULE saga+ sagaId+=INSTANCE step+ parentId+=PARENT updatedAt+"
)
_FILTERS = (
    STATE,
    option("--queue", "only those for the workers of QUEUE", "QUEUE", "?queue"),
    option("--group", "only those for the executors of this app", "APP", "?group"),
    option("--parent", "the jobs of this broadcast, one for each executor: its id", "ID", "?parentId", type=uuid),
    option("--handler", "only those of this handler", "NAME", "?handler"),
    option("--schedule", "only what came of this schedule: its name or id", "NAME", "?scheduleId"),
    option("--saga", "only the steps of this saga (app, with --saga-id)", "SAGA", "?saga"),
    option("--saga-id", "only the steps of this instance: its id or name", "ID", "?sagaId"),
    CREATED_BY,
    *PAGE,
)
_SUBMITTED: Final = """jobs submit reports monthly --payload '{"month": 3}' --wait
jobs submit monthly --group shop --routing CONSISTENT_HASH --key customer-7"""
JOBS: Final = CommandGroup("jobs", "jobs: long work for the workers of a queue, or the executors of an app", (
    ShellCommand("submit", "submit a job", _SUBMITTED,
                 (*_SUBMIT, _OUTCOME), "POST /jobs", run="commands.jobs:submit"),
    ShellCommand("list", "list jobs, newest first", "jobs list --state RUNNING --queue reports", _FILTERS, "GET /jobs",
                 _COLUMNS, "commands.jobs:list_all"),
    ShellCommand("show", "show a job with its attempts", f"jobs show {_A_JOB}", (_JOB,), "GET /jobs/{id}"),
    ShellCommand("logs", "show its log", f"jobs logs -f {_A_JOB}",
                 (_JOB, switch("-f --follow", "follow the log until the job ends")),
                 "GET /jobs/{id}/logs", run="commands.jobs:logs"),
    ShellCommand("why", "why it is where it is, and what helps", f"jobs why {_A_JOB}", (_JOB,), "GET /jobs/{id}/why",
                 "why"),
    ShellCommand("cancel", "cancel a job", f"jobs cancel {_A_JOB}", (_JOB, REASON), "POST /jobs/{id}/cancel"),
    ShellCommand("retry", "run a failed, timed out or cancelled job again", f"jobs retry {_A_JOB}", (_JOB, REASON),
                 "POST /jobs/{id}/retry"),
))  # fmt: skip
