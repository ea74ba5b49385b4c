"""Output validation: checks that what an author's function returned can be sent as JSON."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from orchestrix.saga.messages import MAX_DATA, UnreadableMessage, dump, explained, load
from orchestrix.saga.validation.arguments import called
from orchestrix.saga.validation.json_values import json_problem
from orchestrix.worker.errors import text_of


def sendable(output: object) -> dict[str, Any] | None:
    """`output` as its reader will have it. Raises `ValueError` with a sentence that says where it cannot be sent."""
    if output is None:
        return None
    if not isinstance(output, Mapping):
        raise ValueError(f"it is {called(output)}{_instead(output)}")
    return carried(output, MAX_DATA)


def carried(value: Mapping[Any, Any], limit: int) -> dict[str, Any]:
    """`value` as the reader of a message will have it; at most `limit` bytes of JSON.

    Raises `ValueError` with a sentence that says where it cannot be sent.
    """
    try:
        return _read(dict(value), limit)
    except (TypeError, ValueError, RecursionError, UnreadableMessage) as bad:
        raise ValueError(explained(bad)) from bad
    except BaseException as broken:  # of a mapping of the author's own
        raise ValueError(f"it cannot be read: {type(broken).__name__}: {text_of(broken)}") from broken


def _read(plain: dict[Any, Any], limit: int) -> dict[str, Any]:
    """Only what does not survive the round trip is checked part by part, because that takes far longer than JSON."""
    found: dict[str, Any] | None = None
    try:
        body = dump(plain)
        if len(body) <= limit:
            found = load(b'{"data":%b}' % body)["data"]
    except (TypeError, ValueError, RecursionError, UnreadableMessage):
        _refuse(json_problem(plain))
        raise
    if found is None:
        raise ValueError(f"it has {len(body)} bytes; at most {limit} are allowed")
    if found != plain:  # a key that is not a string comes back as one
        _refuse(json_problem(plain))
    return found


def _refuse(wrong: str | None) -> None:
    if wrong is not None:
        raise ValueError(wrong)


def _instead(output: object) -> str:
    if inspect.iscoroutine(output):
        output.close()  # it is never awaited, and Python warns of that here
    if inspect.isawaitable(output):
        return ": an await is missing; write return await … in an async def"
    if isinstance(output, BaseModel):
        return ': return its .model_dump(mode="json")'
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return ": return dataclasses.asdict(…) of it"
    return ": return a mapping, or None"
