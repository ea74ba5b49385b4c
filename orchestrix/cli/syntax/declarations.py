"""Declarations: what a command is made of; its parser, its help, its request and its table are made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

CALL: Final = "commands.api_commands:call"
NULL: Final = object()
"""What an option sends as JSON's `null`."""


class Option(NamedTuple):
    """One argument of a command.

    `to` is where its value goes: `?name` to the query, `name` or `outer.name` to the body, nothing for what the command
    reads itself. `read` makes of the text and the flag what is sent. `more` is for argparse. A positional argument
    may be left out where the line has the option `unless`.
    """

    flags: tuple[str, ...]
    about: str
    to: str
    read: Callable[[str, str], Any] | None
    more: Mapping[str, Any]
    unless: str = ""

    @property
    def dest(self) -> str:
        """Its name among the arguments."""
        longest = max(self.flags, key=len)
        return str(self.more.get("dest") or longest.lstrip("-").replace("-", "_"))


class OneOf(NamedTuple):
    """Options of which only one may be given."""

    options: tuple[Option, ...]
    required: bool = False


class Column(NamedTuple):
    """One column of a table: the fields of which the first one that an item has is shown, and its head.

    `wide`: shown by `-o wide` alone. `perhaps`: shown where one of the items has it.
    """

    fields: tuple[str, ...]
    head: str
    wide: bool = False
    perhaps: bool = False


Columns = tuple[Column, ...]


class ShellCommand(NamedTuple):
    """A command. `run` is its function, as `module:function`; for most it is the one that calls the API.

    `request` is the method and path of the call, and `view` how the answer is shown: the columns of its items, a
    function of `views`, or nothing for one name and value a line. `keyed` says that each call has a key of
    its own by which it is done once. `question` is asked on a terminal before what cannot be undone. `example` is a
    line to type, or several, without the program's name.
    """

    name: str
    about: str
    example: str
    options: tuple[Option | OneOf, ...] = ()
    request: str = ""
    view: Columns | str | None = None
    run: str = CALL
    client: bool = True
    keyed: bool = False
    question: str | None = None
    fixed: Mapping[str, Any] = {}

    @property
    def flat(self) -> list[Option]:
        """Its options, also those of which only one may be given."""
        return [one for entry in self.options for one in (entry.options if isinstance(entry, OneOf) else (entry,))]


class CommandGroup(NamedTuple):
    """Commands that begin with `name`."""

    name: str
    about: str
    commands: tuple[ShellCommand, ...]


def option(
    flags: str,
    about: str,
    metavar: str | None = None,
    to: str = "",
    read: Callable[[str, str], Any] | None = None,
    unless: str = "",
    **more: Any,
) -> Option:
    """An option: `flags` are its names, separated by blanks; without a hyphen it is a positional argument."""
    if metavar is not None:
        more["metavar"] = metavar
    return Option(tuple(flags.split()), about, to, read, more, unless)


def switch(flags: str, about: str, to: str = "") -> Option:
    """An option without a value."""
    return option(flags, about, to=to, action="store_true")


def columns(spec: str) -> Columns:
    """The columns of a text with one `field=HEAD` or `field` a word; `_` is a blank of a head.

    `one|other` is a field with a second name; `field+` is shown by `-o wide` alone, `field?` where it is not empty.
    """
    return tuple(_column(*word.partition("=")) for word in spec.split())


def _column(name: str, _: str, head: str) -> Column:
    fields = tuple(name.rstrip("+?").split("|"))
    return Column(fields, head.replace("_", " ") or title(fields[0]), name.endswith("+"), name.endswith("?"))


def title(field: str) -> str:
    """The head for a field without one of its own: `createdBy` is `CREATED BY`, `diedAt` is `DIED`."""
    words = "".join(f" {char}" if char.isupper() else char for char in field).upper()
    return words.removesuffix(" AT") if words != "AT" else words
