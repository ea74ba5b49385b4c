"""How is a future answered that may have its answer already?"""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def resolve(future: asyncio.Future[T], value: T) -> None:
    """Unless it has one, the future's answer is `value`."""
    if not future.done():
        future.set_result(value)


def refuse(future: asyncio.Future[None], error: Exception) -> None:
    """Unless it has an answer, the future raises `error`."""
    if not future.done():
        future.set_exception(error)
