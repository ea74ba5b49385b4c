"""Member arguments: checks what an author gives to a shard member. Each check raises `ValueError`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from orchestrix.domain.shards.members import MOST_SHARDS, MOST_WEIGHT
from orchestrix.domain.shards.messages import LONGEST_GRACE_MS
from orchestrix.saga.validation.names import normal

LONGEST_GRACE_S: Final = LONGEST_GRACE_MS / 1000
LONGEST_TIMEOUT_S: Final = 3600.0


def checked_name(parameter: str, name: str) -> str:
    """A service's name or a worker's id."""
    if not isinstance(name, str):
        raise ValueError(f"{parameter} {name!r}: write a string")
    try:
        return normal(name)
    except ValueError as error:
        raise ValueError(f"{parameter} {name[:100]!r}: {error}") from None


def checked_shard_count(count: int) -> int:
    return _whole("shard_count", count, 1, MOST_SHARDS)


def checked_member_weight(weight: int) -> int:
    return _whole("weight", weight, 0, MOST_WEIGHT)


def checked_seconds(parameter: str, value: float, least: float, most: float) -> float:
    """Seconds from `least` to `most`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:
        raise ValueError(f"{parameter} {value!r}: write seconds, from {least:g} to {most:g}")
    return float(value)


def checked_shard_function(parameter: str, function: Callable[..., object]) -> None:
    """An async function of a shard and its epoch."""
    example = f"write async def {parameter.removeprefix('on_')}(shard: int, epoch: int)"
    if not _is_async(function):
        raise ValueError(f"{parameter} {function!r} is not an async function: {example}")
    try:
        inspect.signature(function).bind(0, 1)
    except TypeError as error:
        raise ValueError(
            f"{parameter} {function!r} cannot be called with a shard and an epoch ({error}): {example}"
        ) from None


def _is_async(function: object) -> bool:
    while isinstance(function, partial):
        function = function.func
    call = vars(type(function)).get("__call__")  # of an object that can be called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _whole(parameter: str, value: int, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{parameter} {value!r}: write a whole number from {least} to {most}")
    return value
