"""Commands that need no API: processes, the schema, the settings, and `doctor`."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import DATABASE_URL, URLS
from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand, option, switch
from orchestrix.cli.syntax.parsing import OUTPUT, seconds, whole

PORTS: Final = 0, 65_535
CONCURRENCY: Final = 1, 1000
_PROCESSES = "commands.processes"


def _command(name: str, about: str, example: str, run: str, *options: object) -> ShellCommand:
    return ShellCommand(name, about, example, options, run=run, client=False)  # type: ignore[arg-type]


INIT: Final = _command(
    "init", "write a small service to start from, with its test", "init shop", "init:init",
    option("dir", "the folder, created if missing (the current one)", "DIR", nargs="?", default="."), OUTPUT,
)  # fmt: skip
DEV: Final = _command(
    "dev", "everything in one process, nothing to install: API, orchestrator, workers", "dev --port 8080",
    f"{_PROCESSES}:dev",
    option("--port", "the API's port (8080; the next free one if taken)", "PORT", type=whole(*PORTS)),
    switch("--reload", "start again when a source file changes (also with NODE_ENV=development)"),
)  # fmt: skip
SERVE: Final = _command(
    "serve", "a node: HTTP API, orchestrator, coordinator, or all of them", "serve --roles api,orchestrator",
    f"{_PROCESSES}:serve",
    option("--host", "where the API listens (127.0.0.1)", "HOST"),
    option("--port", "where the API listens (8080)", "PORT", type=whole(*PORTS)),
    option("--roles", "comma-separated: api, orchestrator, coordinator (all)", "ROLES"),
    *URLS,
)  # fmt: skip
WORKER: Final = _command(
    "worker", "a worker: handles commands, runs jobs", "worker -q cmd.createGitRepo --concurrency 20",
    f"{_PROCESSES}:worker",
    option("-q --queue", "a command to handle, again for more (all)", "QUEUE", action="append", default=[]),
    option("--job-queue", "a queue of jobs to run, again for more (all)", "NAME", action="append", default=[]),
    option("--concurrency", "maximum number of commands (and of jobs) at once (10)", "N", type=whole(*CONCURRENCY)),
    *URLS,
)  # fmt: skip
_NO_WAIT = switch("--yes", "do not wait to see whether nodes seen lately are alive")
DATABASE: Final = CommandGroup("db", "the database schema", (
    _command("upgrade", "bring the schema to this version", "db upgrade", "commands.schema:upgrade", DATABASE_URL,
             OUTPUT),
    _command("current", "show the schema's revision", "db current", "commands.schema:current", DATABASE_URL, OUTPUT),
    _command("check", "compare the schema with what this version needs", "db check", "commands.schema:check",
             DATABASE_URL, OUTPUT),
    _command("clone-reset", "make a copy of a database an installation of its own", "db clone-reset",
             "commands.clone_reset:reset", _NO_WAIT, DATABASE_URL, OUTPUT),
))  # fmt: skip
DOCTOR: Final = ShellCommand(
    "doctor", "check settings, database, broker, git and API", "doctor", URLS, run="doctor.command:doctor"
)
CONFIG: Final = CommandGroup("config", "the settings", (
    ShellCommand("show", "show every setting, its value and its source", "config show", URLS,
                 run="settings:show"),
))  # fmt: skip
OPENAPI: Final = _command(
    "openapi", "print the HTTP API as an OpenAPI document", "openapi > openapi.json", f"{_PROCESSES}:openapi"
)
ASYNCAPI: Final = _command(
    "asyncapi", "print all messages as an AsyncAPI document", "asyncapi > asyncapi.json", f"{_PROCESSES}:asyncapi"
)
WORKER_CHECK: Final = _command(
    "worker-check", "check a worker in any language, rule by rule, over a broker of its own",
    "worker-check cmd.registerApp", "worker_check.command:worker_check",
    option("command_name", "the command that the worker handles", "COMMAND"),
    option("--start", "the worker's command line, with {url} for the broker (else start it by hand)", "LINE"),
    option("--data", "the data of the saga's instances ({})", "JSON"),
    option("--failing", "is merged into a command to make it fail", "JSON"),
    option("--slow", "is merged into a command to make it take over a second", "JSON"),
    option("--effect", "a command line with {effectKey} that ends with 0 if there is an effect of it", "LINE"),
    option("--port", "where the broker listens (a free port)", "PORT", type=whole(*PORTS), default=0),
    option("--timeout", "seconds that an answer may take (10)", "S", type=seconds, default=10.0),
    option("--stop-timeout", "seconds that the worker may take to stop (30)", "S", type=seconds,
           default=30.0),
    OUTPUT,
)  # fmt: skip
EXECUTOR_CHECK: Final = _command(
    "executor-check", "check an executor in any language, rule by rule; REGISTRY_TOKEN is its token",
    "executor-check http://127.0.0.1:9999 --group shop --handler count", "executor_check.command:executor_check",
    option("url", "where the executor listens", "URL"),
    option("--group", "the app that it registers for", "APP", required=True),
    option("--handler", "a job that it has", "NAME", required=True),
    option("--payload", "by which that job succeeds ({})", "JSON"),
    option("--slow", "a payload by which it takes some seconds", "JSON"),
    option("--start", "the executor's command line, with {admin} for the node (else start it by hand)", "LINE"),
    option("--timeout", "seconds that an attempt may take (10)", "S", type=seconds, default=10.0),
    option("--stop-timeout", "seconds that the executor may take to stop (40)", "S", type=seconds, default=40.0),
    OUTPUT,
)  # fmt: skip
