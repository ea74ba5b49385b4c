"""Arguments: reads a line typed in a shell; nothing heavy is imported before its command runs."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NoReturn

from orchestrix.cli.exit_codes import USAGE
from orchestrix.cli.nouns import TABLE
from orchestrix.cli.syntax.declarations import CommandGroup
from orchestrix.cli.syntax.parsing import CONFIG, EXIT_CODES, Parser, add_commands
from orchestrix.version import VERSION

_COMPLETION: Final = 'print the completion of a shell: eval "$(orchestrix --completion bash)"'
_ALIASES: Final = {"help": "--help", "version": "--version"}


def parse(argv: Sequence[str]) -> Callable[[], int]:
    """The command that `argv` asks for, ready to run. Raises `Invalid` for what it cannot read."""
    if not argv:
        return _help
    if argv[0] in _ALIASES:
        argv = [*argv[1:], _ALIASES[argv[0]]]
    arguments = made(argv).parse_args(argv)
    return functools.partial(arguments.run, arguments)


def _help() -> int:
    """For a line without a command: the exit code is that of a wrong one."""
    made(()).print_help(sys.stderr)
    return USAGE


def made(words: Collection[str] | None = None) -> argparse.ArgumentParser:
    """The parser; with the options of those commands alone that are among the words."""
    parser = Parser(
        prog="orchestrix",
        description="Durable command/event sagas on the RabbitMQ and SQL database that you already run.",
        epilog=f"Start with: orchestrix dev\n\n{EXIT_CODES}",
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="say which version this is")
    parser.add_argument("--completion", action=_Completion, choices=("bash", "zsh"), help=_COMPLETION)
    parser.add_argument(*CONFIG.flags, help=CONFIG.about, **CONFIG.more)
    add_commands(parser, TABLE, words)
    for group in TABLE:
        for command in group.commands if isinstance(group, CommandGroup) else ():
            parser.groups.setdefault(command.name, []).append(group.name)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(f"orchestrix {VERSION}")
        parser.exit()


class _Completion(argparse.Action):
    """Completion of all commands: `eval "$(orchestrix --completion bash)"`."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, *_: Any) -> NoReturn:
        import shtab

        print(shtab.complete(made(), values))
        parser.exit()
