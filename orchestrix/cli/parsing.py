"""Parsing: makes commands, and the options that many of them share."""

from __future__ import annotations

import argparse
import functools
import importlib
import re
from collections.abc import Callable
from typing import Any, NoReturn

Command = Callable[[argparse.Namespace], int]

LIMIT = 1, 200
_BELOW_NOTHING = re.compile(r"-\d[\d.]*[a-z]*")
"""Negative numbers and times are no options: whoever gives one is to read what is wrong with it."""
_AN_ID = "0199c2a4-5b1e-7f3a-9c55-7b1f0c9f6d11"
EXIT_CODES = "exit codes: 0 ok, 1 saga or check failed, 2 usage, 3 not found, 4 conflict, 5 unreachable"


class Parser(argparse.ArgumentParser):
    """argparse with our error messages, and without abbreviated options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self._negative_number_matcher = _BELOW_NOTHING

    def error(self, message: str) -> NoReturn:
        from orchestrix.errors import Invalid

        raise Invalid(f"{message}: see `{self.prog} --help`")


def add_reason(command: argparse.ArgumentParser) -> None:
    command.add_argument("--reason", metavar="TEXT", help="why (by hand, and who you are here)")


def add_key(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="asking again with the same key does nothing more, but gives the same answer (a fresh one)",
    )


def add_client(command: argparse.ArgumentParser) -> None:
    command.add_argument("--api", metavar="URL", help="the API (ORCHESTRIX_API_URL, else the dev of this folder)")
    command.add_argument(
        "--token", metavar="SECRET", help="who asks (better as ORCHESTRIX_API__TOKEN: others see your arguments)"
    )
    add_output(command)


def add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", dest="output", choices=("table", "json"), default="table", help="json is for scripts")


def add_urls(command: argparse.ArgumentParser) -> None:
    add_database_url(command)
    command.add_argument(
        "--broker-url", metavar="URL", help="amqp://… (better as ORCHESTRIX_BROKER_URL: others see your arguments)"
    )


def add_database_url(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--database-url", metavar="URL", help="(better as ORCHESTRIX_DATABASE_URL: others see your arguments)"
    )


def add_config(command: argparse.ArgumentParser, **options: Any) -> None:
    about = "the settings (ORCHESTRIX_CONFIG, else ./orchestrix.toml)"
    command.add_argument("--config", metavar="FILE", help=about, **options)


def group(commands: Any, name: str, meaning: str) -> Any:
    """Commands that begin with `name`."""
    first = commands.add_parser(name, help=meaning, description=meaning, epilog=EXIT_CODES)
    return first.add_subparsers(title="commands", metavar="COMMAND", dest="action", required=True)


def leaf(commands: Any, name: str, where: str, meaning: str) -> argparse.ArgumentParser:
    """The command `name`, which is the function `where`: module and name, as `sagas:show`."""
    made: argparse.ArgumentParser = commands.add_parser(name, help=meaning, description=meaning, epilog=EXIT_CODES)
    add_config(made, default=argparse.SUPPRESS)
    made.set_defaults(run=functools.partial(_run, where))
    return made


def _run(where: str, arguments: argparse.Namespace) -> int:
    module, name = where.split(":")
    command: Command = getattr(importlib.import_module(f"orchestrix.cli.{module}"), name)
    return command(arguments)


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
