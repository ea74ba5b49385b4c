"""Handlers: registers which function handles which command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from orchestrix.errors import ConfigError
from orchestrix.saga.errors import DefinitionError
from orchestrix.saga.messages import Command
from orchestrix.saga.steps import check_command
from orchestrix.saga.validation.arguments import brief
from orchestrix.saga.validation.signatures import called_as
from orchestrix.worker.function_checks import checked, describe_function

from .context import Context

Output: TypeAlias = Mapping[str, Any] | None
Handler: TypeAlias = Callable[[Context, Command], Output | Awaitable[Output]]
H = TypeVar("H", bound=Callable[..., Any])
TAKES: Final = (2, "two arguments, the context and the command")


class Registration(NamedTuple):
    """A function that `handles` has seen."""

    command: str
    handler: Handler


registered: list[Registration] = []


@called_as('@handles("cmd.createGitRepo")', ConfigError, "@handles")
def handles(command: str) -> Callable[[H], H]:
    """Makes a function the handler of `command` (`cmd.…`).

    It is called with the `Context` and the `Command`; the mapping that it returns is the data of the success event. An
    `async def` runs in the worker's event loop and is cancelled when the step's time is over; a `def` runs in a thread
    of its own, which nothing can cancel: a long one asks `context.remaining`. Raises `ConfigError`.
    """
    _check(command)

    def register(handler: H) -> H:
        checked(handler, *TAKES)
        registered.append(Registration(command, handler))
        return handler

    return register


def _check(command: object) -> None:
    """Raises `ConfigError` for what cannot be a command's name."""
    what = describe_function(command) if callable(command) else brief(command)
    if not isinstance(command, str) or not command.startswith("cmd."):
        raise ConfigError(f'@handles({what}): write the command\'s name, as in @handles("cmd.createGitRepo")')
    try:
        check_command(f"@handles({what})", command)
    except DefinitionError as wrong:
        raise ConfigError(str(wrong)) from None


class HandlerTable(Mapping[str, Handler]):
    """One handler per command."""

    def __init__(self, registrations: Iterable[tuple[str, Handler]] = ()) -> None:
        self._handlers: dict[str, Handler] = {}
        self.settings: dict[str, object] = {}
        """What the context of a command's handler has as its `settings`."""
        for command, handler in registrations:
            self.add(command, handler)

    def add(self, command: str, handler: Handler) -> None:
        """Raises `ConfigError` for what cannot handle it, or if the command has a handler already."""
        checked(handler, *TAKES)
        known = self._handlers.setdefault(command, handler)
        if known is not handler:
            raise ConfigError(
                f"{command} has two handlers, {describe_function(known)} and {describe_function(handler)}: remove one"
            )

    def __getitem__(self, command: str) -> Handler:
        return self._handlers[command]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)
