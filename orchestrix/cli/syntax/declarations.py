"""Declarations: what a command is made of; its parser, its help, its request and its table are made from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

CALL: Final = "commands.call:call"
NULL: Final = object()
"""What an option sends as JSON's `null`."""


class Option(NamedTuple):
    """One argument of a command.

    `to` is where its value goes: `?name` to the query, `name` or `outer.name` to the body, nothing for what the command
    reads itself. `read` makes of the text and the flag what is sent. `more` is for argparse.
    """

    flags: tuple[str, ...]
    about: str
    to: str
    read: Callable[[str, str], Any] | None
    more: Mapping[str, Any]

    @property
    def dest(self) -> str:
        """Its name among the arguments."""
        longest = max(self.flags, key=len)
        return str(self.more.get("dest") or longest.lstrip("-").replace("-", "_"))


class OneOf(NamedTuple):
    """Options of which only one may be given."""

    options: tuple[Option, ...]
    required: bool = False


class Columns(NamedTuple):
    """The columns of a table: `field=HEAD` or `field`, whose head is then its name; `_` is a blank of a head."""

    fields: tuple[str, ...]
    heads: tuple[str, ...]


class ShellCommand(NamedTuple):
    """A command. `run` is its function, as `module:function`; for most it is the one that calls the API.

    `request` is the method and path of the call, and `view` how the answer is shown: the columns of its items, a
    function of `views`, or nothing for one name and value a line. `keyed` says that each call has a key of
    its own by which it is done once. `example` is a line to type, without the program's name.
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
    **more: Any,
) -> Option:
    """An option: `flags` are its names, separated by blanks; without a hyphen it is a positional argument."""
    if metavar is not None:
        more["metavar"] = metavar
    return Option(tuple(flags.split()), about, to, read, more)


def switch(flags: str, about: str, to: str = "") -> Option:
    """An option without a value."""
    return option(flags, about, to=to, action="store_true")


def columns(spec: str) -> Columns:
    """The columns of a text with one `field=HEAD` or `field` a word."""
    pairs = [word.partition("=") for word in spec.split()]
    return Columns(
        tuple(name for name, _, _ in pairs), tuple((head or name).replace("_", " ").upper() for name, _, head in pairs)
    )
