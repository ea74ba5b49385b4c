"""Which words does the command line know, and what does it say about others?"""

from __future__ import annotations

import shlex
import subprocess
import sys

import pytest

from orchestrix.cli.arguments import parse
from orchestrix.cli.nouns import TABLE
from orchestrix.cli.syntax.declarations import CommandGroup, ShellCommand
from tests.unit.cli.shell import Shell

VERBS = {"why", "retry", "skip", "edit", "pause", "resume", "cancel", "terminate"}
COMMANDS = {
    (): {
        "init",
        "dev",
        "serve",
        "worker",
        "db",
        "apps",
        "sagas",
        "stuck",
        "trace",
        "workers",
        "audit",
        "deadlines",
        "redispatch",
        "dlq",
        "jobs",
        "schedules",
        "registry",
        "shards",
        "cluster",
        "doctor",
        "config",
        "openapi",
        "asyncapi",
        "worker-check",
        "executor-check",
    },
    ("db",): {"upgrade", "current", "check"},
    ("apps",): {"create", "list", "show", "history", "messages", "watch", *VERBS},
    ("sagas",): {"create", "list", "show", "history", "messages", "watch", "definitions", "check", "migrate", *VERBS},
    ("dlq",): {"list", "show", "edit", "redrive", "drop"},
    ("schedules",): {
        *{"create", "list", "show", "edit", "pause", "resume", "run", "backfill", "preview", "delete"},
    },
    ("deadlines",): {"list", "extend", "cancel"},
    ("cluster",): {"status", "drain"},
    ("registry",): {"list", "show", "set", "delete", "route", "drain"},
    ("shards",): {"show", "history", "preview"},
    ("jobs",): {"submit", "list", "show", "logs", "cancel", "retry", "why"},
    ("config",): {"show"},
}
LATER = {
    *{"diagram", "signal"},
}


def every_command() -> list[tuple[str, ...]]:
    groups = [group for group in COMMANDS if group]
    leaves = [(*group, name) for group, names in COMMANDS.items() for name in names if (name,) not in COMMANDS]
    return [(), *groups, *sorted(leaves)]


@pytest.mark.parametrize("command", every_command())
def test_help_tells_of_nothing_that_comes_later(shell: Shell, command: tuple[str, ...]) -> None:
    answer = shell(*command, "--help")
    assert answer.code == 0
    assert answer.out.startswith(" ".join(["usage: orchestrix", *command]))
    words = set(answer.out.replace("[", " ").replace("]", " ").replace(",", " ").split())
    assert not words & {word for later in LATER for word in (later, f"--{later}")}
    assert COMMANDS.get(command, set()) <= words


@pytest.mark.parametrize(
    "arguments",
    [
        ["apps"],
        ["nonsense"],
        ["apps", "retry"],
        ["apps", "edit", "1"],
        ["apps", "retry", "1", "--output", "{}"],
        ["apps", "retry", "1", "--if-version", "0"],
        ["deadlines", "extend", "1"],
        ["deadlines", "extend", "1", "--by", "5m", "--at", "2026-01-31T12:00:00Z"],
        ["dlq"],
        ["dlq", "show"],
        ["dlq", "show", "1"],
        ["dlq", "edit", "00000000-0000-8000-8000-000000000000"],
        ["shards"],
        ["shards", "preview", "orders"],
        ["shards", "preview", "orders", "--leave", "a", "--join", "b"],
        ["shards", "preview", "orders", "--shards", "0"],
        ["shards", "preview", "orders", "--shards", "100001"],
        ["shards", "preview", "orders", "--join", "a", "--weight", "1001"],
        ["shards", "preview", "orders", "--leave", "a", "--allocation", "best"],
        ["shards", "history"],
        ["jobs"],
        ["jobs", "show"],
        ["jobs", "logs", "x"],
        ["jobs", "submit", "reports"],
        ["jobs", "submit", "reports", "monthly", "--retries", "1001"],
        ["schedules"],
        ["schedules", "create", "x", "reports", "monthly"],
        ["schedules", "create", "x", "reports", "monthly", "--cron", "0 0 * * *", "--every", "1h"],
        ["schedules", "create", "x", "reports", "monthly", "--every", "1h", "--overlap", "allow"],
        ["schedules", "backfill", "x", "--from", "2026-01-01T00:00:00Z"],
        ["schedules", "preview", "x", "--count", "0"],
        ["--nonsense"],
        ["apps", "list", "--lim", "3"],
        ["apps", "list", "--limit", "x"],
        ["apps", "list", "-o", "yaml"],
        ["apps", "list", "--limit", "0"],
        ["apps", "list", "--limit", "-5"],
        ["apps", "list", "--limit", "٣"],
        ["apps", "list", "--limit", "9" * 400],
        ["apps", "create", "x"],
        ["apps", "create", "--by", "ada"],
        ["apps", "create", "x", "--by", "ada", "--wait", "soon"],
        ["apps", "create", "x", "--by", "ada", "--wait", "nan"],
        ["dev", "--port", "65536"],
        ["dev", "--port", "-1"],
        ["worker", "--concurrency", "0"],
        ["worker", "--job-queue"],
        ["serve", "--roles"],
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(shell: Shell, arguments: list[str]) -> None:
    answer = shell(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert "--help" in answer.err


@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ("apps list --limit 201", "from 1 to 200"),
        ("apps list --limit x", "from 1 to 200"),
        ("apps retry 1 --if-version 0", "from 1 to 2147483647"),
        ("worker --concurrency 1001", "from 1 to 1000"),
        ("serve --port 65536", "from 0 to 65535"),
        ("apps create x --by y --wait 86401", "up to a day (86400)"),
        ("jobs show 12", "'12' is no id: write it as `list` shows it, like 0199c2a4-"),
        ("dlq show x", "'x' is no id: write it as `list` shows it, like 0199c2a4-"),
    ],
)
def test_a_number_out_of_range_is_told_the_range(shell: Shell, arguments: str, allowed: str) -> None:
    answer = shell(*arguments.split())
    assert answer.code == 2
    assert allowed in answer.err


def test_the_ranges_are_those_of_settings_and_api(shell: Shell) -> None:
    from orchestrix.api.query import MAX_LIMIT
    from orchestrix.api.registry.models import MOST_PICKS
    from orchestrix.api.schedules.routes import MOST_PREVIEWED
    from orchestrix.cli import instance_names
    from orchestrix.cli.nouns import local, options, registry, schedules, shards
    from orchestrix.config.settings import WorkerSettings
    from orchestrix.domain.jobs import RETRIES_LIMIT
    from orchestrix.domain.registry.routing import Strategy
    from orchestrix.domain.schedules import CATCH_UP_LIMIT
    from orchestrix.domain.shards.members import MOST_SHARDS, MOST_WEIGHT
    from orchestrix.saga.messages import MAX_ID

    assert options.LIMITS[1] == MAX_LIMIT
    assert options.RETRIES[1] == RETRIES_LIMIT
    assert instance_names.MAX_ID == MAX_ID - 1
    assert schedules.CATCH_UP[1] == CATCH_UP_LIMIT
    assert schedules.COUNT[1] == MOST_PREVIEWED
    assert registry.PICKS[1] == MOST_PICKS
    assert list(options.STRATEGIES) == [*Strategy]
    assert (shards.SHARD_COUNTS[1], shards.WEIGHTS[1], shards.HISTORY[1]) == (MOST_SHARDS, MOST_WEIGHT, MAX_LIMIT)
    WorkerSettings(concurrency=local.CONCURRENCY[1])
    with pytest.raises(ValueError, match="less than or equal"):
        WorkerSettings(concurrency=local.CONCURRENCY[1] + 1)


def test_version(shell: Shell) -> None:
    answer = shell("--version")
    assert answer.code == 0
    assert answer.out.startswith("orchestrix ")


@pytest.mark.parametrize("words", [("--by", "-5m"), ("--by=-5m",), ("--by", "-0.5h")])
def test_no_deadline_is_made_shorter_by_what_makes_it_longer(shell: Shell, words: tuple[str, ...]) -> None:
    answer = shell("deadlines", "extend", "1", *words)
    assert answer.code == 2
    assert "would make it shorter: write how much longer, as 30s, 5m or 2h, or when it ends with --at" in answer.err


def test_a_number_below_nothing_is_no_option(shell: Shell) -> None:
    assert "'-3' is no whole number from 1 to 200" in shell("apps", "list", "--limit", "-3").err
    assert "unrecognized arguments: -z" in shell("apps", "list", "-z").err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "apps list --stat X",
            "unrecognized arguments: --stat X, did you mean --state? See `orchestrix apps list --help`",
        ),
        ("apps lst", "no command 'lst', did you mean list? See `orchestrix apps --help`"),
        ("app list", "no command 'app', did you mean apps? See `orchestrix --help`"),
        ("nonsense", "no command 'nonsense': see `orchestrix --help`"),
        (
            "why trip 3",
            "no command 'why', did you mean `orchestrix apps why` or `orchestrix sagas why` or `orchestrix jobs why`?"
            " See `orchestrix --help`",
        ),
        ("redrive x", "no command 'redrive', did you mean `orchestrix dlq redrive`? See `orchestrix --help`"),
        ("--nonsense bash", "unrecognized arguments: --nonsense: see `orchestrix --help`"),
        ("--confg x apps list", "unrecognized arguments: --confg, did you mean --config? See `orchestrix --help`"),
        ("apps list x", "unrecognized arguments: x: see `orchestrix apps list --help`"),
        ("apps list --created-after 2hours", "--created-after '2hours' is no time: write how long ago, as 30m, 2h"),
    ],
)
def test_the_right_fault_is_named_and_what_was_meant(shell: Shell, line: str, said: str) -> None:
    shell.set(ORCHESTRIX_API_URL="http://127.0.0.1:1")
    answer = shell(*line.split())
    assert answer.code == 2
    assert answer.err.startswith(f"error: {said}")


def test_without_a_word_the_help_is_shown(shell: Shell) -> None:
    answer = shell()
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == shell("--help").out


def test_two_aliases_that_people_try(shell: Shell) -> None:
    assert shell("version").out == shell("--version").out
    assert shell("help").out == shell("--help").out
    assert shell("help", "apps", "list").out == shell("apps", "list", "--help").out


def leaves() -> list[tuple[str, ShellCommand]]:
    found = []
    for entry in TABLE:
        found += (
            [(f"{entry.name} {one.name}", one) for one in entry.commands] if isinstance(entry, CommandGroup) else []
        )
        found += [(entry.name, entry)] if isinstance(entry, ShellCommand) else []
    return found


@pytest.mark.parametrize("name", [name for name, _ in leaves()])
def test_every_command_has_a_description_and_an_example_that_can_be_read(shell: Shell, name: str) -> None:
    command = dict(leaves())[name]
    told = " ".join(shell(*name.split(), "--help").out.split())
    assert command.about in told
    lines = command.example.splitlines()
    typed = [f"orchestrix {' '.join(line.split())}" for line in lines]
    assert f"example{'s' * (len(lines) > 1)}: {' '.join(typed)} exit codes:" in told
    for line in lines:
        assert line.startswith(name)
        words = shlex.split(line.partition(" > ")[0])
        assert callable(parse(words))


def test_every_command_that_ends_has_an_output_for_scripts(shell: Shell) -> None:
    without = [name for name, _ in leaves() if "-o {table,wide,json}" not in shell(*name.split(), "--help").out]
    assert without == ["dev", "serve", "worker", "openapi", "asyncapi"], "the last two are JSON themselves"


def test_a_missing_saga_is_told_where_sagas_are_listed(shell: Shell) -> None:
    assert "SAGA (`orchestrix sagas definitions` lists them)" in shell("sagas", "list").err


@pytest.mark.parametrize("kind", ["bash", "zsh"])
def test_completion_knows_commands_and_options(shell: Shell, kind: str) -> None:
    answer = shell("--completion", kind)
    assert (answer.code, answer.err) == (0, "")
    assert all(
        word in answer.out for word in ("redispatch", "schedules", "--created-after", "--if-version", "--routing")
    )
    assert "_shtab_orchestrix_jobs_submit___routing_choices" in answer.out or kind != "bash"
    assert "CONSISTENT_HASH" in answer.out


def test_bash_takes_the_completion() -> None:
    script = "import sys; from orchestrix.cli import main; main(sys.argv[1:])"
    line = [sys.executable, "-c", script, "--completion", "bash"]
    written = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    read = subprocess.run(["bash", "-n"], input=written, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
