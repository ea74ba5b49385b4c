"""Job arguments: the commands and options of `jobs`."""

from __future__ import annotations

from typing import Any

from orchestrix.cli.parsing import LIMIT, add_client, add_reason, group, leaf, uuid, whole

_RETRIES = 0, 1000


def add(commands: Any) -> None:
    """Adds `jobs …`."""
    actions = group(commands, "jobs", "jobs: long work for the workers of a queue")
    _add_submit(actions)
    listing = leaf(actions, "list", "commands.jobs:list_all", "list jobs, newest first")
    listing.add_argument(
        "--state", action="append", default=[], metavar="STATE", help="only in this state; again for more"
    )
    listing.add_argument("--queue", metavar="QUEUE", help="only those for the workers of QUEUE")
    listing.add_argument("--created-by", metavar="WHO", help="only those asked for by WHO")
    listing.add_argument("--limit", type=whole(*LIMIT), metavar="N", help="how many at once, at most 200")
    listing.add_argument("--cursor", metavar="CURSOR", help="go on where a list ended")
    show = leaf(actions, "show", "commands.jobs:show", "show a job with its attempts")
    logs = leaf(actions, "logs", "commands.jobs:logs", "what it has logged")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with each line as it comes, until the end")
    cancel = leaf(actions, "cancel", "commands.jobs:cancel", "stop a job")
    for command in (show, logs, cancel):
        command.add_argument("id", type=uuid, metavar="ID", help="as `jobs list` shows it")
    add_reason(cancel)
    for command in (listing, show, logs, cancel):
        add_client(command)


def _add_submit(actions: Any) -> None:
    command = leaf(actions, "submit", "commands.jobs:submit", "put a job down")
    command.add_argument("queue", metavar="QUEUE", help="whose workers do it")
    command.add_argument("handler", metavar="HANDLER", help="which of their functions")
    command.add_argument("--payload", metavar="JSON", help="what the function gets: an object")
    command.add_argument(
        "--timeout", metavar="TIME", help="how long an attempt may wait for a worker, and then take, as 30s, 5m or 2h"
    )
    command.add_argument(
        "--retries", type=whole(*_RETRIES), metavar="N", help="how many attempts may follow a failed one"
    )
    command.add_argument("--by", metavar="WHO", help="who asks for it (createdBy)")
    command.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="asking again with the same key puts nothing down, but gives the same answer",
    )
    add_client(command)
