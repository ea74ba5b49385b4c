"""Which words does the command line know, and what does it say about others?"""

from __future__ import annotations

import pytest

from tests.unit.cli.shell import Shell

COMMANDS = {
    (): {"dev", "serve", "worker", "db", "apps", "sagas", "doctor", "config", "openapi"},
    ("db",): {"upgrade", "current", "check"},
    ("apps",): {"create", "list", "show", "history", "messages", "watch"},
    ("sagas",): {"create", "list", "show", "history", "messages", "watch"},
    ("config",): {"show"},
}
LATER = {
    *{"why", "retry", "skip", "edit", "pause", "resume", "cancel", "terminate", "deadlines", "dlq", "redispatch"},
    *{"jobs", "schedules", "cluster", "drain", "registry", "shards", "coordinator", "job-queue"},
    *{"diagram", "trace", "worker-check", "asyncapi", "stuck"},
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
        ["apps", "retry", "1"],
        ["jobs", "list"],
        ["sagas", "check"],
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
        ["worker", "--job-queue", "x"],
        ["serve", "--roles"],
    ],
)
def test_what_cannot_be_read_is_one_line_and_exit_code_2(shell: Shell, arguments: list[str]) -> None:
    answer = shell(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert "--help" in answer.err


def test_version(shell: Shell) -> None:
    answer = shell("--version")
    assert answer.code == 0
    assert answer.out.startswith("orchestrix ")
