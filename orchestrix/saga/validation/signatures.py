"""Signatures: checks the arguments with which an author calls a function of ours, and says what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter
from typing import Any, Final, ParamSpec, TypeVar

from orchestrix.saga.errors import DefinitionError
from orchestrix.saga.validation.arguments import brief

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_SHOWN: Final = 3
"""How many arguments of a wrong call are shown."""
_PLACES: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def called_as(
    example: str, refusal: Callable[[str], Exception], name: str | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Raises `refusal` for missing, unknown or surplus arguments, with `example` as the right form.

    `name` is what the author calls it; that of the function, unless it is given.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        whole = list(inspect.signature(function).parameters.values())
        own = sum(one.name == "self" for one in whole[:1])  # not written by the author
        taken = inspect.Signature(whole[own:])

        @wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> R:
            try:
                return function(*args, **named)
            except TypeError:
                wrong = _mismatch(taken, args[own:], named)
                if wrong is None:
                    raise
            raise refusal(f"{_shown(name or function.__name__, args[own:], named)}: {wrong}: write {example}")

        return call

    return decorate


def made_as(example: str, refusal: Callable[[str], Exception] = DefinitionError) -> Callable[[type[T]], type[T]]:
    """The same for the constructor of a class."""

    def decorate(made: type[T]) -> type[T]:
        init: Any = made.__init__
        setattr(made, "__init__", called_as(example, refusal, made.__name__)(init))  # noqa: B010
        return made

    return decorate


def _mismatch(taken: inspect.Signature, args: Sequence[object], named: Mapping[str, object]) -> str | None:
    """What is wrong with the arguments; None if the function takes them."""
    try:
        taken.bind(*args, **named)
    except TypeError:
        found = _unknown(taken, named) or _too_many(taken, args) or _repeated(taken, args, named)
        return found or _missing(taken, args, named)
    return None


def _unknown(taken: inspect.Signature, named: Mapping[str, object]) -> str | None:
    for one in named:
        if one not in taken.parameters:
            near = get_close_matches(one, taken.parameters, 1)
            meant = f"; did you mean {near[0]}=?" if near else ""
            return f"unknown argument {one}={meant}"
    return None


def _too_many(taken: inspect.Signature, args: Sequence[object]) -> str | None:
    most = sum(one.kind in _PLACES for one in taken.parameters.values())
    if len(args) <= most:
        return None
    counted = "one argument" if most == 1 else f"{most or 'no'} arguments"
    return f"it takes {counted} without a name, not {len(args)}"


def _repeated(taken: inspect.Signature, args: Sequence[object], named: Mapping[str, object]) -> str | None:
    both = [name for name, _ in zip(taken.parameters, args, strict=False) if name in named]
    return f"{both[0]} was given more than once" if both else None


def _missing(taken: inspect.Signature, args: Sequence[object], named: Mapping[str, object]) -> str:
    later = list(taken.parameters.values())[len(args) :]
    names = [one.name for one in later if one.default is Parameter.empty and one.name not in named]
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} missing"


def _shown(name: str, args: Sequence[object], named: Mapping[str, object]) -> str:
    """The call, as the author has written it."""
    parts = [brief(one) for one in args] + [f"{key}={brief(value)}" for key, value in named.items()]
    return f"{name}({', '.join(parts[:_SHOWN])}{', …' if len(parts) > _SHOWN else ''})"
