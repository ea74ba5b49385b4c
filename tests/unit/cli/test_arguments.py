"""Which words does the command line know, and what does it say about others?"""

from __future__ import annotations

import pytest

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
        "deadlines",
        "redispatch",
        "dlq",
        "jobs",
        "schedules",
        "cluster",
        "doctor",
        "config",
        "openapi",
    },
    ("db",): {"upgrade", "current", "check"},
    ("apps",): {"create", "list", "show", "history", "messages", "watch", *VERBS},
    ("sagas",): {"create", "list", "show", "history", "messages", "watch", "check", "migrate", *VERBS},
    ("dlq",): {"list", "show", "edit", "redrive", "drop"},
    ("schedules",): {
        *{"create", "list", "show", "edit", "pause", "resume", "run", "backfill", "preview", "delete"},
    },
    ("deadlines",): {"list", "extend", "cancel"},
    ("cluster",): {"status", "drain"},
    ("jobs",): {"submit", "list", "show", "logs", "cancel"},
    ("config",): {"show"},
}
LATER = {
    *{"registry", "shards"},
    *{"diagram", "trace", "worker-check", "asyncapi", "signal"},
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
        [],
        ["apps"],
        ["nonsense"],
        ["apps", "retry"],
        ["apps", "edit", "1"],
        ["apps", "retry", "1", "--output", "{}"],
        ["apps", "retry", "1", "--if-version", "0"],
        ["deadlines", "extend", "1"],
        ["deadlines", "extend", "1", "--by", "5m", "--at", "2026-01-31T12:00:00Z"],
        ["redispatch", "x"],
        ["dlq"],
        ["dlq", "show"],
        ["dlq", "show", "1"],
        ["dlq", "edit", "00000000-0000-8000-8000-000000000000"],
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
        ["apps", "show", "abc"],
        ["apps", "show", "0"],
        ["apps", "show", "-5"],
        ["apps", "show", "٣"],
        ["apps", "show", "9" * 400],
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
        ("apps show 0", "from 1 to 9007199254740991"),
        ("sagas history order 9007199254740992", "from 1 to 9007199254740991"),
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
    from orchestrix.api.parameters import MAX_LIMIT
    from orchestrix.api.schedules import MOST_PREVIEWED
    from orchestrix.cli.nouns import local, options, schedules
    from orchestrix.config.settings import WorkerSettings
    from orchestrix.domain.jobs import RETRIES_LIMIT
    from orchestrix.domain.schedules import CATCH_UP_LIMIT
    from orchestrix.saga.messages import MAX_ID

    assert options.LIMITS[1] == MAX_LIMIT
    assert options.RETRIES[1] == RETRIES_LIMIT
    assert options.IDS[1] == MAX_ID - 1
    assert schedules.CATCH_UP[1] == CATCH_UP_LIMIT
    assert schedules.COUNT[1] == MOST_PREVIEWED
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
