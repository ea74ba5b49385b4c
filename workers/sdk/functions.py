"""Can a function of an author's do commands or jobs?"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from app.errors import ConfigError


def place_of(function: object) -> str:
    """The function, for people."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def checked(function: Callable[..., Any], count: int, arguments: str) -> None:
    """Raises `ConfigError` unless it takes `count` `arguments`, and answers by what it returns."""
    if not callable(function):
        raise ConfigError(f"{place_of(function)} is no function: write def or async def below the decorator")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        kind = "an async generator" if inspect.isasyncgenfunction(function) else "a generator"
        raise ConfigError(f"{place_of(function)} is {kind} function, for it has a yield: return a mapping, or None")
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        raise ConfigError(f"{place_of(function)} must take {arguments}") from None
