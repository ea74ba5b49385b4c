"""Parsing: the parser of a table of commands, and readers of single values."""

from __future__ import annotations

import argparse
import functools
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

from orchestrix.cli.syntax.declarations import CommandGroup, OneOf, Option, ShellCommand, option, switch

_BELOW_NOTHING = re.compile(r"-\d[\d.]*[a-z]*")
"""Negative numbers and times are no options: whoever gives one is to read what is wrong with it."""
_FEW_GROUPS = 3
_AN_ID = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"
EXIT_CODES = """exit codes:
  0 ok, 1 saga or check failed, 2 usage, 3 not found, 4 conflict, 5 unreachable,
  6 not ended yet"""
CONFIG = option("--config", "the settings (ORCHESTRIX_CONFIG, else ./orchestrix.toml)", "FILE")
OUTPUT = option(
    "-o", "wide cuts nothing, json is for scripts", dest="output", choices=("table", "wide", "json"), default="table"
)
UTC = switch("--utc", "show times in UTC instead of how long ago they were")
YES = switch("--yes", "do not ask")
CLIENT = (
    option("--api", "the API (ORCHESTRIX_API_URL, else the dev of this folder)", "URL"),
    option("--token", "who asks (prefer ORCHESTRIX_API__TOKEN: arguments are visible in ps)", "SECRET"),
    OUTPUT,
    UTC,
)
KEY = option(
    "--idempotency-key",
    "asking again with the same key does nothing more, but gives the same answer (a fresh one)",
    "KEY",
)


class Parser(argparse.ArgumentParser):
    """argparse with our error messages, and without abbreviated options."""

    def __init__(self, **options: Any) -> None:
        form = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=form, **options)
        self._negative_number_matcher = _BELOW_NOTHING

        self._typed: list[str] = []
        self.groups: dict[str, list[str]] = {}
        """Which groups have a command of a name."""

    def error(self, message: str) -> NoReturn:
        from orchestrix.errors import Invalid

        if "required: SAGA" in message:
            message += " (`orchestrix sagas definitions` lists them)"
        raise Invalid(f"{message}{' See' if message.endswith('?') else ': see'} `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """argparse's, but an unknown argument is an error of the command that it was typed behind."""
        self._typed = list(args)
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self._refuse(rest)
        return found, rest

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        options = [word for word in unknown if word.startswith("-")]
        hint = did_you_mean(options[0].partition("=")[0], self._option_string_actions) if options else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if not isinstance(action, argparse._SubParsersAction) or value in action.choices:
            super()._check_value(action, value)
            return
        before = self._typed[: self._typed.index(value)] if value in self._typed else []
        if options := [word for word in before if word.startswith("-") and word not in self._option_string_actions]:
            self._refuse(options)
        self.error(f"no command {value!r}{self._in_groups(value) or did_you_mean(value, action.choices)}")

    def _in_groups(self, command: str) -> str:
        """The question, if it stands in a few groups."""
        groups = self.groups.get(command, ())
        lines = " or ".join(f"`{self.prog} {group} {command}`" for group in groups)
        return f", did you mean {lines}?" if 0 < len(groups) <= _FEW_GROUPS else ""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The question, if one of them is near."""
    from difflib import get_close_matches

    near = get_close_matches(given, list(known), 1)
    return f", did you mean {near[0]}?" if near else ""


def add_commands(
    parser: argparse.ArgumentParser, table: Iterable[CommandGroup | ShellCommand], words: Collection[str] | None
) -> None:
    """The commands of the table, but options of those alone that are among the words; of all without words."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for entry in table:
        typed = words is None or entry.name in words
        about, epilog = entry.about, _epilog(entry)
        made = commands.add_parser(entry.name, help=about, description=about, epilog=epilog, add_help=typed)
        if not typed:
            continue
        if isinstance(entry, CommandGroup):
            add_commands(made, entry.commands, words)
        else:
            _add_options(made, entry, words or ())


def _epilog(entry: CommandGroup | ShellCommand) -> str:
    if isinstance(entry, CommandGroup):
        return EXIT_CODES
    lines = [f"  orchestrix {line}" for line in entry.example.splitlines()]
    return "\n".join([f"example{'s' * (len(lines) > 1)}:", *lines, "", EXIT_CODES])


def _add_options(made: argparse.ArgumentParser, command: ShellCommand, words: Collection[str]) -> None:
    made.set_defaults(run=functools.partial(_run, command), **command.fixed)
    made.add_argument(*CONFIG.flags, help=CONFIG.about, default=argparse.SUPPRESS, **CONFIG.more)
    also = (*((KEY,) if command.keyed else ()), *((YES,) if command.question else ()))
    options = [_left_out(one, words) for one in command.options]
    # One that is left out takes the last word, if there is one too many: the command can say what is wrong with it.
    options.sort(key=lambda one: isinstance(one, Option) and one.more.get("nargs") == "?" and bool(one.unless))
    for entry in (*options, *also, *(CLIENT if command.client else ())):
        if isinstance(entry, OneOf):
            chosen = made.add_mutually_exclusive_group(required=entry.required)
            for one in entry.options:
                _add(chosen, one)
        else:
            _add(made, entry)


def _left_out(one: Option | OneOf, words: Collection[str]) -> Option | OneOf:
    """The option, which need not be given where the line has the one that takes its place."""
    if isinstance(one, OneOf) or not one.unless:
        return one
    there = any(word.partition("=")[0] == one.unless for word in words)
    return one._replace(more={**one.more, "nargs": "?"}) if there else one


def _add(parser: Any, one: Option) -> None:
    parser.add_argument(*one.flags, help=one.about, **one.more)


def _run(command: ShellCommand, arguments: argparse.Namespace) -> int:
    module, name = command.run.split(":")
    arguments.declared = command
    code: int = getattr(importlib.import_module(f"orchestrix.cli.{module}"), name)(arguments)
    return code


def whole(low: int, high: int) -> Callable[[str], int]:
    """A reader of whole numbers from `low` to `high`."""

    def read(text: str) -> int:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{text[:40]!r} is no whole number from {low} to {high}")
        return number

    return read


def uuid(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text.lower(), re.ASCII):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is no id: write it as `list` shows it, like {_AN_ID}")
    return text.lower()


def longer(text: str) -> str:
    """`text`, if it may say how much longer; the API reads it."""
    if text.startswith("-"):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} would make it shorter: write how much longer, as 30s, 5m or 2h, or when it ends with --at"
        )
    return text


def renamed(text: str) -> tuple[str, str]:
    """The old and the new name of one thing."""
    old, equals, new = text.partition("=")
    if not (equals and old.strip() and new.strip()) or "=" in new:
        raise argparse.ArgumentTypeError(f"{text[:80]!r} names no pair: write OLD=NEW, as WRAPPING=PACKAGING")
    return old.strip(), new.strip()


def seconds(text: str) -> float:
    try:
        number = float(text.removesuffix("s"))
    except ValueError:
        number = -1.0
    if not 0.001 <= number <= 86_400:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is no time: write seconds, as 20 or 20s, from 0.001 up to a day (86400)"
        )
    return number
