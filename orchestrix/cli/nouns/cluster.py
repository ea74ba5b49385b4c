"""Commands `cluster`, `workers` and `audit`: who is there, and what people have done."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import PAGE
from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand, columns, option

CLUSTER: Final = CommandGroup("cluster", "the nodes and the leader", (
    ShellCommand("status", "the leader, the nodes, the workers, the last hand-overs", "cluster status",
                 request="GET /cluster", run="commands.api_commands:cluster_status"),
    ShellCommand("drain", "make a node hand off its jobs and take no more", "cluster drain node-1",
                 (option("node", "its id, as `cluster status` shows it, or its name", "NODE"),),
                 "POST /cluster/nodes/{node}/drain"),
))  # fmt: skip
WORKER_COLUMNS: Final = columns(
    "id=WORKER state commandQueues?=COMMANDS_OF queues?=JOBS_OF commands? jobs? lostPlaces?=LOST_PLACES host? version?"
    " beatAt=LAST_SEEN startedAt=STARTED handlers+=JOB_FUNCTIONS"
)
WORKERS: Final = ShellCommand(
    "workers", "all workers, of commands and of jobs, and what they serve", "workers --queue cmd.registerApp",
    (
        option("--queue", "only those that serve QUEUE, of commands or of jobs", "QUEUE", "?queue"),
        option("--kind", "only those that serve queues of this kind", to="?kind", choices=("commands", "jobs")),
    ),
    "GET /workers", WORKER_COLUMNS,
)  # fmt: skip
_AUDIT = (
    option("--actor", "only what WHO did", "WHO", "?actor"),
    option("--action", "only this action, as retry or drop-dead-letter", "ACTION", "?action"),
    option("--saga", "only what was done to this saga", "SAGA", "?saga"),
    *PAGE,
)
AUDIT: Final = ShellCommand(
    "audit", "what people have done, and why, newest first", "audit --actor ada", _AUDIT, "GET /audit",
    columns(
        "at=WHEN actor action saga? sagaId|detail.app|detail.job|detail.node|detail.name|detail.deadLetter=ID reason"
        " detail+"
    ),
)  # fmt: skip
