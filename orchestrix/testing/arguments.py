"""Arguments: checks the values that a scenario was given, and says what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orchestrix.errors import ConfigError
from orchestrix.saga.definition import Saga
from orchestrix.saga.validation.arguments import (
    FLAG,
    REASON,
    TEXT,
    WHOLE,
    ArgumentKind,
    number,
    of,
    perhaps,
    type_problem,
)
from orchestrix.saga.validation.json_values import json_problem
from orchestrix.saga.validation.names import normal

__all__ = [
    "COUNT",
    "FLAG",
    "FUNCTION",
    "NAME",
    "OBJECT",
    "PERCENT",
    "REASON",
    "SAGA",
    "SECTIONS",
    "TEXT",
    "WHOLE",
    "demand",
    "perhaps",
    "plain",
]

OBJECT: Final = of("a mapping", '{"film": "Metropolis"}', Mapping)
SECTIONS: Final = ArgumentKind(
    lambda value: isinstance(value, Mapping) and all(isinstance(one, Mapping) for one in value.values()),
    "a mapping of sections",
    lambda _: '{"mailer": {"sender": "ada"}}',
)
FUNCTION: Final = ArgumentKind(callable, "a function", lambda _: "provider.empty")
SAGA: Final = of("a Saga", "ORDER after ORDER = Saga(…)", Saga)
PERCENT: Final = ArgumentKind(
    lambda value: number(value) and 0 <= float(str(value)) <= 100, "a percentage", lambda _: "50"
)

COUNT: Final = ArgumentKind(
    lambda value: isinstance(value, int) and WHOLE.fits(value) and 1 <= value < 2**31,
    "a whole number from 1",
    lambda _: "1",
)
NAME: Final = ArgumentKind(
    lambda value: isinstance(value, str) and _is_name(value),
    "a string of 1 to 200 characters without white space around it",
    lambda _: '"story"',
)


def _is_name(text: str) -> bool:
    """Whether it is a valid name of a saga instance or of a job."""
    try:
        return normal(text) == text
    except ValueError:
        return False


def plain(call: str, **given: Mapping[str, Any] | None) -> None:
    """Raises `ConfigError` for the first of these parameters of `call` that cannot be sent as JSON."""
    for name, value in given.items():
        if value is not None and (wrong := json_problem(value)) is not None:
            raise ConfigError(f"{call}({name}=…) is not JSON: {wrong}")


def demand(call: str, **given: tuple[Any, ArgumentKind]) -> None:
    """Raises `ConfigError` for the first of these parameters of `call` that is not of its kind."""
    for name, (value, kind) in given.items():
        if (wrong := type_problem(f"{call}(", name, value, kind)) is not None:
            raise ConfigError(wrong)
