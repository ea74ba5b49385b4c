"""Function checks: whether a function of an author's can handle commands or jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from orchestrix.errors import ConfigError
from orchestrix.saga.validation.arguments import brief

LIBRARY_PACKAGES: Final = frozenset({"orchestrix"})
"""The packages whose lines are not the author's."""


def is_ours(frame: FrameType) -> bool:
    """Whether the frame runs a line of ours, and none of the author's or of a library that the author called."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in LIBRARY_PACKAGES


def describe_function(function: object) -> str:
    """The function, for people."""
    name = getattr(function, "__qualname__", None)
    return f"{getattr(function, '__module__', '?')}.{name}" if name is not None else brief(function)


def checked(function: Callable[..., Any], count: int, arguments: str) -> None:
    """Raises `ConfigError` unless it takes `count` `arguments`, and answers by what it returns."""
    if not callable(function):
        raise ConfigError(
            f"{describe_function(function)} is not a function: write def or async def below the decorator"
        )
    if isinstance(function, type):
        raise ConfigError(f"{describe_function(function)} is a class: write def or async def below the decorator")
    if (kind := _yielding(function)) is not None:
        raise ConfigError(
            f"{describe_function(function)} is {kind} function (it has a yield): return a mapping, or None"
        )
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        raise ConfigError(f"{describe_function(function)} must take {arguments}") from None
    except ValueError:  # a function written in C has no signature
        pass


def _yielding(function: Callable[..., Any]) -> str | None:
    """The kind of generator that it is, if any; of a callable object, its `__call__` counts."""
    for one in (function, type(function).__call__):
        if inspect.isasyncgenfunction(one):
            return "an async generator"
        if inspect.isgeneratorfunction(one):
            return "a generator"
    return None
