"""Which function does the work of which command?"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from app.errors import ConfigError
from sagas.engine.messages import Command
from sagas.engine.wanted import brief

from .context import Context
from .functions import checked, place_of

Output: TypeAlias = Mapping[str, Any] | None
Handler: TypeAlias = Callable[[Context, Command], Output | Awaitable[Output]]
H = TypeVar("H", bound=Callable[..., Any])


class Registration(NamedTuple):
    """A function that `handles` has seen."""

    command: str
    handler: Handler


registered: list[Registration] = []


def handles(command: str) -> Callable[[H], H]:
    """Makes a function the handler of `command` (`cmd.…`).

    It is called with the `Context` and the `Command`; the mapping that it returns is the data of the success event. An
    `async def` runs in the worker's event loop and is cancelled when the step's time is over; a `def` runs in a thread
    of its own, which nothing can cancel: a long one asks `context.remaining`.
    """

    if not isinstance(command, str) or not command.startswith("cmd."):
        what = command if isinstance(command, str) else place_of(command) if callable(command) else brief(command)
        raise ConfigError(f'@handles({what}): write the command\'s name, as in @handles("cmd.createGitRepo")')

    def register(handler: H) -> H:
        checked(handler, 2, "two arguments, the context and the command")
        registered.append(Registration(command, handler))
        return handler

    return register


class HandlerTable(Mapping[str, Handler]):
    """One handler a command."""

    def __init__(self, registrations: Iterable[tuple[str, Handler]] = ()) -> None:
        self._handlers: dict[str, Handler] = {}
        for command, handler in registrations:
            self.add(command, handler)

    def add(self, command: str, handler: Handler) -> None:
        """Raises `ConfigError` if another function handles the command already."""
        known = self._handlers.setdefault(command, handler)
        if known is not handler:
            raise ConfigError(f"{command} has two handlers, {place_of(known)} and {place_of(handler)}: remove one")

    def __getitem__(self, command: str) -> Handler:
        return self._handlers[command]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)
