"""Arguments: all commands and options; nothing heavy is imported before one of them runs."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from orchestrix.cli import job_arguments, schedule_arguments
from orchestrix.cli.parsing import (
    EXIT_CODES,
    LIMIT,
    Parser,
    add_client,
    add_config,
    add_database_url,
    add_key,
    add_output,
    add_reason,
    add_urls,
    group,
    leaf,
    longer,
    renamed,
    seconds,
    uuid,
    whole,
)
from orchestrix.version import VERSION

_PORT = 0, 65_535
_ID = 1, 2**53 - 1
_VERSION = 1, 2**31 - 1
_CONCURRENCY = 1, 1000


def parse(argv: Sequence[str]) -> Callable[[], int]:
    """The command that `argv` asks for, ready to run. Raises `Invalid` for what it cannot read."""
    arguments = _parser().parse_args(argv)
    return functools.partial(arguments.run, arguments)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="orchestrix",
        description="Durable command/event sagas on the RabbitMQ and SQL database that you already run.",
        epilog=f"First try: orchestrix dev.  {EXIT_CODES}",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say which version this is")
    add_config(parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    _add_processes(commands)
    _add_schema(commands)
    _add_apps(commands)
    _add_sagas(commands)
    _add_deadlines(commands)
    _add_redispatch(commands)
    _add_dead_letters(commands)
    job_arguments.add(commands)
    schedule_arguments.add(commands)
    _add_cluster(commands)
    _add_others(commands)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(f"orchestrix {VERSION}")
        parser.exit()


def _add_processes(commands: Any) -> None:
    init = leaf(commands, "init", "init:init", "write a small service of your own to begin with, and its test")
    init.add_argument("dir", nargs="?", default=".", metavar="DIR", help="where to; made if it is not there (here)")
    dev = leaf(
        commands,
        "dev",
        "commands.processes:dev",
        "everything in one process, nothing to install: API, orchestrator, workers",
    )
    dev.add_argument(
        "--port", type=whole(*_PORT), metavar="PORT", help="the API's port (8080; the next free one if taken)"
    )

    serve = leaf(
        commands, "serve", "commands.processes:serve", "a node: HTTP API, orchestrator, coordinator, or all of them"
    )
    serve.add_argument("--host", metavar="HOST", help="where the API listens (127.0.0.1)")
    serve.add_argument("--port", type=whole(*_PORT), metavar="PORT", help="where the API listens (8080)")
    serve.add_argument("--roles", metavar="ROLES", help="comma-separated: api, orchestrator, coordinator (all)")
    add_urls(serve)

    worker = leaf(commands, "worker", "commands.processes:worker", "a worker: handles commands, runs jobs")
    worker.add_argument(
        "-q", "--queue", action="append", default=[], metavar="QUEUE", help="a command to handle, again for more (all)"
    )
    worker.add_argument(
        "--job-queue", action="append", default=[], metavar="NAME", help="a queue of jobs to run, again for more (all)"
    )
    worker.add_argument(
        "--concurrency",
        type=whole(*_CONCURRENCY),
        metavar="N",
        help="so many commands, and so many jobs, at once (10)",
    )
    add_urls(worker)


def _add_schema(commands: Any) -> None:
    actions = group(commands, "db", "the database schema")
    upgrade = leaf(actions, "upgrade", "commands.schema:upgrade", "bring the schema to this version")
    current = leaf(actions, "current", "commands.schema:current", "show the schema's revision")
    check = leaf(actions, "check", "commands.schema:check", "compare the schema with what this version needs")
    reset = leaf(
        actions, "clone-reset", "commands.clone_reset:reset", "make a copy of a database an installation of its own"
    )
    reset.add_argument(
        "--yes", action="store_true", help="do not wait to see whether nodes that were heard of lately still beat"
    )
    for command in (upgrade, current, check, reset):
        add_database_url(command)
    for command in (current, reset):
        add_output(command)


def _add_apps(commands: Any) -> None:
    actions = group(commands, "apps", "apps: start them, look at them")
    create = leaf(actions, "create", "commands.sagas:create", "start an app")
    create.add_argument("key", metavar="NAME", help="the app's name, unique")
    _add_creation(create)
    _add_list(leaf(actions, "list", "commands.sagas:list_all", "list apps, newest first"), name="NAME")
    _add_readers(actions, "app")
    _add_verbs(actions, "app")
    actions.choices["create"].set_defaults(saga="app")
    actions.choices["list"].set_defaults(saga="app")


def _add_sagas(commands: Any) -> None:
    actions = group(commands, "sagas", "the same for any saga")
    create = leaf(actions, "create", "commands.sagas:create", "start a saga")
    _add_saga(create)
    create.add_argument("key", metavar="KEY", help="what the instance is called, unique within its saga")
    _add_creation(create)
    listing = leaf(actions, "list", "commands.sagas:list_all", "list instances of a saga, newest first")
    _add_saga(listing)
    _add_list(listing, name="KEY")
    _add_readers(actions, None)
    _add_verbs(actions, None)
    check = leaf(actions, "check", "commands.version_check:check", "hold this code against the instances that are live")
    check.add_argument("--against", metavar="URL", help="of a database, or of an API (the settings' database)")
    add_client(check)
    _add_migrate(actions)


def _add_migrate(actions: Any) -> None:
    command = leaf(
        actions, "migrate", "commands.migrate:migrate", "move live instances of older versions to a later one"
    )
    _add_saga(command)
    command.add_argument("--to", type=whole(*_VERSION), required=True, metavar="N", help="the version to move them to")
    for flag, what in (("--map", "state"), ("--map-step", "step")):
        name = f"a {what} that has another name there; again for more"
        command.add_argument(flag, type=renamed, action="append", default=[], metavar="OLD=NEW", help=name)
    command.add_argument(
        "--wait", action="store_true", help="wait for steps that are out, and send nothing behind them"
    )
    command.add_argument("--for", dest="wait_s", type=seconds, metavar="SECONDS", help="how long --wait waits (60)")
    command.add_argument("--dry-run", action="store_true", help="only count what would be moved")
    add_reason(command)
    add_database_url(command)
    add_output(command)


def _add_deadlines(commands: Any) -> None:
    actions = group(commands, "deadlines", "what sagas wait for, and until when")
    listing = leaf(actions, "list", "commands.control:deadlines", "every next wake-up, the soonest first")
    listing.add_argument("--limit", type=whole(*LIMIT), metavar="N", help="how many at once, at most 200")
    listing.add_argument("--cursor", metavar="CURSOR", help="go on where a list ended")
    add_client(listing)
    extend = leaf(actions, "extend", "commands.control:act", "set or extend the deadline of what one waits for")
    until = extend.add_mutually_exclusive_group(required=True)
    until.add_argument("--by", type=longer, metavar="TIME", help="so much longer, as 30s, 5m or 2h")
    until.add_argument("--at", metavar="TIME", help="RFC 3339, as 2026-01-31T12:00:00Z")
    cancel = leaf(actions, "cancel", "commands.control:act", "take the deadline away")
    for command, verb in ((extend, "extend"), (cancel, "withdraw")):
        command.set_defaults(verb=verb)
        command.add_argument("--saga", default="app", metavar="SAGA", help="whose ID it is (app)")
        _add_verb(command)


def _add_redispatch(commands: Any) -> None:
    command = leaf(
        commands, "redispatch", "commands.control:redispatch", "send again, under their ids, commands that are out"
    )
    command.add_argument("ids", nargs="*", type=whole(*_ID), metavar="ID", help="only these of --saga")
    command.add_argument("--saga", metavar="SAGA", help="only of this saga (all)")
    add_reason(command)
    add_key(command)
    add_client(command)


def _add_dead_letters(commands: Any) -> None:
    actions = group(commands, "dlq", "dead letters: messages that could not be handled")
    listing = leaf(actions, "list", "commands.dead_letters:list_all", "what is there, the last to die first")
    _add_filters(listing)
    listing.add_argument("--redriven", action="store_true", help="also those that were sent again")
    listing.add_argument("--limit", type=whole(*LIMIT), metavar="N", help="how many at once, at most 200")
    listing.add_argument("--cursor", metavar="CURSOR", help="go on where a list ended")
    show = leaf(actions, "show", "commands.dead_letters:show", "show one with its body")
    edit = leaf(actions, "edit", "commands.dead_letters:edit", "change the body of one")
    body = edit.add_mutually_exclusive_group(required=True)
    body.add_argument("--body", metavar="JSON", help="the new body: an object")
    body.add_argument("--file", metavar="PATH", help="the same from a file, or from standard input (-)")
    redrive = leaf(actions, "redrive", "commands.dead_letters:redrive", "send one again, or all that fit")
    redrive.add_argument("id", nargs="?", type=uuid, metavar="ID", help="only this one")
    _add_filters(redrive)
    redrive.add_argument("--all", action="store_true", help="all that are there")
    redrive.add_argument("--dry-run", action="store_true", help="only count those that fit")
    drop = leaf(actions, "drop", "commands.dead_letters:drop", "forget one")
    for command in (show, edit, drop):
        command.add_argument("id", type=uuid, metavar="ID", help="as `dlq list` shows it")
    for command in (edit, redrive, drop):
        add_reason(command)
        add_key(command)
    for command in (listing, show, edit, redrive, drop):
        add_client(command)


def _add_filters(command: argparse.ArgumentParser) -> None:
    command.add_argument("--queue", metavar="QUEUE", help="only those that died in this queue")
    command.add_argument("--saga", metavar="SAGA", help="only those of this saga")
    command.add_argument("--app", type=whole(*_ID), metavar="ID", help="only those of this app (of --saga, if given)")
    command.add_argument("--died-of", metavar="REASON", help="only dead letters whose reason starts with REASON")


def _add_cluster(commands: Any) -> None:
    actions = group(commands, "cluster", "the nodes, and who leads")
    add_client(leaf(actions, "status", "commands.cluster:status", "the leader, the nodes, the last hand-overs"))
    drain = leaf(actions, "drain", "commands.cluster:drain", "let a node give away its jobs, and take no more")
    drain.add_argument("node", metavar="NODE", help="its id, as `cluster status` shows it, or its name")
    add_client(drain)


def _add_others(commands: Any) -> None:
    doctor = leaf(commands, "doctor", "doctor.command:doctor", "check settings, database, broker, git and API")
    add_urls(doctor)
    add_client(doctor)
    config = group(commands, "config", "the settings")
    show = leaf(config, "show", "settings:show", "every setting, its value and where that comes from")
    add_urls(show)
    add_client(show)
    leaf(commands, "openapi", "commands.processes:openapi", "print the HTTP API as an OpenAPI document")


def _add_readers(actions: Any, saga: str | None) -> None:
    what = "an app" if saga else "an instance"
    for name, meaning in (
        ("show", f"show {what}"),
        ("history", "every change of its state"),
        ("messages", "its messages: sent, waiting, ignored, dead"),
        ("watch", "follow its changes until it ends"),
        ("why", "what it waits for, and what helps"),
    ):
        command = leaf(actions, name, f"{'commands.control' if name == 'why' else 'commands.sagas'}:{name}", meaning)
        _choose_saga(command, saga)
        command.add_argument("id", type=whole(*_ID), metavar="ID", help="its number")
        add_client(command)


def _add_verbs(actions: Any, saga: str | None) -> None:
    for name, meaning in (
        ("retry", "try again now, also what is held, or begin a failed one from the start"),
        ("skip", "go on as if the present step had succeeded"),
        ("edit", "change the data of a blocked or failed one"),
        ("pause", "send nothing more for it"),
        ("resume", "end the pause"),
        ("cancel", "give up, and undo what was done"),
        ("terminate", "give up, and undo nothing"),
    ):
        command = leaf(actions, name, "commands.control:act", meaning)
        command.set_defaults(verb=name)
        _choose_saga(command, saga)
        if name == "edit":
            command.add_argument(
                "--data", required=True, metavar="JSON", help="an object; what is null is taken away (RFC 7396)"
            )
        if name == "retry":
            command.add_argument("--data", metavar="JSON", help="an object: a merge patch of the data, as with edit")
        if name == "skip":
            command.add_argument(
                "--output", dest="step_output", metavar="JSON", help="what the step would have answered: an object"
            )
        _add_verb(command)


def _add_verb(command: argparse.ArgumentParser) -> None:
    command.add_argument("id", type=whole(*_ID), metavar="ID", help="its number")
    add_reason(command)
    command.add_argument("--dry-run", action="store_true", help="only tell what would happen")
    command.add_argument("--if-version", type=whole(*_VERSION), metavar="N", help="only if it is still at this version")
    add_key(command)
    add_client(command)


def _choose_saga(command: argparse.ArgumentParser, saga: str | None) -> None:
    if saga:
        command.set_defaults(saga=saga)
    else:
        _add_saga(command)


def _add_saga(command: argparse.ArgumentParser) -> None:
    command.add_argument("saga", metavar="SAGA", help="the saga's name")


def _add_creation(command: argparse.ArgumentParser) -> None:
    command.add_argument("--by", required=True, metavar="WHO", help="who asks for it (createdBy)")
    command.add_argument("--data", metavar="JSON", help="a JSON object to start with")
    command.add_argument(
        "--wait",
        nargs="?",
        type=seconds,
        const=60.0,
        metavar="SECONDS",
        help="wait until it ends (60 s at most if no number is given)",
    )
    command.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="asking again with the same key starts nothing, but gives the same answer",
    )
    add_client(command)


def _add_list(command: argparse.ArgumentParser, *, name: str) -> None:
    add = command.add_argument
    add("--state", action="append", default=[], metavar="STATE", help="only in this state; again for more")
    add("--created-by", metavar="WHO", help="only those asked for by WHO")
    add("--created-after", metavar="TIME", help="RFC 3339, as 2026-01-31T12:00:00Z")
    add("--created-before", metavar="TIME", help="RFC 3339")
    add("--q", metavar="PREFIX", help=f"only where {name} begins like this (case matters)")
    add("--stuck", action="store_true", help="only those that wait for a person, the broker or workers, or are overdue")
    add("--sort", metavar="FIELD", help="createdAt, updatedAt, appName or key; - in front descends (-createdAt)")
    add("--limit", type=whole(*LIMIT), metavar="N", help="how many at once, at most 200")
    add("--cursor", metavar="CURSOR", help="go on where a list ended")
    add_client(command)
