"""Commands that need no API: processes, the schema, the settings, and `doctor`."""

from __future__ import annotations

from typing import Final

from orchestrix.cli.nouns.options import DATABASE_URL, URLS
from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand, option, switch
from orchestrix.cli.syntax.parsing import OUTPUT, whole

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
